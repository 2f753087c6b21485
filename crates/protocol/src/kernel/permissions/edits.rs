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
        check_arguments(&self.schema, &arguments)
            .map_err(|fault| Failure::invalid(Rule::PermissionEdits, format!("editedArgs: {fault}")))?;
        Ok(EditedArguments { digest: canonical_hash(&arguments), arguments })
    }
}

impl EditedArguments {
    /// Whether the digest is that of the arguments.
    pub fn is_sound(&self) -> bool {
        canonical_hash(&self.arguments) == self.digest
    }
}
