//! An identity provider with a device flow (RFC 8628, with PKCE if the client wants it): `POST /device` and `POST /token` with
//! form bodies. Every poll gets `authorization_pending` until a test queues another reply.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{Request, StatusCode, header},
    response::Response,
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use bytes::Bytes;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::endpoint::{BODY_BYTES_MAX, Socket};

const GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";
/// Bytes of a reply that is too large.
const HUGE_BYTES: usize = 1024 * 1024;

/// How the next request is answered.
#[derive(Clone, Debug)]
pub enum IdentityReply {
    /// An error of the RFC, such as `slow_down`, with status 400.
    Error(&'static str),
    /// A token that is valid for this many seconds.
    Token(&'static str, u64),
    /// Any status and body.
    Plain(u16, String),
    /// A redirect to `/trap` of the same server.
    Redirect,
    /// A reply that is too large.
    Huge,
    /// The connection breaks in the middle of the reply.
    Cut,
    /// Another reply, after a pause.
    Late(Duration, Box<IdentityReply>),
}

/// A request with its form.
#[derive(Clone, Debug)]
pub struct IdentityRequest {
    pub path: String,
    pub form: BTreeMap<String, String>,
}

#[derive(Default)]
struct IdentityState {
    seen: Vec<IdentityRequest>,
    polls: VecDeque<IdentityReply>,
    starts: VecDeque<IdentityReply>,
    /// The challenge of each device code.
    issued: BTreeMap<String, Option<String>>,
}

/// An identity provider that listens until it is dropped.
pub struct IdentityProvider {
    state: Arc<Mutex<IdentityState>>,
    socket: Socket,
}

impl IdentityProvider {
    pub fn start() -> Self {
        let state = Arc::new(Mutex::new(IdentityState::default()));
        let socket = Socket::serve(Router::new().fallback(handle).with_state(state.clone()));
        Self { state, socket }
    }

    pub fn device_authorization_url(&self) -> String {
        format!("http://{}/device", self.socket.address)
    }

    pub fn token_url(&self) -> String {
        format!("http://{}/token", self.socket.address)
    }

    /// Answers the next poll like this. Later ones follow in the order in which they were queued.
    pub fn queue_poll(&self, reply: IdentityReply) {
        locked(&self.state).polls.push_back(reply);
    }

    /// The same for requests for codes.
    pub fn queue_start(&self, reply: IdentityReply) {
        locked(&self.state).starts.push_back(reply);
    }

    /// The requests so far, for one path.
    pub fn seen(&self, path: &str) -> Vec<IdentityRequest> {
        locked(&self.state).seen.iter().filter(|request| request.path == path).cloned().collect()
    }
}

fn locked(state: &Mutex<IdentityState>) -> MutexGuard<'_, IdentityState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn handle(State(state): State<Arc<Mutex<IdentityState>>>, request: Request<Body>) -> Response {
    let path = request.uri().path().to_owned();
    let body = axum::body::to_bytes(request.into_body(), BODY_BYTES_MAX).await.unwrap_or_default();
    let request = IdentityRequest { path, form: form(&body) };
    let mut reply = reply(&mut locked(&state), &request);
    locked(&state).seen.push(request);
    while let IdentityReply::Late(pause, then) = reply {
        tokio::time::sleep(pause).await;
        reply = *then;
    }
    respond(reply)
}

fn reply(state: &mut IdentityState, request: &IdentityRequest) -> IdentityReply {
    match request.path.as_str() {
        "/device" => state.starts.pop_front().unwrap_or_else(|| issue(state, request)),
        "/token" => refusal(state, request)
            .or_else(|| state.polls.pop_front())
            .unwrap_or(IdentityReply::Error("authorization_pending")),
        _ => IdentityReply::Plain(404, String::new()),
    }
}

/// New codes.
fn issue(state: &mut IdentityState, request: &IdentityRequest) -> IdentityReply {
    if !request.form.contains_key("client_id") {
        return IdentityReply::Error("invalid_client");
    }
    let number = state.issued.len();
    let device_code = format!("pl4nted-device-code-{number}");
    let challenge = request.form.get("code_challenge").cloned();
    state.issued.insert(device_code.clone(), challenge);
    let codes = json!({"device_code": device_code, "user_code": format!("PLNT-000{number}"),
        "verification_uri": "https://id.example/device", "expires_in": 600, "interval": 5,
        "verification_uri_complete": format!("https://id.example/device?user_code=PLNT-000{number}")});
    IdentityReply::Plain(200, codes.to_string())
}

/// Why a poll is not answered as queued: it is not one of the RFC.
fn refusal(state: &IdentityState, request: &IdentityRequest) -> Option<IdentityReply> {
    let member = |name: &str| request.form.get(name).map(String::as_str);
    let Some(challenge) = member("device_code").and_then(|code| state.issued.get(code)) else {
        return Some(IdentityReply::Error("invalid_grant"));
    };
    if member("grant_type") != Some(GRANT) || member("client_id").is_none() {
        return Some(IdentityReply::Error("invalid_request"));
    }
    let verified = |verifier: &str| BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()));
    let is_bound = challenge.is_none() || member("code_verifier").map(verified) == *challenge;
    (!is_bound).then_some(IdentityReply::Error("invalid_grant"))
}

#[expect(clippy::expect_used, reason = "the status and headers are valid")]
fn respond(reply: IdentityReply) -> Response {
    let json = |status: u16, body: Value| (status, Body::from(body.to_string()));
    let (status, body) = match reply {
        IdentityReply::Error(error) => json(400, json!({"error": error, "error_description": "pl4nted-description"})),
        IdentityReply::Token(token, expires_in) => json(
            200,
            json!({"access_token": token, "token_type": "Bearer", "expires_in": expires_in,
                "refresh_token": "pl4nted-refresh-token"}),
        ),
        IdentityReply::Plain(status, body) => (status, Body::from(body)),
        IdentityReply::Redirect => (302, Body::empty()),
        IdentityReply::Huge => json(200, json!({"access_token": "t", "more": "x".repeat(HUGE_BYTES)})),
        IdentityReply::Cut => (
            200,
            Body::from_stream(futures_util::stream::iter([
                Ok(Bytes::from_static(b"{\"access_token\":")),
                Err(std::io::Error::other("broken on purpose")),
            ])),
        ),
        IdentityReply::Late(..) => (500, Body::empty()),
    };
    Response::builder()
        .status(StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR))
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::LOCATION, "/trap")
        .body(body)
        .expect("a plain response")
}

fn form(body: &[u8]) -> BTreeMap<String, String> {
    let text = String::from_utf8_lossy(body);
    let decoded = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
    text.split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (decoded(name), decoded(value)))
        .collect()
}
