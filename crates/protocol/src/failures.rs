//! One failure for the whole control plane: a closed kind, a public message, details, and an internal cause that is
//! only logged. One table gives each kind its wire name, HTTP status, JSON-RPC code, retry advice and CLI exit code;
//! each dialect encodes the same failure its own way.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::rules::Rule;

/// The detail that names the broken rule.
pub const RULE: &str = "rule";
/// The detail that lists every problem of a request that has several, the one in the message included.
pub const PROBLEMS: &str = "problems";
/// The detail that marks a list of problems that was cut off.
pub const MORE_PROBLEMS: &str = "hasMoreProblems";
/// How many problems are listed at most.
pub const PROBLEMS_MAX: usize = 20;

// A name is a bare token here: as a `literal` it would reach the schema's derive wrapped, and be overlooked.
macro_rules! failure_kinds {
    ($($kind:ident $name:tt $status:literal $rpc:literal $retry:literal $exit:literal $meaning:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
        pub enum FailureKind {
            $(#[doc = $meaning] #[serde(rename = $name)] $kind,)*
        }

        impl FailureKind {
            /// The one table.
            pub const ALL: &'static [FailureRow] = &[
                $(FailureRow { kind: FailureKind::$kind, name: $name, status: $status, rpc_code: $rpc, retry: $retry,
                    exit_code: $exit, meaning: $meaning },)*
            ];

            pub fn row(self) -> &'static FailureRow {
                &Self::ALL[self as usize]
            }
        }
    };
}

#[derive(Debug)]
pub struct FailureRow {
    pub kind: FailureKind,
    /// The name on every wire.
    pub name: &'static str,
    pub status: u16,
    /// As the mesh sorts codes: by them its clients distinguish a missing right from a missing thing. Kinds for which
    /// the mesh has no code are between -32060 and -32099.
    pub rpc_code: i32,
    /// Whether the same call may succeed later without being changed.
    pub retry: bool,
    pub exit_code: u8,
    pub meaning: &'static str,
}

failure_kinds! {
    SchemaInvalid "schema-invalid" 400 -32602 false 2 "The request does not match the schema of the operation.";
    Unauthenticated "unauthenticated" 401 -32001 false 3 "No valid token was given.";
    Forbidden "forbidden" 403 -32004 false 3 "The caller may not do this.";
    OriginDenied "origin-denied" 403 -32004 false 3 "The request comes from a page or host name that is not allowed.";
    TenantPolicyDenied "tenant-policy-denied" 403 -32004 false 3 "The tenant's policy does not allow this.";
    NotFound "not-found" 404 -32008 false 4 "The object does not exist, or the caller may not see it.";
    MethodNotAllowed "method-not-allowed" 405 -32601 false 2 "The path exists, but not with this method.";
    IdempotencyConflict "idempotency-conflict" 409 -32009 false 5 "The key was used before, with another body.";
    RunnerLeaseConflict "runner-lease-conflict" 409 -32009 true 5 "Another claim of the run is in force.";
    SessionBusy "session-busy" 409 -32009 true 5 "The session has another active run.";
    StateConflict "state-conflict" 409 -32009 false 5 "The object is in a state that does not allow this.";
    Cancelled "cancelled" 409 -32009 false 11 "It was cancelled.";
    Gone "gone" 410 -32008 false 4 "It has been deleted.";
    SessionStoreEvicted "session-store-evicted" 410 -32008 false 12 "The session's stored agent state was evicted.";
    PayloadTooLarge "payload-too-large" 413 -32602 false 2 "Something is over its size limit.";
    UnsupportedMediaType "unsupported-media-type" 415 -32602 false 2 "The body does not have the content type the operation takes.";
    SecretUnavailable "secret-unavailable" 422 -32072 false 12 "A credential that the backend profile needs was not given.";
    RunInputInvalid "run-input-invalid" 422 -32602 false 2 "The input of an agent run breaks one of its rules.";
    BudgetExceeded "budget-exceeded" 422 -32072 false 12 "A budget of the execution policy is used up.";
    PermissionDenied "permission-denied" 403 -32004 false 12 "A person with the right denied it.";
    RateLimited "rate-limited" 429 -32029 true 6 "Too many requests or streams at once.";
    NotImplemented "not-implemented" 501 -32601 false 2 "The server, or the backend, does not have this behaviour.";
    BackendFailed "backend-failed" 502 -32070 false 10 "The agent failed.";
    BackendTimeout "backend-timeout" 504 -32074 false 10 "The agent did not answer in time.";
    ThreadResumeFailed "thread-resume-failed" 502 -32070 false 10 "The agent could not continue its thread.";
    ProviderAuthFailed "provider-auth-failed" 502 -32070 false 10 "The model provider refused the credential.";
    ProviderUnavailable "provider-unavailable" 503 5030 true 10 "The model provider is unreachable or asks to retry later.";
    ProviderInvalidToolCall "provider-invalid-tool-call" 502 -32070 false 10 "The model requested an invalid tool call.";
    InfraFailed "infra-failed" 503 5030 true 10 "Ostler's own machinery failed.";
    Overloaded "overloaded" 503 5030 true 6 "A queue is full; try again shortly.";
    Draining "draining" 503 5030 true 6 "The server is stopping; another replica, or its next start, takes this.";
    ServerUnreachable "server-unreachable" 503 5030 true 7 "The server sent no response, or an incomplete one. Only clients report it.";
    Internal "internal" 500 -32603 false 70 "A fault of the server; the log has the cause under the trace id.";
}

