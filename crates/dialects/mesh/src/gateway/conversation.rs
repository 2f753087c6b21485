//! One connection to the gateway, from the server's side: fresh until `auth.connect`, then the connection of an identity.

use std::{net::IpAddr, sync::Arc, time::Duration};

use ostler_protocol::{
    Failure, RawJson, Rule,
    ids::TraceId,
    mesh::{
        Aid,
        calls::{self, Call, FRAME_BYTES_MAX, NotACall},
        connections::{
            CHALLENGE, Challenge, ConnectParams, ConnectResult, ConnectedAs, ConnectedIdentity, DISCONNECT_EVENT,
            Disconnect, Live, PROTOCOL, Refused, Versions,
        },
        methods::{CallStage, Method},
    },
    rpc::{RpcError, RpcFrame, Version},
};
use ostler_server::{
    app::App,
    clock,
    net::{
        self,
        sockets::{Close, Outbox, SocketDialect, Step},
        waiting_connections::Ticket,
    },
    traces::{Span, Transport},
};
use ostler_store::mesh::messages::Mailbox;
use secrecy::ExposeSecret;
use tokio::time::{Instant, sleep_until};

use super::{connections::ConnectionGuard, dispatch};
use crate::{
    gateway::{delivery::MessageDelivery, frames::notification},
    service::{self, MeshCaller},
    state::Mesh,
};

const LATE: Close = Close { code: 1008, reason: "auth.connect did not come in time" };
const TOO_LONG: Close = Close { code: 1009, reason: "too long before auth.connect" };
/// On this code, clients try again later.
const CROWDED_OUT: Close = Close { code: 1013, reason: "too many connections wait for auth.connect" };
const MISFIT: Close = Close { code: 1008, reason: "too many frames that are no call" };
/// No call that is allowed on a fresh connection is longer.
const FRESH_FRAME_BYTES_MAX: usize = 64 * 1024;
/// On this code, clients do not reconnect.
const EXPELLED: Close = Close { code: 4003, reason: "the certificate was revoked" };
const ENDED: Close = Close { code: 1008, reason: "the login has ended" };
/// When a login is checked again after the check has failed.
const LOGIN_CHECK_RETRY: Duration = Duration::from_secs(5);
/// How often a connection checks its login without being notified. A notification comes at once, but may be lost.
const LOGIN_CHECK_INTERVAL: Duration = Duration::from_secs(300);

pub(super) struct GatewaySession {
    app: App,
    peer: IpAddr,
    outbox: Outbox,
    nonce: String,
    fresh: Option<Fresh>,
    session: Option<LoginSession>,
}

/// A connection before `auth.connect`.
struct Fresh {
    /// The deadline for `auth.connect`.
    until: Instant,
    ticket: Ticket,
    /// Another connection has displaced it from the fresh ones.
    is_crowded_out: bool,
}

struct LoginSession {
    caller: MeshCaller,
    guard: ConnectionGuard,
    /// When the login is checked next.
    check_at: Instant,
}

/// Why a call has no result.
struct CallRefusal {
    failure: Box<Failure>,
    /// The code of an `auth.connect` whose parameters cannot be read, in place of the code of its rule.
    code: Option<i64>,
}

impl From<Failure> for CallRefusal {
    fn from(failure: Failure) -> Self {
        Self { failure: Box::new(failure), code: None }
    }
}

impl GatewaySession {
    pub(super) fn new(app: App, peer: IpAddr, outbox: Outbox, (until, ticket): (Instant, Ticket)) -> Self {
        let fresh = Fresh { until, ticket, is_crowded_out: false };
        let mut nonce = [0; 16];
        clock::fill(&mut nonce);
        let nonce = ostler_protocol::json::hex(&nonce);
        Self { app, peer, outbox, nonce, fresh: Some(fresh), session: None }
    }

    /// Counts a frame that is not a call. Frames of an identity are counted apart from those of its address.
    fn may_misfit(&self) -> bool {
        let aid = self.session.as_ref().map(|session| &session.caller.aid);
        Mesh::of(&self.app).count_misfit(aid, self.peer, self.app.now())
    }

