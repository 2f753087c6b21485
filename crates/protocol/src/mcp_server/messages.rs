//! What a client posts: one JSON-RPC message or, in the revision that has them, a batch. A reply has the same form.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{failures::McpErrorBody, revisions::McpRevision};
use crate::{
    Failure, RawJson, Rule,
    json::read_shape,
    rpc::{NotAFrame, RpcFrame, RpcId, Version},
};

/// Messages of one batch.
pub const BATCH_MESSAGES_MAX: usize = 16;
/// Bytes of a progress token. Each notification has the token, and a stream holds some of them for a slow client.
pub const PROGRESS_TOKEN_BYTES_MAX: usize = 16 * 1024;

/// A message of JSON-RPC 2.0 as the document describes it: a request, a notification, or a response to a request of the server.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct McpMessage {
    pub jsonrpc: String,
    /// A string or an integer. A notification has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub id: Option<RpcId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub method: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub params: Option<RawJson>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<RawJson>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub error: Option<RawJson>,
}

/// The response to a request, as the document describes it: with a result or with an error.
#[derive(Serialize, ToSchema)]
pub struct McpResponse {
    pub jsonrpc: String,
    /// As the request has it.
    #[schema(value_type = serde_json::Value)]
    pub id: Option<RpcId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<RawJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<McpErrorBody>,
}

/// The response to a post, as the document describes it.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum McpReply {
    One(Box<McpResponse>),
    /// To a batch, without its notifications.
    Batch(Vec<McpResponse>),
}

/// What was posted.
#[derive(Debug, PartialEq)]
pub enum Posted {
    One(RpcFrame),
    Batch(Vec<RpcFrame>),
}

impl Posted {
    /// Reads a body. Fails if it is not JSON, not JSON-RPC, or a batch that the revision does not have.
    pub fn read(body: &[u8], revision: McpRevision) -> Result<Self, Failure> {
        match body.trim_ascii_start().first() {
            Some(b'[') => read_batch(body, revision).map(Self::Batch),
            _ => read_message(body).map(Self::One),
        }
    }
}

fn read_message(text: &[u8]) -> Result<RpcFrame, Failure> {
    RpcFrame::read_as(text, Version::Two).map_err(|fault| match fault {
        NotAFrame::Misshapen(why) => Failure::invalid(Rule::McpMessage, format!("not a JSON-RPC 2.0 message: {why}")),
        NotAFrame::NotJson { .. } if serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok() => {
            Failure::invalid(Rule::McpMessage, "not a JSON-RPC 2.0 message: not an object")
        }
        other => Failure::invalid(Rule::JsonMalformed, format!("not a JSON-RPC 2.0 message: {other}")),
    })
}

fn read_batch(body: &[u8], revision: McpRevision) -> Result<Vec<RpcFrame>, Failure> {
    let items: Vec<&RawValue> = serde_json::from_slice(body)
        .map_err(|_| Failure::invalid(Rule::JsonMalformed, "the body is not a JSON array of messages"))?;
    if !revision.takes_batches() {
        let message = format!("revision {} of MCP has no batches; post one message at a time", revision.as_str());
        return Err(Failure::invalid(Rule::McpBatch, message));
    }
    if items.is_empty() || items.len() > BATCH_MESSAGES_MAX {
        let message = format!("a batch has 1 to {BATCH_MESSAGES_MAX} messages");
        return Err(Failure::invalid(Rule::McpBatch, message));
    }
    items.into_iter().map(|item| read_message(item.get().as_bytes())).collect()
}

/// The parameters of a method. Fields that are not known are ignored, as the specification asks.
pub fn read_params<T: serde::de::DeserializeOwned>(params: &RawJson) -> Result<T, Failure> {
    let text = if params.is_null() { "{}" } else { params.as_str() };
    read_shape(Rule::McpParams, "params", text)
}

/// The parameters of `initialize`, as far as they matter here.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitializeParams {
    pub protocol_version: String,
}