impl FailureKind {
    pub fn as_str(self) -> &'static str {
        self.row().name
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().find(|row| row.name == text).map(|row| row.kind)
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What went wrong. The cause never leaves the process but through the log.
#[derive(Debug, Clone)]
pub struct Failure {
    pub kind: FailureKind,
    pub message: String,
    pub details: Option<Box<Map<String, Value>>>,
    pub cause: Option<Box<str>>,
}

impl Failure {
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), details: None, cause: None }
    }

    /// A failure that names the exact rule that was broken. The rule's row in the table has its kind.
    pub fn rule(rule: Rule, message: impl Into<String>) -> Self {
        Self::new(rule.row().kind, message).detail(RULE, rule.as_str())
    }

    /// The HTTP status: the rule's own, else that of the kind.
    pub fn status(&self) -> u16 {
        self.broken_rule().and_then(|rule| rule.row().status).unwrap_or(self.kind.row().status)
    }

    /// A request that breaks a rule about its shape.
    pub fn invalid(rule: Rule, message: impl Into<String>) -> Self {
        debug_assert_eq!(rule.row().kind, FailureKind::SchemaInvalid, "{rule}");
        Self::rule(rule, message)
    }

    /// Something over its size limit, with both numbers.
    pub fn too_large(rule: Rule, what: &str, bytes: usize, bytes_max: usize) -> Self {
        debug_assert_eq!(rule.row().kind, FailureKind::PayloadTooLarge, "{rule}");
        Self::rule(rule, format!("{what}: {bytes} bytes, the limit is {bytes_max}"))
            .detail("bytes", bytes)
            .detail("bytesMax", bytes_max)
    }

    /// The same failure with another kind than its rule usually has.
    pub fn with_kind(self, kind: FailureKind) -> Self {
        Self { kind, ..self }
    }

    pub fn not_found(what: &str) -> Self {
        Self::new(FailureKind::NotFound, format!("no such {what}"))
    }

    /// A fault of ours: the caller learns nothing but the trace id.
    pub fn internal(cause: impl fmt::Display) -> Self {
        let mut failure = Self::new(FailureKind::Internal, "something went wrong inside the server");
        failure.cause = Some(cause.to_string().into());
        failure
    }

    /// Rejects what has problems, with all of them in one failure: the first one, whose details list each problem with its
    /// message and details. A list that was cut off is marked by [`MORE_PROBLEMS`].
    pub fn check_all(mut problems: Vec<Self>) -> Result<(), Self> {
        if problems.len() < 2 {
            return problems.pop().map_or(Ok(()), Err);
        }
        // A problem that is a list itself is replaced by its parts.
        let parts = |problem: &Self| match problem.details.as_ref().and_then(|details| details.get(PROBLEMS)) {
            Some(Value::Array(parts)) => parts.clone(),
            _ => {
                let mut listed = problem.details.as_deref().cloned().unwrap_or_default();
                listed.insert("message".to_owned(), problem.message.as_str().into());
                vec![Value::Object(listed)]
            }
        };
        let mut listed: Vec<Value> = problems.iter().flat_map(parts).collect();
        let has_more = listed.len() > PROBLEMS_MAX;
        listed.truncate(PROBLEMS_MAX);
        let first = problems.swap_remove(0).detail(PROBLEMS, listed);
        Err(if has_more { first.detail(MORE_PROBLEMS, true) } else { first })
    }

    pub fn detail(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.details.get_or_insert_default().insert(key.to_owned(), value.into());
        self
    }

    /// The rule that was broken. `None` if the failure names no rule, or one of a newer server that this table lacks.
    pub fn broken_rule(&self) -> Option<Rule> {
        rule_of(self.details.as_deref()?)
    }

    /// The name of the rule as it is on the wire, for logs and for display. To decide by a rule, use
    /// [`broken_rule`](Self::broken_rule).
    pub fn rule_name(&self) -> Option<&str> {
        self.details.as_ref()?.get(RULE)?.as_str()
    }
}

