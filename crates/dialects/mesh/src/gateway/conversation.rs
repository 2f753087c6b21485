//! One connection to the gateway, from the server's side: fresh, until it has introduced itself, then an agent's.

use std::{net::IpAddr, time::Duration};

use ostler_protocol::{
    Failure, FailureKind, RawJson,
    ids::TraceId,
    mesh::{
        Aid,
        calls::{self, Call, FRAME_BYTES_MAX, NotACall},
        connections::{
            CHALLENGE, Challenge, ConnectParams, ConnectResult, ConnectedAs, ConnectedIdentity, DISCONNECT_EVENT,
            Disconnect, Live, PROTOCOL, Refused, Versions,
        },
        methods::{Method, Stage},
    },
    rpc::{Frame as RpcFrame, RpcError, Version},
};
use ostler_store::mesh::messages::Mailbox;
use secrecy::ExposeSecret;
use serde::Serialize;
use tokio::time::{Instant, sleep_until};

use super::{connections::Seat, dispatch};
use crate::{
    service::{self, MeshCaller},
    state::Mesh,
};
use ostler_server::{
    app::App,
    clock,
    net::{
        self,
        sockets::{Close, Dialect, Frame, Outbox, Step},
        waiting::Ticket,
    },
};

const LATE: Close = Close { code: 1008, reason: "auth.connect did not come in time" };
const TOO_LONG: Close = Close { code: 1009, reason: "too long before auth.connect" };
/// The code by which clients try again later.
const CROWDED_OUT: Close = Close { code: 1013, reason: "too many connections wait for auth.connect" };
const MISFIT: Close = Close { code: 1008, reason: "too many frames that are no call" };
/// Nothing that may be called on a fresh connection is longer.
const FRESH_FRAME_BYTES_MAX: usize = 64 * 1024;
/// With this code, a gateway says that it is of no use to come back.
const EXPELLED: Close = Close { code: 4003, reason: "the certificate was revoked" };
const ENDED: Close = Close { code: 1008, reason: "the login has ended" };
/// When that could not be found out.
const DOUBT_AGAIN: Duration = Duration::from_secs(5);
/// How often a connection makes sure that its login still stands. It is told at once; this is for what is not heard.
const DOUBT_INTERVAL: Duration = Duration::from_secs(300);

pub struct Conversation {
    app: App,
    peer: IpAddr,
    outbox: Outbox,
    nonce: String,
    fresh: Option<Fresh>,
    session: Option<Session>,
}

/// A connection before `auth.connect`.
struct Fresh {
    /// When the peer must have introduced itself.
    until: Instant,
    ticket: Ticket,
    /// Its place was given to another connection.
    is_crowded_out: bool,
}

struct Session {
    caller: MeshCaller,
    seat: Seat,
    /// When it is next made sure that the login stands.
    doubt_at: Instant,
}

/// Why a call has no result.
struct Refusal {
    failure: Box<Failure>,
    /// Of `auth.connect`, which has codes of its own.
    code: Option<i64>,
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self { failure: Box::new(failure), code: None }
    }
}

impl Conversation {
    pub fn new(app: App, peer: IpAddr, outbox: Outbox, (until, ticket): (Instant, Ticket)) -> Self {
        let fresh = Fresh { until, ticket, is_crowded_out: false };
        let mut nonce = [0; 16];
        clock::fill(&mut nonce);
        let nonce = ostler_protocol::json::hex(&nonce);
        Self { app, peer, outbox, nonce, fresh: Some(fresh), session: None }
    }

    /// Counts a frame that is no call, an agent's own apart from those of strangers at the same address.
    fn may_misfit(&self) -> bool {
        let aid = self.session.as_ref().map(|session| &session.caller.aid);
        Mesh::of(&self.app).count_misfit(aid, self.peer, self.app.now())
    }

    async fn answer(&mut self, call: Call) -> RpcFrame {
        match self.call(&call).await {
            Ok(result) => call.answer(result),
            Err(Refusal { failure, code }) => {
                let trace_id = TraceId::new(self.app.ids.body());
                let failure = net::problem::reported(&self.app, *failure, trace_id, &call.method, self.peer);
                let error = calls::error(&failure, &trace_id.to_string());
                call.refuse(RpcError { code: code.unwrap_or(error.code), ..error })
            }
        }
    }

