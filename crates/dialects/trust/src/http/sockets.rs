//! `/ws/human` and `/ws/agent`: whoever connects says who they are in the first frame, then hears what concerns them. A token is
//! renewed over the same connection, and one that is good no longer ends it.

use std::time::Duration;

use axum::{
    extract::{
        ConnectInfo, State, WebSocketUpgrade,
        ws::{WebSocket, rejection::WebSocketUpgradeRejection},
    },
    response::Response,
};
use ostler_protocol::{Failure, FailureKind};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};

use crate::{
    listeners::{Listener, Seat},
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
        sockets::{Close, Dialect, Frame, HEARD_BYTES_MAX, Outbox, Patience, Step, converse, fitted, queue},
        waiting::Ticket,
    },
};

pub const HUMAN_PATH: &str = "/ws/human";
pub const AGENT_PATH: &str = "/ws/agent";

/// Renewals over one connection within [`RENEWALS_PERIOD`]. Each is a token that is looked up; one an hour is plenty.
const RENEWALS_MAX: u32 = 10;
const RENEWALS_PERIOD: Duration = Duration::from_secs(60);

/// Connects as a person. The first frame must come within 5 s: `{"type": "auth", "token": …}`. The answer is `auth.ok`,
/// followed by whatever waits for this person; or `auth.error` and the end. `{"type": "auth.renew", "access_token": …}` goes
/// on with a newer token of the same caller. `docs/live.md` has it all.
pub async fn human(
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refusal> {
    open(app, peer, upgrade, Face::Human)
}

/// Connects as an agent, by one of its tokens. It goes as for people; the agent may say in the address (`?agent_id=…`), in
/// the first frame (`"agent_id": …`) or in both which one it is, and then it must be that one.
pub async fn agent(
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Params(named): Params<Named>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refusal> {
    open(app, peer, upgrade, Face::Agent(named))
}

/// Who somebody says they are, if they do.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Named {
    agent_id: Option<String>,
}

/// Whom a connection is for.
enum Face {
    Human,
    /// With what the address says.
    Agent(Named),
}

impl Face {
    /// Whom this caller listens for here. `None`: this is not for such callers.
    fn listener(&self, caller: &Principal, named: &Named) -> Option<Listener> {
        match (self, caller) {
            (Self::Human, Principal::Operator) => Some(Listener::Human(LOCAL.into())),
            (Self::Human, Principal::User { user_id, .. }) => Some(Listener::Human(user_id.to_string().into())),
            (Self::Agent(address), Principal::Agent { agent_id, .. }) => {
                let mut said = [address, named].into_iter().filter_map(|named| named.agent_id.as_deref());
                let own = agent_id.to_string();
                said.all(|said| said == own).then_some(Listener::Agent(*agent_id))
            }
            _ => None,
        }
    }
}

fn open(
    app: App,
    peer: Peer,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    face: Face,
) -> Result<Response, Refusal> {
    app.accepting()?;
    let upgrade = upgrade.map_err(|why| Failure::invalid("websocket", format!("this is a WebSocket: {why}")))?;
    let upgrade = fitted(upgrade, 2 * HEARD_BYTES_MAX);
    // Until it has introduced itself it is counted with those of all dialects.
    let fresh = app.fresh_sockets.enter(peer.0.ip());
    Ok(upgrade.on_upgrade(move |socket| serve(app, socket, face, fresh)))
}

async fn serve(app: App, socket: WebSocket, face: Face, fresh: Ticket) {
    let limits = &app.config.limits;
    let patience = Patience {
        ping: Duration::from_millis(limits.socket_ping_ms),
        dead: Duration::from_millis(limits.socket_dead_ms),
        probe: Duration::from_millis(limits.socket_probe_ms),
        write: Duration::from_millis(limits.slow_reader_ms),
    };
    let (outbox, inbox) = queue();
    let until = Instant::now() + Duration::from_millis(limits.socket_auth_ms);
    let conversation =
        Conversation { app: app.clone(), face, outbox, until, fresh: Some(fresh), is_crowded_out: false, known: None };
    let close = converse(socket, inbox, conversation, patience).await;
    app.metrics.socket_closed(close);
}

/// What a peer may say.
#[derive(Deserialize)]
#[serde(tag = "type")]
enum Heard {
    #[serde(rename = "auth")]
    Auth {
        token: SecretString,
        #[serde(flatten)]
        named: Named,
    },
    #[serde(rename = "auth.renew")]
    Renew { access_token: SecretString },
}

/// Why somebody is not let in, as `auth.error` names it.
#[derive(Clone, Copy, Debug)]
enum Refused {
    Late,
    Malformed,
    Token,
    /// A good token, of a caller that this is not for.
    Caller,
    TooMany,
    Unavailable,
}

impl Refused {
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
            Self::Late => "the first frame, auth, did not come in time",
            Self::Malformed => "the first frame must be auth, with a token",
            Self::Token => "the token is not valid, or not any more",
            Self::Caller => "this token is of a caller that this connection is not for",
            Self::TooMany => "too many connections are open",
            Self::Unavailable => "who this is cannot be looked up now; try again",
        }
    }
}

impl From<Refused> for Step {
    fn from(refused: Refused) -> Self {
        let (reason, message) = (refused.name(), refused.message());
        let i18n_key = format!("ws.auth.{reason}");
        let told = json!({"type": "auth.error", "reason": reason, "message": message, "i18n_key": i18n_key});
        Self { say: vec![frame(&told)], close: Some(Close { code: Close::REFUSED_CODE, reason }) }
    }
}

fn frame(value: &Value) -> Frame {
    value.to_string().into()
}

