//! The system's `git`: without it no repository is checked out, and what a turn changes is unknown.

/// Why there is no git here, with what to do about it. `None` if it is on the PATH.
pub fn git_missing() -> Option<String> {
    let search_path = std::env::var_os("PATH");
    let folders = std::env::split_paths(search_path.as_deref().unwrap_or_default());
    let is_there = folders.map(|folder| folder.join("git")).any(|path| path.is_file());
    (!is_there).then(|| "git is not on the server's PATH; install git where the server runs".to_owned())
}
