//! How Codex finds our sandbox for its tools: as a `bwrap` on its PATH, before any other. It is in the home, which tools cannot
//! write to.

use std::{
    ffi::{OsStr, OsString},
    fs::Permissions,
    io,
    os::unix::fs::PermissionsExt,
    path::Path,
};

use crate::guard::{Guard, VERB};

/// The directory of the program, in the home.
const FOLDER: &str = "sandbox";

/// Puts our `bwrap` into the home. Returns the PATH on which Codex finds it.
pub(super) fn install(home: &Path, guard: &Guard, search_path: Option<&OsStr>) -> io::Result<OsString> {
    let folder = home.join(FOLDER);
    std::fs::create_dir_all(&folder)?;
    // The guard may be named by a path of `/proc`, which has another meaning in other processes.
    let own = guard.program.canonicalize()?;
    let own = own.to_str().ok_or_else(|| io::Error::other("the path of this program is no text"))?;
    let script = format!("#!/bin/sh\nexec '{}' {VERB} --tools -- bwrap bwrap \"$@\"\n", own.replace('\'', r"'\''"));
    let program = folder.join("bwrap");
    if std::fs::read(&program).ok().as_deref() != Some(script.as_bytes()) {
        std::fs::write(&program, script)?;
        std::fs::set_permissions(&program, Permissions::from_mode(0o700))?;
    }
    let others = search_path.into_iter().flat_map(std::env::split_paths);
    std::env::join_paths([folder].into_iter().chain(others)).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::{Isolation, Limits};

    #[test]
    fn our_program_is_the_first_bwrap_on_the_path() {
        let home = tempfile::tempdir().unwrap();
        let guard = Guard {
            program: "/proc/self/exe".into(),
            limits: Limits::default(),
            landlock: true,
            isolation: Isolation::None,
        };
        for _ in 0..2 {
            let path = install(home.path(), &guard, Some(OsStr::new("/usr/bin:/bin"))).unwrap();
            let folder = home.path().join(FOLDER);
            assert_eq!(std::env::split_paths(&path).next(), Some(folder.clone()));
            let script = std::fs::read_to_string(folder.join("bwrap")).unwrap();
            let own = std::env::current_exe().unwrap().canonicalize().unwrap();
            assert!(script.contains(&format!("exec '{}' guard --tools", own.display())), "{script}");
        }
    }
}
