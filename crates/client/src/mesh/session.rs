//! One connection to a gateway: calls, and what is pushed between them. It reads only while somebody asks it to, and it does
//! not reconnect: whoever holds it knows what to do again.

use std::{collections::VecDeque, time::Duration};

use futures_util::{SinkExt, StreamExt};
use http::{
    StatusCode,
    header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE},
};
use ostler_crypto::proofs;
use ostler_protocol::{
    Failure, FailureKind, RawJson,
    mesh::{
        calls::FRAME_BYTES_MAX,
        connections::{CHALLENGE, Challenge},
        messages::{ACK_EVENT, AckEvent, Message, RECALLED_EVENT, RECEIVED_EVENT, RecalledEvent},
        pki::GATEWAY_PATH,
    },
    rpc::{Frame, RpcError, RpcId, Version},
};
use reqwest::Upgraded;
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::timeout;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{self, handshake::derive_accept_key, protocol::Role, protocol::WebSocketConfig},
};

use super::Ambient;
use crate::answer;

/// A gateway that says nothing for this long is given up.
const ANSWER_MAX: Duration = Duration::from_secs(15);
const PARTING_MAX: Duration = Duration::from_secs(2);
/// Events that may wait while a call is under way. One more ends the session: what was missed is pulled.
const EVENTS_MAX: usize = 1_024;
/// An answer may hold several messages.
const HEARD_BYTES_MAX: usize = 4 * FRAME_BYTES_MAX;

/// What a gateway pushes.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    Message(Box<Message>),
    Ack(AckEvent),
    Recalled(RecalledEvent),
    /// Of a kind that is not known here.
    Other(String),
}

pub struct Session {
    socket: WebSocketStream<Upgraded>,
    nonce: String,
    calls: u64,
    events: VecDeque<Heard>,
}

