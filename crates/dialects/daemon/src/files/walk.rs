//! Search for paths by a pattern. Links are never followed, so that the search ends, and ends inside the workspace.

use ostler_protocol::{
    Failure,
    daemon::files::{GlobPattern, PATH_DEPTH_MAX, WorkspacePath},
};
use rustix::fs::FileType;

use super::{
    read::entries,
    root::{Root, failed},
};

/// How many entries of directories one search looks at.
const VISITED_MAX: usize = 200_000;
/// After how many entries of one directory the search looks at the time.
const LOOK_EVERY: usize = 1_000;
/// How many bytes of paths one search holds.
const PATHS_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What a search found.
pub(crate) struct Matches {
    /// Relative to the workspace, in order.
    pub paths: Vec<String>,
    /// Whether the search ended at one of its bounds.
    pub truncated: bool,
}

/// What bounds a search beside its own limits.
pub(super) struct SearchBounds<'a> {
    pub results_max: usize,
    /// Whether the search has taken too long.
    pub is_late: &'a dyn Fn() -> bool,
}

/// Finds the paths below a directory that match a pattern.
pub(super) fn glob(
    root: &Root,
    start: &WorkspacePath,
    pattern: &GlobPattern,
    bounds: &SearchBounds<'_>,
) -> Result<Matches, Failure> {
    // The directory that the search starts in must exist; others may be gone when the search comes to them.
    root.open_directory(start)?;
    let mut search = Search { root, start, pattern, bounds, visited: 0, bytes: 0, paths: vec![], truncated: false };
    let mut waiting = vec![String::new()];
    while let Some(directory) = waiting.pop() {
        if search.is_over() {
            search.truncated = true;
            break;
        }
        search.bytes -= directory.len();
        waiting.extend(search.visit(&directory)?);
    }
    search.paths.sort();
    Ok(Matches { paths: search.paths, truncated: search.truncated })
}

struct Search<'a> {
    root: &'a Root,
    start: &'a WorkspacePath,
    pattern: &'a GlobPattern,
    bounds: &'a SearchBounds<'a>,
    visited: usize,
    /// Of the paths found and of the directories that wait.
    bytes: usize,
    paths: Vec<String>,
    truncated: bool,
}

impl Search<'_> {
    fn is_over(&self) -> bool {
        self.visited >= VISITED_MAX || self.bytes >= PATHS_BYTES_MAX || (self.bounds.is_late)()
    }

    /// Looks at the entries of a directory, by its path below the start. The directories below it that may have matches, last
    /// one first.
    fn visit(&mut self, directory: &str) -> Result<Vec<String>, Failure> {
        let Some(path) = self.below_start(directory) else {
            self.truncated = true;
            return Ok(vec![]);
        };
        // A directory that is gone, or that may not be read, has no matches.
        let Ok(handle) = self.root.open_directory(&path) else { return Ok(vec![]) };
        let found = entries(&handle, VISITED_MAX - self.visited).map_err(|error| failed(&path, error))?;
        self.visited += found.names.len();
        self.truncated |= found.truncated;
        let mut below = vec![];
        for (number, (name, kind)) in found.names.into_iter().enumerate() {
            if number % LOOK_EVERY == LOOK_EVERY - 1 && (self.bounds.is_late)() {
                self.truncated = true;
                self.visited = VISITED_MAX;
                return Ok(vec![]);
            }
            // A name that is not text cannot be requested either.
            let Ok(name) = String::from_utf8(name) else { continue };
            let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
            if self.pattern.matches(&path) && !self.add(&path) {
                return Ok(vec![]);
            }
            if kind == FileType::Directory && self.pattern.may_be_below(&path) {
                self.bytes += path.len();
                below.push(path);
            }
        }
        below.reverse();
        Ok(below)
    }

    /// Whether there is room for the path.
    fn add(&mut self, path: &str) -> bool {
        if self.paths.len() == self.bounds.results_max || self.bytes >= PATHS_BYTES_MAX {
            self.truncated = true;
            // Nothing else is looked at.
            self.visited = VISITED_MAX;
            return false;
        }
        let path = if self.start.is_root() { path.to_owned() } else { format!("{}/{path}", self.start) };
        self.bytes += path.len();
        self.paths.push(path);
        true
    }

    /// `None` if the path would be deeper or longer than paths may be.
    fn below_start(&self, directory: &str) -> Option<WorkspacePath> {
        let depth = self.start.names().count() + directory.split('/').filter(|name| !name.is_empty()).count();
        let text = format!("{}/{directory}", self.start);
        (depth <= PATH_DEPTH_MAX).then(|| WorkspacePath::parse(&text, "/").ok()).flatten()
    }
}
