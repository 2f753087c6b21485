//! The definition of an agent: front matter and the system prompt.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{
    AgentBody, AgentDetail, AgentSummary, BUILT_IN_AGENTS, NAME_CHARS_MIN, front_matter, invalid_scope, is_agent_name,
};
use crate::{Failure, Rule, kernel::modes::ApprovalMode};

const TEXT_BYTES_MAX: usize = 256 * 1024;
const TOOLS_MAX: usize = 256;
const RECORD_ENTRIES_MAX: usize = 128;
const KEY_CHARS_MAX: usize = 256;
const COLORS: [&str; 9] = ["auto", "red", "blue", "green", "yellow", "purple", "orange", "pink", "cyan"];
const PERMISSION_MODES: [&str; 6] = ["acceptEdits", "auto", "bypassPermissions", "default", "dontAsk", "plan"];
/// Optional members of a definition that clients set and read.
const OPTIONAL: [&str; 11] = [
    "tools",
    "disallowedTools",
    "model",
    "color",
    "background",
    "approvalMode",
    "permissionMode",
    "maxTurns",
    "runConfig",
    "mcpServers",
    "hooks",
];
/// Members that an update can remove with null.
const REMOVABLE: [&str; 5] = ["model", "color", "approvalMode", "permissionMode", "maxTurns"];

/// Where a definition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AgentLevel {
    /// In the workspace.
    Project,
    /// In the agent's home, for every workspace.
    User,
    /// In the program.
    Builtin,
}

