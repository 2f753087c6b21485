//! Answers: read whole within a bound, and turned into a value or a failure. Whatever is not an answer of Ostler's
//! becomes a failure that says so, with a glimpse of what came instead.

use std::error::Error;

use bytes::{Bytes, BytesMut};
use http::{Response, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt;
use ostler_protocol::{Failure, FailureKind, events::clip, failures::Problem};
use serde::{Deserialize, de::DeserializeOwned};

use crate::transport::Body;

/// A claim hands out every unfinished command of a run with its prompt; nothing that large is ever right beyond this.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
const PROBLEM_BYTES_MAX: usize = 1024 * 1024;
const GLIMPSE_CHARS_MAX: usize = 200;

const RULE_UNREACHABLE: &str = "server-unreachable";
const RULE_TIMEOUT: &str = "server-timeout";
const RULE_INTERRUPTED: &str = "answer-interrupted";

/// Whether the same call may succeed shortly, because the server could not be reached or has no time now. Says nothing
/// about whether repeating it is safe.
pub fn is_transient(failure: &Failure) -> bool {
    use FailureKind::*;
    is_unreachable(failure) || matches!(failure.kind, Overloaded | RateLimited | Draining | InfraFailed | Internal)
}

/// Whether no answer came at all, or none that was whole: nothing is known about what became of the call.
pub fn is_unreachable(failure: &Failure) -> bool {
    matches!(failure.rule_name(), Some(RULE_UNREACHABLE | RULE_TIMEOUT | RULE_INTERRUPTED))
}

/// The whole body of an answer, whatever it says.
pub async fn collect(response: Response<Body>) -> Result<(StatusCode, Bytes), Failure> {
    let (head, body) = response.into_parts();
    let bytes_max = if head.status.is_success() { ANSWER_BYTES_MAX } else { PROBLEM_BYTES_MAX };
    Ok((head.status, read(body, bytes_max).await?))
}

/// The body of a good answer; the failure of any other.
pub fn good(status: StatusCode, bytes: Bytes) -> Result<Bytes, Failure> {
    if status.is_success() { Ok(bytes) } else { Err(problem(status, &bytes)) }
}

pub fn parse<T: DeserializeOwned>(bytes: &Bytes) -> Result<T, Failure> {
    serde_json::from_slice(bytes).map_err(|e| unexpected(&e, bytes))
}

/// A body, whole and within its bound.
pub async fn read(mut body: Body, bytes_max: usize) -> Result<Bytes, Failure> {
    let mut whole = BytesMut::new();
    let mut first = Bytes::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|e| interrupted(&*e))?.into_data() else { continue };
        if first.len() + whole.len() + data.len() > bytes_max {
            let message = format!("the server's answer is over {bytes_max} bytes");
            return Err(Failure::rule(FailureKind::PayloadTooLarge, "answer-size", message));
        }
        // Most answers come in one piece, which is then never copied.
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

/// Only what can be shown of a failure by a server that knows kinds this client does not.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LooseProblem {
    failure_kind: Option<String>,
    message: Option<String>,
    trace_id: Option<String>,
}

/// The failure that an answer with a bad status stands for.
pub fn problem(status: StatusCode, bytes: &Bytes) -> Failure {
    if let Ok(problem) = serde_json::from_slice::<Problem>(bytes) {
        return problem.into();
    }
    let loose: LooseProblem = serde_json::from_slice(bytes).unwrap_or_default();
    let message = loose.message.unwrap_or_else(|| format!("the server answered {status}: {}", glimpse(bytes)));
    let mut failure = Failure::rule(kind_of(status), "answer-unknown", message).detail("status", status.as_u16());
    for (key, value) in [("failureKind", loose.failure_kind), ("traceId", loose.trace_id)] {
        if let Some(value) = value {
            failure = failure.detail(key, value);
        }
    }
    failure
}

fn kind_of(status: StatusCode) -> FailureKind {
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

fn unexpected(error: &serde_json::Error, bytes: &Bytes) -> Failure {
    let message = format!("the server's answer is not what this operation returns ({error}): {}", glimpse(bytes));
    Failure::rule(FailureKind::BackendFailed, "answer-unknown", message)
}

fn glimpse(bytes: &Bytes) -> String {
    match String::from_utf8_lossy(&bytes[..bytes.len().min(4 * GLIMPSE_CHARS_MAX)]).trim() {
        "" => "an empty body".to_owned(),
        text => format!("{:?}", clip(text, GLIMPSE_CHARS_MAX)),
    }
}

pub fn unreachable(error: &reqwest::Error) -> Failure {
    let message = format!("the server cannot be reached: {}", causes(error));
    Failure::rule(FailureKind::InfraFailed, RULE_UNREACHABLE, message)
}

pub fn interrupted(error: &(dyn Error + 'static)) -> Failure {
    let message = format!("the connection broke off in the middle of an answer: {}", causes(error));
    Failure::rule(FailureKind::InfraFailed, RULE_INTERRUPTED, message)
}

pub fn timed_out(after_ms: u64) -> Failure {
    let message = format!("the server did not answer within {} s", after_ms / 1_000);
    Failure::rule(FailureKind::InfraFailed, RULE_TIMEOUT, message)
}

/// The error and what caused it: the outermost one alone ("error sending request") helps nobody.
fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    clip(&text, 2 * GLIMPSE_CHARS_MAX)
}
