//! A client of the server over HTTP: plain JSON in and out, so that tests see the wire and not our types.

use ostler_protocol::FailureKind;
use ostler_server::RunningServer;
use reqwest::{
    Client, Method, RequestBuilder,
    header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap},
};
use serde_json::{Value, json};

use super::{Follow, ManualRunner, PATIENCE, document::check_answer, eventually};

#[derive(Clone)]
pub(crate) struct Caller {
    http: Client,
    base: String,
    token: Option<String>,
}

/// An answer, good or not.
#[derive(Debug)]
pub(crate) struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
    /// Null where the answer was no JSON.
    pub body: Value,
}

/// A failure whose whole shape has been checked.
#[derive(Debug)]
pub(crate) struct Refused {
    pub rule: String,
    pub message: String,
    pub details: Value,
}

impl Answer {
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert!((200..300).contains(&self.status), "{}: {}", self.status, self.text);
        self.body
    }

    #[track_caller]
    pub(crate) fn with_status(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        self.body
    }

    /// Checks everything every failure has: status, kind, message, and one trace id in body and header, which is also the
    /// request id.
    #[track_caller]
    pub(crate) fn refused(self, kind: FailureKind) -> Refused {
        let Self { status, headers, text, body } = self;
        assert_eq!(body["failureKind"], kind.as_str(), "{status}: {text}");
        assert_eq!(status, kind.row().status, "{text}");
        assert_eq!(headers[CONTENT_TYPE], "application/problem+json");
        let row = kind.row();
        assert_eq!(body["type"], format!("urn:ostler:failure:{}", row.name));
        assert_eq!((&body["title"], &body["status"]), (&json!(row.meaning), &json!(row.status)));
        assert_eq!(body["detail"], body["message"]);
        let trace_id = body["traceId"].as_str().expect("a trace id");
        assert!(trace_id.starts_with("trc_"), "{trace_id}");
        assert_eq!(headers["x-trace-id"], trace_id);
        assert_eq!(body["requestId"], trace_id);
        assert!(body["message"].as_str().is_some_and(|message| !message.is_empty()), "{text}");
        assert!(body["details"].is_object(), "{text}");
        let rule = body["details"]["rule"].as_str().unwrap_or_default().to_owned();
        Refused { rule, message: id(&body, "message"), details: body["details"].clone() }
    }

    /// As [`Answer::refused`], under the run input dialect's code.
    #[track_caller]
    pub(crate) fn refused_as(self, kind: FailureKind, code: &str) -> Refused {
        assert_eq!(self.body["code"], code, "{}", self.text);
        self.refused(kind)
    }

    /// As [`Answer::refused`], by the named rule.
    #[track_caller]
    pub(crate) fn refused_by(self, kind: FailureKind, rule: &str) -> Refused {
        let refused = self.refused(kind);
        assert_eq!(refused.rule, rule, "{refused:?}");
        refused
    }
}

/// A run that every default policy admits.
pub(crate) fn run_body() -> Value {
    json!({"tenantId": "hwlab", "projectId": "pikasTech/HWLAB", "workspaceRef": {"kind": "none"}, "providerId": "G14",
        "backendProfile": "scripted", "executionPolicy": {}, "traceSink": null})
}

/// The field's text.
#[track_caller]
/// Makes a run's body one of an agent that is a program; see [`Caller::equip`].
pub(crate) fn of_program(body: &mut Value) {
    body["backendProfile"] = json!("codex");
    let secret = json!({"name": "agentrun-v01-provider-codex", "keys": ["auth.json", "config.toml"]});
    body["executionPolicy"] =
        json!({"secretScope": {"providerCredentials": [{"profile": "codex", "secretRef": secret}]}});
}

pub(crate) fn id(body: &Value, field: &str) -> String {
    body[field].as_str().unwrap_or_else(|| panic!("{field} in {body}")).to_owned()
}

/// A form, by hand: each field with its bytes, and `file` with a name.
pub(crate) fn form(fields: &[(&str, &[u8])]) -> (&'static str, Vec<u8>) {
    let mut body = vec![];
    for (name, bytes) in fields {
        let file = if *name == "file" { "; filename=\"a.svg\"\r\nContent-Type: image/svg+xml" } else { "" };
        body.extend(format!("--form\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n").into_bytes());
        body.extend(*bytes);
        body.extend(b"\r\n");
    }
    body.extend(b"--form--\r\n");
    ("multipart/form-data; boundary=form", body)
}

/// The smallest thing that passes for a PNG.
pub(crate) const PNG: &[u8] = b"\x89PNG\r\n\x1a\n and the rest of it";

/// A recording of one sample.
pub(crate) const WAV: &[u8] =
    b"RIFF\x2e\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0data\x02\0\0\0\x01\x02";

impl Caller {
    /// A picture for a thread.
    pub(crate) async fn upload(&self, thread_id: &str, bytes: &[u8]) -> Answer {
        let fields = [("threadId", thread_id.as_bytes()), ("runId", b"run-1"), ("file", bytes)];
        self.send_form("/api/v1/agent/attachments", &fields).await
    }

