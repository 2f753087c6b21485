//! One difference between two manifests.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::trust::manifest::{outline::weight, rules::DiffRule};

/// One thing that changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Change {
    pub rule: DiffRule,
    /// A JSON Pointer into the new manifest, or into the old one for what is gone.
    pub pointer: String,
    /// Null where there was nothing.
    #[schema(value_type = serde_json::Value)]
    pub old: Value,
    /// Null where there is nothing now.
    #[schema(value_type = serde_json::Value)]
    pub new: Value,
    pub breaking: bool,
    /// The scope it concerns.
    #[serde(default)]
    pub scope: Option<String>,
    /// The tool it concerns, by its name: the places of tools mean nothing, and differ between two manifests.
    #[serde(default)]
    pub tool: Option<String>,
}

impl Change {
    /// About how much memory it takes.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.pointer.len() + weight(&self.old) + weight(&self.new)
    }
}
