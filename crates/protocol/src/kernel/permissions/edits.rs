//! Arguments that a person changes before allowing a request. The digest of the request names what the agent wanted to run;
//! that of the edits names what will run instead, and the runner checks it.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    Failure, Rule,
    json::{canonical_hash, text_of},
    kernel::front_end::check_arguments,
    limits::PERMISSION_BYTES_MAX,
    tools::{
        calls::call_digest,
        schema::{ARGUMENTS_DEPTH_MAX, depth},
    },
};

/// Arguments that an answer may replace, whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EditableArguments {
    /// As the agent wants them.
    #[schema(value_type = Object)]
    pub arguments: Value,
    /// JSON Schema of the arguments.
    #[schema(value_type = Object)]
    pub schema: Value,
}

/// Arguments that replace those of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EditedArguments {
    #[schema(value_type = Object)]
    pub arguments: Value,
    /// The tool of this server that is called with them, if the request is about such a call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub tool: Option<String>,
    /// SHA-256, in hex, of the canonical JSON (RFC 8785) of the arguments. With `tool` it is the digest of the call, which its
    /// `tool_call` event has, too.
    pub digest: String,
    /// SHA-256, in hex, of the canonical JSON of the arguments as they were sent, if the server has added to them.
    #[serde(rename = "sentDigest", default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub sent_digest: Option<String>,
    /// The names of the arguments that the server has added to those that were sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub added: Vec<String>,
}

impl EditableArguments {
    pub(super) fn is_well_formed(&self) -> bool {
        self.schema.is_object() && check_arguments(&self.schema, &self.arguments).is_ok()
    }

    /// The edits, if they fit.
    pub fn edit(&self, arguments: Value) -> Result<EditedArguments, Failure> {
        if text_of(&arguments).len() > PERMISSION_BYTES_MAX {
            let message = format!("the edited arguments exceed {PERMISSION_BYTES_MAX} bytes");
            return Err(Failure::invalid(Rule::PermissionEdits, message));
        }
        if depth(&arguments) > ARGUMENTS_DEPTH_MAX {
            let message = format!("the edited arguments nest more than {ARGUMENTS_DEPTH_MAX} levels deep");
            return Err(Failure::invalid(Rule::PermissionEdits, message));
        }
        check_arguments(&self.schema, &arguments)
            .map_err(|fault| Failure::invalid(Rule::PermissionEdits, format!("editedArgs: {fault}")))?;
        let digest = canonical_hash(&arguments);
        Ok(EditedArguments { digest, arguments, tool: None, sent_digest: None, added: vec![] })
    }
}

/// Edits that were checked against what a request offers. The check compiles a schema, so it is made before the answer is
/// submitted, and not while others wait to write.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedEdits {
    /// Of the request.
    digest: String,
    edited: EditedArguments,
}

impl CheckedEdits {
    /// Checks arguments that replace those that the request with this digest offers for editing. `tool`: the tool of this server
    /// that is called with them.
    pub fn check(
        offered: Option<&EditableArguments>,
        digest: &str,
        tool: Option<&str>,
        arguments: Value,
    ) -> Result<Self, Failure> {
        let offered = offered.ok_or_else(not_editable)?;
        let edited = offered.edit(arguments)?;
        let edited = match tool {
            Some(tool) => edited.of_tool(tool),
            None => edited,
        };
        Ok(Self { edited, digest: digest.to_owned() })
    }

    /// These edits, which the server has completed from what was sent.
    #[must_use]
    pub fn completed_from(mut self, sent: &Value) -> Self {
        let edited = &mut self.edited;
        edited.sent_digest = (edited.arguments != *sent).then(|| canonical_hash(sent));
        let names = edited.arguments.as_object().into_iter().flat_map(|arguments| arguments.keys());
        edited.added = names.filter(|name| sent.get(name.as_str()).is_none()).cloned().collect();
        self
    }

    /// Edits that were recorded when the request with this digest was answered, for the same answer again.
    pub fn recorded(edited: EditedArguments, digest: &str) -> Self {
        Self { edited, digest: digest.to_owned() }
    }

