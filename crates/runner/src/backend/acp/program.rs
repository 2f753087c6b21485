//! Finds the program of a profile's command. A missing program is reported by name before anything starts.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

/// The program that a command names: a path, or a name that is looked up as a shell does.
pub fn find(command: &[String], search_path: Option<&OsStr>) -> Result<PathBuf, String> {
    let Some(name) = command.first().filter(|name| !name.is_empty()) else {
        return Err("the profile names no program".into());
    };
    let path = Path::new(name);
    // Relative to the backend's working directory, which is not known here.
    if path.is_relative() && path.components().count() > 1 {
        return Ok(path.to_owned());
    }
    let named = path.is_absolute().then(|| path.to_owned());
    let looked_up = std::env::split_paths(search_path.unwrap_or_default()).map(|folder| folder.join(path));
    let found = named.clone().into_iter().chain(looked_up.filter(|_| named.is_none())).find(|path| path.is_file());
    found.ok_or_else(|| {
        let reason = if path.is_absolute() { "there is no such file" } else { "it is not in the server's PATH" };
        format!("the profile's program {name:?} is not installed: {reason}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_looked_up_like_a_shell_and_named_if_missing() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("agent"), "").unwrap();
        let find = |name: &str| find(&[name.to_owned()], Some(directory.path().as_os_str()));
        let there = directory.path().join("agent");
        assert_eq!((find("agent"), find(there.to_str().unwrap())), (Ok(there.clone()), Ok(there)));
        assert_eq!(find("bin/agent"), Ok("bin/agent".into()));
        let missing = find("nosuch").unwrap_err();
        assert_eq!(missing, "the profile's program \"nosuch\" is not installed: it is not in the server's PATH");
        assert!(find("/nowhere/agent").unwrap_err().ends_with("there is no such file"));
    }
}