impl Session {
    /// Connects, and hears the challenge: the server speaks first.
    pub(super) async fn open(web: &reqwest::Client, base: &str, ambient: Ambient) -> Result<Self, Failure> {
        let mut bytes = [0; 16];
        (ambient.fill)(&mut bytes);
        let key = proofs::nonce(&bytes);
        let asked = web
            .get(format!("{base}{GATEWAY_PATH}"))
            .version(http::Version::HTTP_11)
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "websocket")
            .header(SEC_WEBSOCKET_VERSION, "13")
            .header(SEC_WEBSOCKET_KEY, &key);
        let answer = timeout(ANSWER_MAX, asked.send()).await.map_err(|_| silent())?;
        let answer = answer.map_err(|error| answer::unreachable(&error))?;
        let accepted =
            answer.headers().get(SEC_WEBSOCKET_ACCEPT).is_some_and(|one| *one == derive_accept_key(key.as_bytes()));
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS || !accepted {
            let message = format!("{base}{GATEWAY_PATH} is no gateway of the mesh ({})", answer.status());
            return Err(Failure::rule(FailureKind::InfraFailed, "mesh-gateway", message));
        }
        let upgraded = answer.upgrade().await.map_err(|error| answer::unreachable(&error))?;
        let limits =
            WebSocketConfig::default().max_message_size(Some(HEARD_BYTES_MAX)).max_frame_size(Some(HEARD_BYTES_MAX));
        let socket = WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(limits)).await;
        let mut session = Self { socket, nonce: String::new(), calls: 0, events: VecDeque::new() };
        match timeout(ANSWER_MAX, session.read()).await.map_err(|_| silent())?? {
            Frame::Notification { method, params } if method == CHALLENGE => {
                let challenge: Challenge = read(&params)?;
                session.nonce = challenge.nonce;
                Ok(session)
            }
            _ => Err(Failure::rule(FailureKind::InfraFailed, "mesh-gateway", "the gateway did not speak first")),
        }
    }

    pub(super) fn nonce(&self) -> &str {
        &self.nonce
    }

    /// Calls a method. What is pushed meanwhile waits for [`Session::hear`].
    pub async fn call<T: DeserializeOwned>(&mut self, method: &str, params: &impl Serialize) -> Result<T, Failure> {
        self.calls += 1;
        let id = RpcId::Text(format!("c-{}", self.calls));
        let request = Frame::Request { id: id.clone(), method: method.to_owned(), params: RawJson::of(params) };
        let text = request.write(Version::Two);
        self.socket.send(tungstenite::Message::Text(text.into())).await.map_err(|error| gone(&error))?;
        let answered = async {
            loop {
                match self.read().await? {
                    Frame::Answer { id: answered, result } if answered == id => return read(&result),
                    Frame::Error { id: answered, error } if answered.as_ref().is_none_or(|one| *one == id) => {
                        return Err(refused(error));
                    }
                    Frame::Notification { method, params } => self.keep(&method, &params)?,
                    // An answer that nobody waits for any more.
                    _ => {}
                }
            }
        };
        timeout(ANSWER_MAX, answered).await.unwrap_or_else(|_| Err(silent()))
    }

    /// What is pushed next, however long that takes.
    pub async fn hear(&mut self) -> Result<Heard, Failure> {
        loop {
            if let Some(heard) = self.events.pop_front() {
                return Ok(heard);
            }
            if let Frame::Notification { method, params } = self.read().await? {
                self.keep(&method, &params)?;
            }
        }
    }

    /// Says good-bye, and waits for the same: whoever connects from this place next finds it free.
    pub async fn close(mut self) {
        let parting = async {
            self.socket.close(None).await?;
            while self.socket.next().await.transpose()?.is_some() {}
            Ok::<_, tungstenite::Error>(())
        };
        let _ = timeout(PARTING_MAX, parting).await;
    }

    fn keep(&mut self, method: &str, params: &RawJson) -> Result<(), Failure> {
        let heard = match method {
            RECEIVED_EVENT => Heard::Message(Box::new(read(params)?)),
            ACK_EVENT => Heard::Ack(read(params)?),
            RECALLED_EVENT => Heard::Recalled(read(params)?),
            other => Heard::Other(other.to_owned()),
        };
        if self.events.len() >= EVENTS_MAX {
            return Err(Failure::rule(
                FailureKind::Overloaded,
                "mesh-events",
                "more was pushed than can wait; pull it",
            ));
        }
        self.events.push_back(heard);
        Ok(())
    }

    async fn read(&mut self) -> Result<Frame, Failure> {
        loop {
            match self.socket.next().await {
                Some(Ok(tungstenite::Message::Text(text))) => {
                    return Frame::read_as(text.as_bytes(), Version::Two).map_err(|fault| {
                        Failure::rule(FailureKind::InfraFailed, "mesh-gateway", format!("the gateway said {fault}"))
                    });
                }
                Some(Ok(tungstenite::Message::Close(frame))) => {
                    let why = frame.map_or_else(String::new, |frame| format!(": {} {}", frame.code, frame.reason));
                    return Err(Failure::rule(
                        FailureKind::InfraFailed,
                        "mesh-closed",
                        format!("the gateway closed{why}"),
                    ));
                }
                // Pings are answered by the library.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(gone(&error)),
                None => return Err(Failure::rule(FailureKind::InfraFailed, "mesh-closed", "the gateway went away")),
            }
        }
    }
}

fn read<T: DeserializeOwned>(raw: &RawJson) -> Result<T, Failure> {
    serde_json::from_str(raw.as_str()).map_err(|error| {
        Failure::rule(FailureKind::InfraFailed, "mesh-gateway", format!("the gateway's answer does not fit: {error}"))
    })
}

/// What a gateway refuses, by the kind that it names where it is one of ours, and else by its code.
fn refused(error: RpcError) -> Failure {
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
    for (key, said) in [("rule", named("rule")), ("traceId", named("trace_id"))] {
        failure = said.into_iter().fold(failure, |failure, said| failure.detail(key, said));
    }
    failure
}

fn silent() -> Failure {
    Failure::rule(FailureKind::InfraFailed, "mesh-silent", "the gateway does not answer")
}

fn gone(error: &tungstenite::Error) -> Failure {
    Failure::rule(FailureKind::InfraFailed, "mesh-closed", format!("the gateway went away: {error}"))
}