    /// The edits, if they were checked against the request with this digest, and it still offers its arguments.
    pub(crate) fn fit(&self, offered: Option<&EditableArguments>, digest: &str) -> Result<&EditedArguments, Failure> {
        if offered.is_some() && self.digest == digest { Ok(&self.edited) } else { Err(not_editable()) }
    }
}

fn not_editable() -> Failure {
    let message = "the permission request has no arguments that can be edited";
    Failure::invalid(Rule::PermissionEdits, message)
}

impl EditedArguments {
    /// The arguments of a call of a tool of this server.
    fn of_tool(self, tool: &str) -> Self {
        let digest = digest_of(Some(tool), &self.arguments);
        Self { tool: Some(tool.to_owned()), digest, ..self }
    }

    /// Whether the digest is that of the arguments, and of the tool if there is one.
    pub fn is_sound(&self) -> bool {
        digest_of(self.tool.as_deref(), &self.arguments) == self.digest
    }

    /// Whether an answer with these arguments is the one that was recorded. What the server has added to the arguments of a tool is
    /// not sent again.
    pub fn is_same_answer(&self, sent: &Value) -> bool {
        match &self.sent_digest {
            Some(digest) => canonical_hash(sent) == *digest,
            None => self.arguments == *sent,
        }
    }
}

fn digest_of(tool: Option<&str>, arguments: &Value) -> String {
    match (tool, arguments) {
        (Some(tool), Value::Object(arguments)) => call_digest(tool, arguments),
        _ => canonical_hash(arguments),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn offered() -> EditableArguments {
        let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}});
        EditableArguments { arguments: json!({"path": "a"}), schema }
    }

    #[test]
    fn edits_are_used_only_for_what_they_were_checked_against() {
        let checked = CheckedEdits::check(Some(&offered()), "ab", None, json!({"path": "b"})).unwrap();
        assert_eq!(checked.fit(Some(&offered()), "ab").unwrap().arguments, json!({"path": "b"}));
        assert!(checked.fit(Some(&offered()), "cd").is_err());
        assert!(checked.fit(None, "ab").is_err());
        assert!(CheckedEdits::check(None, "ab", None, json!({})).is_err());
    }

    #[test]
    fn edits_of_a_tools_call_have_the_digest_of_the_call() {
        let (tool, arguments) = (Some("write"), json!({"path": "b"}));
        let checked = CheckedEdits::check(Some(&offered()), "ab", tool, arguments.clone()).unwrap();
        let edited = checked.fit(Some(&offered()), "ab").unwrap();
        assert_eq!(edited.digest, call_digest("write", arguments.as_object().unwrap()));
        assert!(edited.is_sound() && edited.is_same_answer(&arguments));
        assert!(!edited.is_same_answer(&json!({})) && !edited.is_same_answer(&json!({"path": "c"})));
        let completed = checked.clone().completed_from(&json!({}));
        let completed = completed.fit(Some(&offered()), "ab").unwrap();
        assert!(completed.is_sound() && completed.is_same_answer(&json!({})));
        assert_eq!(completed.added, ["path"]);
        let complete = checked.clone().completed_from(&arguments);
        assert!(complete.fit(Some(&offered()), "ab").unwrap().added.is_empty());
        let changed = checked.clone().completed_from(&json!({"path": "c"}));
        let changed = changed.fit(Some(&offered()), "ab").unwrap();
        assert!(changed.added.is_empty() && changed.is_same_answer(&json!({"path": "c"})), "it was sent, and changed");
        assert!(!completed.is_same_answer(&arguments), "the server has added to what was sent");
        assert!(!EditedArguments { tool: Some("delete".into()), ..edited.clone() }.is_sound());
        assert!(!EditedArguments { tool: None, ..edited.clone() }.is_sound());
    }

    #[test]
    fn edits_nest_as_deep_as_the_arguments_of_tools() {
        let nested = |levels: usize| (1..levels).fold(json!({}), |inner, _| json!({"a": inner}));
        assert!(offered().edit(nested(ARGUMENTS_DEPTH_MAX)).is_ok());
        assert!(offered().edit(nested(ARGUMENTS_DEPTH_MAX + 1)).unwrap_err().message.contains("nest"));
    }
}
