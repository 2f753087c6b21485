//! The JSON documents that clients hold and patches change: the state of a thread, and the content of each activity.
//!
//! A client that receives a patch that does not apply ignores it with a warning, and from then on holds another document
//! than the agent means. So every patch is applied here first, and one that does not apply is not sent.

use json_patch::PatchOperation;
use serde_json::{Map, Value};

use crate::{limits::EVENT_BYTES_MAX, run_input::agui::events::Patch};

/// A larger document is sent, and not held: patches to it are held back until a smaller one replaces it.
pub(super) const DOCUMENT_BYTES_MAX: usize = EVENT_BYTES_MAX;
/// The operations of a patch times the bytes of its document. Each operation can move the whole document in memory, and
/// every follower pays for it.
const PATCH_COST_MAX: usize = 16 * 1024 * 1024;

/// A document as clients hold it. `None` if that is not known.
#[derive(Clone, Debug)]
pub(super) struct StateDocument {
    value: Option<Value>,
    bytes: usize,
}

impl StateDocument {
    pub(super) fn new(value: Value) -> Self {
        let bytes = size(&value);
        let value = (bytes <= DOCUMENT_BYTES_MAX).then_some(value);
        Self { bytes: if value.is_some() { bytes } else { 0 }, value }
    }

    pub(super) fn unknown() -> Self {
        Self { value: None, bytes: 0 }
    }

    pub(super) fn value(&self) -> Option<&Value> {
        self.value.as_ref()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Applies the patch, whole or not at all. `false` if it does not apply.
    pub(super) fn apply(&mut self, patch: &Patch) -> bool {
        let Some(patched) = self.value.as_ref().and_then(|value| patched(value, self.bytes, patch)) else {
            return false;
        };
        *self = Self::new(patched);
        self.value.is_some()
    }
}

fn patched(value: &Value, bytes: usize, patch: &Patch) -> Option<Value> {
    let operations = patch.operations();
    if operations.len().saturating_mul(bytes) > PATCH_COST_MAX || operations.iter().any(changes_prototype) {
        return None;
    }
    let mut value = value.clone();
    for operation in operations {
        let operation: PatchOperation = serde_json::from_value(operation.clone()).ok()?;
        let is_copy = matches!(operation, PatchOperation::Copy(_));
        json_patch::patch(&mut value, std::slice::from_ref(&operation)).ok()?;
        // Copies of copies grow without bound; any other operation adds no more than its own text.
        if is_copy && size(&value) > DOCUMENT_BYTES_MAX {
            return None;
        }
    }
    Some(value)
}

/// JavaScript clients refuse such patches, since they would change every object of the page.
fn changes_prototype(operation: &Value) -> bool {
    ["path", "from"].iter().filter_map(|name| operation[*name].as_str()).any(|pointer| {
        let tokens: Vec<_> = pointer.split('/').collect();
        tokens.contains(&"__proto__") || tokens.windows(2).any(|pair| pair == ["constructor", "prototype"])
    })
}

/// About how long its JSON text is.
fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(items) => 2 + items.iter().map(|item| size(item) + 1).sum::<usize>(),
        Value::Object(fields) => 2 + fields.iter().map(|(name, value)| name.len() + 4 + size(value)).sum::<usize>(),
        _ => 8,
    }
}

/// A thread's state, as its clients hold it after the thread's earlier turns.
#[derive(Clone, Debug)]
pub struct TranslatorState(pub(super) StateDocument);

impl Default for TranslatorState {
    /// What a stock client begins with.
    fn default() -> Self {
        Self(StateDocument::new(Value::Object(Map::new())))
    }
}

impl TranslatorState {
    /// Nothing is known of it.
    pub fn unknown() -> Self {
        Self(StateDocument::unknown())
    }

    /// The state. `None` if nothing is known of it.
    pub fn value(&self) -> Option<&Value> {
        self.0.value()
    }

    /// Applies a JSON Patch, whole or not at all. False if it does not apply.
    pub fn patch(&mut self, patch: &Value) -> bool {
        Patch::read(patch).is_some_and(|patch| self.0.apply(&patch))
    }

    /// Takes the payload of the next `state` event.
    pub fn take(&mut self, payload: &Value) {
        match (payload.get("snapshot"), payload.get("patch").and_then(Patch::read)) {
            (Some(snapshot), _) if !snapshot.is_null() => self.0 = StateDocument::new(snapshot.clone()),
            (_, Some(patch)) => drop(self.0.apply(&patch)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn apply(document: &mut StateDocument, patch: Value) -> bool {
        document.apply(&Patch::read(&patch).expect("a patch"))
    }

    #[test]
    fn a_patch_applies_whole_or_not_at_all() {
        let mut document = StateDocument::new(json!({"a": 1}));
        assert!(apply(&mut document, json!([{"op": "add", "path": "/b", "value": 2}])));
        assert!(!apply(
            &mut document,
            json!([{"op": "replace", "path": "/a", "value": 9}, {"op": "remove", "path": "/c"}])
        ));
        assert!(apply(
            &mut document,
            json!([{"op": "test", "path": "/a", "value": 1}, {"op": "test", "path": "/b", "value": 2}])
        ));
        for pointer in ["/__proto__/x", "/constructor/prototype/x"] {
            assert!(!apply(&mut document, json!([{"op": "add", "path": pointer, "value": 1}])));
        }
    }

    #[test]
    fn a_patch_that_grows_or_costs_without_bound_is_not_applied() {
        let mut document = StateDocument::new(json!({"a": ["x".repeat(1_000)]}));
        let copies: Vec<_> = (0..64).map(|_| json!({"op": "copy", "from": "/a", "path": "/a/-"})).collect();
        assert!(!apply(&mut document, copies.into()));
        let mut list = StateDocument::new(json!(vec![1; 20_000]));
        let insert = |count| vec![json!({"op": "add", "path": "/0", "value": 1}); count].into();
        assert!(apply(&mut list, insert(10)));
        assert!(!apply(&mut list, insert(1_000)));
        // What is not held cannot be patched.
        let mut large = StateDocument::new(json!("x".repeat(DOCUMENT_BYTES_MAX)));
        assert!(!apply(&mut large, json!([{"op": "replace", "path": "", "value": 1}])));
    }
}
