//! Tools that an MCP server lists. A server may list anything, so that everything is bounded and checked before it is kept.

use serde_json::{Map, Value};

use super::names::{TOOL_NAME_BYTES_MAX, is_tool_name, qualified};
use crate::json::text_of;

/// Most tools of one server. More are left out.
pub const TOOLS_MAX: usize = 512;
/// Most bytes of a tool's description. A longer one is cut.
pub const DESCRIPTION_BYTES_MAX: usize = 8 * 1024;
/// Most bytes of a tool's parameter schema. A tool with a longer one is invalid.
pub const SCHEMA_BYTES_MAX: usize = 64 * 1024;
/// Most bytes of all schemas of one server. Tools beyond are invalid.
pub const SCHEMAS_BYTES_MAX: usize = 1024 * 1024;
/// Most bytes of a tool's annotations. Longer ones are left out.
const ANNOTATIONS_BYTES_MAX: usize = 4 * 1024;

#[derive(Clone, Debug, PartialEq)]
pub struct McpTool {
    /// The name under which agents call it.
    pub name: String,
    /// The server's own name for it.
    pub server_tool_name: String,
    pub description: Option<String>,
    /// The JSON schema of its parameters. `None` if it is too large.
    pub schema: Option<Map<String, Value>>,
    pub annotations: Option<Map<String, Value>>,
    /// Why it cannot be called. `None` if it can.
    pub invalid_reason: Option<String>,
}

/// A tool as a server lists it.
#[derive(Clone, Debug, Default)]
pub struct ListedTool {
    pub name: String,
    pub description: Option<String>,
    pub schema: Map<String, Value>,
    pub annotations: Option<Map<String, Value>>,
}

/// The tools of a server, and whether some were left out. Of tools with the same name the first can be called. One more of each
/// name comes last, with the reason.
pub fn read_tools(server: &str, listed: impl IntoIterator<Item = ListedTool>) -> (Vec<McpTool>, bool) {
    let (mut tools, mut repeated): (Vec<McpTool>, Vec<McpTool>) = (vec![], vec![]);
    let (mut schemas_bytes, mut is_cut) = (0, false);
    for tool in listed {
        if tools.len() == TOOLS_MAX {
            is_cut = true;
            break;
        }
        let name = cut(tool.name.clone(), TOOL_NAME_BYTES_MAX);
        if tools.iter().any(|known| known.server_tool_name == name) {
            if repeated.len() < TOOLS_MAX && !repeated.iter().any(|known| known.server_tool_name == name) {
                repeated.push(repetition(server, name));
            }
            continue;
        }
        let bytes = text_of(&tool.schema).len();
        let fits = bytes <= SCHEMA_BYTES_MAX && schemas_bytes + bytes <= SCHEMAS_BYTES_MAX;
        schemas_bytes += if fits { bytes } else { 0 };
        tools.push(McpTool {
            name: qualified(server, &name),
            invalid_reason: problem(&tool, server, fits).map(str::to_owned),
            description: tool.description.map(|text| cut(text, DESCRIPTION_BYTES_MAX)),
            schema: fits.then_some(tool.schema),
            annotations: tool.annotations.filter(|hints| text_of(hints).len() <= ANNOTATIONS_BYTES_MAX),
            server_tool_name: name,
        });
    }
    let room = TOOLS_MAX - tools.len();
    tools.extend(repeated.into_iter().take(room));
    (tools, is_cut)
}

/// A tool that has the name of another one.
fn repetition(server: &str, name: String) -> McpTool {
    McpTool {
        name: qualified(server, &name),
        server_tool_name: name,
        description: None,
        schema: None,
        annotations: None,
        invalid_reason: Some("the name is listed more than once; the first of them is offered".to_owned()),
    }
}

/// The beginning of a text.
fn cut(mut text: String, bytes_max: usize) -> String {
    text.truncate(text.floor_char_boundary(bytes_max));
    text
}

fn problem(tool: &ListedTool, server: &str, schema_fits: bool) -> Option<&'static str> {
    let is_object = |name: &str| tool.schema.get(name).is_none_or(Value::is_object);
    match () {
        () if !is_tool_name(&tool.name) => Some("the name is empty, too long or not printable"),
        () if qualified(server, &tool.name).len() > TOOL_NAME_BYTES_MAX => Some("the name is too long"),
        () if !schema_fits => Some("the schema of the parameters is too large"),
        () if tool.schema.get("type").is_some_and(|kind| kind != "object") => Some("the parameters are not an object"),
        () if !is_object("properties") => Some("the schema of the parameters cannot be read"),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn tool(name: &str, schema: Value) -> ListedTool {
        ListedTool { name: name.into(), schema: schema.as_object().cloned().unwrap(), ..ListedTool::default() }
    }

    fn reason(tool: ListedTool) -> Option<String> {
        read_tools("s", [tool]).0.remove(0).invalid_reason
    }

    #[test]
    fn tools_that_cannot_be_called_have_a_reason() {
        assert_eq!(reason(tool("echo", json!({"type": "object", "properties": {}}))), None);
        assert_eq!(reason(tool("echo", json!({}))), None);
        let huge = json!({"type": "object", "description": "x".repeat(SCHEMA_BYTES_MAX)});
        for (listed, expected) in [
            (tool("", json!({})), "name"),
            (tool(&"x".repeat(TOOL_NAME_BYTES_MAX), json!({})), "too long"),
            (tool("echo", json!({"type": "string"})), "not an object"),
            (tool("echo", json!({"type": "object", "properties": 7})), "cannot be read"),
            (tool("echo", huge), "too large"),
        ] {
            let reason = reason(listed).unwrap();
            assert!(reason.contains(expected), "{reason}");
        }
    }

    #[test]
    fn a_long_list_is_cut_and_a_name_is_offered_once() {
        let names = (0..TOOLS_MAX + 5).map(|number| tool(&number.to_string(), json!({})));
        let (tools, is_cut) = read_tools("s", names);
        assert_eq!((tools.len(), is_cut), (TOOLS_MAX, true));
        let (tools, is_cut) = read_tools("s", ["a", "a", "b", "a"].map(|name| tool(name, json!({}))));
        let read: Vec<_> = tools.iter().map(|tool| (tool.name.as_str(), tool.invalid_reason.is_none())).collect();
        assert_eq!((read, is_cut), (vec![("mcp__s__a", true), ("mcp__s__b", true), ("mcp__s__a", false)], false));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn whatever_is_listed_the_result_is_bounded(names in prop::collection::vec(".{0,300}", 0..8), size in 0..100_000_usize) {
            let listed = names.iter().map(|name| ListedTool {
                description: Some("d".repeat(size)), ..tool(name, json!({"x": "y".repeat(size)}))
            });
            let (tools, _) = read_tools("server", listed);
            prop_assert!(tools.len() <= TOOLS_MAX);
            for tool in &tools {
                prop_assert!(tool.server_tool_name.len() <= TOOL_NAME_BYTES_MAX);
                prop_assert!(tool.description.as_ref().is_none_or(|text| text.len() <= DESCRIPTION_BYTES_MAX));
            }
            prop_assert!(tools.iter().map(|tool| text_of(&tool.schema).len()).sum::<usize>() <= SCHEMAS_BYTES_MAX + 64 * 20);
        }
    }
}
