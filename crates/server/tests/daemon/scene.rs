//! A client that is attached to a session of its own.

use serde_json::{Value, json};

use crate::harness::{Answer, Caller, TestServer, eventually, id};

pub(crate) struct Attached {
    pub caller: Caller,
    pub id: String,
    pub client: String,
}

/// Creates a session for one client.
pub(crate) async fn attached(caller: &Caller) -> Attached {
    let created = caller.call("POST", "/session", &json!({"sessionScope": "thread"})).await.with_status(200);
    Attached { caller: caller.clone(), id: id(&created, "sessionId"), client: id(&created, "clientId") }
}

impl Attached {
    pub(crate) async fn get(&self, what: &str) -> Answer {
        self.caller.get(&format!("/session/{}/{what}", self.id)).await
    }

    /// As the client.
    pub(crate) async fn post(&self, what: &str, body: &Value) -> Answer {
        let path = format!("/session/{}/{what}", self.id);
        let request = self.caller.request("POST", &path).header("x-qwen-client-id", &self.client);
        self.caller.send(self.caller.with_body(request, &path, body)).await
    }

    pub(crate) async fn close(&self) {
        let path = format!("/session/{}", self.id);
        self.caller.send(self.caller.request("DELETE", &path)).await.with_status(204);
    }

    /// The id of a prompt that was accepted.
    pub(crate) async fn prompt(&self, text: &str) -> String {
        let body = json!({"prompt": [{"type": "text", "text": text}]});
        id(&self.post("prompt", &body).await.with_status(202), "promptId")
    }

    /// The run and the command of the last prompt.
    pub(crate) async fn prompted(&self, server: &TestServer) -> (String, String) {
        let page = server.get(&format!("/api/v1/sessions/{}/trace?limit=100", self.id)).await.with_status(200);
        let mut events = page["events"].as_array().unwrap().iter();
        let prompt = events.rfind(|event| event["type"] == "user_message").unwrap();
        (id(prompt, "runId"), id(prompt, "commandId"))
    }

    /// Prompts, and waits until nothing is left to do.
    pub(crate) async fn prompt_to_end(&self, text: &str) {
        self.prompt(text).await;
        eventually("the prompt ends", async || {
            let tasks = self.get("tasks").await.with_status(200);
            tasks["tasks"].as_array().unwrap().is_empty().then_some(())
        })
        .await;
    }

    /// What the daemon has noted in the session, in order.
    pub(crate) async fn notes(&self, server: &TestServer) -> Vec<Value> {
        let path = format!("/api/v1/sessions/{}/trace?limit=100", self.id);
        let page = server.get(&path).await.with_status(200);
        let payloads = page["events"].as_array().unwrap().iter().map(|event| event["payload"].clone());
        payloads.filter(|payload| payload["change"] == "noted").collect()
    }
}

/// Waits until every runner has left, so that nothing is written when the clock is moved.
pub(crate) async fn at_rest(server: &TestServer) {
    eventually("every runner has left", async || {
        server.store("SELECT run_id FROM leases WHERE ended = 0").await.is_empty().then_some(())
    })
    .await;
}
