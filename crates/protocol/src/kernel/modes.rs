//! Modes of a backend: how much it does without asking. A command can name one in its payload. A mode changes who is asked, and
//! never what the run's policy allows: a mode that grants more than the policy's approval is not used.

use serde::{Deserialize, Serialize};

use super::policy::Approval;
use crate::RawJson;

/// From narrow to wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApprovalMode {
    /// Reads and plans; changes nothing.
    Plan,
    /// Asks before each change.
    Default,
    /// Edits files without asking.
    AutoEdit,
    /// Decides by itself which actions are safe.
    Auto,
    /// Never asks.
    Yolo,
}

#[derive(Deserialize)]
struct ModePayload {
    mode: Option<ApprovalMode>,
}

enum_words!(ApprovalMode {
    Plan => "plan",
    Default => "default",
    AutoEdit => "auto-edit",
    Auto => "auto",
    Yolo => "yolo",
});

impl ApprovalMode {
    /// The mode that a command's payload names. `None` if it names none, or one that we do not know.
    pub fn of(payload: &RawJson) -> Option<Self> {
        payload.view::<ModePayload>()?.mode
    }

    /// The narrowest approval of a policy that allows the mode.
    pub fn needs(self) -> Approval {
        match self {
            Self::Plan | Self::Default => Approval::Untrusted,
            Self::AutoEdit | Self::Auto => Approval::OnRequest,
            Self::Yolo => Approval::Never,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read_by_their_names_and_grant_more_in_their_order() {
        for mode in ApprovalMode::ALL {
            assert_eq!(ApprovalMode::parse(mode.as_str()), Some(mode));
            let payload = RawJson::of(&serde_json::json!({"prompt": "x", "mode": mode.as_str()}));
            assert_eq!(ApprovalMode::of(&payload), Some(mode));
        }
        assert!(ApprovalMode::ALL.is_sorted_by_key(|mode| mode.needs()));
        for other in [r#"{"prompt":"x"}"#, r#"{"mode":"all"}"#, r#"{"mode":7}"#, "[]"] {
            assert_eq!(ApprovalMode::of(&RawJson::parse(other.to_owned()).unwrap()), None, "{other}");
        }
    }
}
