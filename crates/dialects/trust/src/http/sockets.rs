//! `/ws/human` and `/ws/agent`: a client authenticates with its first frame, then receives its notifications. It renews its token
//! over the same connection; when the token is no longer valid, the server closes the connection.

use std::time::Duration;

use axum::{
    extract::{
        ConnectInfo, State, WebSocketUpgrade,
        ws::{WebSocket, rejection::WebSocketUpgradeRejection},
    },
    response::Response,
};
use ostler_protocol::{Failure, FailureKind, Rule};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};

use crate::{
    listeners::{Listener, ListenerRegistration},
    service,
    state::Trust,
};
use ostler_server::{
    app::App,
    auth::{LOCAL, Principal},
    net::{
        Peer,
        extract::Params,
        problem::Refusal,
        sockets::{Close, Frame, HEARD_BYTES_MAX, Outbox, Patience, SocketDialect, Step, converse, fitted, queue},
        waiting_connections::Ticket,
    },
};

pub(crate) const HUMAN_PATH: &str = "/ws/human";
pub(crate) const AGENT_PATH: &str = "/ws/agent";

/// Renewals over one connection within [`RENEWALS_PERIOD`]. Each costs a token lookup; one an hour is plenty.
const RENEWALS_MAX: u32 = 10;
const RENEWALS_PERIOD: Duration = Duration::from_secs(60);

/// Connects as a person. The first frame must arrive within 5 s: `{"type": "auth", "token": …}`. The reply is `auth.ok`,
/// followed by everything that is pending for this person; or `auth.error` and the close. `{"type": "auth.renew",
/// "access_token": …}` continues with a newer token of the same caller. `docs/live.md` describes the protocol.
pub(crate) async fn human(
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refusal> {
    open(app, peer, upgrade, SocketEndpoint::Human)
}

/// Connects as an agent, with one of its tokens, by the same protocol. The agent may send its id in the URL (`?agent_id=…`), in
/// the first frame (`"agent_id": …`) or in both; each must match the token.
pub(crate) async fn agent(
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Params(claimed): Params<ClaimedAgent>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refusal> {
    open(app, peer, upgrade, SocketEndpoint::Agent(claimed))
}

/// The agent id that a peer claims, if it sends one.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct ClaimedAgent {
    agent_id: Option<String>,
}

/// The path that a peer has connected to.
enum SocketEndpoint {
    Human,
    /// With the query of the URL.
    Agent(ClaimedAgent),
}

impl SocketEndpoint {
    /// The listener that this caller is. `None` if such callers may not use this path.
    fn listener(&self, caller: &Principal, claimed: &ClaimedAgent) -> Option<Listener> {
        match (self, caller) {
            (Self::Human, Principal::Operator) => Some(Listener::Human(LOCAL.into())),
            (Self::Human, Principal::User { user_id, .. }) => Some(Listener::Human(user_id.to_string().into())),
            (Self::Agent(query), Principal::Agent { agent_id, .. }) => {
                let mut claims = [query, claimed].into_iter().filter_map(|claimed| claimed.agent_id.as_deref());
                let own = agent_id.to_string();
                claims.all(|claim| claim == own).then_some(Listener::Agent(*agent_id))
            }
            _ => None,
        }
    }
}

fn open(
    app: App,
    peer: Peer,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    endpoint: SocketEndpoint,
) -> Result<Response, Refusal> {
    app.accepting()?;
    let upgrade = upgrade.map_err(|why| Failure::invalid(Rule::Websocket, format!("this is a WebSocket: {why}")))?;
    let upgrade = fitted(upgrade, 2 * HEARD_BYTES_MAX);
    // Until it is authenticated, the connection counts among the fresh ones of all dialects.
    let fresh = app.fresh_sockets.enter(peer.0.ip());
    Ok(upgrade.on_upgrade(move |socket| serve(app, socket, endpoint, fresh)))
}

async fn serve(app: App, socket: WebSocket, endpoint: SocketEndpoint, fresh: Ticket) {
    let limits = &app.config.limits;
    let patience = Patience::of(limits);
    let (outbox, inbox) = queue();
    let until = Instant::now() + Duration::from_millis(limits.socket_auth_ms);
    let connection = TrustSocket {
        app: app.clone(),
        endpoint,
        outbox,
        until,
        fresh: Some(fresh),
        is_crowded_out: false,
        authenticated: None,
    };
    let close = converse(socket, inbox, connection, patience).await;
    app.metrics.socket_closed(close);
}

/// The frames that a peer may send.
#[derive(Deserialize)]
#[serde(tag = "type")]
enum PeerFrame {
    #[serde(rename = "auth")]
    Auth {
        token: SecretString,
        #[serde(flatten)]
        claimed: ClaimedAgent,
    },
    #[serde(rename = "auth.renew")]
    Renew { access_token: SecretString },
}

/// Why a peer is rejected, as `auth.error` names it.
#[derive(Clone, Copy, Debug)]
enum AuthError {
    Late,
    Malformed,
    Token,
    /// A valid token, of a caller that may not use this path.
    Caller,
    TooMany,
    Unavailable,
}

impl AuthError {
    fn name(self) -> &'static str {
        match self {
            Self::Late => "timeout",
            Self::Malformed => "malformed",
            Self::Token => "invalid_token",
            Self::Caller => "wrong_caller",
            Self::TooMany => "too_many_connections",
            Self::Unavailable => "unavailable",
        }
    }

    fn message(self) -> &'static str {
        match self {
            Self::Late => "the first frame, auth, did not arrive in time",
            Self::Malformed => "the first frame must be auth, with a token",
            Self::Token => "the token is not valid, or no longer valid",
            Self::Caller => "this WebSocket does not accept this kind of token",
            Self::TooMany => "too many connections are open",
            Self::Unavailable => "the token could not be checked; try again",
        }
    }
}