    async fn reply_to(&mut self, call: Call) -> RpcFrame {
        let traced = if self.app.traces.is_on() { Method::find(&call.method) } else { None };
        let traced = traced.map(|method| (method.row().name, self.app.now()));
        let result = self.call(&call).await;
        if traced.is_none()
            && let Ok(result) = result
        {
            return call.answer(result);
        }
        let trace_id = TraceId::new(self.app.ids.body());
        if let Some((method, began_at)) = traced {
            self.app.trace(Span {
                parent: None,
                trace_id,
                transport: Transport::Rpc { method },
                subject: Arc::default(),
                failure: result.as_ref().err().map(|refusal| refusal.failure.kind),
                began_at,
                ended_at: self.app.now(),
            });
        }
        match result {
            Ok(result) => call.answer(result),
            Err(CallRefusal { failure, code }) => {
                let failure = net::problem::reported(&self.app, *failure, trace_id, &call.method, self.peer);
                let error = calls::error(&failure, &trace_id.to_string());
                call.refuse(RpcError { code: code.unwrap_or(error.code), ..error })
            }
        }
    }

    async fn call(&mut self, call: &Call) -> Result<RawJson, CallRefusal> {
        let row = Method::find(&call.method).ok_or_else(|| calls::unknown_method(&call.method))?.row();
        let caller = self.session.as_ref().map(|session| &session.caller);
        if call.params_size() > row.params_bytes_max {
            return Err(Failure::too_large(Rule::ParamsSize, "params", call.params_size(), row.params_bytes_max).into());
        }
        Mesh::of(&self.app).count(row, caller.map(|caller| &caller.aid), self.peer, self.app.now())?;
        match (row.method, row.stage, caller) {
            (Method::Connect, _, None) => self.connect(call).await,
            (Method::Connect, ..) => {
                let message = "this connection has introduced itself";
                Err(Failure::rule(Rule::MeshConnected, message).into())
            }
            (method, CallStage::Fresh, _) => Ok(dispatch::fresh(&self.app, self.peer, method, call).await?),
            (method, CallStage::Session, Some(caller)) => Ok(dispatch::session(&self.app, caller, method, call).await?),
            (_, CallStage::Session, None) => Err(calls::not_introduced(row.name).into()),
        }
    }

