//! One connection to a gateway: calls, and the events that are pushed between them. It reads only while a method is awaited,
//! and it does not reconnect: the caller knows what to repeat.

use std::{collections::VecDeque, time::Duration};

use futures_util::{SinkExt, StreamExt};
use http::{
    StatusCode,
    header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE},
};
use ostler_crypto::proofs;
use ostler_protocol::{
    Failure, FailureKind, RawJson, Rule,
    failures::RULE,
    mesh::{
        calls::FRAME_BYTES_MAX,
        connections::{CHALLENGE, Challenge},
        messages::{ACK_EVENT, AckEvent, Message, RECALLED_EVENT, RECEIVED_EVENT, RecalledEvent},
        pki::GATEWAY_PATH,
    },
    rpc::{RpcError, RpcFrame, RpcId, Version},
};
use reqwest::Upgraded;
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::timeout;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{self, handshake::derive_accept_key, protocol::Role, protocol::WebSocketConfig},
};

use super::ambient::Ambient;
use crate::failures;

/// Time limit for a reply of the gateway.
const REPLY_MAX: Duration = Duration::from_secs(15);
const PARTING_MAX: Duration = Duration::from_secs(2);
/// Events that may be queued during a call. One more ends the session; the caller then pulls the missed messages.
const EVENTS_MAX: usize = 1_024;
/// A reply may contain several messages.
const RECEIVED_BYTES_MAX: usize = 4 * FRAME_BYTES_MAX;

/// An event that a gateway pushes.
#[derive(Clone, Debug, PartialEq)]
pub enum GatewayEvent {
    Message(Box<Message>),
    Ack(AckEvent),
    Recalled(RecalledEvent),
    /// An event of an unknown kind.
    Other(String),
}

pub struct MeshSession {
    socket: WebSocketStream<Upgraded>,
    nonce: String,
    calls: u64,
    events: VecDeque<GatewayEvent>,
}

