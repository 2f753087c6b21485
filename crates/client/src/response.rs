//! Responses: read whole within a limit, and turned into a value or a failure. A response that is not Ostler's becomes a
//! failure with an excerpt of the body.

use bytes::{Bytes, BytesMut};
use http::{Response, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt;
use ostler_protocol::{Failure, FailureKind, Rule, daemon::failures::DaemonProblem, failures::Problem, text::clip};
use serde::{Deserialize, de::DeserializeOwned};

use crate::{failures, transport::ReplyBody};

/// A claim returns every unfinished command of a run with its prompt. No valid response is larger than this.
const RESPONSE_BYTES_MAX: usize = 64 * 1024 * 1024;
const PROBLEM_BYTES_MAX: usize = 1024 * 1024;
const EXCERPT_CHARS_MAX: usize = 200;
const MESSAGE_CHARS_MAX: usize = 2_000;

/// Reads the whole body of a response, successful or not.
pub(crate) async fn collect(response: Response<ReplyBody>) -> Result<(StatusCode, Bytes), Failure> {
    let (head, body) = response.into_parts();
    let bytes_max = if head.status.is_success() { RESPONSE_BYTES_MAX } else { PROBLEM_BYTES_MAX };
    Ok((head.status, read(body, bytes_max).await?))
}

/// The body of a successful response, or the failure that any other response reports.
pub(crate) fn success(status: StatusCode, bytes: Bytes) -> Result<Bytes, Failure> {
    if status.is_success() { Ok(bytes) } else { Err(problem(status, &bytes)) }
}

pub(crate) fn parse<T: DeserializeOwned>(bytes: &Bytes) -> Result<T, Failure> {
    serde_json::from_slice(bytes).map_err(|e| unreadable(&e, bytes))
}

/// Reads a whole body of at most `bytes_max` bytes.
pub(crate) async fn read(mut body: ReplyBody, bytes_max: usize) -> Result<Bytes, Failure> {
    let mut whole = BytesMut::new();
    let mut first = Bytes::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|e| failures::interrupted(&*e))?.into_data() else { continue };
        if first.len() + whole.len() + data.len() > bytes_max {
            let message = format!("the server's response is over {bytes_max} bytes");
            return Err(Failure::rule(Rule::AnswerSize, message));
        }
        // Most responses arrive in one piece, which is then never copied.
        if first.is_empty() && whole.is_empty() {
            first = data;
            if body.is_end_stream() {
                break;
            }
            continue;
        }
        if whole.is_empty() {
            whole.extend_from_slice(&std::mem::take(&mut first));
        }
        whole.extend_from_slice(&data);
    }
    Ok(if whole.is_empty() { first } else { whole.freeze() })
}

/// The part of a failure that can be displayed even if its kind is unknown to this client.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LooseProblem {
    failure_kind: Option<String>,
    message: Option<String>,
    trace_id: Option<String>,
}

/// The failure that a response with an error status reports.
pub fn problem(status: StatusCode, bytes: &Bytes) -> Failure {
    if let Ok(problem) = serde_json::from_slice::<Problem>(bytes) {
        return problem.into();
    }
    if let Ok(problem) = serde_json::from_slice::<DaemonProblem>(bytes) {
        return daemon_failure(status, problem);
    }
    let loose: LooseProblem = serde_json::from_slice(bytes).unwrap_or_default();
    let message = loose.message.unwrap_or_else(|| format!("the server responded with {status}: {}", excerpt(bytes)));
    let mut failure = Failure::rule(Rule::AnswerUnknown, message).with_kind(status_kind(status));
    failure = failure.detail("status", status.as_u16());
    for (key, value) in [("failureKind", loose.failure_kind), ("traceId", loose.trace_id)] {
        if let Some(value) = value {
            failure = failure.detail(key, value);
        }
    }
    failure
}

/// The failure that a body of the daemon dialect describes: its code is the name of a rule, with `_` for `-`.
fn daemon_failure(status: StatusCode, problem: DaemonProblem) -> Failure {
    let name = problem.code.as_deref().unwrap_or_default().replace('_', "-");
    let message = clip(&problem.error, MESSAGE_CHARS_MAX);
    let mut failure = match Rule::parse(&name) {
        Some(rule) => Failure::rule(rule, message),
        None => Failure::new(FailureKind::parse(&name).unwrap_or_else(|| status_kind(status)), message),
    };
    for (key, value) in problem.details {
        failure = failure.detail(&key, value);
    }
    failure
}

fn status_kind(status: StatusCode) -> FailureKind {
    match status.as_u16() {
        401 => FailureKind::Unauthenticated,
        403 => FailureKind::Forbidden,
        404 => FailureKind::NotFound,
        405 => FailureKind::MethodNotAllowed,
        409 => FailureKind::StateConflict,
        410 => FailureKind::Gone,
        413 => FailureKind::PayloadTooLarge,
        415 => FailureKind::UnsupportedMediaType,
        429 => FailureKind::RateLimited,
        400..=499 => FailureKind::SchemaInvalid,
        _ => FailureKind::InfraFailed,
    }
}

fn unreadable(error: &serde_json::Error, bytes: &Bytes) -> Failure {
    let message = format!("the server's response is not what this operation returns ({error}): {}", excerpt(bytes));
    Failure::rule(Rule::AnswerUnknown, message)
}

fn excerpt(bytes: &Bytes) -> String {
    match String::from_utf8_lossy(&bytes[..bytes.len().min(4 * EXCERPT_CHARS_MAX)]).trim() {
        "" => "an empty body".to_owned(),
        text => format!("{:?}", clip(text, EXCERPT_CHARS_MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(status: u16, body: &'static str) -> Failure {
        problem(StatusCode::from_u16(status).unwrap(), &Bytes::from_static(body.as_bytes()))
    }

    #[test]
    fn a_failure_of_the_daemon_dialect_keeps_its_rule_and_details() {
        let full = failure(503, r#"{"error":"5 prompts wait","code":"prompt_queue_full","limit":5}"#);
        assert_eq!((full.kind, full.broken_rule()), (FailureKind::Overloaded, Some(Rule::PromptQueueFull)));
        assert_eq!((full.message.as_str(), &full.details.unwrap()["limit"]), ("5 prompts wait", &5.into()));
        assert_eq!(failure(401, r#"{"error":"Unauthorized"}"#).kind, FailureKind::Unauthenticated);
        assert_eq!(failure(404, r#"{"error":"no such session","sessionId":"x"}"#).kind, FailureKind::NotFound);
        assert_eq!(failure(500, r#"{"error":"oops","code":"internal"}"#).kind, FailureKind::Internal);
    }

    #[test]
    fn a_response_of_another_server_is_quoted() {
        let failure = failure(502, "<html>bad gateway</html>");
        assert_eq!(failure.message, "the server responded with 502 Bad Gateway: \"<html>bad gateway</html>\"");
    }
}