impl AgentLevel {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Project => "project",
            Self::User => "user",
            Self::Builtin => "builtin",
        }
    }

    /// The level that a request names by its scope. `None` if it names none.
    pub fn of_scope(scope: Option<&str>) -> Result<Option<Self>, Failure> {
        match scope {
            None => Ok(None),
            Some("workspace") => Ok(Some(Self::Project)),
            Some("global") => Ok(Some(Self::User)),
            Some(_) => Err(invalid_scope()),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct AgentDefinition {
    pub level: AgentLevel,
    /// The front matter, with members that we do not know.
    members: Map<String, Value>,
    system_prompt: String,
}

fn invalid(message: impl Into<String>) -> Failure {
    Failure::rule(Rule::InvalidConfig, message)
}

impl AgentDefinition {
    /// Reads a file. The error names the problem without quoting the file.
    pub fn parse(level: AgentLevel, text: &str) -> Result<Self, String> {
        let (members, system_prompt) = front_matter::parse(text)?;
        let named = |name: &str| members.get(name).and_then(Value::as_str).is_some_and(|text| !text.trim().is_empty());
        match named("name") && named("description") {
            true => Ok(Self { level, members, system_prompt }),
            false => Err("the front matter needs name and description".to_owned()),
        }
    }

    pub fn to_text(&self) -> String {
        front_matter::write(&self.members, &self.system_prompt)
    }

    /// The agents that are part of the program.
    pub fn built_in() -> impl Iterator<Item = Self> {
        BUILT_IN_AGENTS.iter().map(|(name, description)| {
            let members = [("name", *name), ("description", *description)];
            let members = members.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
            Self { level: AgentLevel::Builtin, members, system_prompt: String::new() }
        })
    }

    /// A new definition, as a client sent it.
    pub fn create(level: AgentLevel, body: &AgentBody) -> Result<Self, Failure> {
        let mut definition = Self { level, members: Map::new(), system_prompt: String::new() };
        let members = body.members();
        let name = members.get("name").and_then(Value::as_str).unwrap_or_default().trim();
        if name.chars().count() < NAME_CHARS_MIN || !is_agent_name(name) {
            let message = "name must be 2 to 64 letters, digits, hyphens or underscores";
            return Err(invalid(message).detail("name", name));
        }
        if BUILT_IN_AGENTS.iter().any(|(built_in, _)| built_in.eq_ignore_ascii_case(name)) {
            return Err(invalid(format!("{name:?} is the name of a built-in agent")).detail("name", name));
        }
        definition.members.insert("name".to_owned(), name.into());
        for required in ["description", "systemPrompt"] {
            if !members.contains_key(required) {
                return Err(invalid(format!("{required} must be text that is not empty")));
            }
        }
        definition.change(&members)?;
        Ok(definition)
    }

    /// Changes what a client sent. False if everything was so before. Fails if the body has nothing to change.
    pub fn update(&mut self, body: &AgentBody) -> Result<bool, Failure> {
        let is_known = |name: &String| {
            ["description", "systemPrompt"].contains(&name.as_str()) || OPTIONAL.contains(&name.as_str())
        };
        let members = body.members();
        if !members.keys().any(is_known) {
            return Err(invalid("the body has nothing that can be changed"));
        }
        let before = self.clone();
        self.change(&members)?;
        Ok(*self != before)
    }

    fn change(&mut self, members: &Map<String, Value>) -> Result<(), Failure> {
        for name in ["description", "systemPrompt"] {
            let Some(value) = members.get(name) else { continue };
            let text = value.as_str().unwrap_or_default();
            if text.trim().is_empty() || text.len() > TEXT_BYTES_MAX {
                return Err(invalid(format!("{name} must be text of 1 to {TEXT_BYTES_MAX} bytes")));
            }
            match name {
                "systemPrompt" => self.system_prompt = text.trim().to_owned(),
                _ => drop(self.members.insert(name.to_owned(), text.into())),
            }
        }
        for name in OPTIONAL {
            match members.get(name) {
                None => {}
                Some(Value::Null) if REMOVABLE.contains(&name) => drop(self.members.remove(name)),
                Some(value) => {
                    check(name, value)?;
                    let is_empty =
                        value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty);
                    match is_empty {
                        true => drop(self.members.remove(name)),
                        false => drop(self.members.insert(name.to_owned(), value.clone())),
                    }
                }
            }
        }
        Ok(())
    }

    pub fn name(&self) -> &str {
        self.members.get("name").and_then(Value::as_str).unwrap_or_default()
    }

    pub fn summary(&self) -> AgentSummary {
        let member = |name: &str| self.members.get(name).filter(|value| !value.is_null()).cloned();
        let keys = |name: &str| Some(member(name)?.as_object()?.keys().cloned().collect::<Vec<_>>());
        let tool_names = |name: &str| member(name).map(|value| tools(&value));
        let tools = tool_names("tools");
        AgentSummary {
            kind: "agent".to_owned(),
            name: self.name().to_owned(),
            description: self.members.get("description").and_then(Value::as_str).unwrap_or_default().to_owned(),
            level: self.level,
            is_builtin: self.level == AgentLevel::Builtin,
            file_path: None,
            has_tools: tools.as_ref().is_some_and(|tools| !tools.is_empty()),
            tools,
            disallowed_tools: tool_names("disallowedTools"),
            model: member("model").filter(Value::is_string),
            color: member("color").filter(Value::is_string),
            background: member("background").filter(Value::is_boolean),
            approval_mode: member("approvalMode").filter(Value::is_string),
            permission_mode: member("permissionMode").filter(Value::is_string),
            max_turns: member("maxTurns").filter(Value::is_i64),
            run_config: member("runConfig").filter(Value::is_object),
            mcp_server_names: keys("mcpServers"),
            hook_events: keys("hooks"),
        }
    }

    pub fn detail(&self) -> AgentDetail {
        let record = |name: &str| self.members.get(name).filter(|value| value.is_object()).cloned();
        AgentDetail {
            summary: self.summary(),
            system_prompt: self.system_prompt.clone(),
            mcp_servers: record("mcpServers"),
            hooks: record("hooks"),
        }
    }
}

/// The names of tools: a list, or text with commas, as people write it.
fn tools(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => {
            text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
        }
        other => other.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect(),
    }
}

