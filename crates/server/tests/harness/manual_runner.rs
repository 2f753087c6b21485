//! A runner that the test plays: it holds a lease and writes under it.

use serde_json::{Value, json};

use super::{Answer, Caller, id};

#[derive(Clone)]
pub(crate) struct ManualRunner {
    pub caller: Caller,
    pub run_id: String,
    pub runner_id: String,
    pub epoch: i64,
    pub attempt_id: String,
}

impl ManualRunner {
    pub(crate) fn new(caller: Caller, run_id: &str, runner_id: &str, claimed: &Value) -> Self {
        let epoch = claimed["leaseEpoch"].as_i64().unwrap();
        let attempt_id = id(claimed, "attemptId");
        Self { caller, run_id: run_id.to_owned(), runner_id: runner_id.to_owned(), epoch, attempt_id }
    }

    pub(crate) fn signed(&self, mut body: Value) -> Value {
        body["runnerId"] = self.runner_id.as_str().into();
        body["leaseEpoch"] = self.epoch.into();
        body
    }

    pub(crate) async fn try_append(&self, batch_no: Option<i64>, events: Value) -> Answer {
        let mut body = self.signed(json!({"events": events}));
        if let Some(no) = batch_no {
            body["batchNo"] = no.into();
        }
        self.caller.post(&format!("/api/v1/runs/{}/events", self.run_id), &body).await
    }

    /// Appends one event.
    pub(crate) async fn tell(&self, command_id: &str, event_type: &str, payload: Value) -> Value {
        let event = json!({"type": event_type, "commandId": command_id, "payload": payload});
        self.try_append(None, json!([event])).await.with_status(200)
    }

    /// An assistant's final word.
    pub(crate) async fn say(&self, command_id: &str, text: &str) -> Value {
        let payload = json!({"messageId": "m", "text": text, "final": true, "replyAuthority": true});
        self.tell(command_id, "assistant_message", payload).await
    }

    pub(crate) async fn try_ack(&self, command_id: &str) -> Answer {
        self.caller.post(&format!("/api/v1/commands/{command_id}/ack"), &self.signed(json!({}))).await
    }

    pub(crate) async fn ack(&self, command_id: &str) -> Value {
        self.try_ack(command_id).await.with_status(200)
    }

    pub(crate) async fn try_end(&self, command_id: &str, status: &str) -> Answer {
        let body = self.signed(json!({"status": status}));
        self.caller.patch(&format!("/api/v1/commands/{command_id}/status"), &body).await
    }

    pub(crate) async fn end(&self, command_id: &str, status: &str) -> Value {
        self.try_end(command_id, status).await.with_status(200)
    }

    pub(crate) async fn try_end_run(&self, status: &str) -> Answer {
        self.caller
            .patch(&format!("/api/v1/runs/{}/status", self.run_id), &self.signed(json!({"status": status})))
            .await
    }

    pub(crate) async fn try_patch_lease(&self, body: Value) -> Answer {
        self.caller.patch(&format!("/api/v1/runs/{}/lease", self.run_id), &self.signed(body)).await
    }

    pub(crate) async fn heartbeat(&self) -> Value {
        self.try_patch_lease(json!({})).await.with_status(200)
    }

    pub(crate) async fn release(&self) -> Value {
        self.try_patch_lease(json!({"release": true})).await.with_status(200)
    }

    pub(crate) async fn poll(&self, query: &str) -> Value {
        self.caller.get(&format!("/api/v1/runs/{}/commands?{query}", self.run_id)).await.ok()
    }

    /// Asks for permission to run something; the permission's id.
    pub(crate) async fn ask(&self, command_id: &str, permission_id: &str, digest: &str) -> Value {
        self.tell(command_id, "permission_request", ask_body(permission_id, digest)).await
    }
}

pub(crate) fn ask_body(permission_id: &str, digest: &str) -> Value {
    json!({"permissionId": permission_id, "title": "Delete it?", "digest": digest, "waitMs": 60_000, "options": [
        {"optionId": "yes", "name": "Yes", "kind": "allow_once"}, {"optionId": "no", "name": "No", "kind": "reject_once"}]})
}
