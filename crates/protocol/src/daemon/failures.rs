//! Failures of the daemon dialect: `{error, code, …}`, where the details of the failure are members of the body.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::files::ERROR_KIND;
use crate::{
    Failure, FailureKind, Rule,
    failures::{Problem, RULE},
};

/// The body of a failed request.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DaemonProblem {
    pub error: String,
    /// The stable name of the failure. Absent where clients expect none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub code: Option<String>,
    /// What else the failure states.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub details: Map<String, Value>,
}

/// The body of a failed request to a path that clients of the daemon share with others: it has what both read. Requests that the gate
/// rejects get a [`DaemonProblem`].
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SharedProblem {
    #[serde(flatten)]
    pub plain: Problem,
    pub error: String,
    /// The stable name of the failure. Absent where clients expect none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub code: Option<String>,
    /// The tier of requests whose limit is used up.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub tier: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub retry_after_ms: Option<i64>,
}

impl From<Problem> for SharedProblem {
    fn from(plain: Problem) -> Self {
        let DaemonProblem { error, code, .. } = plain.clone().into();
        let tier = plain.details.get("tier").and_then(Value::as_str).map(str::to_owned);
        let retry_after_ms = plain.details.get("retryAfterMs").and_then(Value::as_i64);
        Self { plain, error, code, tier, retry_after_ms }
    }
}

/// Details that are not for clients of this dialect. The trace id is in a header of the response.
const HIDDEN: [&str; 4] = [RULE, "problems", "hasMoreProblems", "traceId"];

impl From<Problem> for DaemonProblem {
    fn from(problem: Problem) -> Self {
        let failure = Failure::from(problem);
        let (error, code, status) = (message(&failure), code(&failure), failure.kind.row().status);
        let says_more = !is_uniform(&failure);
        let mut details = failure.details.map(|details| *details).unwrap_or_default();
        details.retain(|name, _| says_more && !HIDDEN.contains(&name.as_str()));
        if details.contains_key(ERROR_KIND) {
            details.insert("status".to_owned(), status.into());
        }
        Self { error, code, details }
    }
}

/// Whether this is the failure of a request without a valid token. All of them have the same body, so that it reveals nothing about
/// the token.
fn is_uniform(failure: &Failure) -> bool {
    failure.kind == FailureKind::Unauthenticated && failure.broken_rule().is_none()
}

fn message(failure: &Failure) -> String {
    match (failure.kind, failure.broken_rule()) {
        _ if is_uniform(failure) => "Unauthorized".to_owned(),
        (_, Some(Rule::Host | Rule::HostMissing)) => "Invalid Host header".to_owned(),
        (FailureKind::OriginDenied, _) => "Request denied by CORS policy".to_owned(),
        (_, Some(Rule::JsonMalformed)) => "Invalid JSON in request body".to_owned(),
        _ => failure.message.clone(),
    }
}

/// Failures about files have an `errorKind` in place of a code.
fn code(failure: &Failure) -> Option<String> {
    if failure.details.as_ref().is_some_and(|details| details.contains_key(ERROR_KIND)) {
        return None;
    }
    match (failure.kind, failure.broken_rule()) {
        (FailureKind::Unauthenticated | FailureKind::OriginDenied, None) => None,
        (_, Some(Rule::Host | Rule::HostMissing | Rule::Origin | Rule::JsonMalformed)) => None,
        // The limit of the caller, which is the engine's, and that of the client are one to clients.
        (_, Some(Rule::RateLimit)) => Some("rate_limit_exceeded".to_owned()),
        (_, Some(rule)) => Some(rule.as_str().replace('-', "_")),
        (kind, None) => Some(kind.as_str().replace('-', "_")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn problem(failure: Failure) -> Problem {
        let details = failure.details.map(|details| *details).unwrap_or_default();
        Problem::new(failure.kind, failure.message, "trc_1".into(), details)
    }

    fn body(failure: Failure) -> Value {
        serde_json::to_value(DaemonProblem::from(problem(failure))).unwrap()
    }

    #[test]
    fn requests_without_a_valid_token_get_the_same_body() {
        for message in ["this needs a token", "the token is not valid"] {
            let failure = Failure::new(FailureKind::Unauthenticated, message).detail("expired", true);
            assert_eq!(body(failure), json!({"error": "Unauthorized"}));
        }
        let strict = body(Failure::rule(Rule::TokenRequired, "this needs a token"));
        assert_eq!(strict, json!({"error": "this needs a token", "code": "token_required"}));
    }

    #[test]
    fn the_gate_rejects_in_the_words_of_the_daemon() {
        let origin = Failure::rule(Rule::Origin, "pages of this origin may not call");
        assert_eq!(body(origin), json!({"error": "Request denied by CORS policy"}));
        for rule in [Rule::Host, Rule::HostMissing] {
            assert_eq!(body(Failure::rule(rule, "not one of this server's")), json!({"error": "Invalid Host header"}));
        }
        for rule in [Rule::RateLimit, Rule::RateLimitExceeded] {
            let limited = Failure::rule(rule, "slow").detail("tier", "read").detail("retryAfterMs", 7);
            let expected = json!({"error": "slow", "code": "rate_limit_exceeded", "tier": "read", "retryAfterMs": 7});
            assert_eq!(body(limited), expected);
        }
    }

    #[test]
    fn the_body_of_a_shared_path_has_what_both_kinds_of_clients_read() {
        let failure = Failure::rule(Rule::RateLimitExceeded, "slow").detail("tier", "read").detail("retryAfterMs", 7);
        let plain = problem(failure);
        let shared = serde_json::to_value(SharedProblem::from(plain.clone())).unwrap();
        for (name, value) in serde_json::to_value(plain).unwrap().as_object().unwrap() {
            assert_eq!(&shared[name], value, "{name}");
        }
        let expected = json!({"error": "slow", "code": "rate_limit_exceeded", "tier": "read", "retryAfterMs": 7});
        for (name, value) in expected.as_object().unwrap() {
            assert_eq!(&shared[name], value, "{name}");
        }
    }
}
