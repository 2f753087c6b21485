//! Rewinding a session: its conversation continues before one of its turns, and the files that later turns have changed are restored.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{Failure, Rule, Timestamp};

/// What separates the session from the number of a turn in the id of a snapshot.
const SEPARATOR: &str = "########";

/// The id of the snapshot before a turn.
pub fn snapshot_id(session_id: &str, number: usize) -> String {
    format!("{session_id}{SEPARATOR}{number}")
}

/// The number of the turn that a snapshot of this session was made before.
pub fn turn_number(session_id: &str, snapshot_id: &str) -> Option<usize> {
    let number = snapshot_id.strip_prefix(session_id)?.strip_prefix(SEPARATOR)?;
    number.bytes().all(|byte| byte.is_ascii_digit()).then(|| number.parse().ok()).flatten()
}

/// `GET /session/{sessionId}/rewind/snapshots`: the turns that the session can be rewound to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RewindSnapshots {
    pub snapshots: Vec<RewindSnapshot>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RewindSnapshot {
    /// Names the turn in a rewind. It is not the id that the prompt was accepted with.
    pub prompt_id: String,
    /// The number of the turn in the conversation, from 0.
    pub turn_index: usize,
    #[schema(value_type = String, format = DateTime)]
    pub timestamp: Timestamp,
    pub diff_stats: DiffStats,
}

/// What this turn and those after it have changed in the workspace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiffStats {
    pub files_changed: i64,
    /// Lines that are new. A changed line is new and gone.
    pub insertions: i64,
    /// Lines that are gone.
    pub deletions: i64,
}

/// The body of `POST /session/{sessionId}/rewind`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RewindSession {
    /// A snapshot's `promptId`: the conversation continues before its turn.
    #[schema(value_type = String, required)]
    pub prompt_id: Value,
    /// Whether the files are restored, too; true if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<bool>)]
    pub rewind_files: Option<Value>,
}

impl RewindSession {
    pub fn prompt_id(&self) -> Result<&str, Failure> {
        let missing = || Failure::invalid(Rule::MissingPromptId, "promptId must name a snapshot");
        self.prompt_id.as_str().filter(|text| !text.is_empty()).ok_or_else(missing)
    }

    pub fn rewind_files(&self) -> Result<bool, Failure> {
        match &self.rewind_files {
            None => Ok(true),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(Failure::invalid(Rule::InvalidRewindFilesFlag, "rewindFiles must be true or false")),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionRewound {
    /// Whether everything was restored. The conversation is rewound in any case.
    pub rewound: bool,
    pub target_turn_index: usize,
    /// Files that were restored.
    pub files_changed: Vec<String>,
    /// Files that were left as they are, because they have changed since or cannot be restored; and what else could not be.
    pub files_failed: Vec<String>,
}

/// How a file was before the first of several turns, and how the last one left it.
#[derive(Clone, Debug, PartialEq)]
pub struct FileRestore<T> {
    pub path: String,
    pub before: Option<T>,
    pub after: Option<T>,
    /// The file was changed between two of the turns.
    pub is_interrupted: bool,
}

/// Folds the changes of turns, in their order, into what undoes them all. Files that are as they were are left out.
pub fn restores<T: PartialEq>(
    changes: impl IntoIterator<Item = (String, Option<T>, Option<T>)>,
) -> Vec<FileRestore<T>> {
    let mut restores: BTreeMap<String, FileRestore<T>> = BTreeMap::new();
    for (path, before, after) in changes {
        match restores.get_mut(&path) {
            Some(known) => {
                known.is_interrupted |= known.after != before;
                known.after = after;
            }
            None => {
                let first = FileRestore { path: path.clone(), before, after, is_interrupted: false };
                restores.insert(path, first);
            }
        }
    }
    restores.into_values().filter(|restore| restore.is_interrupted || restore.before != restore.after).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshots_id_names_a_turn_of_its_session() {
        assert_eq!(turn_number("ses_1", &snapshot_id("ses_1", 12)), Some(12));
        for foreign in ["ses_2########1", "ses_1########", "ses_1########+1", "ses_1####1", "ses_1########1x", ""] {
            assert_eq!(turn_number("ses_1", foreign), None, "{foreign}");
        }
    }

    #[test]
    fn changes_of_several_turns_are_undone_at_once() {
        let change = |path: &str, before, after| (path.to_owned(), before, after);
        let found = restores([
            change("a", Some(1), Some(2)),
            change("b", None, Some(7)),
            change("same", Some(4), Some(5)),
            change("a", Some(2), Some(3)),
            change("b", Some(7), None),
            change("same", Some(5), Some(4)),
            change("edited", Some(1), Some(2)),
            change("edited", Some(9), Some(1)),
        ]);
        let found: Vec<_> = found.iter().map(|it| (it.path.as_str(), it.before, it.after, it.is_interrupted)).collect();
        assert_eq!(found, [("a", Some(1), Some(3), false), ("edited", Some(1), Some(1), true)]);
    }
}
