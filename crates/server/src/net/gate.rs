//! The gate that every request passes. It assigns a trace id, checks the host and origin, authenticates the caller, and checks
//! that this kind of caller may use the route. Closed by default: a web page in the same browser must not be able to start an
//! agent or read a stream. Access to a particular run or tenant is checked by the services.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use axum::{
    body::HttpBody,
    extract::{ConnectInfo, MatchedPath, Request, State},
    middleware::Next,
    response::Response,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use ostler_protocol::{Failure, FailureKind, Rule, Timestamp, ids::TraceId};

use super::{
    access_table::{AccessTable, RouteAccess},
    body_budget::BodyShare,
    body_problems::{BodyValidators, SentBody, is_about_shape},
    client_rates::{ClientLimiter, ClientRateStatus, ClientRequest},
    forwarded::TrustedProxies,
    locality::Forwarded,
    problem,
    rates::{Limiter, RateOwner, RateStatus, Tier},
    sources::{
        PageSharing, RouteSources, allowed_origin, check_head, check_host, check_source, from_loopback,
        has_loopback_host,
    },
    sse::wants_stream,
};
use crate::{
    app::App,
    auth::{Access, Principal, unauthenticated},
    traces::{Parent, Span, Subject, Transport},
};

pub use super::{
    peers::{InProcess, Peer},
    sources::name_of,
};

const TRACE_HEADER: &str = "x-trace-id";

/// The state of the gate.
#[derive(Clone)]
pub struct Gate {
    pub app: App,
    pub access_table: Arc<AccessTable>,
    pub limiter: Arc<Limiter>,
    pub client_limiter: Arc<ClientLimiter>,
    pub(super) page_sharing: Arc<PageSharing>,
    pub(super) body_validators: Arc<BodyValidators>,
    pub proxies: Arc<TrustedProxies>,
}

pub async fn gate(State(gate): State<Gate>, mut request: Request, next: Next) -> Response {
    let Gate { app, access_table, body_validators, page_sharing, .. } = &gate;
    resolve_peer(&gate.proxies, &mut request);
    let began_at = app.now();
    let trace_id = TraceId::new(app.ids.body());
    let path = request.uri().path().to_owned();
    let (method, matched) = (request.method().clone(), request.extensions().get::<MatchedPath>().cloned());
    let matched = matched.as_ref().map(MatchedPath::as_str);
    let access = matched.map(|path| access_table.find(&method, path));
    let (rules, is_shared) = (access_table.rules(matched), access_table.is_shared(matched));
    let route = RouteSources { access, rules, is_shared };
    let origin = allowed_origin(app, request.headers());
    if method == Method::OPTIONS
        && let Some(origin) = &origin
        && check_source(app, &request, RouteSources { access: None, ..route }).is_ok()
    {
        // A CORS preflight, which carries no token. The actual request is checked when it arrives.
        let mut response = Response::default();
        *response.status_mut() = StatusCode::NO_CONTENT;
        page_sharing.share(response.headers_mut(), origin.clone());
        return response;
    }
    let traced = app.traces.is_on().then(|| (Parent::of(request.headers()), Arc::<Subject>::default()));
    let (entry, rate_key) = (entry(app, &request, route), RateKey::of(&request, access));
    let peer = rate_key.as_ref().map(|rate_key| rate_key.peer);
    let admitted = admit(app, entry, access).await;
    let rate_statuses = gate.count(rate_key, &request, (matched, route), &admitted);
    let admitted = rate_statuses.refusal().map_or(admitted, Err);
    let sent_body = SentBody::default();
    let mut response = match admitted {
        Ok(principal) => {
            // A caller with one tenant acts in no other.
            let tenants = principal.as_ref().and_then(Principal::tenants);
            if let (Some((_, subject)), Some([only])) = (&traced, tenants) {
                subject.note_tenant(only);
            }
            // Held until there is a response.
            let share = share_budget(app, peer, principal.as_ref(), &mut request);
            if share.is_some() {
                request.extensions_mut().insert(sent_body.clone());
            }
            if let Some(principal) = principal {
                request.extensions_mut().insert(principal);
            }
            // For handlers that report failures inside a response.
            request.extensions_mut().insert(trace_id);
            match &traced {
                Some((_, subject)) => subject.clone().of(next.run(request)).await,
                None => next.run(request).await,
            }
        }
        Err(failure) => problem::response(failure),
    };
    if let (Some(path), Some(body)) = (matched, sent_body.take()) {
        list_problems(app, body_validators, &mut response, (&method, path), &body).await;
    }
    let encoder = access_table.encoder(matched, response.extensions().get::<Failure>());
    response = problem::encode(app, response, trace_id, (&path, encoder), peer);
    let ended_at = app.now();
    let took = ended_at.duration_since(began_at).as_micros() as i64;
    app.metrics.count_response(&method, matched, response.status(), took);
    if let Some((parent, subject)) = traced {
        let (route, status) = (matched.map(str::to_owned), response.status());
        let transport = Transport::Http { method, route, status };
        let failure = response.extensions().get::<FailureKind>().copied();
        app.trace(Span { parent, trace_id, transport, subject, failure, began_at, ended_at });
    }
    if let Some(origin) = origin {
        page_sharing.share(response.headers_mut(), origin);
    }
    rate_statuses.add_headers(response.headers_mut());
    if let Ok(value) = HeaderValue::from_str(&trace_id.to_string()) {
        response.headers_mut().insert(TRACE_HEADER, value);
    }
    response
}

