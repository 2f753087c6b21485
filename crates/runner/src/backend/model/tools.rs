//! The tools that a model is offered. There are none yet. A model that calls one gets an error.

use serde_json::Value;

#[derive(Default)]
pub(super) struct ModelTools {
    offered: Vec<Value>,
}

impl ModelTools {
    /// The tools as they are sent to the endpoint.
    pub(super) fn offered(&self) -> &[Value] {
        &self.offered
    }

    /// Calls a tool. Returns its result, or why there is none.
    pub(super) fn call(&self, name: &str, _arguments: &str) -> Result<String, String> {
        Err(format!("there is no tool {name:?}; answer without it"))
    }
}