/// One connection, from the server's side.
struct Conversation {
    app: App,
    face: Face,
    outbox: Outbox,
    /// When the peer must have said who it is.
    until: Instant,
    /// Its place among those who have not said who they are.
    fresh: Option<Ticket>,
    /// That place was given to another connection.
    is_crowded_out: bool,
    known: Option<Known>,
}

/// A peer that has said who it is.
struct Known {
    token: SecretString,
    listener: Listener,
    seat: Seat,
    readmit: Interval,
    /// A wake-up may be lost; what is pending is not.
    reread: Interval,
    renewals: Renewals,
    /// What was begun is kept here, so that a peer that talks all the time cannot put it off.
    must_check: bool,
    must_reread: bool,
}

/// How often a peer has renewed its token since when.
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

impl Conversation {
    async fn authenticate(&self, token: &SecretString, named: &Named) -> Result<Listener, Refused> {
        let asked = self.app.auth.authenticate(&self.app.db, token.expose_secret(), self.app.wall());
        let caller = Box::pin(asked).await.map_err(|failure| match failure.kind {
            FailureKind::InfraFailed => Refused::Unavailable,
            _ => Refused::Token,
        })?;
        self.face.listener(&caller, named).ok_or(Refused::Caller)
    }

    async fn admit(&mut self, token: SecretString, named: &Named) -> Result<Vec<Frame>, Refused> {
        let listener = self.authenticate(&token, named).await?;
        let (live, limits) = (&Trust::of(&self.app).listeners, &self.app.config.limits);
        // First the seat, then what is pending: what happens in between is told twice rather than never.
        let seat = live.join(listener.clone(), self.outbox.clone(), limits).map_err(|failure| {
            self.app.metrics.refused(&failure);
            Refused::TooMany
        })?;
        let (readmit, reread) = (every(limits.socket_readmit_ms), every(limits.socket_reread_ms));
        let mut told = vec![welcome(&listener)];
        let renewals = Renewals { since: Instant::now(), count: 0 };
        let (must_check, must_reread) = (false, true);
        self.known = Some(Known { token, listener, seat, readmit, reread, renewals, must_check, must_reread });
        self.fresh = None;
        told.extend(self.pending().await.say);
        Ok(told)
    }

    async fn renew(&mut self, token: SecretString) -> Result<Vec<Frame>, Refused> {
        if !self.known.as_mut().is_some_and(|known| known.renewals.admit()) {
            return Ok(vec![error("too_many_renewals", "this token was renewed too often; wait a minute")]);
        }
        let listener = self.authenticate(&token, &Named::default()).await?;
        let known = self.known.as_mut().filter(|known| known.listener == listener).ok_or(Refused::Caller)?;
        known.token = token;
        known.must_check = false;
        Ok(vec![welcome(&known.listener)])
    }

    /// Whether the peer would still be let in.
    async fn check(&mut self) -> Step {
        let Some(known) = self.known.as_ref().filter(|known| known.must_check) else { return Step::default() };
        match self.authenticate(&known.token, &Named::default()).await {
            Ok(listener) if listener == known.listener => {}
            // A store that does not answer says nothing about the caller.
            Err(Refused::Unavailable) => {}
            _ => return Refused::Token.into(),
        }
        self.known.iter_mut().for_each(|known| known.must_check = false);
        Step::default()
    }

    /// What waits for this peer and was not said yet.
    async fn pending(&mut self) -> Step {
        let Some(known) = &mut self.known else { return Step::default() };
        if known.must_reread {
            match service::live::pending(&self.app, &known.listener).await {
                Ok(pending) => known.seat.put_all(&pending),
                // A peer that comes back asks again.
                Err(failure) => {
                    tracing::warn!(%failure, cause = failure.cause.as_deref(), "what is pending could not be read");
                    return Close { code: 1011, reason: "what is pending cannot be read now" }.into();
                }
            }
            known.must_reread = false;
        }
        known.seat.take().into()
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

impl Dialect for Conversation {
    /// The peer speaks first.
    async fn open(&mut self) -> Step {
        Step::default()
    }

    fn is_introduced(&self) -> bool {
        self.known.is_some()
    }

    async fn hear(&mut self, text: &str) -> Step {
        if text.len() > HEARD_BYTES_MAX {
            return Close::TOO_LONG.into();
        }
        let checked = self.check().await;
        if checked.close.is_some() {
            return checked;
        }
        let done = match (serde_json::from_str(text), self.known.is_some()) {
            (Ok(Heard::Auth { token, named }), false) => self.admit(token, &named).await,
            (Ok(Heard::Renew { access_token }), true) => self.renew(access_token).await,
            (_, false) => Err(Refused::Malformed),
            (_, true) => Ok(vec![error("unknown_frame", "no such frame, or not of its form")]),
        };
        done.map_or_else(Step::from, Step::from)
    }

    async fn wake(&mut self) {
        let Some(known) = &mut self.known else {
            let closed = self.fresh.as_ref().map(Ticket::closed).unwrap_or_default();
            return tokio::select! {
                () = sleep_until(self.until) => {}
                () = closed.notified() => self.is_crowded_out = true,
                () = self.app.drained() => {}
            };
        };
        if !known.must_check && !known.must_reread && !known.seat.has_some() {
            tokio::select! {
                _ = known.readmit.tick() => known.must_check = true,
                _ = known.reread.tick() => known.must_reread = true,
                () = known.seat.must_reread() => known.must_reread = true,
                () = known.seat.some() => {}
                () = self.app.drained() => {}
            }
        }
    }

    async fn attend(&mut self) -> Step {
        if self.app.is_draining() {
            return Close::GOING.into();
        }
        if self.known.is_none() {
            return if self.is_crowded_out { Refused::TooMany } else { Refused::Late }.into();
        }
        let checked = self.check().await;
        if checked.close.is_some() { checked } else { self.pending().await }
    }
}