/// Adds the other problems of the body to a failure about its shape.
async fn list_problems(
    app: &App,
    validators: &BodyValidators,
    response: &mut Response,
    (method, path): (&Method, &str),
    body: &[u8],
) {
    let failure = response.extensions().get::<Failure>().filter(|failure| is_about_shape(failure)).cloned();
    if let Some(failure) = failure {
        let complete = || validators.complete(failure, method, path, body);
        response.extensions_mut().insert(app.compute(body.len(), complete).await);
    }
}

/// Puts the client's address in the place of the proxy's, so that everything that follows sees the client only.
fn resolve_peer(proxies: &TrustedProxies, request: &mut Request) {
    let Some(ConnectInfo(Peer(peer))) = request.extensions().get::<ConnectInfo<Peer>>().copied() else { return };
    if !proxies.trusts(peer.ip()) {
        return;
    }
    request.extensions_mut().insert(Forwarded);
    if let Some(client) = proxies.client_of(peer.ip(), request.headers()) {
        // The client's port is not known.
        request.extensions_mut().insert(ConnectInfo(Peer(SocketAddr::new(client, 0))));
    }
}

/// Authenticates the caller and checks its access to the route. `None` if the handler gets no caller: the route is public or
/// does not exist.
async fn admit(
    app: &App,
    entry: Result<Entry, Failure>,
    route: Option<RouteAccess>,
) -> Result<Option<Principal>, Failure> {
    let principal = match entry? {
        Entry::Public => return Ok(None),
        Entry::Trusted(principal) => principal,
        Entry::Token(token) => app.auth.authenticate(&app.db, &token, app.wall()).await?,
    };
    match route {
        Some(RouteAccess::Requires(access)) => access.admit(&principal).map(|()| Some(principal)),
        Some(RouteAccess::Closed) => Err(Failure::rule(Rule::Undeclared, "this path does not declare who may call it")),
        // There is no handler; the router responds with 404 or 405.
        Some(RouteAccess::OtherMethod) | None => Ok(None),
    }
}

/// Gives a request with a body a share of the budget for bodies, which grows when its body is read. `None` for requests without
/// a body, and for those made inside this process, which are not counted.
fn share_budget(
    app: &App,
    peer: Option<IpAddr>,
    principal: Option<&Principal>,
    request: &mut Request,
) -> Option<Arc<BodyShare>> {
    let peer = peer.filter(|_| !request.body().is_end_stream())?;
    let share = app.body_budget.share(principal.map_or_else(|| RateOwner::peer(peer), RateOwner::caller));
    request.extensions_mut().insert(share.clone());
    Some(share)
}

/// What a request from a socket counts as for the rate limits: its address and its tier.
struct RateKey {
    peer: IpAddr,
    tier: Tier,
}

impl RateKey {
    /// `None` for a request made inside this process, which is not counted.
    fn of(request: &Request, route: Option<RouteAccess>) -> Option<Self> {
        let ConnectInfo(peer) = request.extensions().get::<ConnectInfo<Peer>>()?;
        let reads = [Method::GET, Method::HEAD].contains(request.method());
        let tier = match route {
            Some(RouteAccess::Requires(Access::Run)) => Tier::Run,
            _ if !reads => Tier::Submit,
            Some(RouteAccess::Requires(Access::Introduce)) => Tier::Stream,
            _ if wants_stream(request.headers()) => Tier::Stream,
            _ => Tier::Read,
        };
        Some(Self { peer: peer.0.ip(), tier })
    }

