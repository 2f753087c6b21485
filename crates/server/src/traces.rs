//! OpenTelemetry traces: a span for each request and each call over a WebSocket, sent to a collector over OTLP/HTTP as JSON.
//! Off unless an endpoint is configured. A caller's `traceparent` is continued. Spans are a convenience: when the collector is
//! slow or gone they are dropped and counted, and no request waits for them.

use std::sync::{Arc, OnceLock};

use http::{HeaderMap, Method, StatusCode};
use ostler_protocol::{
    FailureKind, Timestamp,
    ids::{RunId, SessionId, TraceId},
    redaction::Redactor,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// Maximum number of queued spans; further ones are dropped.
const QUEUE_SPANS_MAX: usize = 2_048;
/// SERVER and ERROR, as OTLP numbers them.
const KIND_SERVER: u8 = 2;
const STATUS_ERROR: u8 = 2;

/// The queue of spans. Cheap if no collector is configured.
#[derive(Default)]
pub struct Traces {
    queue: Option<mpsc::Sender<Span>>,
}

/// The trace that a caller sent in `traceparent`: `00-<trace id>-<its span>-<flags>`.
#[derive(Clone, Debug, PartialEq)]
pub struct Parent {
    trace_id: String,
    span_id: String,
    sampled: bool,
}

/// A finished request or call.
pub struct Span {
    pub parent: Option<Parent>,
    /// The id in the log and in the response. It is also the id of the trace, unless the caller sent one.
    pub trace_id: TraceId,
    pub transport: Transport,
    pub subject: Arc<Subject>,
    pub failure: Option<FailureKind>,
    pub began_at: Timestamp,
    pub ended_at: Timestamp,
}

pub enum Transport {
    Http {
        method: Method,
        route: Option<String>,
        status: StatusCode,
    },
    /// A call over a WebSocket.
    Rpc {
        method: &'static str,
    },
}

/// What an operation is about, as far as it is known when the operation ends. The functions that find a run or a session for
/// a caller, or authorise the caller for a tenant, note it. Of several, the first is recorded.
#[derive(Default)]
pub struct Subject {
    tenant_id: OnceLock<String>,
    session: OnceLock<SessionId>,
    run_id: OnceLock<RunId>,
    operation: OnceLock<&'static str>,
}

tokio::task_local! {
    /// `None` in a task that was spawned by an operation that is not traced.
    static SUBJECT: Option<Arc<Subject>>;
}

impl Subject {
    /// Runs an operation whose subject is noted here.
    pub async fn of<F: Future>(self: Arc<Self>, operation: F) -> F::Output {
        SUBJECT.scope(Some(self), operation).await
    }

    pub(crate) fn note_tenant(&self, tenant_id: &str) {
        self.tenant_id.get_or_init(|| tenant_id.to_owned());
    }
}

/// The future of a task that the current operation spawns. What the task notes is noted of the operation.
pub(crate) fn inherit_subject<F: Future>(work: F) -> impl Future<Output = F::Output> {
    let subject = SUBJECT.try_with(Clone::clone).unwrap_or_default();
    SUBJECT.scope(subject, work)
}

/// Notes a fact about the current operation. Does nothing, and allocates nothing, if the operation is not traced.
fn note(fact: impl FnOnce(&Subject)) {
    let _ = SUBJECT.try_with(|subject| {
        if let Some(subject) = subject {
            fact(subject);
        }
    });
}

/// Notes the tenant that the current operation is about, if it is about no session or its session is not known yet.
pub fn note_tenant(tenant_id: &str) {
    note(|subject| subject.note_tenant(tenant_id));
}

/// Notes the session that the current operation is about.
pub fn note_session(tenant_id: &str, session: SessionId) {
    note(|subject| {
        subject.note_tenant(tenant_id);
        subject.session.get_or_init(|| session);
    });
}

/// As [`note_session`], with the run. A run of another session than the operation's is not recorded.
pub fn note_run(tenant_id: &str, session: SessionId, run_id: RunId) {
    note(|subject| {
        subject.note_tenant(tenant_id);
        if *subject.session.get_or_init(|| session) == session {
            subject.run_id.get_or_init(|| run_id);
        }
    });
}

/// Notes which operation the current request is, for a route that serves several. Of a batch, the first is recorded.
pub fn note_operation(name: &'static str) {
    note(|subject| {
        subject.operation.get_or_init(|| name);
    });
}

impl Traces {
    /// With a queue to the collector, if one is configured.
    pub(crate) fn new(endpoint: Option<&str>) -> (Self, Option<mpsc::Receiver<Span>>) {
        let Some(_) = endpoint else { return (Self::default(), None) };
        let (sender, receiver) = mpsc::channel(QUEUE_SPANS_MAX);
        (Self { queue: Some(sender) }, Some(receiver))
    }

    pub fn is_on(&self) -> bool {
        self.queue.is_some()
    }

    /// False if the span had to be dropped.
    pub(crate) fn put(&self, span: Span) -> bool {
        let wanted = span.parent.as_ref().is_none_or(|parent| parent.sampled);
        self.queue.as_ref().filter(|_| wanted).is_none_or(|queue| queue.try_send(span).is_ok())
    }
}

impl Parent {
    /// A malformed header is ignored, as the W3C specification requires.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let text = headers.get("traceparent")?.to_str().ok()?;
        let hex = |part: &str, length: usize| {
            let fits = part.len() == length && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            fits.then(|| part.to_owned())
        };
        let mut parts = text.split('-');
        let (version, trace_id, span_id, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let version = hex(version, 2).filter(|version| version != "ff")?;
        if version == "00" && parts.next().is_some() {
            return None;
        }
        let is_set = |id: &String| id.bytes().any(|b| b != b'0');
        Some(Self {
            trace_id: hex(trace_id, 32).filter(is_set)?,
            span_id: hex(span_id, 16).filter(is_set)?,
            sampled: u8::from_str_radix(&hex(flags, 2)?, 16).ok()? & 1 == 1,
        })
    }
}

pub(crate) fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

impl Span {
    pub(crate) fn json(&self, span_id: &str, redactor: &Redactor) -> Value {
        let own = self.trace_id.to_string();
        let own = own.rsplit_once('_').map_or(own.as_str(), |(_, body)| body);
        let parent = self.parent.as_ref();
        let (name, mut attributes) = self.transport.describe();
        attributes.push(text("ostler.trace_id", &self.trace_id.to_string()));
        attributes.extend(self.failure.map(|kind| text("error.type", kind.as_str())));
        attributes.extend(self.subject.attributes(redactor));
        let is_failed = match &self.transport {
            Transport::Http { status, .. } => status.is_server_error(),
            Transport::Rpc { .. } => self.failure.is_some_and(|kind| kind.row().status >= 500),
        };
        let nanos = |at: Timestamp| at.as_nanosecond().to_string();
        json!({
            "traceId": parent.map_or(own, |parent| &parent.trace_id),
            "spanId": span_id,
            "parentSpanId": parent.map_or("", |parent| &parent.span_id),
            "name": name,
            "kind": KIND_SERVER,
            "startTimeUnixNano": nanos(self.began_at),
            "endTimeUnixNano": nanos(self.ended_at),
            "attributes": attributes,
            "status": if is_failed { json!({"code": STATUS_ERROR}) } else { json!({}) },
        })
    }
}

impl Transport {
    /// The span's name and attributes, as the semantic conventions of OpenTelemetry have them.
    fn describe(&self) -> (String, Vec<Value>) {
        match self {
            Self::Http { method, route, status } => {
                let route = route.as_deref().unwrap_or("other");
                let attributes = vec![
                    text("http.request.method", method.as_str()),
                    text("http.route", route),
                    json!({"key": "http.response.status_code", "value": {"intValue": status.as_u16().to_string()}}),
                ];
                (format!("{method} {route}"), attributes)
            }
            Self::Rpc { method } => {
                let attributes = [("rpc.system", "jsonrpc"), ("rpc.method", method)];
                ((*method).to_owned(), attributes.map(|(key, value)| text(key, value)).to_vec())
            }
        }
    }
}

impl Subject {
    /// What is known of the subject. The tenant is redacted, because an operator may send any text as one.
    fn attributes(&self, redactor: &Redactor) -> impl Iterator<Item = Value> {
        let tenant_id = self.tenant_id.get().map(|tenant_id| text("ostler.tenant_id", &redactor.redact(tenant_id)));
        let session = self.session.get().map(|session| text("ostler.session_id", &session.to_string()));
        let run_id = self.run_id.get().map(|run_id| text("ostler.run_id", &run_id.to_string()));
        let operation = self.operation.get().map(|operation| text("ostler.operation", operation));
        [tenant_id, session, run_id, operation].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parent(text: &str) -> Option<Parent> {
        Parent::of(&HeaderMap::from_iter([("traceparent".parse().unwrap(), text.parse().unwrap())]))
    }

    #[test]
    fn a_callers_trace_is_continued_when_it_is_well_formed() {
        let good = parent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").unwrap();
        assert_eq!((good.trace_id.as_str(), good.sampled), ("0af7651916cd43dd8448eb211c80319c", true));
        assert!(!parent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00").unwrap().sampled);
        assert!(parent("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-later").is_some());
        for bad in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
        ] {
            assert_eq!(parent(bad), None, "{bad}");
        }
    }
}
