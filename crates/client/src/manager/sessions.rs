//! Sessions: create, list, get, read, mark as read, control and follow them.

use ostler_protocol::{
    Failure,
    kernel::{
        events::EventPage,
        sessions::{
            ControlSession, CreateSession, ListSessions, ReadSession, SessionEventsQuery, SessionPage, SessionQuery,
            SessionView, UpdateSession,
        },
    },
};

use crate::{client::Client, manager::events::EventStream, path::Path};

impl Client {
    /// Idempotent: the same id returns the same session.
    pub async fn create_session(&self, session: &CreateSession) -> Result<SessionView, Failure> {
        self.post(Path::api(&["sessions"]), session).await
    }

    pub async fn list_sessions(&self, query: &ListSessions) -> Result<SessionPage, Failure> {
        self.get(Path::api(&["sessions"]).query(query)?).await
    }

    pub async fn get_session(&self, session_id: &str, query: &SessionQuery) -> Result<SessionView, Failure> {
        self.get(Path::api(&["sessions", session_id]).query(query)?).await
    }

    pub async fn update_session(&self, session_id: &str, update: &UpdateSession) -> Result<SessionView, Failure> {
        self.patch(Path::api(&["sessions", session_id]), update).await
    }

    /// A page of everything that happened in the session, or in one of its runs.
    pub async fn session_trace(&self, session_id: &str, query: &SessionEventsQuery) -> Result<EventPage, Failure> {
        self.get(Path::api(&["sessions", session_id, "trace"]).query(query)?).await
    }

    /// A page of what people read: messages and the output of tools.
    pub async fn session_output(&self, session_id: &str, query: &SessionEventsQuery) -> Result<EventPage, Failure> {
        self.get(Path::api(&["sessions", session_id, "output"]).query(query)?).await
    }

    /// Hides the session from this reader's default list until something ends in it again.
    pub async fn read_session(&self, session_id: &str, read: &ReadSession) -> Result<SessionView, Failure> {
        self.post(Path::api(&["sessions", session_id, "read"]), read).await
    }

    pub async fn control_session(&self, session_id: &str, control: &ControlSession) -> Result<SessionView, Failure> {
        self.post(Path::api(&["sessions", session_id, "control"]), control).await
    }

    /// Follows all runs of a session from the event after `after_seq`, which is a sequence number of the session. Such a
    /// stream ends only when the server does.
    pub async fn follow_session(
        &self,
        session_id: &str,
        query: &SessionQuery,
        after_seq: i64,
    ) -> Result<EventStream, Failure> {
        self.follow(Path::api(&["sessions", session_id, "trace"]).query(query)?, after_seq).await
    }
}
