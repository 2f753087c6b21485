//! What we read of Codex's wire. Members and words that are not known here pass by: its enums are open.

use ostler_protocol::RawJson;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Initialized {
    #[serde(default)]
    pub user_agent: String,
}

/// The answer to `thread/start` and `thread/resume`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ThreadAnswer {
    pub thread: Thread,
    #[serde(default)]
    pub model: String,
    #[serde(default)]
    pub model_provider: String,
    #[serde(default)]
    pub initial_turns_page: Option<TurnsPage>,
    /// What holds the thread's tools, by name.
    #[serde(default)]
    pub active_permission_profile: Option<NamedProfile>,
}

#[derive(Debug, Deserialize)]
pub struct NamedProfile {
    pub id: String,
}

/// The answer to `thread/list`.
#[derive(Debug, Deserialize)]
pub struct Threads {
    pub data: Vec<Thread>,
}

#[derive(Debug, Deserialize)]
pub struct Thread {
    pub id: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct TurnsPage {
    pub data: Vec<Turn>,
}

/// The answer to `turn/start`, and the notes `turn/started` and `turn/completed`.
#[derive(Debug, Deserialize)]
pub struct TurnNote {
    pub turn: Turn,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Turn {
    pub id: String,
    #[serde(default)]
    pub status: String,
    #[serde(default)]
    pub error: Option<TurnError>,
    #[serde(default)]
    pub items: Vec<Item>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TurnError {
    pub message: String,
    /// A word, or an object with one member named like it.
    pub codex_error_info: Option<Value>,
    pub additional_details: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ErrorNote {
    pub error: TurnError,
    #[serde(default)]
    pub will_retry: bool,
    #[serde(default)]
    pub thread_id: String,
}

/// `item/started` and `item/completed`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ItemNote {
    pub item: Item,
    #[serde(default)]
    pub thread_id: String,
    #[serde(default)]
    pub turn_id: String,
}

/// `rawResponseItem/completed`: what the model said, or was told.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RawNote {
    pub item: RawItem,
    #[serde(default)]
    pub thread_id: String,
    #[serde(default)]
    pub turn_id: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct RawItem {
    #[serde(rename = "type")]
    pub kind: String,
    pub name: String,
    pub call_id: String,
    pub arguments: String,
    pub output: Value,
}

/// A piece of an item: text, a thought, output.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeltaNote {
    #[serde(default)]
    pub thread_id: String,
    #[serde(default)]
    pub turn_id: String,
    pub item_id: String,
    pub delta: String,
}

/// Every kind of item in one: each has some of these.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Item {
    #[serde(rename = "type")]
    pub kind: String,
    pub id: String,
    pub client_id: Option<String>,
    pub text: String,
    pub phase: Option<String>,
    pub summary: Vec<Value>,
    pub content: Vec<Value>,
    pub command: Option<String>,
    pub status: Option<String>,
    pub aggregated_output: Option<String>,
    pub exit_code: Option<i64>,
    pub duration_ms: Option<i64>,
    pub changes: Vec<FileChange>,
    pub server: Option<String>,
    pub tool: Option<String>,
    pub arguments: Option<RawJson>,
    pub query: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FileChange {
    pub path: String,
    pub diff: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageNote {
    #[serde(default)]
    pub thread_id: String,
    #[serde(default)]
    pub turn_id: String,
    pub token_usage: Usage,
}

#[derive(Debug, Deserialize)]
pub struct Usage {
    pub total: Tokens,
    pub last: Tokens,
}

/// Tokens of a thread. Its `totalTokens` is no sum: Codex sets it to the whole window when that is exceeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tokens {
    pub input_tokens: i64,
    pub cached_input_tokens: i64,
    pub output_tokens: i64,
    pub reasoning_output_tokens: i64,
}

impl Tokens {
    /// The count before a part of it was added.
    pub fn before(self, part: Self) -> Self {
        Self {
            input_tokens: (self.input_tokens - part.input_tokens).max(0),
            cached_input_tokens: (self.cached_input_tokens - part.cached_input_tokens).max(0),
            output_tokens: (self.output_tokens - part.output_tokens).max(0),
            reasoning_output_tokens: (self.reasoning_output_tokens - part.reasoning_output_tokens).max(0),
        }
    }

    /// What was used since an earlier count. A count that went down was begun anew.
    pub fn since(self, earlier: Self) -> Self {
        let since = |now: i64, then: i64| if now >= then { now - then } else { now };
        Self {
            input_tokens: since(self.input_tokens, earlier.input_tokens),
            cached_input_tokens: since(self.cached_input_tokens, earlier.cached_input_tokens),
            output_tokens: since(self.output_tokens, earlier.output_tokens),
            reasoning_output_tokens: since(self.reasoning_output_tokens, earlier.reasoning_output_tokens),
        }
    }
}

/// `warning`, `configWarning`, `deprecationNotice`: something for people.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Notice {
    pub message: Option<String>,
    pub summary: Option<String>,
    pub details: Option<String>,
}

/// A request for an approval, whatever for.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ApprovalRequest {
    pub item_id: String,
    pub reason: Option<String>,
    pub command: Option<String>,
    pub cwd: Option<String>,
    /// For the rest of the session, everything below this.
    pub grant_root: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(input_tokens: i64, output_tokens: i64) -> Tokens {
        Tokens { input_tokens, output_tokens, ..Tokens::default() }
    }

    #[test]
    fn usage_is_the_difference_of_two_counts() {
        assert_eq!(tokens(110, 70).since(tokens(99, 63)), tokens(11, 7));
        assert_eq!(tokens(99, 63).since(tokens(99, 63)), tokens(0, 0));
        // After an exceeded window the counts begin at zero again.
        assert_eq!(tokens(0, 0).since(tokens(99, 63)), tokens(0, 0));
        assert_eq!(tokens(11, 7).since(tokens(99, 63)), tokens(11, 7));
    }
}
