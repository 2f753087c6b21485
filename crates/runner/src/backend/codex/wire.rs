//! The part of Codex's protocol that we read. Unknown members and values are ignored: its enums are open.

use ostler_protocol::RawJson;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CodexInitialized {
    #[serde(default)]
    pub(crate) user_agent: String,
}

/// The reply to `thread/start` and `thread/resume`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ThreadReply {
    pub(crate) thread: Thread,
    #[serde(default)]
    pub(crate) model: String,
    #[serde(default)]
    pub(crate) model_provider: String,
    #[serde(default)]
    pub(crate) initial_turns_page: Option<TurnsPage>,
    /// The profile that confines the thread's tools.
    #[serde(default)]
    pub(crate) active_permission_profile: Option<NamedProfile>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct NamedProfile {
    pub(crate) id: String,
}

/// The reply to `thread/list`.
#[derive(Debug, Deserialize)]
pub(crate) struct ThreadList {
    pub(crate) data: Vec<Thread>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Thread {
    pub(crate) id: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TurnsPage {
    pub(crate) data: Vec<WireTurn>,
}

/// The reply to `turn/start`, and the notifications `turn/started` and `turn/completed`.
#[derive(Debug, Deserialize)]
pub(crate) struct TurnNote {
    pub(crate) turn: WireTurn,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WireTurn {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) status: String,
    #[serde(default)]
    pub(crate) error: Option<TurnError>,
    #[serde(default)]
    pub(crate) items: Vec<Item>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct TurnError {
    pub(crate) message: String,
    /// A name, or an object whose only member has that name.
    pub(crate) codex_error_info: Option<Value>,
    pub(crate) additional_details: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ErrorNote {
    pub(crate) error: TurnError,
    #[serde(default)]
    pub(crate) will_retry: bool,
    #[serde(default)]
    pub(crate) thread_id: String,
}

/// `item/started` and `item/completed`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ItemNote {
    pub(crate) item: Item,
    #[serde(default)]
    pub(crate) thread_id: String,
    #[serde(default)]
    pub(crate) turn_id: String,
}

/// `rawResponseItem/completed`: raw output of the model, or raw input to it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RawNote {
    pub(crate) item: RawItem,
    #[serde(default)]
    pub(crate) thread_id: String,
    #[serde(default)]
    pub(crate) turn_id: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawItem {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) call_id: String,
    pub(crate) arguments: String,
    pub(crate) output: Value,
}

/// A piece of an item: text, a thought or output.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeltaNote {
    #[serde(default)]
    pub(crate) thread_id: String,
    #[serde(default)]
    pub(crate) turn_id: String,
    pub(crate) item_id: String,
    pub(crate) delta: String,
}

/// An item of any kind. Each kind has some of these members.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Item {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) id: String,
    pub(crate) client_id: Option<String>,
    pub(crate) text: String,
    pub(crate) phase: Option<String>,
    pub(crate) summary: Vec<Value>,
    pub(crate) content: Vec<Value>,
    pub(crate) command: Option<String>,
    pub(crate) status: Option<String>,
    pub(crate) aggregated_output: Option<String>,
    pub(crate) exit_code: Option<i64>,
    pub(crate) duration_ms: Option<i64>,
    pub(crate) changes: Vec<FileChange>,
    pub(crate) server: Option<String>,
    pub(crate) tool: Option<String>,
    pub(crate) arguments: Option<RawJson>,
    pub(crate) query: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct FileChange {
    pub(crate) path: String,
    pub(crate) diff: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct UsageNote {
    #[serde(default)]
    pub(crate) thread_id: String,
    #[serde(default)]
    pub(crate) turn_id: String,
    pub(crate) token_usage: ThreadUsage,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ThreadUsage {
    pub(crate) total: TokenCounts,
    pub(crate) last: TokenCounts,
}

/// Tokens of a thread. `totalTokens` is not read, because it is no sum: Codex sets it to the whole window when that is
/// exceeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct TokenCounts {
    pub(crate) input_tokens: i64,
    pub(crate) cached_input_tokens: i64,
    pub(crate) output_tokens: i64,
    pub(crate) reasoning_output_tokens: i64,
}

impl TokenCounts {
    /// The count before `part` was added.
    pub(crate) fn before(self, part: Self) -> Self {
        Self {
            input_tokens: (self.input_tokens - part.input_tokens).max(0),
            cached_input_tokens: (self.cached_input_tokens - part.cached_input_tokens).max(0),
            output_tokens: (self.output_tokens - part.output_tokens).max(0),
            reasoning_output_tokens: (self.reasoning_output_tokens - part.reasoning_output_tokens).max(0),
        }
    }

    /// What was used since an earlier count. A count that went down has started again from zero.
    pub(crate) fn since(self, earlier: Self) -> Self {
        let since = |now: i64, then: i64| if now >= then { now - then } else { now };
        Self {
            input_tokens: since(self.input_tokens, earlier.input_tokens),
            cached_input_tokens: since(self.cached_input_tokens, earlier.cached_input_tokens),
            output_tokens: since(self.output_tokens, earlier.output_tokens),
            reasoning_output_tokens: since(self.reasoning_output_tokens, earlier.reasoning_output_tokens),
        }
    }
}

/// `warning`, `configWarning`, `deprecationNotice`: a notice for people.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Notice {
    pub(crate) message: Option<String>,
    pub(crate) summary: Option<String>,
    pub(crate) details: Option<String>,
}

/// A request for an approval of any kind.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ApprovalRequest {
    pub(crate) item_id: String,
    pub(crate) reason: Option<String>,
    pub(crate) command: Option<String>,
    pub(crate) cwd: Option<String>,
    /// Requests everything below this directory, for the rest of the session.
    pub(crate) grant_root: Option<String>,
}

/// `mcpServer/startupStatus/updated`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ServerStatusNote {
    pub(crate) name: String,
    pub(crate) status: String,
    pub(crate) error: Option<String>,
}

/// A question of an MCP server, or of Codex itself about a call of its tool.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Elicitation {
    pub(crate) server_name: String,
    #[serde(rename = "_meta")]
    pub(crate) meta: ElicitationMeta,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ElicitationMeta {
    /// Set if the question is Codex's own.
    pub(crate) codex_approval_kind: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(input_tokens: i64, output_tokens: i64) -> TokenCounts {
        TokenCounts { input_tokens, output_tokens, ..TokenCounts::default() }
    }

    #[test]
    fn usage_is_the_difference_of_two_counts() {
        assert_eq!(tokens(110, 70).since(tokens(99, 63)), tokens(11, 7));
        assert_eq!(tokens(99, 63).since(tokens(99, 63)), tokens(0, 0));
        // After an exceeded window the counts start again from zero.
        assert_eq!(tokens(0, 0).since(tokens(99, 63)), tokens(0, 0));
        assert_eq!(tokens(11, 7).since(tokens(99, 63)), tokens(11, 7));
    }
}
