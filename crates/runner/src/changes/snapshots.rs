//! Reads the states of a workspace that turns have left behind, so that their changes can be undone.

use std::{io, path::PathBuf};

use ostler_protocol::kernel::workspaces::WorkspaceTrees;

use super::index::Index;

/// Size of the list of changed files. A longer one is an error.
const LIST_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// The mode of a file that is missing.
const ABSENT: &str = "000000";

/// The stored states of one workspace.
#[derive(Clone, Debug)]
pub struct Snapshots {
    index: Index,
}

/// A file that differs between two states.
#[derive(Clone, Debug, PartialEq)]
pub struct TreeChange {
    /// Relative to the workspace.
    pub path: String,
    pub before: Option<TreeEntry>,
    pub after: Option<TreeEntry>,
}

/// A file in one state.
#[derive(Clone, Debug, PartialEq)]
pub struct TreeEntry {
    /// Names the content.
    pub id: String,
    /// False: a link, or a repository.
    pub is_file: bool,
    pub is_executable: bool,
}

impl TreeEntry {
    fn of(mode: &str, id: &str) -> Option<Self> {
        let (is_file, is_executable) = (mode.starts_with("100"), mode == "100755");
        (mode != ABSENT).then(|| Self { id: id.to_owned(), is_file, is_executable })
    }
}

impl Snapshots {
    /// The states that a runner has recorded in this directory.
    pub fn at(directory: PathBuf) -> Self {
        Self { index: Index { directory, workspace: None } }
    }

    /// The files that differ between the states, by path.
    pub async fn changed(&self, trees: &WorkspaceTrees) -> io::Result<Vec<TreeChange>> {
        let (before, after) = (object_id(&trees.before)?, object_id(&trees.after)?);
        let arguments = ["diff-tree", "-r", "-z", "--raw", "--no-renames", before, after];
        let list = self.index.git(&arguments, LIST_BYTES_MAX).await?;
        if list.len() as u64 >= LIST_BYTES_MAX {
            return Err(io::Error::other("too many files were changed"));
        }
        let mut parts = list.split(|byte| *byte == 0);
        let mut changes = vec![];
        while let (Some(facts), Some(path)) = (parts.next(), parts.next()) {
            let facts = String::from_utf8_lossy(facts);
            let mut facts = facts.trim_start_matches(':').split(' ');
            let mut next = || facts.next().unwrap_or_default();
            let (old_mode, new_mode, old_id, new_id) = (next(), next(), next(), next());
            let (before, after) = (TreeEntry::of(old_mode, old_id), TreeEntry::of(new_mode, new_id));
            changes.push(TreeChange { path: String::from_utf8_lossy(path).into_owned(), before, after });
        }
        Ok(changes)
    }

    /// The content of a file. `None` if it has more bytes than this.
    pub async fn content(&self, entry: &TreeEntry, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
        let content = self.index.git(&["cat-file", "blob", object_id(&entry.id)?], bytes_max as u64 + 1).await?;
        Ok((content.len() <= bytes_max).then_some(content))
    }
}

/// What comes from a runner's report is passed to git only if it is the id of an object.
fn object_id(text: &str) -> io::Result<&str> {
    let is_id = [40, 64].contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then_some(text).ok_or_else(|| io::Error::other("this is not the id of a stored state"))
}
