//! The program of a profile's command: whether it is there at all. What is missing is said by name, before anything starts.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

/// The program that a command names: a path, or a name to be looked up as a shell would.
pub fn find(command: &[String], search_path: Option<&OsStr>) -> Result<PathBuf, String> {
    let Some(name) = command.first().filter(|name| !name.is_empty()) else {
        return Err("the profile names no program".into());
    };
    let path = Path::new(name);
    // Relative to wherever the agent works, which is not known here.
    if path.is_relative() && path.components().count() > 1 {
        return Ok(path.to_owned());
    }
    let named = path.is_absolute().then(|| path.to_owned());
    let looked_up = std::env::split_paths(search_path.unwrap_or_default()).map(|folder| folder.join(path));
    let found = named.clone().into_iter().chain(looked_up.filter(|_| named.is_none())).find(|path| path.is_file());
    found.ok_or_else(|| {
        let place = if path.is_absolute() { "there is no such file" } else { "it is not in the server's PATH" };
        format!("the profile's program {name:?} is not installed: {place}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_looked_up_as_a_shell_would_and_named_when_it_is_missing() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("agent"), "").unwrap();
        let find = |name: &str| find(&[name.to_owned()], Some(place.path().as_os_str()));
        let there = place.path().join("agent");
        assert_eq!((find("agent"), find(there.to_str().unwrap())), (Ok(there.clone()), Ok(there)));
        assert_eq!(find("bin/agent"), Ok("bin/agent".into()));
        let missing = find("nosuch").unwrap_err();
        assert_eq!(missing, "the profile's program \"nosuch\" is not installed: it is not in the server's PATH");
        assert!(find("/nowhere/agent").unwrap_err().ends_with("there is no such file"));
    }
}
