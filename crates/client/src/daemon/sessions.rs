//! Sessions of the daemon dialect: create, load, list, prompt, cancel, rename and close them.

use http::Method;
use ostler_protocol::{
    Failure,
    daemon::{
        agent_status::SupportedCommands,
        prompts::{PromptAccepted, SubmitPrompt},
        sessions::{
            AttachedSession, ListDaemonSessions, ListedSessions, OpenDaemonSession, RestoreSession, RestoredSession,
            SessionHeartbeat, SessionMetadata, UpdateMetadata,
        },
    },
};
use serde_json::json;

use crate::{client::Client, daemon::SessionClient, path::Path};

impl Client {
    /// Creates a session, or attaches to the one that the clients of the workspace share.
    pub async fn open_daemon_session(&self, body: &OpenDaemonSession) -> Result<AttachedSession, Failure> {
        self.post(Path::of(&["session"]), body).await
    }

    /// Opens a session again, if it was closed, and attaches to it. Earlier frames can be received again.
    pub async fn load_daemon_session(&self, session_id: &str) -> Result<RestoredSession, Failure> {
        self.post(Path::of(&["session", session_id, "load"]), &RestoreSession::default()).await
    }

    /// Like [`Client::load_daemon_session`], for clients that do not want the session's history.
    pub async fn resume_daemon_session(&self, session_id: &str) -> Result<RestoredSession, Failure> {
        self.post(Path::of(&["session", session_id, "resume"]), &RestoreSession::default()).await
    }

    /// A page of the sessions of a workspace.
    pub async fn list_daemon_sessions(
        &self,
        workspace: &str,
        query: &ListDaemonSessions,
    ) -> Result<ListedSessions, Failure> {
        self.get(Path::of(&["workspace", workspace, "sessions"]).query(query)?).await
    }
}

impl SessionClient {
    /// Attaches to the session again as this client. The response names the newest frame.
    pub async fn resume(&self) -> Result<RestoredSession, Failure> {
        self.send(Method::POST, self.path(&["resume"]), Some(&RestoreSession::default())).await
    }

    /// Submits a prompt of one text. It waits for earlier prompts of the session.
    pub async fn prompt(&self, text: &str) -> Result<PromptAccepted, Failure> {
        let body = SubmitPrompt { prompt: json!([{"type": "text", "text": text}]), ..SubmitPrompt::default() };
        self.send(Method::POST, self.path(&["prompt"]), Some(&body)).await
    }

    /// Cancels the running prompt. Prompts that wait are not cancelled.
    pub async fn cancel(&self) -> Result<(), Failure> {
        self.call::<()>(Method::POST, self.path(&["cancel"]), None).await.map(drop)
    }

    /// Closes the session for all its clients. It can be loaded again.
    pub async fn close(&self) -> Result<(), Failure> {
        self.call::<()>(Method::DELETE, self.path(&[]), None).await.map(drop)
    }

    /// Renames the session. An empty name removes the name.
    pub async fn rename(&self, name: &str) -> Result<SessionMetadata, Failure> {
        let body = UpdateMetadata { display_name: Some(name.to_owned()) };
        self.send(Method::PATCH, self.path(&["metadata"]), Some(&body)).await
    }

    /// The slash commands of the session's agent. Fails with [`FailureKind::NotImplemented`] if the backend has none.
    ///
    /// [`FailureKind::NotImplemented`]: ostler_protocol::FailureKind::NotImplemented
    pub async fn supported_commands(&self) -> Result<SupportedCommands, Failure> {
        self.send::<_, ()>(Method::GET, self.path(&["supported-commands"]), None).await
    }

    /// Tells the server that this client is still there.
    pub async fn heartbeat(&self) -> Result<SessionHeartbeat, Failure> {
        self.send::<_, ()>(Method::POST, self.path(&["heartbeat"]), None).await
    }
}