    async fn connect(&mut self, call: &Call) -> Result<RawJson, CallRefusal> {
        let invalid =
            |failure: Failure| CallRefusal { failure: failure.into(), code: Some(Rule::MeshConnect.rpc_code()) };
        let params: ConnectParams = call.params().map_err(invalid)?;
        let refuse = |why: Refused| refused(&why, Some(&params.protocol));
        let live = params.check().map_err(refuse)?;
        if !ostler_crypto::equal(params.nonce.as_bytes(), self.nonce.as_bytes()) {
            return Err(refuse(Refused::Nonce));
        }
        let Some((aid, login_id)) = service::find_by_token(&self.app, params.auth.token.expose_secret()).await? else {
            return Err(refuse(Refused::Token));
        };
        // Read the mailbox before joining: a message that arrives in between is pushed, and none is pushed twice.
        let mut mailbox = service::messages::mailbox(&self.app, &aid).await?;
        // Push nothing before the connection is admitted.
        self.outbox.hold();
        let mut guard = self.join(&aid, &live, mailbox.as_ref()).await?;
        if guard.as_ref().is_err_and(Refused::is_conflict) {
            // The conflicting connection may be an earlier one of this peer, whose network has gone.
            service::presence::probe(&self.app, &aid, &live.place).await;
            mailbox = service::messages::mailbox(&self.app, &aid).await?;
            guard = self.join(&aid, &live, mailbox.as_ref()).await?;
        }
        let guard = guard.map_err(refuse)?;
        // The login may have ended before the connection could be notified of that.
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
                id: guard.id.to_string(),
                device_id: place.device_id.clone(),
                slot_id: place.slot_id.clone(),
            },
        };
        let caller = MeshCaller { aid, login_id, place, delivery_mode, connected_at: now };
        service::messages::connected(&self.app, &caller, mailbox).await?;
        self.fresh = None;
        self.session = Some(LoginSession { caller, guard, check_at: Instant::now() + LOGIN_CHECK_INTERVAL });
        self.outbox.open();
        Ok(RawJson::of(&result))
    }

    /// Joins the identity's other connections, on this server and on others.
    async fn join(
        &self,
        aid: &Aid,
        live: &Live,
        mailbox: Option<&Mailbox>,
    ) -> Result<Result<ConnectionGuard, Refused>, Failure> {
        let last_seq = mailbox.map_or(0, |mailbox| mailbox.last_seq);
        let guard = match Mesh::of(&self.app).connections.join(aid, live.clone(), self.outbox.clone(), last_seq) {
            Ok(guard) => guard,
            Err(refused) => return Ok(Err(refused)),
        };
        let admitted = service::presence::admit_beside_others(&self.app, aid, guard.id, live).await?;
        Ok(admitted.map(|()| guard))
    }

    /// How to close a connection whose login has ended. An identity with a valid certificate may log in again.
    async fn close_ended(&self) -> Step {
        let aid = self.session.as_ref().map(|session| &session.caller.aid);
        let identity = match aid {
            Some(aid) => service::identities::find(&self.app, aid).await.ok().flatten(),
            None => None,
        };
        if identity.is_none_or(|identity| identity.revoked_at.is_none()) {
            return ENDED.into();
        }
        let event = Disconnect { code: EXPELLED.code, reason: EXPELLED.reason.into() };
        Step { say: vec![notification(DISCONNECT_EVENT, &event)], close: Some(EXPELLED) }
    }

    /// Checks whether the session's login is still valid.
    async fn check_login(&mut self) -> Step {
        let Some(session) = &mut self.session else { return Step::default() };
        let again_in = match service::is_live(&self.app, &session.caller.login_id).await {
            Ok(true) => LOGIN_CHECK_INTERVAL,
            Ok(false) => return self.close_ended().await,
            Err(failure) => {
                tracing::warn!(%failure, "a login could not be checked; trying again");
                LOGIN_CHECK_RETRY
            }
        };
        session.check_at = Instant::now() + again_in;
        Step::default()
    }
}

fn refused(why: &Refused, requested: Option<&Versions>) -> CallRefusal {
    let failure = Box::new(why.failure(requested.unwrap_or(&Versions::default())));
    CallRefusal { failure, code: None }
}

impl SocketDialect for GatewaySession {
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

    async fn handle_text(&mut self, text: &str) -> Step {
        // A peer that sends all the time keeps `wake` from returning, so the check is made here, too.
        if self.session.as_ref().is_some_and(|session| session.check_at <= Instant::now()) {
            let step = self.check_login().await;
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
        let reply = match Call::read(text.as_bytes()) {
            Ok(call) if Method::find(&call.method).is_some() => Box::pin(self.reply_to(call)).await,
            _ if !self.may_misfit() => return MISFIT.into(),
            Ok(call) => Box::pin(self.reply_to(call)).await,
            Err(NotACall::Refused(reply)) => *reply,
            Err(NotACall::Ignored) => return Step::default(),
        };
        vec![reply.write(Version::Two).into()].into()
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
            () = session.guard.recheck.notified() => session.check_at = Instant::now(),
            () = sleep_until(session.check_at) => {}
            () = self.outbox.emptied() => MessageDelivery::of(app).look_again(&session.caller.aid),
            () = app.drained() => {}
        }
    }

    async fn process_pending(&mut self) -> Step {
        if self.app.is_draining() {
            return Close::GOING.into();
        }
        match &self.session {
            None if self.fresh.as_ref().is_some_and(|fresh| fresh.is_crowded_out) => CROWDED_OUT.into(),
            None => LATE.into(),
            Some(session) if session.check_at <= Instant::now() => self.check_login().await,
            Some(_) => Step::default(),
        }
    }
}
