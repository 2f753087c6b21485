//! Paths inside the workspace, as text. A path that is accepted here names nothing outside by itself; links on it are resolved
//! by the server, below a handle of the workspace's directory.

use crate::Failure;

use super::failures::{FileError, file_failure};

/// The longest path of a request.
pub const PATH_BYTES_MAX: usize = 4_096;
/// How deep a path may lead into the workspace.
pub const PATH_DEPTH_MAX: usize = 64;
/// The longest name of a file on common file systems.
const NAME_BYTES_MAX: usize = 255;

/// A path relative to the workspace: plain names, without `.` and `..`. The workspace itself has no names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkspacePath(Vec<String>);

impl WorkspacePath {
    /// Reads the path of a request. An absolute path must be inside `root`, the workspace's own path without symbolic links.
    pub fn parse(text: &str, root: &str) -> Result<Self, Failure> {
        if text.is_empty() || text.len() > PATH_BYTES_MAX || text.contains('\0') {
            let message = format!("a path must have 1 to {PATH_BYTES_MAX} bytes, and no zero byte");
            return Err(file_failure(FileError::Parse, message));
        }
        let names = match text.starts_with('/') {
            true => below(names(text)?, &names(root)?)?,
            false => names(text)?,
        };
        if names.len() > PATH_DEPTH_MAX || names.iter().any(|name| name.len() > NAME_BYTES_MAX) {
            let message = format!("a path must have at most {PATH_DEPTH_MAX} names of {NAME_BYTES_MAX} bytes");
            return Err(file_failure(FileError::Parse, message));
        }
        Ok(Self(names.into_iter().map(str::to_owned).collect()))
    }

    /// The directory and the name in it. `None` for the workspace itself.
    pub fn split(&self) -> Option<(Self, &str)> {
        let (name, above) = self.0.split_last()?;
        Some((Self(above.to_vec()), name))
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }
}

/// `.` for the workspace itself.
impl std::fmt::Display for WorkspacePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.is_root() {
            true => f.write_str("."),
            false => f.write_str(&self.0.join("/")),
        }
    }
}

/// The names of a path, with `.` and `..` resolved. A path that climbs above its start is refused, even if it returns.
fn names(text: &str) -> Result<Vec<&str>, Failure> {
    let mut names = vec![];
    for part in text.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(names.pop().ok_or_else(outside)?),
            name => names.push(name),
        }
    }
    Ok(names)
}

/// The rest of an absolute path below the workspace.
fn below<'a>(mut names: Vec<&'a str>, root: &[&str]) -> Result<Vec<&'a str>, Failure> {
    match names.starts_with(root) {
        true => Ok(names.split_off(root.len())),
        false => Err(outside()),
    }
}

fn outside() -> Failure {
    file_failure(FileError::Outside, "the path is not inside the workspace")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<String, String> {
        let kind = |failure: Failure| failure.details.unwrap()["errorKind"].as_str().unwrap().to_owned();
        WorkspacePath::parse(text, "/srv/work").map(|path| path.to_string()).map_err(kind)
    }

    #[test]
    fn paths_are_relative_to_the_workspace() {
        for (text, expected) in [
            ("a", "a"),
            ("./a//b/", "a/b"),
            ("a/../b", "b"),
            (".", "."),
            ("a/..", "."),
            ("/srv/work", "."),
            ("/srv/work/a b", "a b"),
            ("/srv/./work/../work/a", "a"),
            ("..a/...", "..a/..."),
            ("\\..\\a", "\\..\\a"),
        ] {
            assert_eq!(parse(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn paths_that_leave_the_workspace_are_refused() {
        for text in
            ["..", "../work/a", "a/../../b", "/", "/srv", "/srv/workshop/a", "/srv/work/../other", "/etc/passwd"]
        {
            assert_eq!(parse(text).unwrap_err(), "path_outside_workspace", "{text}");
        }
        for text in ["", "a\0b", &"a/".repeat(65), &"x".repeat(256), &"x/".repeat(2_049)] {
            assert_eq!(parse(text).unwrap_err(), "parse_error", "{text}");
        }
    }

    proptest! {
        #[test]
        fn an_accepted_path_has_only_plain_names(text in "[a./\\x00é]{0,40}") {
            if let Ok(path) = WorkspacePath::parse(&text, "/a/é") {
                for name in path.names() {
                    prop_assert!(!name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']));
                }
                prop_assert_eq!(WorkspacePath::parse(&path.to_string(), "/a/é").ok(), Some(path));
            }
        }

        #[test]
        fn an_absolute_path_names_what_the_relative_one_does(text in "[ab.][ab./]{0,40}") {
            if let Ok(relative) = WorkspacePath::parse(&text, "/srv/work") {
                let absolute = WorkspacePath::parse(&format!("/srv/work/{text}"), "/srv/work");
                prop_assert_eq!(absolute.ok(), Some(relative));
            }
        }
    }
}
