//! What the definitions of the server's own tools have in common.

use ostler_protocol::tools::{ToolDefinition, ToolOrigin};
use serde_json::{Map, Value};

use crate::tools::source::Invocation;

/// The definition of a tool of the server itself. `None` if its schema is not an object.
pub(super) fn define(name: &str, description: &str, parameters: Value) -> Option<ToolDefinition> {
    let Value::Object(parameters) = parameters else { return None };
    let defined = ToolDefinition::new(ToolOrigin::BuiltIn, name, description, parameters);
    defined.inspect_err(|problem| tracing::error!(name, %problem, "a tool of the server cannot be offered")).ok()
}

/// A text of checked arguments.
pub(super) fn text<'a>(invocation: &'a Invocation, name: &str) -> Option<&'a str> {
    argument(&invocation.arguments, name)
}

/// A text of checked arguments.
pub(super) fn argument<'a>(arguments: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    arguments.get(name).and_then(Value::as_str)
}
