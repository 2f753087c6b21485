//! Facts of a session itself: it was made, renamed, closed, given storage or deprived of it, or a dialect noted something. They
//! belong to no run, so they have the session's number and none of a run's; the chain, the streams and the pages take them like
//! any other.

use serde_json::json;

use super::{
    Reply,
    admission::{check_session_open, session_busy},
    desk::Desk,
    ending::{End, end_run},
};
use crate::{
    Failure, FailureKind, Rule, Timestamp,
    ids::{CommandId, name},
    kernel::{
        events::{EventType, NewEvent},
        labels::LabelPatch,
        runs::TerminalStatus,
        session_storage::{RefreshStorage, SessionStorage, StorageKind, StoragePlace, elsewhere},
        sessions::{ParentSession, Session},
    },
    limits::SESSION_PARTICIPANTS_MAX,
};

#[derive(Clone, Debug)]
pub struct CreateSessionOp {
    pub session: Session,
    pub by: String,
    /// The client that it is created for, which joins it at once.
    pub participant: Option<String>,
}

#[derive(Clone, Debug)]
pub struct ChangeSessionOp {
    pub change: SessionChange,
    pub by: String,
}

#[derive(Clone, Debug, PartialEq)]
pub enum SessionChange {
    /// `None` removes the title.
    Rename {
        title: Option<String>,
        /// The dialect's name for the client that renamed it, for other clients to see.
        origin: Option<String>,
    },
    /// Other labels and, if there is one, another title.
    Label { labels: LabelPatch, title: Option<Option<String>> },
    /// A client joins the session.
    Join { participant: String },
    /// A client leaves the session.
    Leave { participant: String },
    /// A client leaves the session, unless it is the last participant: without any, the first valid answer to a permission
    /// request would decide under `consensus`.
    LeaveUnlessLast { participant: String },
    /// Permanent: it accepts no further runs or commands, and can still be read.
    Close,
    /// It has storage now; kept at least until then.
    MakeStorage { place: StoragePlace, expires_at: Option<Timestamp> },
    /// What a runner found in it.
    MeasureStorage { found: RefreshStorage, expires_at: Option<Timestamp> },
    /// It is to be forgotten: what runs in it ends, and it accepts nothing further.
    Erase,
    /// As [`SessionChange::Erase`], unless it works on something or was changed after that time.
    EraseUnchanged { since: Timestamp },
    /// Its storage is deleted permanently.
    EvictStorage { reason: &'static str },
    /// The conversation continues before this turn. The turn and those after it stay in the log, but agents no longer get
    /// them, and the agent's own thread is given up. `at_seq` is the session's last number when the turn was chosen.
    Rewind { before: CommandId, at_seq: i64 },
    /// A message that belongs to the conversation, but to no turn. The agent gets it with the next turn.
    AddMessage { text: String },
    /// Something that a dialect records for the session's followers. It changes nothing else. Only if `is_use`, the session counts as
    /// used now: a note about something that many sessions share is no use of any.
    Note { note: String, data: serde_json::Value, is_use: bool },
}

/// Its row is on the desk already: the operation brought it.
pub(super) fn create(desk: &mut Desk, op: CreateSessionOp, now: Timestamp) -> Result<Reply, Failure> {
    let CreateSessionOp { by, participant, .. } = op;
    participant.iter().try_for_each(|participant| check_participant(&desk.session, participant))?;
    let digest = desk.session.record_digest();
    let Session { title, labels, backend_profile, storage, .. } = &*desk.session;
    let fact = json!({"change": "created", "title": title, "labels": labels, "backendProfile": backend_profile,
        "storageKind": storage.storage_kind, "expiresAt": storage.expires_at, "by": by, "sessionDigest": digest});
    let fact = with_claim(with_parent(fact, desk.session.parent), &desk.session.storage);
    let created = state(desk, &fact, now);
    match participant {
        Some(participant) => change(desk, ChangeSessionOp { change: SessionChange::Join { participant }, by }, now),
        None => Ok(created),
    }
}

/// The fact of a session that continues another one names it.
fn with_parent(mut fact: serde_json::Value, parent: Option<ParentSession>) -> serde_json::Value {
    if let Some(parent) = parent {
        fact["parent"] = json!({"session": parent.session, "seq": parent.seq});
    }
    fact
}

/// The fact of storage that is a volume claim names it.
fn with_claim(mut fact: serde_json::Value, storage: &SessionStorage) -> serde_json::Value {
    if let Some(StoragePlace::Claim { name, namespace }) = storage.place() {
        fact["pvcName"] = name.into();
        fact["pvcNamespace"] = namespace.into();
    }
    fact
}

/// A change that changes nothing is not recorded.
pub(super) fn change(desk: &mut Desk, op: ChangeSessionOp, now: Timestamp) -> Result<Reply, Failure> {
    if is_so(&desk.session, &op.change)? {
        return Ok(Reply::Session(Box::new((*desk.session).clone())));
    }
    let fact = match op.change {
        SessionChange::Rename { title, origin } => {
            check_session_open(&desk.session)?;
            let mut fact = json!({"change": "renamed", "title": title, "by": op.by});
            if let Some(origin) = origin {
                fact["origin"] = origin.into();
            }
            desk.session.title = title;
            fact
        }
        SessionChange::Label { labels, title } => {
            let labels = desk.session.labels.patched(&labels)?;
            if let Some(title) = title {
                let change_title = SessionChange::Rename { title, origin: None };
                change(desk, ChangeSessionOp { change: change_title, by: op.by.clone() }, now)?;
            }
            if labels == desk.session.labels {
                return Ok(Reply::Session(Box::new((*desk.session).clone())));
            }
            desk.session.labels = labels;
            json!({"change": "labelled", "labels": desk.session.labels, "by": op.by})
        }
        SessionChange::Join { participant } => {
            check_participant(&desk.session, &participant)?;
            desk.session.participants.push(participant.clone());
            json!({"change": "joined", "participant": participant, "by": op.by})
        }
        SessionChange::Leave { participant } | SessionChange::LeaveUnlessLast { participant } => {
            desk.session.participants.retain(|other| *other != participant);
            json!({"change": "left", "participant": participant, "by": op.by})
        }
        SessionChange::Close => {
            if let Some(active) = desk.session.active_run_id.filter(|_| desk.session.active_unfinished > 0) {
                return Err(session_busy(active));
            }
            desk.session.closed_at = Some(now);
            json!({"change": "closed", "by": op.by})
        }
        SessionChange::MakeStorage { place, expires_at } => {
            check_session_open(&desk.session)?;
            make_storage(&mut desk.session, place, expires_at)?;
            let storage = &desk.session.storage;
            let fact = json!({"change": "storage-made", "storageKind": storage.storage_kind,
                "expiresAt": storage.expires_at, "by": op.by});
            with_claim(fact, storage)
        }
        SessionChange::MeasureStorage { found, expires_at } => {
            measure_storage(&mut desk.session, &found, expires_at, now)?;
            json!({"change": "storage-measured", "sizeBytes": found.size_bytes, "filesCount": found.files_count,
                "sha256": found.sha256, "expiresAt": desk.session.storage.expires_at, "by": op.by})
        }
        SessionChange::EvictStorage { reason } => {
            evict_storage(&mut desk.session, now)?;
            json!({"change": "storage-evicted", "reason": reason, "by": op.by})
        }
        SessionChange::Rewind { before, at_seq } => {
            rewind(&mut desk.session, at_seq, now)?;
            json!({"change": "rewound", "beforeCommandId": before, "by": op.by})
        }
        SessionChange::AddMessage { text } => {
            check_session_open(&desk.session)?;
            json!({"change": "message-added", "text": text, "by": op.by})
        }
        SessionChange::Note { note, data, is_use } => {
            return Ok(record_note(desk, (&note, &data, is_use), &op.by, now));
        }
        SessionChange::Erase => erase(desk, now)?,
        SessionChange::EraseUnchanged { since } => {
            if desk.session.active_unfinished > 0 || desk.session.updated_at > since {
                return Err(Failure::rule(Rule::SessionMovedOn, "the session was used concurrently"));
            }
            erase(desk, now)?
        }
    };
    Ok(state(desk, &fact, now))
}

/// Whether the change would change nothing.
fn is_so(session: &Session, change: &SessionChange) -> Result<bool, Failure> {
    Ok(match change {
        SessionChange::Rename { title, .. } => session.title == *title,
        SessionChange::Label { labels, title } => {
            let has_title = title.as_ref().is_none_or(|title| *title == session.title);
            has_title && session.labels.patched(labels)? == session.labels
        }
        SessionChange::Join { participant } => session.participants.contains(participant),
        SessionChange::Leave { participant } => !session.participants.contains(participant),
        SessionChange::LeaveUnlessLast { participant } => {
            !session.participants.contains(participant) || session.participants.len() == 1
        }
        SessionChange::Close => session.closed_at.is_some(),
        SessionChange::MakeStorage { place, .. } => session.storage.storage_kind == place.kind(),
        SessionChange::MeasureStorage { found, expires_at } => is_as_found(session, found, *expires_at),
        SessionChange::EvictStorage { .. } => session.storage.storage_kind == StorageKind::Evicted,
        SessionChange::Erase | SessionChange::EraseUnchanged { .. } => session.erased_at.is_some(),
        SessionChange::Rewind { .. } | SessionChange::AddMessage { .. } | SessionChange::Note { .. } => false,
    })
}

fn check_participant(session: &Session, participant: &str) -> Result<(), Failure> {
    check_session_open(session)?;
    name("participant", participant)?;
    if session.participants.len() >= SESSION_PARTICIPANTS_MAX {
        let message = format!("a session has at most {SESSION_PARTICIPANTS_MAX} participants");
        return Err(Failure::rule(Rule::SessionParticipants, message));
    }
    Ok(())
}

/// A runner that holds the lease would continue the thread that it knows, so it must have left before.
fn rewind(session: &mut Session, at_seq: i64, now: Timestamp) -> Result<(), Failure> {
    check_session_open(session)?;
    if let Some(active) = session.busy_with_other(None, now) {
        return Err(session_busy(active));
    }
    if session.last_seq != at_seq {
        return Err(Failure::rule(Rule::SessionMovedOn, "the session has changed since the turn was chosen"));
    }
    session.thread_id = None;
    Ok(())
}

fn erase(desk: &mut Desk, now: Timestamp) -> Result<serde_json::Value, Failure> {
    end_all(desk, now)?;
    desk.session.erased_at = Some(now);
    Ok(erasure())
}

/// The payload of an erased session's last event. It is the same for all, so that its digest is known after its payload
/// is erased too.
pub(super) fn erasure() -> serde_json::Value {
    json!({"change": "erased"})
}

fn state(desk: &mut Desk, fact: &serde_json::Value, now: Timestamp) -> Reply {
    desk.append_to_session(NewEvent::written(EventType::Session, None, fact), now);
    Reply::Session(Box::new((*desk.session).clone()))
}

fn record_note(
    desk: &mut Desk,
    (note, data, is_use): (&str, &serde_json::Value, bool),
    by: &str,
    now: Timestamp,
) -> Reply {
    let (fact, used_at) = (json!({"change": "noted", "note": note, "data": data, "by": by}), desk.session.updated_at);
    let reply = state(desk, &fact, now);
    if is_use {
        return reply;
    }
    desk.session.updated_at = used_at;
    Reply::Session(Box::new((*desk.session).clone()))
}

/// Ends everything that runs, no matter which runner works on it: nothing it would still report may be written.
fn end_all(desk: &mut Desk, now: Timestamp) -> Result<(), Failure> {
    if desk.session.active_run_id.is_some_and(|active| !desk.runs.contains_key(&active)) {
        return Err(Failure::rule(Rule::SessionMovedOn, "the session has changed since then"));
    }
    for run_id in desk.runs.keys().copied().collect::<Vec<_>>() {
        if !desk.run(run_id)?.run.status.is_terminal() {
            let end = End::manager(TerminalStatus::Cancelled, FailureKind::Cancelled, "the session was erased");
            end_run(desk, run_id, end, now);
            desk.settle(run_id, now);
        }
    }
    Ok(())
}

fn is_as_found(session: &Session, found: &RefreshStorage, expires_at: Option<Timestamp>) -> bool {
    let storage = &session.storage;
    let known = (storage.storage_size_bytes, storage.storage_files_count, &storage.storage_sha256);
    // What has no digest may have changed without showing it.
    let same = found.sha256.is_some() && known == (Some(found.size_bytes), Some(found.files_count), &found.sha256);
    storage.storage_kind.is_kept() && same && storage.expires_at >= expires_at
}

/// Storage of another kind that was never used is given up; what an agent left there is not moved.
fn make_storage(session: &mut Session, place: StoragePlace, expires_at: Option<Timestamp>) -> Result<(), Failure> {
    session.storage.check()?;
    if session.storage.is_used() {
        return Err(elsewhere(session.storage.storage_kind));
    }
    session.storage.put_at(place);
    session.storage.keep_until(expires_at);
    Ok(())
}

fn measure_storage(
    session: &mut Session,
    found: &RefreshStorage,
    expires_at: Option<Timestamp>,
    now: Timestamp,
) -> Result<(), Failure> {
    session.storage.check()?;
    check_storage(session)?;
    let storage = &mut session.storage;
    storage.storage_size_bytes = Some(found.size_bytes);
    storage.storage_files_count = Some(found.files_count);
    storage.storage_sha256 = found.sha256.clone();
    storage.storage_updated_at = Some(now);
    storage.keep_until(expires_at);
    Ok(())
}

fn evict_storage(session: &mut Session, now: Timestamp) -> Result<(), Failure> {
    check_storage(session)?;
    if let Some(active) = session.busy_with_other(None, now) {
        return Err(session_busy(active));
    }
    session.storage.storage_kind = StorageKind::Evicted;
    session.storage.storage_evicted_at = Some(now);
    Ok(())
}

fn check_storage(session: &Session) -> Result<(), Failure> {
    match session.storage.storage_kind {
        StorageKind::None => Err(Failure::rule(Rule::StorageNone, "the session has no storage")),
        StorageKind::Local | StorageKind::Pvc | StorageKind::Evicted => Ok(()),
    }
}