/// The rule that the details of a failure name, or those of one of its problems.
pub fn rule_of(details: &Map<String, Value>) -> Option<Rule> {
    Rule::parse(details.get(RULE)?.as_str()?)
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)
    }
}

impl std::error::Error for Failure {}

/// The body of a failure: a problem of RFC 9457 with the failure's kind, message and trace id as members of their own.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// `urn:ostler:failure:` and the kind.
    #[serde(rename = "type", default)]
    pub problem_type: String,
    /// What the kind means.
    #[serde(default)]
    pub title: String,
    /// The HTTP status.
    #[serde(default)]
    pub status: u16,
    /// The message.
    #[serde(default)]
    pub detail: String,
    pub failure_kind: FailureKind,
    pub message: String,
    pub trace_id: String,
    /// The id of the request. Each request has a trace id of its own, and this is the same value.
    #[serde(default)]
    #[schema(required)]
    pub request_id: String,
    #[serde(default)]
    #[schema(value_type = Object, required)]
    pub details: Map<String, Value>,
}

impl Problem {
    pub fn new(kind: FailureKind, message: String, trace_id: String, details: Map<String, Value>) -> Self {
        let row = kind.row();
        let rule = rule_of(&details);
        Self {
            problem_type: format!("urn:ostler:failure:{}", row.name),
            title: row.meaning.to_owned(),
            status: rule.and_then(|rule| rule.row().status).unwrap_or(row.status),
            detail: message.clone(),
            failure_kind: kind,
            message,
            request_id: trace_id.clone(),
            trace_id,
            details,
        }
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        let mut failure = Failure::new(problem.failure_kind, problem.message).detail("traceId", problem.trace_id);
        failure.details.get_or_insert_default().extend(problem.details);
        failure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_in_its_own_row() {
        for (index, row) in FailureKind::ALL.iter().enumerate() {
            assert_eq!(row.kind as usize, index);
            assert_eq!(FailureKind::parse(row.name), Some(row.kind));
            assert!((400..600).contains(&row.status) && row.exit_code != 0);
        }
    }

    #[test]
    fn a_rule_of_a_newer_server_stays_readable() {
        let details = Map::from_iter([(RULE.to_owned(), Value::from("a-newer-rule"))]);
        let failure = Failure::from(Problem::new(FailureKind::StateConflict, "no".into(), "trc_1".into(), details));
        assert_eq!((failure.broken_rule(), failure.rule_name()), (None, Some("a-newer-rule")));
    }

    #[test]
    fn a_rule_gives_its_failure_the_kind_of_its_row() {
        let failure = Failure::rule(Rule::LeaseReleased, "claim again");
        assert_eq!((failure.kind, failure.rule_name()), (FailureKind::RunnerLeaseConflict, Some("lease-released")));
        let failure = failure.with_kind(FailureKind::StateConflict);
        assert_eq!((failure.kind, failure.broken_rule()), (FailureKind::StateConflict, Some(Rule::LeaseReleased)));
    }

    /// `OSTLER_BLESS=1` writes the page again.
    #[test]
    fn the_generated_page_shows_the_table() {
        let mut page = String::from(
            "# Failure kinds\n\nMade from the one table in `crates/protocol/src/failures.rs`. Every failure of the API is \
             an\n`application/problem+json` (RFC 9457) that names its kind, a message, a trace id that is also in the log, and `details`\n(often with the exact `rule`: [rules.md](rules.md)).\n\n\
             | kind | HTTP | JSON-RPC | retry | exit code | meaning |\n|---|---|---|---|---|---|\n",
        );
        for row in FailureKind::ALL {
            let retry = if row.retry { "yes" } else { "no" };
            let FailureRow { name, status, rpc_code, exit_code, meaning, .. } = row;
            page += &format!("| `{name}` | {status} | {rpc_code} | {retry} | {exit_code} | {meaning} |\n");
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/generated/failures.md");
        if std::env::var_os("OSTLER_BLESS").is_some() {
            std::fs::write(path, &page).expect("the page can be written");
        }
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(stored, page, "run the test with OSTLER_BLESS=1");
    }
}
