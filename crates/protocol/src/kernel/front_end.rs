//! Tools that a front end runs. A turn that calls one ends with the call open; the next turn brings the result. The server
//! executes none of them: it stores the tools with the turn, offers them to the agent, and passes calls and results on.

use jsonschema::ValidationError;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    json::text_of,
    text::clip,
    tools::schema::{CompiledSchema, Misfit, SchemaBudget},
};

/// The `method` of a `tool_call` event whose tool the front end runs. Such a call stays open when its turn completes.
pub const FRONT_END_METHOD: &str = "front-end";
/// The type of a part of a `user_message` event that is the result of such a call.
pub const TOOL_RESULT_PART: &str = "tool_result";
/// The tool with which an agent changes the state that it shares with the front end. No front end's tool may have its name.
pub const UPDATE_STATE_TOOL: &str = "update_shared_state";
/// Characters of an error about arguments.
const ERROR_CHARS_MAX: usize = 300;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FrontEndTool {
    pub name: String,
    pub description: String,
    /// JSON Schema of an object.
    pub parameters: Value,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

impl FrontEndTool {
    /// Whether the parameters are a JSON Schema that can be checked. `budget`: what is left for it and the tools after it.
    pub fn has_valid_schema(&self, budget: &mut SchemaBudget) -> bool {
        CompiledSchema::within(&self.parameters, budget).is_ok()
    }

    /// The arguments of a call as an object, or why they do not fit the tool.
    pub fn read_arguments(&self, arguments: &str) -> Result<Value, String> {
        let empty = if arguments.trim().is_empty() { "{}" } else { arguments };
        let arguments: Value =
            serde_json::from_str(empty).map_err(|error| format!("the arguments are not JSON: {error}"))?;
        self.check_arguments(&arguments).map(|()| arguments)
    }

    pub fn check_arguments(&self, arguments: &Value) -> Result<(), String> {
        check_arguments(&self.parameters, arguments)
    }
}

/// Whether the arguments are an object that fits the schema of a tool's parameters; else why not.
pub fn check_arguments(schema: &Value, arguments: &Value) -> Result<(), String> {
    if !arguments.is_object() {
        return Err("the arguments must be an object".to_owned());
    }
    // Compiled each time: a client or an agent has sent it.
    let compiled = CompiledSchema::new(schema).map_err(|_| "the tool's parameters are not a JSON Schema")?;
    let described = |error: &ValidationError<'_>| {
        let (path, text) = (error.instance_path().to_string(), error.masked().to_string());
        format!("the arguments do not fit the tool, at \"{path}\": {}", clip(&text, ERROR_CHARS_MAX))
    };
    compiled.check(arguments, described).map_err(|misfit| match misfit {
        Misfit::Problems(mut problems) => problems.swap_remove(0),
        misfit => misfit.to_string(),
    })
}

/// The result of a call, as the front end sent it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolAnswer {
    pub tool_call_id: String,
    /// Of the tool.
    pub name: String,
    /// JSON text.
    pub arguments: String,
    pub content: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl ToolAnswer {
    /// The result as a text, for an agent that takes words only.
    pub fn text(&self) -> String {
        tool_result_text(&self.name, &self.content, self.error.as_deref())
    }

    /// What a model receives as the result of its call.
    pub fn result(&self) -> String {
        match &self.error {
            Some(error) if self.content.is_empty() => format!("error: {error}"),
            Some(error) => format!("{}\nerror: {error}", self.content),
            None => self.content.clone(),
        }
    }

    /// The part of a `user_message` event. `message_id` is the front end's own name for the result.
    pub fn part(&self, message_id: &str) -> Value {
        let mut part = json!({"type": TOOL_RESULT_PART, "messageId": message_id, "toolCallId": self.tool_call_id,
            "name": self.name, "text": self.content});
        if let Some(error) = &self.error {
            part["error"] = error.as_str().into();
        }
        part
    }
}

/// A result among the messages of a conversation.
pub fn tool_result_text(name: &str, content: &str, error: Option<&str>) -> String {
    match error {
        Some(error) => format!("[The tool {name} failed: {error}] {content}"),
        None => format!("[Result of the tool {name}] {content}"),
    }
}

/// A `tool_call` event of a front end's tool.
pub fn call_payload(tool_call_id: &str, name: &str, arguments: &Value) -> Value {
    json!({"toolCallId": tool_call_id, "name": name, "method": FRONT_END_METHOD, "status": "started",
        "arguments": text_of(arguments)})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::SchemaSize;

    fn weather() -> FrontEndTool {
        let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
        FrontEndTool { name: "get_weather".into(), description: String::new(), parameters, metadata: Map::new() }
    }

    #[test]
    fn arguments_are_an_object_that_fits_the_schema() {
        assert_eq!(weather().read_arguments(r#"{"city": "Oslo"}"#).unwrap(), json!({"city": "Oslo"}));
        for (bad, why) in [
            ("{", "not JSON"),
            ("[]", "an object"),
            ("", "do not fit"),
            (r#"{"city": 7}"#, "/city"),
            ("7", "an object"),
        ] {
            let error = weather().read_arguments(bad).unwrap_err();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }

    #[test]
    fn schemas_with_too_many_patterns_or_parts_are_refused() {
        let of = |count: usize, part: Value| {
            let properties: Map<String, Value> = (0..count).map(|at| (format!("p{at}"), part.clone())).collect();
            let parameters = json!({"type": "object", "properties": properties});
            let mut budget = SchemaBudget::new(SchemaSize { nodes: 4_000, bytes: 1_000_000, patterns: 64 });
            FrontEndTool { parameters, ..weather() }.has_valid_schema(&mut budget)
        };
        assert!(of(32, json!({"pattern": "^[a-z]+$"})));
        assert!(!of(33, json!({"pattern": "^[a-z]+$"})));
        assert!(!of(2_001, json!({})));
        assert!(!of(1, json!({"$ref": "https://schemas.example/a.json"})));
    }

    #[test]
    fn an_error_is_part_of_the_result() {
        let answer = |content: &str, error: Option<&str>| ToolAnswer {
            tool_call_id: "c".into(),
            name: "f".into(),
            arguments: "{}".into(),
            content: content.into(),
            error: error.map(str::to_owned),
        };
        assert_eq!(answer("12", None).result(), "12");
        assert_eq!(answer("", Some("no network")).result(), "error: no network");
        assert_eq!(answer("12", None).text(), "[Result of the tool f] 12");
        assert_eq!(answer("", Some("no network")).text(), "[The tool f failed: no network] ");
        assert_eq!(answer("", Some("x")).part("m")["error"], "x");
        assert!(answer("", None).part("m").get("error").is_none());
    }
}