    async fn call(&mut self, call: &Call) -> Result<RawJson, Refusal> {
        let row = Method::find(&call.method).ok_or_else(|| calls::unknown_method(&call.method))?.row();
        let caller = self.session.as_ref().map(|session| &session.caller);
        if call.params_size() > row.params_bytes_max {
            return Err(Failure::too_large("params-size", "params", call.params_size(), row.params_bytes_max).into());
        }
        Mesh::of(&self.app).count(row, caller.map(|caller| &caller.aid), self.peer, self.app.now())?;
        match (row.method, row.stage, caller) {
            (Method::Connect, _, None) => self.connect(call).await,
            (Method::Connect, ..) => {
                let message = "this connection has introduced itself";
                Err(Failure::rule(FailureKind::StateConflict, "mesh-connected", message).into())
            }
            (method, Stage::Fresh, _) => Ok(dispatch::fresh(&self.app, self.peer, method, call).await?),
            (method, Stage::Session, Some(caller)) => Ok(dispatch::session(&self.app, caller, method, call).await?),
            (_, Stage::Session, None) => Err(calls::not_introduced(row.name).into()),
        }
    }

    async fn connect(&mut self, call: &Call) -> Result<RawJson, Refusal> {
        let unfit = |failure: Failure| Refusal { failure: failure.into(), code: Some(Refused::Params("").code()) };
        let asked: ConnectParams = call.params().map_err(unfit)?;
        let refuse = |why: Refused| refused(&why, Some(&asked.protocol));
        let live = asked.check().map_err(refuse)?;
        if !ostler_crypto::equal(asked.nonce.as_bytes(), self.nonce.as_bytes()) {
            return Err(refuse(Refused::Nonce));
        }
        let Some((aid, login_id)) = service::whose(&self.app, asked.auth.token.expose_secret()).await? else {
            return Err(refuse(Refused::Token));
        };
        // First where the mailbox stands, then the seat: what comes in between is told, and what comes twice is told once.
        let mut mailbox = service::messages::mailbox(&self.app, &aid).await?;
        // Nothing is told before it is settled that it may be.
        self.outbox.hold();
        let mut seat = self.take_seat(&aid, &live, mailbox.as_ref()).await?;
        if seat.as_ref().is_err_and(Refused::is_conflict) {
            // It may be this very peer's connection of a moment ago, whose network has gone.
            service::presence::probe(&self.app, &aid, &live.place).await;
            mailbox = service::messages::mailbox(&self.app, &aid).await?;
            seat = self.take_seat(&aid, &live, mailbox.as_ref()).await?;
        }
        let seat = seat.map_err(refuse)?;
        // A login that ended before there was a seat to be doubted.
        if !service::is_live(&self.app, &login_id).await? {
            return Err(refuse(Refused::Token));
        }
        let Live { place, delivery_mode } = live;
        let now = self.app.now();
        let result = ConnectResult {
            status: "ok".into(),
            protocol: PROTOCOL.into(),
            server_time: self.app.wall().as_millisecond(),
            authenticated: true,
            identity: ConnectedIdentity { aid: aid.clone(), role: "user".into() },
            connection: ConnectedAs {
                id: seat.id.to_string(),
                device_id: place.device_id.clone(),
                slot_id: place.slot_id.clone(),
            },
        };
        let caller = MeshCaller { aid, login_id, place, delivery_mode, connected_at: now };
        service::messages::connected(&self.app, &caller, mailbox).await?;
        self.fresh = None;
        self.session = Some(Session { caller, seat, doubt_at: Instant::now() + DOUBT_INTERVAL });
        self.outbox.open();
        Ok(RawJson::of(&result))
    }

    /// A place beside the agent's other connections, here and elsewhere.
    async fn take_seat(
        &self,
        aid: &Aid,
        live: &Live,
        mailbox: Option<&Mailbox>,
    ) -> Result<Result<Seat, Refused>, Failure> {
        let last_seq = mailbox.map_or(0, |mailbox| mailbox.last_seq);
        let seat = match Mesh::of(&self.app).connections.join(aid, live.clone(), self.outbox.clone(), last_seq) {
            Ok(seat) => seat,
            Err(refused) => return Ok(Err(refused)),
        };
        let admitted = service::presence::admit_beside_others(&self.app, aid, seat.id, live).await?;
        Ok(admitted.map(|()| seat))
    }

