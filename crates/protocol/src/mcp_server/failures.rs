//! Failures as MCP clients read them: a JSON-RPC error for a message that cannot be handled, and a failed result for a tool that
//! was called and refused. Both name our kind, rule and hint.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::{
    Failure, FailureKind, RawJson, Rule,
    failures::Problem,
    rpc::{INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, RpcError, RpcId},
};

/// The code that MCP has for a resource that does not exist.
const RESOURCE_NOT_FOUND: i64 = -32002;
const JSONRPC: &str = "2.0";
const TRACE_ID: &str = "traceId";

/// What a client can learn of a failure.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct McpFailureData {
    pub kind: FailureKind,
    /// The exact rule that was broken.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub rule: Option<String>,
    pub message: String,
    /// What can be done about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub hint: Option<String>,
    /// Whether the same call may succeed later.
    pub retry: bool,
    /// By which the server's log has it.
    pub trace_id: String,
    #[schema(value_type = Object)]
    pub details: Map<String, Value>,
}

impl McpFailureData {
    pub fn of(failure: &Failure, trace_id: &str) -> Self {
        let rule = failure.broken_rule();
        let mut details = failure.details.as_deref().cloned().unwrap_or_default();
        details.retain(|key, _| key != crate::failures::RULE && key != TRACE_ID);
        Self {
            kind: failure.kind,
            rule: rule.map(|rule| rule.as_str().to_owned()),
            message: failure.message.clone(),
            hint: rule.and_then(|rule| rule.hint(failure.kind)).map(str::to_owned),
            retry: failure.kind.row().retry,
            trace_id: trace_id.to_owned(),
            details,
        }
    }

    /// For people and models: what happened, then what to do.
    pub fn text(&self) -> String {
        let hint = self.hint.as_ref().map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
        format!("{}: {}{hint}", self.kind, self.message)
    }
}

/// An error of JSON-RPC, as the document describes it.
#[derive(Serialize, ToSchema)]
pub struct McpErrorBody {
    pub code: i64,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub data: Option<McpFailureData>,
}

/// The body of a request that was rejected as a whole.
#[derive(Serialize, ToSchema)]
pub struct McpFailureBody {
    pub jsonrpc: String,
    /// Always null: no message of the request was handled.
    #[schema(value_type = Option<serde_json::Value>)]
    pub id: Option<RpcId>,
    pub error: McpErrorBody,
}

impl From<Problem> for McpFailureBody {
    fn from(problem: Problem) -> Self {
        let trace_id = problem.trace_id.clone();
        let failure = Failure::from(problem);
        let code = match (failure.broken_rule(), failure.kind) {
            (Some(Rule::JsonMalformed), _) => PARSE_ERROR,
            (_, FailureKind::Internal | FailureKind::InfraFailed) => INTERNAL_ERROR,
            _ => INVALID_REQUEST,
        };
        let data = McpFailureData::of(&failure, &trace_id);
        let error = McpErrorBody { code, message: failure.message, data: Some(data) };
        Self { jsonrpc: JSONRPC.into(), id: None, error }
    }
}

/// The error of one message of a request.
pub fn rpc_error(failure: &Failure, trace_id: &str) -> RpcError {
    let code = match failure.kind {
        FailureKind::NotFound | FailureKind::Gone => RESOURCE_NOT_FOUND,
        FailureKind::SchemaInvalid | FailureKind::PayloadTooLarge => INVALID_PARAMS,
        FailureKind::NotImplemented | FailureKind::MethodNotAllowed => METHOD_NOT_FOUND,
        _ => INTERNAL_ERROR,
    };
    let data = Some(RawJson::of(&McpFailureData::of(failure, trace_id)));
    RpcError { code, message: failure.message.clone(), data }
}

/// The failure of a request for a method that this server does not have.
pub fn unknown_method() -> Failure {
    Failure::rule(Rule::McpMethod, "this server does not have that method")
}

/// The failure of a call of a tool that does not exist.
pub fn unknown_tool() -> Failure {
    Failure::invalid(Rule::McpTool, "no such tool; tools/list names those that this token may call")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_its_kind_rule_and_hint_and_each_once() {
        let failure = Failure::rule(Rule::SessionIdReserved, "no").detail("n", 1);
        let data = McpFailureData::of(&failure, "trc_1");
        assert_eq!((data.kind, data.rule.as_deref()), (FailureKind::SchemaInvalid, Some("session-id-reserved")));
        assert_eq!(Value::Object(data.details.clone()), serde_json::json!({"n": 1}));
        assert!(data.text().starts_with("schema-invalid: no"), "{}", data.text());
    }

    #[test]
    fn a_request_that_is_rejected_as_a_whole_is_an_error_without_an_id() {
        let problem = Problem::new(FailureKind::Unauthenticated, "no token".into(), "trc_1".into(), Map::new());
        let body = serde_json::to_value(McpFailureBody::from(problem)).unwrap();
        assert_eq!((&body["id"], &body["error"]["code"]), (&Value::Null, &serde_json::json!(INVALID_REQUEST)));
        assert_eq!(body["error"]["data"]["traceId"], "trc_1");
    }

    #[test]
    fn each_kind_has_a_code_of_the_protocol() {
        let code = |kind| rpc_error(&Failure::new(kind, "no"), "trc_1").code;
        assert_eq!(code(FailureKind::NotFound), -32002);
        assert_eq!(code(FailureKind::SchemaInvalid), -32602);
        assert_eq!(code(FailureKind::Overloaded), -32603);
        assert_eq!(rpc_error(&unknown_method(), "trc_1").code, -32601);
        assert_eq!(rpc_error(&unknown_tool(), "trc_1").code, -32602);
    }
}
