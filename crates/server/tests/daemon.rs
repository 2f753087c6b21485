//! The daemon dialect: editors and SDKs that attach to sessions of a coding agent.

pub(crate) mod agents;
mod approval_modes;
pub(crate) mod asides;
pub(crate) mod auth;
mod branches;
pub(crate) mod details;
mod extensions;
mod files;
mod gate;
mod large_prompts;
mod lifetimes;
pub(crate) mod mcp;
mod opening;
pub(crate) mod operations;
mod placement;
mod prompts;
pub(crate) mod proofs;
pub(crate) mod rewinds;
pub(crate) mod scene;
mod sessions;
mod shell;
pub(crate) mod shell_agent;
pub(crate) mod stream;
mod toolkit;
pub(crate) mod votes;
pub(crate) mod workspace;

use ostler_daemon::config::DaemonSection;
use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};

use crate::harness::{Answer, Caller, Setup, TestServer, eventually, id};

pub(crate) const CLIENT: &str = "x-qwen-client-id";

pub(crate) fn configure(setup: &mut Setup, change: impl FnOnce(&mut DaemonSection)) {
    setup.config.change(change);
}

impl Caller {
    /// A session that clients share: the response.
    pub(crate) async fn open(&self) -> Value {
        self.post("/session", &json!({})).await.with_status(200)
    }

    /// A session of its own: its id.
    pub(crate) async fn open_own(&self) -> String {
        id(&self.post("/session", &json!({"sessionScope": "thread"})).await.with_status(200), "sessionId")
    }

    pub(crate) async fn try_prompt(&self, session_id: &str, text: &str) -> Answer {
        let body = json!({"prompt": [{"type": "text", "text": text}]});
        self.post(&format!("/session/{session_id}/prompt"), &body).await
    }

    /// Submits a prompt: its response.
    pub(crate) async fn prompt(&self, session_id: &str, text: &str) -> Value {
        self.try_prompt(session_id, text).await.with_status(202)
    }

    /// A request as a client of the session.
    pub(crate) async fn as_client(&self, client_id: &str, method: &str, path: &str, body: &Value) -> Answer {
        let request = self.request(method, path).header(CLIENT, client_id);
        let request = match body.is_null() {
            true => request,
            false => request.header(CONTENT_TYPE, "application/json").body(body.to_string()),
        };
        self.send(request).await
    }

    pub(crate) async fn remove(&self, path: &str) -> Answer {
        self.send(self.request("DELETE", path)).await
    }

    /// The events of a session.
    pub(crate) async fn logged(&self, session_id: &str) -> Vec<Value> {
        let page = self.get(&format!("/api/v1/sessions/{session_id}/trace?limit=1000")).await.ok();
        page["events"].as_array().unwrap().clone()
    }

    /// The frames that were noted in a session: type and data of each.
    pub(crate) async fn recorded_notes(&self, session_id: &str) -> Vec<(String, Value)> {
        let notes = self.logged(session_id).await.into_iter().map(|event| event["payload"].clone());
        let notes = notes.filter(|payload| payload["change"] == "noted");
        notes.map(|note| (id(&note, "note"), note["data"].clone())).collect()
    }

    /// The commands of the session's prompts, in order, with their states.
    pub(crate) async fn commands_of(&self, session_id: &str) -> Vec<(String, String)> {
        let mut commands = vec![];
        for event in self.logged(session_id).await.iter().filter(|event| event["type"] == "user_message") {
            let (run_id, command_id) = (id(event, "runId"), id(event, "commandId"));
            let state = id(&self.command(&run_id, &command_id).await, "state");
            commands.push((command_id, state));
        }
        commands
    }
}

#[track_caller]
pub(crate) fn refused(answer: Answer, status: u16, code: &str) -> Value {
    assert_eq!((answer.status, &answer.body["code"]), (status, &json!(code)), "{}", answer.text);
    assert!(answer.body["error"].as_str().is_some_and(|error| !error.is_empty()), "{}", answer.text);
    answer.body
}

/// Waits until the prompts of a session are in these states.
pub(crate) async fn states(server: &TestServer, session_id: &str, wanted: &[&str]) {
    eventually(&format!("prompts are {wanted:?}"), async || {
        let commands = server.commands_of(session_id).await;
        let states: Vec<_> = commands.iter().map(|(_, state)| state.as_str()).collect();
        (states == wanted).then_some(())
    })
    .await;
}

/// A path as one segment of another.
pub(crate) fn segment(path: &std::path::Path) -> String {
    let encode = |byte: &u8| match byte {
        byte if byte.is_ascii_alphanumeric() => (*byte as char).to_string(),
        byte => format!("%{byte:02X}"),
    };
    path.to_str().unwrap().as_bytes().iter().map(encode).collect()
}
