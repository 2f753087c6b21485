//! The tools that a model is offered: those of the server, and those of the front end. A model that calls another one gets an
//! error.

use ostler_protocol::tools::wire::OfferedTool;
use serde_json::{Value, json};

/// Most tools of one request. Providers accept no more.
const OFFERED_MAX: usize = 128;

#[derive(Clone, Default)]
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

    /// Those of the tools that have these names.
    pub(super) fn restricted_to(&self, wanted: &[String]) -> Self {
        let is_wanted = |name: &str| wanted.iter().any(|wanted| wanted == name);
        let offered = self.offered.iter().filter(|tool| name_of(tool).is_some_and(is_wanted));
        let server_names = self.server_names.iter().filter(|name| is_wanted(name));
        Self { offered: offered.cloned().collect(), server_names: server_names.cloned().collect() }
    }

    /// The tools together with a function that is not one of them. If there is no room, the last of the server's tools is left out.
    pub(super) fn with_function(&self, function: Value) -> Self {
        let mut tools = self.clone();
        if tools.offered.len() >= OFFERED_MAX && tools.server_names.pop().is_some() {
            // The server's tools come first.
            tools.offered.remove(tools.server_names.len());
        }
        tools.offered.push(function);
        tools
    }

    /// The names of the tools with their descriptions.
    pub(super) fn described(&self) -> impl Iterator<Item = (&str, &str)> {
        self.offered.iter().filter_map(|tool| Some((name_of(tool)?, tool["function"]["description"].as_str()?)))
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.offered.iter().filter_map(name_of).map(str::to_owned).collect()
    }

    /// Whether the model is offered this tool.
    pub(super) fn offers(&self, name: &str) -> bool {
        self.offered.iter().any(|tool| name_of(tool) == Some(name))
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

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    fn tool(name: &str) -> OfferedTool {
        OfferedTool {
            name: name.to_owned(),
            description: "d".to_owned(),
            parameters: Map::new(),
            source: "built-in".to_owned(),
            scope: None,
            changes: false,
            idempotent: true,
            uses_network: false,
            deadline_ms: 1,
            output_bytes_max: 1,
        }
    }

    fn of_front_end(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "description": "p", "parameters": {}}})
    }

    #[test]
    fn a_selection_has_the_wanted_tools_and_no_others() {
        let tools = ModelTools::new(&["a", "b", "c"].map(tool), ["p", "q"].map(of_front_end).to_vec());
        let some = tools.restricted_to(&["c", "q", "a", "x"].map(str::to_owned));
        assert_eq!(some.names(), ["a", "c", "q"]);
        assert!(some.has("a") && some.has("c") && !some.has("b") && !some.has("x"));
        assert!(some.offers("q") && !some.has("q") && !some.offers("p"), "the front end runs its own tools");
        assert!(tools.restricted_to(&[]).offered().is_empty());
        assert_eq!(some.described().collect::<Vec<_>>(), [("a", "d"), ("c", "d"), ("q", "p")]);
    }

    #[test]
    fn a_function_is_offered_beside_the_tools_and_is_not_one_of_them() {
        let tools = ModelTools::new(&["a"].map(tool), vec![of_front_end("p")]).with_function(of_front_end("f"));
        assert_eq!(tools.names(), ["a", "p", "f"]);
        assert!(!tools.has("f"));
        let many: Vec<_> = (0..OFFERED_MAX + 5).map(|number| tool(&format!("t{number}"))).collect();
        let full = ModelTools::new(&many, vec![of_front_end("p")]);
        assert_eq!(full.names().len(), OFFERED_MAX);
        let fuller = full.with_function(of_front_end("f"));
        assert_eq!((fuller.names().len(), fuller.server_names.len()), (OFFERED_MAX, OFFERED_MAX - 2));
        assert!(fuller.offers("p") && fuller.offers("f") && full.has("t126") && !fuller.offers("t126"));
    }
}
