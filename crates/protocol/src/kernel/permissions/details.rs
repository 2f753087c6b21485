//! What front ends show of a call beside the text of what will run: its kind, the files that it concerns, and how it changes them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The call that a permission request is about. What will run is in the request's `command`, in full, and nothing here replaces it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CallDetails {
    /// `edit`, `execute` and so on, as ACP names the kinds of calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The name of the tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub locations: Vec<CallLocation>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub diffs: Vec<FileDiff>,
    /// What the call is given, whole. `None` if it is too long, or has characters that cannot be seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
}

/// A file that a call concerns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallLocation {
    pub path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
}

/// How a call changes a file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FileDiff {
    pub path: String,
    /// `None` if the file is new.
    pub old_text: Option<String>,
    pub new_text: String,
    /// A text was too long. What is left of it ends with a mark.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}
