//! The tools a model is offered. There are none yet; a model that calls one all the same is told so.

use serde_json::Value;

#[derive(Default)]
pub struct Tools {
    offered: Vec<Value>,
}

impl Tools {
    /// As the endpoint is told of them.
    pub fn offered(&self) -> &[Value] {
        &self.offered
    }

    /// What a call comes to: the tool's result, or why there is none.
    pub fn call(&self, name: &str, _arguments: &str) -> Result<String, String> {
        Err(format!("there is no tool {name:?}; answer without it"))
    }
}
