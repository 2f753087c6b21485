//! The system's `git`. Without it no repository can be checked out, and the changes of a turn cannot be determined.

/// Why git cannot be used, and what to do about it. `None` if git is on the PATH.
pub fn git_missing() -> Option<String> {
    let search_path = std::env::var_os("PATH");
    let folders = std::env::split_paths(search_path.as_deref().unwrap_or_default());
    let is_there = folders.map(|folder| folder.join("git")).any(|path| path.is_file());
    (!is_there).then(|| "git is not on the server's PATH; install git where the server runs".to_owned())
}