/// The parameters of `tools/call`.
#[derive(Debug, Deserialize)]
pub struct CallToolParams {
    pub name: String,
    pub arguments: Option<RawJson>,
    #[serde(rename = "_meta")]
    pub meta: Option<CallMeta>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallMeta {
    pub progress_token: Option<RpcId>,
}

impl CallToolParams {
    /// Takes the token under which the client wants to be notified.
    pub fn take_progress_token(&mut self) -> Result<Option<RpcId>, Failure> {
        match self.meta.take().and_then(|meta| meta.progress_token) {
            Some(RpcId::Text(text)) if text.len() > PROGRESS_TOKEN_BYTES_MAX => {
                let message = format!("a progressToken has at most {PROGRESS_TOKEN_BYTES_MAX} bytes");
                Err(Failure::invalid(Rule::McpParams, message))
            }
            token => Ok(token),
        }
    }
}

/// The parameters of a list. `None`: its first page.
#[derive(Debug, Deserialize)]
pub struct ListParams {
    pub cursor: Option<String>,
}

/// The parameters of `resources/read`.
#[derive(Debug, Deserialize)]
pub struct ReadResourceParams {
    pub uri: String,
}

/// The parameters of `notifications/cancelled`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CancelledParams {
    pub request_id: RpcId,
}

/// The notification that a waiting call sends: the number of the run's last event, which rises, and its type.
pub fn progress(token: &RpcId, seq: i64, message: &str) -> RpcFrame {
    let params = serde_json::json!({"progressToken": token, "progress": seq, "message": message});
    RpcFrame::Notification { method: "notifications/progress".into(), params: RawJson::of(&params) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(body: &[u8], revision: McpRevision) -> Option<Rule> {
        Posted::read(body, revision).unwrap_err().broken_rule()
    }

    #[test]
    fn one_message_is_read_in_every_revision() {
        let body = br#" {"jsonrpc":"2.0","id":1,"method":"ping"} "#;
        for revision in McpRevision::ALL {
            let Posted::One(RpcFrame::Request { id, method, .. }) = Posted::read(body, revision).unwrap() else {
                panic!("a request");
            };
            assert_eq!((id, method.as_str()), (RpcId::Number(1), "ping"));
        }
    }

    #[test]
    fn a_batch_is_read_only_where_the_revision_has_batches() {
        let body =
            br#"[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"notifications/initialized"}]"#;
        let Posted::Batch(messages) = Posted::read(body, McpRevision::March2025).unwrap() else { panic!("a batch") };
        assert_eq!(messages.len(), 2);
        for revision in [McpRevision::June2025, McpRevision::November2025] {
            assert_eq!(rule(body, revision), Some(Rule::McpBatch));
        }
        let message = r#"{"jsonrpc":"2.0","method":"a"}"#;
        let batch = |count: usize| format!("[{}]", vec![message; count].join(","));
        assert!(Posted::read(batch(BATCH_MESSAGES_MAX).as_bytes(), McpRevision::March2025).is_ok());
        for count in [0, BATCH_MESSAGES_MAX + 1] {
            assert_eq!(rule(batch(count).as_bytes(), McpRevision::March2025), Some(Rule::McpBatch));
        }
    }

    #[test]
    fn text_that_is_no_message_is_named_by_its_fault() {
        for body in
            [&b"7"[..], b"\"x\"", b"null", b"{}", br#"{"id":1,"method":"x"}"#, br#"{"jsonrpc":"1.0","method":"x"}"#]
        {
            assert_eq!(rule(body, McpRevision::LATEST), Some(Rule::McpMessage), "{}", body.escape_ascii());
        }
        for body in [&b""[..], b"{", b"no", b"\xff", br#"{"jsonrpc":"2.0","method":"x"} {}"#, b"[1"] {
            assert_eq!(rule(body, McpRevision::March2025), Some(Rule::JsonMalformed), "{}", body.escape_ascii());
        }
    }
}
