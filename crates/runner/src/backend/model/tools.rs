//! The tools that a model is offered: those of the server, and those of the front end. A model that calls another one gets an
//! error.

use ostler_protocol::tools::wire::OfferedTool;
use serde_json::{Value, json};

/// Most tools of one request. Providers accept no more.
const OFFERED_MAX: usize = 128;

#[derive(Default)]
pub(super) struct ModelTools {
    offered: Vec<Value>,
    /// The names of the server's tools.
    server_names: Vec<String>,
}

impl ModelTools {
    /// The tools of the server, and those of the front end as they are sent to the endpoint. The server accepts no front end's
    /// tool that has the name of one of its own; a tool that it got later under such a name is left out.
    pub(super) fn new(server: &[OfferedTool], front_end: Vec<Value>) -> Self {
        let described = |tool: &OfferedTool| {
            json!({"type": "function", "function": {"name": tool.name, "description": tool.description,
                "parameters": parameters(tool)}})
        };
        let is_free = |name: &str| !front_end.iter().any(|tool| name_of(tool) == Some(name));
        let room = OFFERED_MAX.saturating_sub(front_end.len());
        let server: Vec<_> = server.iter().filter(|tool| is_free(&tool.name)).take(room).collect();
        let server_names = server.iter().map(|tool| tool.name.clone()).collect();
        Self { offered: server.into_iter().map(described).chain(front_end).collect(), server_names }
    }

    /// The tools as they are sent to the endpoint.
    pub(super) fn offered(&self) -> &[Value] {
        &self.offered
    }

    /// Whether the server executes calls of this tool.
    pub(super) fn has(&self, name: &str) -> bool {
        self.server_names.iter().any(|offered| offered == name)
    }

    /// What a model gets that calls a tool which does not exist.
    pub(super) fn unknown(&self, name: &str) -> String {
        let names: Vec<_> = self.offered.iter().filter_map(name_of).collect();
        match names.is_empty() {
            true => format!("there is no tool {name:?}; answer without it"),
            false => format!("there is no tool {name:?}; the tools are: {}", names.join(", ")),
        }
    }
}

/// The name of a tool as it is sent to the endpoint.
fn name_of(offered: &Value) -> Option<&str> {
    offered["function"]["name"].as_str()
}

/// Some providers require the type and the properties, even if there are none.
fn parameters(tool: &OfferedTool) -> Value {
    let mut parameters = tool.parameters.clone();
    parameters.entry("type").or_insert_with(|| "object".into());
    parameters.entry("properties").or_insert_with(|| json!({}));
    Value::Object(parameters)
}