fn check(name: &str, value: &Value) -> Result<(), Failure> {
    let is_one_of = |known: &[&str]| value.as_str().is_some_and(|text| known.contains(&text));
    let is_positive = |value: &Value| value.as_u64().is_some_and(|count| count > 0);
    let is_record = |of_lists: bool| {
        let is_entry = |(key, entry): (&String, &Value)| {
            (1..=KEY_CHARS_MAX).contains(&key.chars().count())
                && if of_lists { entry.is_array() } else { entry.is_object() }
        };
        value.as_object().is_some_and(|record| record.len() <= RECORD_ENTRIES_MAX && record.iter().all(is_entry))
    };
    let is_name = |entry: &Value| entry.as_str().is_some_and(|name| name.chars().count() <= KEY_CHARS_MAX);
    let (fits, wanted) = match name {
        "tools" | "disallowedTools" => {
            let fits = value.as_array().is_some_and(|list| list.len() <= TOOLS_MAX && list.iter().all(is_name));
            (fits, "a list of at most 256 names")
        }
        "model" => (value.as_str().is_some_and(|text| !text.trim().is_empty()), "text that is not empty"),
        "color" => (is_one_of(&COLORS), "one of auto, red, blue, green, yellow, purple, orange, pink, cyan"),
        "approvalMode" => {
            let is_mode = value.as_str().is_some_and(|text| text == "bubble" || ApprovalMode::parse(text).is_some());
            (is_mode, "one of plan, default, auto-edit, auto, yolo, bubble")
        }
        "permissionMode" => {
            (is_one_of(&PERMISSION_MODES), "one of acceptEdits, auto, bypassPermissions, default, dontAsk, plan")
        }
        "background" => (value.is_boolean(), "true or false"),
        "maxTurns" => (is_positive(value), "a positive whole number"),
        "runConfig" => {
            let limits = value.as_object().is_some_and(|limits| {
                limits.iter().all(|(key, limit)| match key.as_str() {
                    "max_time_minutes" => limit.as_f64().is_some_and(|minutes| minutes > 0.0),
                    "max_turns" => is_positive(limit),
                    _ => false,
                })
            });
            (limits, "an object with max_time_minutes and max_turns, both positive")
        }
        "mcpServers" => (is_record(false), "an object of servers by their names"),
        _ => (is_record(true), "an object of lists by the names of events"),
    };
    if fits { Ok(()) } else { Err(invalid(format!("{name} must be {wanted}"))) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn body(value: Value) -> AgentBody {
        serde_json::from_value(value).unwrap()
    }

    fn created() -> AgentDefinition {
        let body =
            body(json!({"name": "tester", "description": "Tests: \"all\"", "systemPrompt": "You test.\n\n---\nWell.",
            "tools": ["read_file"], "maxTurns": 3, "runConfig": {"max_turns": 5}, "hooks": {}}));
        AgentDefinition::create(AgentLevel::Project, &body).unwrap()
    }

    #[test]
    fn a_definition_is_the_same_after_it_was_written_and_read() {
        let definition = created();
        assert_eq!(AgentDefinition::parse(AgentLevel::Project, &definition.to_text()).unwrap(), definition);
        let summary = definition.summary();
        assert!(summary.has_tools && !summary.is_builtin);
        assert_eq!((summary.tools, summary.hook_events), (Some(vec!["read_file".to_owned()]), None));
        assert_eq!(definition.detail().system_prompt, "You test.\n\n---\nWell.");
    }

    #[test]
    fn an_update_states_whether_anything_changed_and_keeps_what_it_does_not_know() {
        let text = "---\nname: tester\ndescription: Tests\nexecutor:\n  kind: x\nmodel: big\n---\n\nYou test.\n";
        let mut definition = AgentDefinition::parse(AgentLevel::User, text).unwrap();
        assert!(!definition.update(&body(json!({"description": "Tests"}))).unwrap());
        assert!(definition.update(&body(json!({"model": null, "tools": ["a"]}))).unwrap());
        assert!(definition.to_text().contains("executor: {\"kind\":\"x\"}"), "{}", definition.to_text());
        assert_eq!(definition.summary().model, None);
        let nothing = definition.update(&body(json!({"name": "other"}))).unwrap_err();
        assert_eq!(nothing.rule_name(), Some("invalid-config"));
    }

    #[test]
    fn definitions_that_break_a_rule_are_refused() {
        let good = json!({"name": "tester", "description": "d", "systemPrompt": "p"});
        let with = |name: &str, value: Value| {
            let mut changed = good.clone();
            changed[name] = value;
            AgentDefinition::create(AgentLevel::Project, &body(changed)).map_err(|failure| failure.broken_rule())
        };
        assert!(with("color", json!("red")).is_ok() && with("approvalMode", json!("plan")).is_ok());
        for (name, value) in [
            ("name", json!("a")),
            ("name", json!("../../x")),
            ("name", json!("explore")),
            ("name", json!("x".repeat(65))),
            ("description", json!(" ")),
            ("systemPrompt", json!("x".repeat(TEXT_BYTES_MAX + 1))),
            ("tools", json!("read")),
            ("tools", json!(vec!["t"; 257])),
            ("color", json!("mauve")),
            ("approvalMode", json!("all")),
            ("permissionMode", json!("no")),
            ("maxTurns", json!(0)),
            ("background", json!("yes")),
            ("runConfig", json!({"max_turns": -1})),
            ("runConfig", json!({"other": 1})),
            ("mcpServers", json!({"a": []})),
            ("hooks", json!({"PreToolUse": {}})),
        ] {
            assert_eq!(with(name, value.clone()), Err(Some(Rule::InvalidConfig)), "{name} {value}");
        }
    }
}
