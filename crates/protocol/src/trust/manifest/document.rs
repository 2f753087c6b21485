//! The JSON Schema of manifests: for editors, and for the API's document. It has the rules that a schema can express; the rest is checked by
//! [`Checked::read`](super::Checked::read).

use serde_json::Value;

use super::Manifest;
use crate::schema_documents::schema_document;

/// The schema in one document.
pub fn json_schema() -> Value {
    schema_document::<Manifest>("Capability manifest of an agent")
}
