//! Where the programs of a Postgres installation are.

use std::fs;
use std::path::{Path, PathBuf};

/// The directory of the server's programs: the one on `PATH`, otherwise the newest that Debian's packages installed.
/// `None` if there is no complete installation.
pub fn find_binaries() -> Option<PathBuf> {
    let complete =
        |directory: &Path| ["postgres", "initdb", "pg_ctl"].iter().all(|name| directory.join(name).is_file());
    // The link's target, because only that directory has all the other programs.
    let on_path = find_on_path("postgres").and_then(|server| fs::canonicalize(server).ok());
    let on_path = on_path.and_then(|server| server.parent().map(Path::to_owned));
    if let Some(directory) = on_path.filter(|directory| complete(directory)) {
        return Some(directory);
    }
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let numbered = versions.filter_map(|entry| Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path())));
    let mut directories: Vec<_> = numbered.map(|(version, path)| (version, path.join("bin"))).collect();
    directories.sort();
    directories.into_iter().map(|(_, path)| path).rfind(|path| complete(path))
}

pub(super) fn find_on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|candidate| candidate.is_file())
}