    pub(crate) async fn send_form(&self, path: &str, fields: &[(&str, &[u8])]) -> Answer {
        let (content_type, body) = form(fields);
        self.send(self.request("POST", path).header(CONTENT_TYPE, content_type).body(body)).await
    }

    /// Puts a body into a request as its operation takes it.
    pub(crate) fn with_body(&self, request: RequestBuilder, path: &str, body: &Value) -> RequestBuilder {
        match path {
            _ if body.is_null() => return request,
            "/pki/ocsp" => return request.header(CONTENT_TYPE, "application/ocsp-request").body("no request"),
            // The host is the agent that it is about, and its own token the proof.
            "/agent.md" => {
                let mut headers = HeaderMap::new();
                headers.insert(HOST, id(body, "host").parse().unwrap());
                headers.insert(CONTENT_TYPE, "text/markdown".parse().unwrap());
                headers.insert(AUTHORIZATION, format!("Bearer {}", id(body, "token")).parse().unwrap());
                return request.headers(headers).body(id(body, "text"));
            }
            _ => {}
        }
        if path == "/api/v1/agent/transcribe" {
            let (content_type, body) = form(&[("file", WAV)]);
            return request.header(CONTENT_TYPE, content_type).body(body);
        }
        if path != "/api/v1/agent/attachments" {
            return request.header(CONTENT_TYPE, "application/json").body(body.to_string());
        }
        let fields: Vec<_> = body.as_object().unwrap().iter().collect();
        let text: Vec<_> =
            fields.iter().map(|(name, value)| (name.as_str(), value.as_str().unwrap().as_bytes())).collect();
        let (content_type, body) = form(&[&text[..], &[("file", PNG)]].concat());
        request.header(CONTENT_TYPE, content_type).body(body)
    }