    /// Whoever still has a good certificate may log in anew.
    async fn ended(&self) -> Step {
        let aid = self.session.as_ref().map(|session| &session.caller.aid);
        let identity = match aid {
            Some(aid) => service::identities::find(&self.app, aid).await.ok().flatten(),
            None => None,
        };
        if identity.is_none_or(|identity| identity.revoked_at.is_none()) {
            return ENDED.into();
        }
        let told = Disconnect { code: EXPELLED.code, reason: EXPELLED.reason.into() };
        Step { say: vec![notification(DISCONNECT_EVENT, &told)], close: Some(EXPELLED) }
    }

    /// Makes sure that the session's login still stands.
    async fn doubt(&mut self) -> Step {
        let Some(session) = &mut self.session else { return Step::default() };
        let again_in = match service::is_live(&self.app, &session.caller.login_id).await {
            Ok(true) => DOUBT_INTERVAL,
            Ok(false) => return self.ended().await,
            Err(failure) => {
                tracing::warn!(%failure, "a login could not be looked at; it is tried again");
                DOUBT_AGAIN
            }
        };
        session.doubt_at = Instant::now() + again_in;
        Step::default()
    }
}

fn refused(why: &Refused, asked: Option<&Versions>) -> Refusal {
    let failure = Box::new(why.failure(asked.unwrap_or(&Versions::default())));
    Refusal { failure, code: Some(why.code()) }
}

/// A notification as it goes over the wire.
pub fn notification(method: &str, params: &impl Serialize) -> Frame {
    RpcFrame::Notification { method: method.to_owned(), params: RawJson::of(params) }.write(Version::Two).into()
}

impl Dialect for Conversation {
    async fn open(&mut self) -> Step {
        let challenge = Challenge {
            nonce: self.nonce.clone(),
            server: format!("ostler/{}", env!("CARGO_PKG_VERSION")),
            protocol: Versions::default(),
            auth_methods: vec!["kite_token".into()],
            server_time: self.app.wall().as_millisecond(),
        };
        vec![notification(CHALLENGE, &challenge)].into()
    }

    fn is_introduced(&self) -> bool {
        self.session.is_some()
    }

    async fn hear(&mut self, text: &str) -> Step {
        // One that is never silent would not be woken for it.
        if self.session.as_ref().is_some_and(|session| session.doubt_at <= Instant::now()) {
            let step = self.doubt().await;
            if step.close.is_some() {
                return step;
            }
        }
        if self.session.is_none() && text.len() > FRESH_FRAME_BYTES_MAX {
            return TOO_LONG.into();
        }
        if text.len() > FRAME_BYTES_MAX {
            return Close::TOO_LONG.into();
        }
        if let Some(fresh) = &self.fresh {
            fresh.ticket.speak();
        }
        let answer = match Call::read(text.as_bytes()) {
            Ok(call) if Method::find(&call.method).is_some() => Box::pin(self.answer(call)).await,
            _ if !self.may_misfit() => return MISFIT.into(),
            Ok(call) => Box::pin(self.answer(call)).await,
            Err(NotACall::Refused(answer)) => *answer,
            Err(NotACall::Ignored) => return Step::default(),
        };
        vec![answer.write(Version::Two).into()].into()
    }

    async fn wake(&mut self) {
        let app = &self.app;
        let Some(session) = &mut self.session else {
            let Some(fresh) = &mut self.fresh else { return };
            let closed = fresh.ticket.closed();
            return tokio::select! {
                () = sleep_until(fresh.until) => {}
                () = closed.notified() => fresh.is_crowded_out = true,
                () = app.drained() => {}
            };
        };
        tokio::select! {
            () = session.seat.doubted.notified() => session.doubt_at = Instant::now(),
            () = sleep_until(session.doubt_at) => {}
            () = self.outbox.emptied() => Mesh::of(app).delivery.look_again(&session.caller.aid),
            () = app.drained() => {}
        }
    }

    async fn attend(&mut self) -> Step {
        if self.app.is_draining() {
            return Close::GOING.into();
        }
        match &self.session {
            None if self.fresh.as_ref().is_some_and(|fresh| fresh.is_crowded_out) => CROWDED_OUT.into(),
            None => LATE.into(),
            Some(session) if session.doubt_at <= Instant::now() => self.doubt().await,
            Some(_) => Step::default(),
        }
    }
}
