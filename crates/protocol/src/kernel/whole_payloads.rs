//! Whole payloads: what the payload of a command leaves out because it is large. A dialect may store it beside the command,
//! whose own payload then is a short form that names it. Lists, polls and flushes handle short forms only; a runner fetches the
//! whole when it begins the turn.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{RawJson, ids::CommandId, json::hex, limits::WHOLE_PAYLOAD_BYTES_MAX, sha256::sha256};

/// The member of a short form that names the whole.
pub const WHOLE_PAYLOAD: &str = "wholePayload";

/// What a short form records of the whole. Callers cannot write such a member themselves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WholePayload {
    pub bytes: u64,
    pub sha256: String,
}

/// A command's payload with nothing left out.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommandPayload {
    pub command_id: CommandId,
    #[schema(value_type = Object)]
    pub payload: RawJson,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ShortForm {
    whole_payload: WholePayload,
}

impl WholePayload {
    pub fn describe(whole: &RawJson) -> Self {
        let text = whole.as_str();
        Self { bytes: text.len() as u64, sha256: hex(&sha256(text)) }
    }

    /// What the payload of a command records of its whole. `None` if it is not a short form.
    pub fn of(payload: &RawJson) -> Option<Self> {
        // Most payloads are not, and need not be parsed.
        if !payload.as_str().contains(WHOLE_PAYLOAD) {
            return None;
        }
        payload.view::<ShortForm>().map(|short| short.whole_payload)
    }
}

/// Bytes of a payload and of what is stored beside it.
pub fn stored_bytes(payload: &RawJson) -> usize {
    let beside = WholePayload::of(payload).map_or(0, |whole| whole.bytes.min(WHOLE_PAYLOAD_BYTES_MAX as u64));
    payload.as_str().len() + beside as usize
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_short_form_names_the_whole_and_counts_for_both() {
        let whole = RawJson::of(&json!({"prompt": "x".repeat(1_000)}));
        let described = WholePayload::describe(&whole);
        let short = RawJson::of(&json!({"prompt": "x…", "wholePayload": described}));
        assert_eq!(WholePayload::of(&short), Some(described));
        assert_eq!(stored_bytes(&short), short.as_str().len() + whole.as_str().len());
        for other in [whole, RawJson::of(&json!({"prompt": "wholePayload"})), RawJson::of(&json!({"wholePayload": 7}))]
        {
            assert_eq!(WholePayload::of(&other), None);
            assert_eq!(stored_bytes(&other), other.as_str().len());
        }
        let boast = RawJson::of(&json!({"wholePayload": {"bytes": u64::MAX, "sha256": ""}}));
        assert!(stored_bytes(&boast) < 2 * WHOLE_PAYLOAD_BYTES_MAX, "a caller cannot overflow a sum");
    }
}