impl MeshSession {
    /// Connects and receives the challenge, which the server sends first.
    pub(super) async fn open(web: &reqwest::Client, base: &str, ambient: Ambient) -> Result<Self, Failure> {
        let mut bytes = [0; 16];
        (ambient.fill)(&mut bytes);
        let key = proofs::nonce(&bytes);
        let request = web
            .get(format!("{base}{GATEWAY_PATH}"))
            .version(http::Version::HTTP_11)
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "websocket")
            .header(SEC_WEBSOCKET_VERSION, "13")
            .header(SEC_WEBSOCKET_KEY, &key);
        let response = timeout(REPLY_MAX, request.send()).await.map_err(|_| no_reply())?;
        let response = response.map_err(|error| failures::unreachable(&error))?;
        let accepted =
            response.headers().get(SEC_WEBSOCKET_ACCEPT).is_some_and(|one| *one == derive_accept_key(key.as_bytes()));
        if response.status() != StatusCode::SWITCHING_PROTOCOLS || !accepted {
            let message = format!("{base}{GATEWAY_PATH} is not a gateway of the mesh ({})", response.status());
            return Err(Failure::rule(Rule::MeshGateway, message));
        }
        let upgraded = response.upgrade().await.map_err(|error| failures::unreachable(&error))?;
        let limits = WebSocketConfig::default()
            .max_message_size(Some(RECEIVED_BYTES_MAX))
            .max_frame_size(Some(RECEIVED_BYTES_MAX));
        let socket = WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(limits)).await;
        let mut session = Self { socket, nonce: String::new(), calls: 0, events: VecDeque::new() };
        match timeout(REPLY_MAX, session.read()).await.map_err(|_| no_reply())?? {
            RpcFrame::Notification { method, params } if method == CHALLENGE => {
                let challenge: Challenge = read(&params)?;
                session.nonce = challenge.nonce;
                Ok(session)
            }
            _ => Err(Failure::rule(Rule::MeshGateway, "the gateway did not send a challenge first")),
        }
    }

    pub(super) fn nonce(&self) -> &str {
        &self.nonce
    }

    /// Calls a method. Events that are pushed in the meantime are queued for [`MeshSession::next_event`].
    pub async fn call<T: DeserializeOwned>(&mut self, method: &str, params: &impl Serialize) -> Result<T, Failure> {
        self.calls += 1;
        let id = RpcId::Text(format!("c-{}", self.calls));
        let request = RpcFrame::Request { id: id.clone(), method: method.to_owned(), params: RawJson::of(params) };
        let text = request.write(Version::Two);
        self.socket.send(tungstenite::Message::Text(text.into())).await.map_err(|error| connection_lost(&error))?;
        let replied = async {
            loop {
                match self.read().await? {
                    RpcFrame::Answer { id: replied, result } if replied == id => return read(&result),
                    RpcFrame::Error { id: replied, error } if replied.as_ref().is_none_or(|one| *one == id) => {
                        return Err(error_failure(error));
                    }
                    RpcFrame::Notification { method, params } => self.queue_event(&method, &params)?,
                    // A late reply to an earlier call.
                    _ => {}
                }
            }
        };
        timeout(REPLY_MAX, replied).await.unwrap_or_else(|_| Err(no_reply()))
    }

    /// The next pushed event, however long that takes.
    pub async fn next_event(&mut self) -> Result<GatewayEvent, Failure> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            if let RpcFrame::Notification { method, params } = self.read().await? {
                self.queue_event(&method, &params)?;
            }
        }
    }

    /// Closes the connection and waits for the server to do the same, so that the device slot is free afterwards.
    pub async fn close(mut self) {
        let parting = async {
            self.socket.close(None).await?;
            while self.socket.next().await.transpose()?.is_some() {}
            Ok::<_, tungstenite::Error>(())
        };
        let _ = timeout(PARTING_MAX, parting).await;
    }

    fn queue_event(&mut self, method: &str, params: &RawJson) -> Result<(), Failure> {
        let event = match method {
            RECEIVED_EVENT => GatewayEvent::Message(Box::new(read(params)?)),
            ACK_EVENT => GatewayEvent::Ack(read(params)?),
            RECALLED_EVENT => GatewayEvent::Recalled(read(params)?),
            other => GatewayEvent::Other(other.to_owned()),
        };
        if self.events.len() >= EVENTS_MAX {
            return Err(Failure::rule(Rule::MeshEvents, "too many events were pushed; pull the messages"));
        }
        self.events.push_back(event);
        Ok(())
    }

    async fn read(&mut self) -> Result<RpcFrame, Failure> {
        loop {
            match self.socket.next().await {
                Some(Ok(tungstenite::Message::Text(text))) => {
                    return RpcFrame::read_as(text.as_bytes(), Version::Two)
                        .map_err(|fault| Failure::rule(Rule::MeshGateway, format!("the gateway sent {fault}")));
                }
                Some(Ok(tungstenite::Message::Close(frame))) => {
                    let why = frame.map_or_else(String::new, |frame| format!(": {} {}", frame.code, frame.reason));
                    return Err(Failure::rule(Rule::MeshClosed, format!("the gateway closed{why}")));
                }
                // The library responds to pings.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(connection_lost(&error)),
                None => {
                    return Err(Failure::rule(Rule::MeshClosed, "the gateway closed the connection"));
                }
            }
        }
    }
}

fn read<T: DeserializeOwned>(raw: &RawJson) -> Result<T, Failure> {
    serde_json::from_str(raw.as_str())
        .map_err(|error| Failure::rule(Rule::MeshGateway, format!("the gateway's reply cannot be read: {error}")))
}

/// The failure of an error reply: of the kind that it names if we know it, otherwise by its code.
fn error_failure(error: RpcError) -> Failure {
    let data = error.data.map(|data| data.to_value()).unwrap_or_default();
    let kind = data["kind"].as_str().and_then(FailureKind::parse).unwrap_or(match error.code {
        -32602 | 4000 => FailureKind::SchemaInvalid,
        -32001 | 4001 | 4010 => FailureKind::Unauthenticated,
        -32004 | 4030 => FailureKind::Forbidden,
        -32008 | 4040 => FailureKind::NotFound,
        -32009 | 4009 => FailureKind::StateConflict,
        -32029 | 4290 => FailureKind::RateLimited,
        _ => FailureKind::InfraFailed,
    });
    let named = |key: &str| data[key].as_str().map(str::to_owned);
    let mut failure = Failure::new(kind, error.message).detail("code", error.code);
    for (key, value) in [(RULE, named(RULE)), ("traceId", named("trace_id"))] {
        failure = value.into_iter().fold(failure, |failure, value| failure.detail(key, value));
    }
    failure
}

fn no_reply() -> Failure {
    Failure::rule(Rule::MeshSilent, "the gateway does not respond")
}

fn connection_lost(error: &tungstenite::Error) -> Failure {
    Failure::rule(Rule::MeshClosed, format!("the connection to the gateway was lost: {error}"))
}
