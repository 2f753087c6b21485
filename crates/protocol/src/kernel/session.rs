//! Facts of a session itself: it was made, renamed, closed. They belong to no run, so they have the session's number and
//! none of a run's; the chain, the streams and the pages take them like any other.

use serde_json::json;

use super::{Reply, desk::Desk, run::session_busy};
use crate::{
    Failure, FailureKind, Timestamp,
    events::{EventType, NewEvent},
    sessions::Session,
};

#[derive(Clone, Debug)]
pub struct CreateSessionOp {
    pub session: Session,
    pub by: String,
}

#[derive(Clone, Debug)]
pub struct ChangeSessionOp {
    pub change: SessionChange,
    pub by: String,
}

#[derive(Clone, Debug, PartialEq)]
pub enum SessionChange {
    /// `None` takes the title away.
    Rename(Option<String>),
    /// For good: it takes no run and no command any more, and can still be read.
    Close,
}

/// Its row is on the desk already: the operation brought it.
pub fn create(desk: &mut Desk, by: &str, now: Timestamp) -> Reply {
    let Session { title, backend_profile, .. } = &*desk.session;
    let fact = json!({"change": "created", "title": title, "backendProfile": backend_profile, "by": by});
    state(desk, &fact, now)
}

/// A change to what is so already is no fact.
pub fn change(desk: &mut Desk, op: ChangeSessionOp, now: Timestamp) -> Result<Reply, Failure> {
    let is_so = match &op.change {
        SessionChange::Rename(title) => desk.session.title == *title,
        SessionChange::Close => desk.session.closed_at.is_some(),
    };
    if is_so {
        return Ok(Reply::Session(Box::new((*desk.session).clone())));
    }
    check_open(&desk.session)?;
    let fact = match op.change {
        SessionChange::Rename(title) => {
            let fact = json!({"change": "renamed", "title": title, "by": op.by});
            desk.session.title = title;
            fact
        }
        SessionChange::Close => {
            if let Some(active) = desk.session.active_run_id.filter(|_| desk.session.active_unfinished > 0) {
                return Err(session_busy(active));
            }
            desk.session.closed_at = Some(now);
            json!({"change": "closed", "by": op.by})
        }
    };
    Ok(state(desk, &fact, now))
}

fn state(desk: &mut Desk, fact: &serde_json::Value, now: Timestamp) -> Reply {
    desk.append_to_session(NewEvent::written(EventType::Session, None, fact), now);
    Reply::Session(Box::new((*desk.session).clone()))
}

/// A closed session takes no more work.
pub fn check_open(session: &Session) -> Result<(), Failure> {
    match session.closed_at {
        Some(_) => Err(Failure::rule(FailureKind::StateConflict, "session-closed", "the session was closed")),
        None => Ok(()),
    }
}