    /// Counts the request against its caller, or against its address if the caller is unknown.
    fn count(
        self,
        limiter: &Limiter,
        admitted: &Result<Option<Principal>, Failure>,
        now: Timestamp,
    ) -> Option<RateStatus> {
        let (whose, tier) = match admitted {
            Ok(Some(principal)) => (RateOwner::caller(principal), self.tier),
            Ok(None) => (RateOwner::peer(self.peer), self.tier),
            // A failure of the server does not count against the caller.
            Err(failure) if failure.kind.row().retry => return None,
            Err(_) => (RateOwner::peer(self.peer), Tier::Stranger),
        };
        limiter.take(whose, tier, now)
    }
}

/// What remains of the limits that a request counts against: that of its caller, and that of its client.
#[derive(Clone, Copy)]
struct RateStatuses {
    caller: Option<RateStatus>,
    client: Option<ClientRateStatus>,
}

impl RateStatuses {
    fn refusal(&self) -> Option<Failure> {
        let caller = self.caller.and_then(|status| status.refusal());
        caller.or_else(|| self.client.and_then(|status| status.refusal()))
    }

    fn add_headers(&self, headers: &mut HeaderMap) {
        if let Some(status) = self.caller {
            let reset_s = (status.reset_ms.max(0) as u64).div_ceil(1_000);
            headers.insert("ratelimit-limit", HeaderValue::from(status.limit));
            headers.insert("ratelimit-remaining", HeaderValue::from(status.remaining));
            headers.insert("ratelimit-reset", HeaderValue::from(reset_s));
        }
        if let Some(status) = &self.client {
            status.add_headers(headers);
        }
    }
}

impl Gate {
    /// Counts a request against the limits. One that its caller's limit rejects does not count against its client.
    fn count(
        &self,
        rate_key: Option<RateKey>,
        request: &Request,
        (matched, route): (Option<&str>, RouteSources),
        admitted: &Result<Option<Principal>, Failure>,
    ) -> RateStatuses {
        let Some(rate_key) = rate_key else { return RateStatuses { caller: None, client: None } };
        let (peer, now) = (rate_key.peer, self.app.now());
        let caller = rate_key.count(&self.limiter, admitted, now);
        let is_rejected = caller.is_some_and(|status| status.refusal().is_some());
        let client = || {
            let principal = admitted.as_ref().ok().filter(|_| !is_rejected)?;
            let rules = route.rules?.rates.as_ref()?;
            let counted = ClientRequest::of(rules, (request.method(), matched?), request.headers(), peer)?;
            self.client_limiter.take(&self.app.config, counted, principal.as_ref(), now)
        };
        RateStatuses { caller, client: client() }
    }
}

/// How a request is authenticated.
enum Entry {
    Token(String),
    Trusted(Principal),
    Public,
}

fn entry(app: &App, request: &Request, route: RouteSources) -> Result<Entry, Failure> {
    match route.access {
        // Pages of any origin may show such pictures, and a browser sends no token for them.
        Some(RouteAccess::Requires(Access::Signed)) => {
            check_head(request)?;
            return check_host(app, request, route).map(|()| Entry::Public);
        }
        // The dialect's handlers check their own proofs, and the dialect may have its own host names.
        Some(RouteAccess::Requires(Access::Anonymous)) if !app.config.server.require_auth => {
            return check_source(app, request, route).map(|()| Entry::Public);
        }
        _ => check_source(app, request, route)?,
    }
    match bearer(request.headers())? {
        Some(token) => Ok(Entry::Token(token.to_owned())),
        None if route.access == Some(RouteAccess::Requires(Access::Introduce)) => Ok(Entry::Public),
        None if app.config.server.open_loopback && from_loopback(request) && has_loopback_host(request) => {
            Ok(Entry::Trusted(Principal::Operator))
        }
        None if route.access == Some(RouteAccess::Requires(Access::Public)) && !app.config.server.require_auth => {
            Ok(Entry::Public)
        }
        None => Err(unauthenticated("this needs a token: Authorization: Bearer …")),
    }
}

/// The bearer token of a request, if it has one.
pub fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Failure> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let text = value.to_str().map_err(|_| unauthenticated("the Authorization header is not text"))?;
    let (scheme, token) = text.split_once(' ').unwrap_or((text, ""));
    if !scheme.eq_ignore_ascii_case("bearer") || token.trim().is_empty() {
        return Err(unauthenticated("the Authorization header must be: Bearer <token>"));
    }
    Ok(Some(token.trim()))
}
