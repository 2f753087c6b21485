//! One helper for all: a manifest with one tool, and its diff.

mod checking;
mod hostile;
mod rows;
mod soundness;

use serde_json::{Value, json};

use super::{Checked, ManifestDiff, diff::diff};

/// A manifest with one tool that takes these arguments.
fn taking(input_schema: Value) -> Value {
    json!({
        "schema_version": "1.0",
        "agent_version": "1.0.0",
        "tools": [{
            "name": "read_file",
            "description_i18n_key": "agent.cap.read_file.description",
            "input_schema": input_schema,
            "permission_scope": "filesystem:read",
        }],
        "permission_scopes": [scope("filesystem:read", "medium")],
    })
}

fn scope(id: &str, sensitivity: &str) -> Value {
    json!({
        "id": id,
        "label_i18n_key": "agent.scope.label",
        "label_fallback": "A label",
        "description_fallback": "What it is for",
        "sensitivity": sensitivity,
    })
}

fn read(manifest: &Value) -> Checked {
    Checked::read(&manifest.to_string()).unwrap()
}

fn compare(old: &Value, new: &Value) -> ManifestDiff {
    diff(Some(&read(old)), &read(new))
}
