//! Events: durable facts of a session, numbered without gap. The list of types is closed; a payload is any JSON object,
//! and fields we do not know are kept.

mod event_type;
pub use event_type::{
    EventType, PHASE_APPROVAL_DECLINED, PHASE_ATTEMPT_RESTARTED, PHASE_BUNDLE_READY, PHASE_COST_UNKNOWN,
    PHASE_NOTIFIED, PHASE_ROLLED_BACK, PHASE_ROUTER_FALLBACK, PHASE_ROUTER_PLANNED, PHASE_RUN_CLAIMED,
    PHASE_RUNNER_ENDED, PHASE_RUNS_CHARGED, PHASE_STEER_ACCEPTED, PHASE_STORAGE_MOUNTED, PHASE_TRANSPORT_DISCONNECTED,
    PHASE_WAITING_PROVIDER, PHASE_WORKSPACE_CHANGED,
};

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    Failure, RawJson, Rule, Timestamp,
    ids::{CommandId, PermissionId, RunId, SessionId},
    kernel::{
        chain::{self, Hash, Link},
        facts::Facts,
        permissions::ParsedPermission,
    },
    limits::{EVENT_BYTES_MAX, PERMISSION_BYTES_MAX},
    redaction::Redactor,
    text::clip,
};

/// An event on its way into the log: redacted, digested, its facts read; not numbered yet.
#[derive(Clone, Debug)]
pub struct NewEvent {
    pub event_type: EventType,
    pub command_id: Option<CommandId>,
    pub payload: Arc<str>,
    pub digest: Hash,
    pub facts: Facts,
}

impl NewEvent {
    /// Takes an event from outside. `command_id` is checked against the run later.
    pub fn receive(input: AppendEvent, redactor: &Redactor) -> Result<Self, Failure> {
        let event_type = EventType::parse(&input.event_type).ok_or_else(|| {
            Failure::invalid(Rule::EventTypeUnknown, "the event type is not on the list")
                .detail("type", clip(&input.event_type, 80))
        })?;
        if event_type.is_reserved() {
            let message = format!("{} events are written by the server only", event_type.as_str());
            return Err(Failure::invalid(Rule::EventTypeReserved, message));
        }
        let command_id = match input.command_id.as_deref() {
            None => None,
            Some(text) => Some(text.parse().map_err(|_| unknown_command(text))?),
        };
        Self::receive_payload(event_type, command_id, input.payload, redactor)
    }

    /// As [`NewEvent::receive`], with a type and a command that need not be read: those of an event that the server writes in the
    /// name of a runner. The payload has parts that come from outside.
    pub fn receive_payload(
        event_type: EventType,
        command_id: Option<CommandId>,
        payload: RawJson,
        redactor: &Redactor,
    ) -> Result<Self, Failure> {
        if !payload.is_object() {
            return Err(Failure::invalid(Rule::PayloadObject, "an event's payload must be a JSON object"));
        }
        check_payload_size(event_type.as_str(), &payload)?;
        let payload = match redactor.redact_json_payload(payload.as_str()) {
            Cow::Borrowed(_) => payload,
            Cow::Owned(text) => RawJson::parse(text).map_err(Failure::internal)?,
        };
        let facts = Facts::receive(event_type, &payload)?;
        Ok(Self::of(event_type, command_id, payload, facts))
    }

    /// What distinguishes it from another event at the same position of a batch.
    pub fn named(&self) -> (EventType, Option<CommandId>, &Hash) {
        (self.event_type, self.command_id, &self.digest)
    }

    /// The permission request this event makes.
    pub fn asks(&self) -> Option<PermissionId> {
        match &self.facts {
            Facts::Permission(request) => request.permission_id(),
            _ => None,
        }
    }

    /// The event of a permission request, with the time at which the request expires: the run's policy may set an earlier one
    /// than the runner requested. Unchanged if the payload would become too long to be read back.
    pub fn with_deadline(self, deadline: Timestamp) -> Self {
        let Ok(mut fields) = serde_json::from_str::<BTreeMap<String, RawJson>>(&self.payload) else { return self };
        fields.insert("deadline".to_owned(), RawJson::of(&deadline));
        let payload = RawJson::of(&fields);
        if payload.size() > PERMISSION_BYTES_MAX {
            return self;
        }
        // The facts are not read again: that would compile the schema of editable arguments once more, in the write lane.
        let mut facts = self.facts;
        if let Facts::Permission(ParsedPermission::Valid(ask)) = &mut facts {
            ask.deadline = Some(deadline);
        }
        Self::of(self.event_type, self.command_id, payload, facts)
    }

    /// An event the server itself writes.
    #[expect(clippy::expect_used, reason = "our own events are well-formed")]
    pub fn written<T: Serialize>(event_type: EventType, command_id: Option<CommandId>, payload: &T) -> Self {
        let payload = RawJson::of(payload);
        let facts = Facts::read(event_type, &payload).expect("our own events are well-formed");
        Self::of(event_type, command_id, payload, facts)
    }