impl From<AuthError> for Step {
    fn from(error: AuthError) -> Self {
        let (reason, message) = (error.name(), error.message());
        let i18n_key = format!("ws.auth.{reason}");
        let error = json!({"type": "auth.error", "reason": reason, "message": message, "i18n_key": i18n_key});
        Self { say: vec![frame(&error)], close: Some(Close { code: Close::REFUSED_CODE, reason }) }
    }
}

fn frame(value: &Value) -> Frame {
    value.to_string().into()
}

/// One connection, from the server's side.
struct TrustSocket {
    app: App,
    endpoint: SocketEndpoint,
    outbox: Outbox,
    /// The deadline for the `auth` frame.
    until: Instant,
    /// The ticket among connections that are not authenticated.
    fresh: Option<Ticket>,
    /// Another connection has displaced it from the fresh ones.
    is_crowded_out: bool,
    authenticated: Option<AuthenticatedPeer>,
}

/// A peer that is authenticated.
struct AuthenticatedPeer {
    token: SecretString,
    listener: Listener,
    registration: ListenerRegistration,
    readmit: Interval,
    /// A wake-up may be lost, so pending notifications are read again from time to time.
    reread: Interval,
    renewals: Renewals,
    /// Work that is due is remembered here, so that a peer that sends all the time cannot delay it.
    must_check: bool,
    must_reread: bool,
}

/// How often a peer has renewed its token, and since when.
struct Renewals {
    since: Instant,
    count: u32,
}

impl Renewals {
    fn admit(&mut self) -> bool {
        if self.since.elapsed() >= RENEWALS_PERIOD {
            *self = Self { since: Instant::now(), count: 0 };
        }
        self.count += 1;
        self.count <= RENEWALS_MAX
    }
}

impl TrustSocket {
    async fn authenticate(&self, token: &SecretString, claimed: &ClaimedAgent) -> Result<Listener, AuthError> {
        let authenticate = self.app.auth.authenticate(&self.app.db, token.expose_secret(), self.app.wall());
        let caller = Box::pin(authenticate).await.map_err(|failure| match failure.kind {
            FailureKind::InfraFailed => AuthError::Unavailable,
            _ => AuthError::Token,
        })?;
        self.endpoint.listener(&caller, claimed).ok_or(AuthError::Caller)
    }

    async fn admit(&mut self, token: SecretString, claimed: &ClaimedAgent) -> Result<Vec<Frame>, AuthError> {
        let listener = self.authenticate(&token, claimed).await?;
        let (listeners, limits) = (&Trust::of(&self.app).listeners, &self.app.config.limits);
        // Join first, then read what is pending: a notification in between is sent twice rather than never.
        let registration = listeners.join(listener.clone(), self.outbox.clone(), limits).map_err(|failure| {
            self.app.metrics.refused(&failure);
            AuthError::TooMany
        })?;
        let (readmit, reread) = (every(limits.socket_readmit_ms), every(limits.socket_reread_ms));
        let mut frames = vec![welcome(&listener)];
        let renewals = Renewals { since: Instant::now(), count: 0 };
        let (must_check, must_reread) = (false, true);
        self.authenticated = Some(AuthenticatedPeer {
            token,
            listener,
            registration,
            readmit,
            reread,
            renewals,
            must_check,
            must_reread,
        });
        self.fresh = None;
        frames.extend(self.pending().await.say);
        Ok(frames)
    }

