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
    tools::schema::{ARGUMENTS_DEPTH_MAX, depth},
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
    /// SHA-256, in hex, of the canonical JSON (RFC 8785) of the arguments.
    pub digest: String,
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
        Ok(EditedArguments { digest: canonical_hash(&arguments), arguments })
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
    /// Checks arguments that replace those that the request with this digest offers for editing.
    pub fn check(offered: Option<&EditableArguments>, digest: &str, arguments: Value) -> Result<Self, Failure> {
        let offered = offered.ok_or_else(not_editable)?;
        Ok(Self { edited: offered.edit(arguments)?, digest: digest.to_owned() })
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
    /// Whether the digest is that of the arguments.
    pub fn is_sound(&self) -> bool {
        canonical_hash(&self.arguments) == self.digest
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
        let checked = CheckedEdits::check(Some(&offered()), "ab", json!({"path": "b"})).unwrap();
        assert_eq!(checked.fit(Some(&offered()), "ab").unwrap().arguments, json!({"path": "b"}));
        assert!(checked.fit(Some(&offered()), "cd").is_err());
        assert!(checked.fit(None, "ab").is_err());
        assert!(CheckedEdits::check(None, "ab", json!({})).is_err());
    }

    #[test]
    fn edits_nest_as_deep_as_the_arguments_of_tools() {
        let nested = |levels: usize| (1..levels).fold(json!({}), |inner, _| json!({"a": inner}));
        assert!(offered().edit(nested(ARGUMENTS_DEPTH_MAX)).is_ok());
        assert!(offered().edit(nested(ARGUMENTS_DEPTH_MAX + 1)).unwrap_err().message.contains("nest"));
    }
}