    fn of(event_type: EventType, command_id: Option<CommandId>, payload: RawJson, facts: Facts) -> Self {
        let digest = chain::payload_digest(payload.as_str());
        Self { event_type, command_id, payload: payload.as_str().into(), digest, facts }
    }
}

pub fn unknown_command(text: &str) -> Failure {
    Failure::invalid(Rule::CommandUnknown, "no such command in this run").detail("commandId", clip(text, 80))
}

/// An event in the log.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub session: SessionId,
    pub session_seq: i64,
    pub run: Option<(RunId, i64)>,
    pub command_id: Option<CommandId>,
    pub event_type: EventType,
    /// `None`: erased, or removed by retention; the digest stays.
    pub payload: Option<Arc<str>>,
    pub digest: Hash,
    pub hash: Hash,
    pub created_at: Timestamp,
}

impl Event {
    pub fn link(&self) -> Link<'_> {
        Link {
            session_seq: self.session_seq,
            run: self.run,
            command_id: self.command_id,
            event_type: self.event_type,
            created_at: self.created_at,
            payload_digest: &self.digest,
        }
    }

    pub fn seq(&self) -> i64 {
        self.run.map_or(0, |(_, seq)| seq)
    }

    /// Reads the facts again from the stored payload, for a full scan.
    pub fn facts(&self) -> Facts {
        let raw = self.payload.as_ref().and_then(|text| RawJson::parse(text.to_string()).ok());
        raw.and_then(|raw| Facts::read(self.event_type, &raw).ok()).unwrap_or(Facts::None)
    }

    /// Appends the wire form, with the payload's text as it was stored.
    pub fn write_json(&self, out: &mut String) {
        use std::fmt::Write;
        // Writing to a string does not fail.
        let _ = match self.run {
            Some((run_id, seq)) => write!(out, r#"{{"seq":{seq},"runId":"{run_id}""#),
            None => write!(out, r#"{{"seq":null,"runId":null"#),
        };
        let _ = write!(out, r#","sessionSeq":{},"type":"{}""#, self.session_seq, self.event_type.as_str());
        let _ = match self.command_id {
            Some(command_id) => write!(out, r#","commandId":"{command_id}""#),
            None => write!(out, r#","commandId":null"#),
        };
        let _ = write!(out, r#","createdAt":"{}","payload":"#, self.created_at);
        out.push_str(self.payload.as_deref().unwrap_or("null"));
        out.push('}');
    }
}

/// An event as clients read it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventView {
    pub seq: Option<i64>,
    pub run_id: Option<RunId>,
    pub session_seq: i64,
    #[serde(rename = "type")]
    pub event_type: EventType,
    pub command_id: Option<CommandId>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Null once it was erased or removed by retention. Digest and place in the chain stay.
    #[schema(value_type = Option<Object>)]
    pub payload: RawJson,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventPage {
    pub events: Vec<EventView>,
    pub next_after_seq: i64,
    pub has_more: bool,
}

/// A page, written without parsing or re-serialising a payload.
pub fn page_json(events: &[Event], next_after_seq: i64, has_more: bool) -> String {
    let size: usize = events.iter().map(|e| e.payload.as_deref().map_or(4, str::len) + 260).sum();
    let mut out = String::with_capacity(size + 64);
    out.push_str(r#"{"events":["#);
    for (index, event) in events.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        event.write_json(&mut out);
    }
    out.push_str(&format!(r#"],"nextAfterSeq":{next_after_seq},"hasMore":{has_more}}}"#));
    out
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppendEvents {
    pub runner_id: String,
    pub lease_epoch: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_id: Option<String>,
    /// Names the batch within the epoch: the same one again answers as the first time and appends nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_no: Option<i64>,
    /// Release the lease in the same transaction, if this batch leaves no command unfinished.
    #[serde(default)]
    pub release_if_idle: bool,
    /// How the runner's job ends if its lease is released with this batch: the job's terminal summary. Only for runners in the
    /// server's process; the jobs of others end when their launchers report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub job_summary: Option<RawJson>,
    pub events: Vec<AppendEvent>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppendEvent {
    #[serde(rename = "type")]
    pub event_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<String>,
    #[schema(value_type = Object)]
    pub payload: RawJson,
}

impl AppendEvent {
    pub fn check_size(&self) -> Result<(), Failure> {
        check_payload_size(&self.event_type, &self.payload)
    }
}

fn check_payload_size(event_type: &str, payload: &RawJson) -> Result<(), Failure> {
    let bytes = payload.size();
    if bytes > EVENT_BYTES_MAX {
        let what = format!("the payload of a {} event", clip(event_type, 80));
        return Err(Failure::too_large(Rule::EventSize, &what, bytes, EVENT_BYTES_MAX));
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Appended {
    pub first_seq: i64,
    pub last_seq: i64,
    /// The lease was released, as requested.
    #[serde(default)]
    #[schema(required)]
    pub released: bool,
    /// The runner's job has ended with the lease.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub job_ended: bool,
}