    async fn renew(&mut self, token: SecretString) -> Result<Vec<Frame>, AuthError> {
        if !self.authenticated.as_mut().is_some_and(|peer| peer.renewals.admit()) {
            return Ok(vec![error("too_many_renewals", "this token was renewed too often; wait a minute")]);
        }
        let listener = self.authenticate(&token, &ClaimedAgent::default()).await?;
        let peer = self.authenticated.as_mut().filter(|peer| peer.listener == listener).ok_or(AuthError::Caller)?;
        peer.token = token;
        peer.must_check = false;
        Ok(vec![welcome(&peer.listener)])
    }

    /// Checks whether the peer's token is still valid, if a check is due.
    async fn check(&mut self) -> Step {
        let Some(peer) = self.authenticated.as_ref().filter(|peer| peer.must_check) else { return Step::default() };
        match self.authenticate(&peer.token, &ClaimedAgent::default()).await {
            Ok(listener) if listener == peer.listener => {}
            // A failing store does not invalidate the token.
            Err(AuthError::Unavailable) => {}
            _ => return AuthError::Token.into(),
        }
        self.authenticated.iter_mut().for_each(|peer| peer.must_check = false);
        Step::default()
    }

    /// The notifications for this peer that were not sent yet.
    async fn pending(&mut self) -> Step {
        let Some(peer) = &mut self.authenticated else { return Step::default() };
        if peer.must_reread {
            match service::live::pending(&self.app, &peer.listener).await {
                Ok(pending) => peer.registration.put_all(&pending),
                // The peer reads them again when it reconnects.
                Err(failure) => {
                    tracing::warn!(%failure, cause = failure.cause.as_deref(), "pending notifications could not be read");
                    return Close { code: 1011, reason: "what is pending cannot be read now" }.into();
                }
            }
            peer.must_reread = false;
        }
        peer.registration.take().into()
    }
}

fn every(ms: u64) -> Interval {
    let period = Duration::from_millis(ms.max(1));
    let mut ticks = interval_at(Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

fn error(code: &str, message: &str) -> Frame {
    frame(&json!({"type": "error", "code": code, "message": message}))
}

fn welcome(listener: &Listener) -> Frame {
    frame(&match listener {
        Listener::Human(user_id) => json!({"type": "auth.ok", "user_id": &**user_id}),
        Listener::Agent(agent_id) => json!({"type": "auth.ok", "agent_id": agent_id}),
    })
}

impl SocketDialect for TrustSocket {
    /// The peer sends the first frame.
    async fn open(&mut self) -> Step {
        Step::default()
    }

    fn is_introduced(&self) -> bool {
        self.authenticated.is_some()
    }

    async fn handle_text(&mut self, text: &str) -> Step {
        if text.len() > HEARD_BYTES_MAX {
            return Close::TOO_LONG.into();
        }
        let checked = self.check().await;
        if checked.close.is_some() {
            return checked;
        }
        let result = match (serde_json::from_str(text), self.authenticated.is_some()) {
            (Ok(PeerFrame::Auth { token, claimed }), false) => self.admit(token, &claimed).await,
            (Ok(PeerFrame::Renew { access_token }), true) => self.renew(access_token).await,
            (_, false) => Err(AuthError::Malformed),
            (_, true) => Ok(vec![error("unknown_frame", "no such frame, or not of its form")]),
        };
        result.map_or_else(Step::from, Step::from)
    }

    async fn wake(&mut self) {
        let Some(peer) = &mut self.authenticated else {
            let closed = self.fresh.as_ref().map(Ticket::closed).unwrap_or_default();
            return tokio::select! {
                () = sleep_until(self.until) => {}
                () = closed.notified() => self.is_crowded_out = true,
                () = self.app.drained() => {}
            };
        };
        if !peer.must_check && !peer.must_reread && !peer.registration.has_some() {
            tokio::select! {
                _ = peer.readmit.tick() => peer.must_check = true,
                _ = peer.reread.tick() => peer.must_reread = true,
                () = peer.registration.must_reread() => peer.must_reread = true,
                () = peer.registration.wait_for_notification() => {}
                () = self.app.drained() => {}
            }
        }
    }

    async fn process_pending(&mut self) -> Step {
        if self.app.is_draining() {
            return Close::GOING.into();
        }
        if self.authenticated.is_none() {
            return if self.is_crowded_out { AuthError::TooMany } else { AuthError::Late }.into();
        }
        let checked = self.check().await;
        if checked.close.is_some() { checked } else { self.pending().await }
    }
}