    pub(crate) fn new(server: &RunningServer) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = Client::builder().no_proxy().tls_certs_only([]).read_timeout(PATIENCE).build().unwrap();
        let token = std::fs::read_to_string(server.token_file()).unwrap().trim().to_owned();
        Self { http, base: format!("http://{}", server.address()), token: Some(token) }
    }

    /// The same server, with another token or none.
    pub(crate) fn with_token(&self, token: Option<&str>) -> Self {
        Self { token: token.map(str::to_owned), ..self.clone() }
    }

    pub(crate) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let method: Method = method.parse().unwrap();
        let request = self.http.request(method, format!("{}{path}", self.base));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    pub(crate) async fn send(&self, request: RequestBuilder) -> Answer {
        let request = request.build().unwrap();
        let (method, path) = (request.method().to_string(), request.url().path().to_owned());
        let response = self.http.execute(request).await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await.unwrap();
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        let content_type = headers.get(CONTENT_TYPE).and_then(|of| of.to_str().ok()).unwrap_or_default();
        if content_type.ends_with("json") && method != "HEAD" {
            check_answer(&method, &path, status, content_type, &body);
        }
        Answer { status, headers, text, body }
    }

    /// What is no text.
    pub(crate) async fn bytes(&self, path: &str) -> Vec<u8> {
        self.request("GET", path).send().await.unwrap().bytes().await.unwrap().into()
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(self.request("GET", path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.call("POST", path, body).await
    }

    pub(crate) async fn patch(&self, path: &str, body: &Value) -> Answer {
        self.call("PATCH", path, body).await
    }

    pub(crate) async fn call(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.send_text(method, path, body.to_string()).await
    }

    /// A body without changes, under the content type of JSON.
    pub(crate) async fn send_text(&self, method: &str, path: &str, body: impl Into<reqwest::Body>) -> Answer {
        self.send(self.request(method, path).header(CONTENT_TYPE, "application/json").body(body)).await
    }

    /// A run of `run_body`, and its id.
    /// Gives the profile of [`of_program`] its credential. With `agents.codex` set to nothing there is, everything is made
    /// ready for its agent, which then is not found.
    pub(crate) async fn equip(&self) {
        let path = "/api/v1/provider-profiles/codex/credential";
        self.call("PUT", path, &json!({"apiKey": "k-0123456789"})).await.with_status(200);
    }

    pub(crate) async fn create_run(&self) -> String {
        self.create_run_with(|_| ()).await
    }

    pub(crate) async fn create_run_with(&self, change: impl FnOnce(&mut Value)) -> String {
        let mut body = run_body();
        change(&mut body);
        id(&self.post("/api/v1/runs", &body).await.with_status(201), "runId")
    }

    /// A run with its first command and a standing job: what `ostler run` makes. Run and command.
    pub(crate) async fn start(&self, prompt: &str) -> (String, String) {
        self.start_with(prompt, |_| ()).await
    }

    pub(crate) async fn start_with(&self, prompt: &str, change: impl FnOnce(&mut Value)) -> (String, String) {
        let mut body = run_body();
        body["command"] = json!({"type": "turn", "payload": {"prompt": prompt}});
        change(&mut body);
        let created = self.post("/api/v1/runs", &body).await.with_status(201);
        (id(&created, "runId"), id(&created["command"], "commandId"))
    }

    pub(crate) async fn run(&self, run_id: &str) -> Value {
        self.get(&format!("/api/v1/runs/{run_id}")).await.ok()
    }

    pub(crate) async fn submit(&self, run_id: &str, body: &Value) -> Answer {
        self.post(&format!("/api/v1/runs/{run_id}/commands"), body).await
    }

    /// A turn, and its id.
    pub(crate) async fn turn(&self, run_id: &str, prompt: &str) -> String {
        let body = json!({"type": "turn", "payload": {"prompt": prompt}});
        id(&self.submit(run_id, &body).await.with_status(201), "commandId")
    }

    /// A steer, as it was answered.
    pub(crate) async fn steer(&self, run_id: &str, text: &str) -> Value {
        self.submit(run_id, &json!({"type": "steer", "payload": {"text": text}})).await.with_status(201)
    }

    pub(crate) async fn command(&self, run_id: &str, command_id: &str) -> Value {
        self.get(&format!("/api/v1/runs/{run_id}/commands/{command_id}")).await.ok()
    }

    pub(crate) async fn result(&self, run_id: &str, command_id: &str) -> Value {
        self.get(&format!("/api/v1/runs/{run_id}/commands/{command_id}/result")).await.ok()
    }

    pub(crate) async fn cancel_run(&self, run_id: &str) -> Value {
        self.post(&format!("/api/v1/runs/{run_id}/cancel"), &json!({})).await.with_status(200)
    }

    pub(crate) async fn cancel_command(&self, command_id: &str) -> Value {
        self.post(&format!("/api/v1/commands/{command_id}/cancel"), &json!({})).await.with_status(200)
    }

    /// Waits for the command's end and answers its result.
    pub(crate) async fn ended(&self, run_id: &str, command_id: &str) -> Value {
        eventually("the command ends", async || {
            let result = self.result(run_id, command_id).await;
            (!result["terminalStatus"].is_null()).then_some(result)
        })
        .await
    }

    /// Every event of the run, in pages of `limit`.
    pub(crate) async fn events_by(&self, run_id: &str, limit: u32) -> Vec<Value> {
        let (mut all, mut after) = (vec![], 0);
        loop {
            let path = format!("/api/v1/runs/{run_id}/events?afterSeq={after}&limit={limit}");
            let page = self.get(&path).await.ok();
            let events = page["events"].as_array().unwrap().clone();
            assert!(events.len() <= limit as usize);
            after = page["nextAfterSeq"].as_i64().unwrap();
            let last = events.last().map(|event| event["seq"].clone());
            assert!(last.is_none_or(|last| last == after), "{page}");
            all.extend(events);
            if page["hasMore"] == false {
                return all;
            }
        }
    }

    pub(crate) async fn events(&self, run_id: &str) -> Vec<Value> {
        self.events_by(run_id, 1_000).await
    }

    /// Events of one type.
    pub(crate) async fn events_of(&self, run_id: &str, event_type: &str) -> Vec<Value> {
        self.events(run_id).await.into_iter().filter(|event| event["type"] == event_type).collect()
    }

    pub(crate) async fn try_claim(&self, run_id: &str, runner_id: &str, lease_ms: i64) -> Answer {
        let body = json!({"runnerId": runner_id, "leaseMs": lease_ms});
        self.post(&format!("/api/v1/runs/{run_id}/claim"), &body).await
    }

    /// Claims the run for a minute, and plays its runner from there on.
    pub(crate) async fn claim(&self, run_id: &str, runner_id: &str) -> ManualRunner {
        let claimed = self.try_claim(run_id, runner_id, 60_000).await.with_status(200);
        ManualRunner::new(self.clone(), run_id, runner_id, &claimed)
    }

    pub(crate) async fn create_job(&self, run_id: &str, body: &Value) -> Answer {
        self.post(&format!("/api/v1/runs/{run_id}/runner-jobs"), body).await
    }

    pub(crate) async fn permissions(&self, run_id: &str) -> Vec<Value> {
        let list = self.get(&format!("/api/v1/runs/{run_id}/permissions")).await.ok();
        list["permissions"].as_array().unwrap().clone()
    }

    pub(crate) async fn answer(&self, request: &Value, option_id: &str, digest: &str) -> Answer {
        let (run_id, permission_id) = (id(request, "runId"), id(request, "permissionId"));
        let body = json!({"optionId": option_id, "digest": digest});
        self.post(&format!("/api/v1/runs/{run_id}/permissions/{permission_id}/answer"), &body).await
    }

    /// Follows the run from behind this number.
    pub(crate) async fn follow(&self, run_id: &str, after_seq: i64) -> Follow {
        let request = self.request("GET", &format!("/api/v1/runs/{run_id}/events"));
        let request = request.header("accept", "text/event-stream").header("last-event-id", after_seq.to_string());
        Follow::new(request.send().await.unwrap())
    }

    /// Follows the session of this plain id from behind this number.
    pub(crate) async fn follow_session(&self, session_id: &str, after_seq: i64) -> Follow {
        let request = self.request("GET", &format!("/api/v1/sessions/{session_id}/trace"));
        let request = request.header("accept", "text/event-stream").header("last-event-id", after_seq.to_string());
        Follow::of_session(request.send().await.unwrap())
    }
}
