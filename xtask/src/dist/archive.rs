//! Checksums and the archive itself, with the system's `sha256sum` and `tar`. Owners, order and times are fixed, so that the same
//! contents give the same archive.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::build::output;
use crate::process::run;

const CHECKSUMS: &str = "SHA256SUMS";

/// Every file below a directory, relative to it and sorted.
pub(crate) fn files_below(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let (mut found, mut left) = (vec![], vec![directory.to_owned()]);
    while let Some(path) = left.pop() {
        for entry in fs::read_dir(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?.flatten() {
            match entry.path() {
                folder if folder.is_dir() => left.push(folder),
                file => found.extend(file.strip_prefix(directory).map(Path::to_owned)),
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Writes the checksums of these files of the directory, in the form that `sha256sum --check` reads.
pub(crate) fn list_checksums(directory: &Path, files: &[PathBuf]) -> Result<(), String> {
    let list = output(Command::new("sha256sum").arg("--").args(files).current_dir(directory))?;
    let path = directory.join(CHECKSUMS);
    fs::write(&path, list).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

/// Packs the folder of this name with this level of gzip, and lists the archive's checksum beside it.
pub(crate) fn pack(parent: &Path, name: &str, out: &Path, level: u8) -> Result<PathBuf, String> {
    let file = PathBuf::from(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.args([
        "--create",
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mtime=@0",
        "--mode=u+w,go=rX",
    ]);
    // Without the name and time that gzip would add.
    tar.arg(format!("--use-compress-program=gzip -n -{level}")).arg("--file").arg(out.join(&file));
    run(tar.arg("--directory").arg(parent).arg(name))?;
    list_checksums(out, std::slice::from_ref(&file))?;
    Ok(out.join(file))
}
