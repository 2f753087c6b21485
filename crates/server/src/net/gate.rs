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
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use ostler_protocol::{Failure, FailureKind, Rule, Timestamp, ids::TraceId};

use super::{
    access_table::{AccessTable, RouteAccess},
    body_budget::BodyShare,
    body_problems::{BodyValidators, SentBody, is_about_shape},
    forwarded::TrustedProxies,
    problem,
    rates::{Limiter, RateOwner, RateStatus, Tier},
    sse::wants_stream,
};
use crate::{
    app::App,
    auth::{Access, Principal, unauthenticated},
    dialect::Dialects,
    traces::{Parent, Span, Subject, Transport},
};

/// Marks a request that was made inside this process. Nothing from a socket can carry it.
#[derive(Clone, Copy)]
pub struct InProcess;

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

const TRACE_HEADER: &str = "x-trace-id";
/// Headers that a request may have only once.
const SINGLE_HEADERS: [HeaderName; 7] = [
    header::HOST,
    header::AUTHORIZATION,
    header::CONTENT_TYPE,
    header::ORIGIN,
    header::IF_MATCH,
    HeaderName::from_static("idempotency-key"),
    HeaderName::from_static("last-event-id"),
];

/// The state of the gate.
#[derive(Clone)]
pub struct Gate {
    pub app: App,
    pub access_table: Arc<AccessTable>,
    pub limiter: Arc<Limiter>,
    pub(super) body_validators: Arc<BodyValidators>,
    pub proxies: Arc<TrustedProxies>,
}

pub async fn gate(
    State(Gate { app, access_table, limiter, body_validators, proxies }): State<Gate>,
    mut request: Request,
    next: Next,
) -> Response {
    resolve_peer(&proxies, &mut request);
    let began_at = app.now();
    let trace_id = TraceId::new(app.ids.body());
    let path = request.uri().path().to_owned();
    let origin = allowed_origin(&app, request.headers());
    if origin.is_some() && request.method() == Method::OPTIONS && check_source(&app, &request, None).is_ok() {
        // A CORS preflight, which carries no token. The actual request is checked when it arrives.
        let mut response = Response::default();
        *response.status_mut() = StatusCode::NO_CONTENT;
        origin.into_iter().for_each(|origin| share(response.headers_mut(), origin));
        return response;
    }
    let (method, matched) = (request.method().clone(), request.extensions().get::<MatchedPath>().cloned());
    let matched = matched.as_ref().map(MatchedPath::as_str);
    let route = matched.map(|path| access_table.find(&method, path));
    let traced = app.traces.is_on().then(|| (Parent::of(request.headers()), Arc::<Subject>::default()));
    let (entry, rate_key) = (entry(&app, &request, route), RateKey::of(&request, route));
    let peer = rate_key.as_ref().map(|rate_key| rate_key.peer);
    let admitted = admit(&app, entry, route).await;
    let rate_status = rate_key.and_then(|rate_key| rate_key.count(&limiter, &admitted, app.now()));
    let admitted = rate_status.and_then(|rate_status| rate_status.refusal()).map_or(admitted, Err);
    let sent_body = SentBody::default();
    let mut response = match admitted {
        Ok(principal) => {
            // Held until there is a response.
            let share = share_budget(&app, peer, principal.as_ref(), &mut request);
            if share.is_some() {
                request.extensions_mut().insert(sent_body.clone());
            }
            if let Some(principal) = principal {
                request.extensions_mut().insert(principal);
            }
            match &traced {
                Some((_, subject)) => subject.clone().of(next.run(request)).await,
                None => next.run(request).await,
            }
        }
        Err(failure) => problem::response(failure),
    };
    if let (Some(path), Some(body)) = (matched, sent_body.take()) {
        list_problems(&app, &body_validators, &mut response, (&method, path), &body).await;
    }
    response = problem::encode(&app, response, trace_id, (&path, access_table.failures(matched)), peer);
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
        share(response.headers_mut(), origin);
    }
    if let Some(rate_status) = rate_status {
        add_rate_headers(response.headers_mut(), rate_status);
    }
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
        Some(RouteAccess::Closed) => {
            Err(Failure::rule(Rule::Undeclared, "this path says nothing about who may call it"))
        }
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

fn add_rate_headers(headers: &mut HeaderMap, rate_status: RateStatus) {
    let reset_s = (rate_status.reset_ms.max(0) as u64).div_ceil(1_000);
    headers.insert("ratelimit-limit", HeaderValue::from(rate_status.limit));
    headers.insert("ratelimit-remaining", HeaderValue::from(rate_status.remaining));
    headers.insert("ratelimit-reset", HeaderValue::from(reset_s));
}

/// How a request is authenticated.
enum Entry {
    Token(String),
    Trusted(Principal),
    Public,
}

fn check_source(app: &App, request: &Request, route: Option<RouteAccess>) -> Result<(), Failure> {
    if request.extensions().get::<InProcess>().is_none() {
        check_head(request)?;
        check_host(app, request, route)?;
        check_origin(app, request)?;
    }
    Ok(())
}

fn entry(app: &App, request: &Request, route: Option<RouteAccess>) -> Result<Entry, Failure> {
    match route {
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
        None if route == Some(RouteAccess::Requires(Access::Introduce)) => Ok(Entry::Public),
        None if route == Some(RouteAccess::Requires(Access::Public)) && !app.config.server.require_auth => {
            Ok(Entry::Public)
        }
        None if app.config.server.open_loopback && from_loopback(request) && has_loopback_host(request) => {
            Ok(Entry::Trusted(Principal::Operator))
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

/// Checked whatever the bind address: a page that re-binds its name also connects from loopback, but sends its own name.
fn has_loopback_host(request: &Request) -> bool {
    host_of(request).is_some_and(is_loopback_name)
}

fn host_of(request: &Request) -> Option<&str> {
    request.headers().get(header::HOST).and_then(|value| value.to_str().ok()).or(request.uri().host())
}

fn from_loopback(request: &Request) -> bool {
    request.extensions().get::<ConnectInfo<Peer>>().is_some_and(|ConnectInfo(peer)| peer.0.ip().is_loopback())
}

/// Rejects heads that repeat a header or name two different hosts: a proxy in front may have used the other value.
fn check_head(request: &Request) -> Result<(), Failure> {
    let headers = request.headers();
    for name in SINGLE_HEADERS {
        if headers.get_all(&name).iter().nth(1).is_some() {
            return Err(Failure::invalid(Rule::HeaderRepeated, format!("the header {name} is given twice")));
        }
    }
    let Some(authority) = request.uri().authority() else { return Ok(()) };
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok());
    if host.is_some_and(|host| !host.eq_ignore_ascii_case(authority.as_str())) {
        return Err(Failure::invalid(Rule::Authority, "the request target names another host than the Host header"));
    }
    Ok(())
}

/// On a loopback bind the host must be a loopback name: a page that re-binds its own name to 127.0.0.1 sends another.
fn check_host(app: &App, request: &Request, route: Option<RouteAccess>) -> Result<(), Failure> {
    let bound_to_loopback =
        app.config.server.listen.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback());
    let Some(host) = host_of(request) else {
        return Err(Failure::rule(Rule::HostMissing, "a Host header is required"));
    };
    if !bound_to_loopback
        || is_loopback_name(host)
        || (is_open(route) && Dialects::of(app).has_host(app, name_of(host)))
        || app.config.server.hosts.iter().any(|h| h.eq_ignore_ascii_case(name_of(host)))
    {
        return Ok(());
    }
    Err(Failure::rule(Rule::Host, "this host name is not one of this server's"))
}

/// Whether the route responds under host names of dialects. The others do not.
fn is_open(route: Option<RouteAccess>) -> bool {
    matches!(route, Some(RouteAccess::Requires(Access::Anonymous | Access::Public)))
}

/// A host without its port.
pub fn name_of(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

fn is_loopback_name(host: &str) -> bool {
    let name = name_of(host);
    name.eq_ignore_ascii_case("localhost") || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// A page's origin must be allowed by name; there is no same-origin page that writes. Some of a page's requests name no
/// origin (images, scripts, blind reads), but then the browser marks them as cross-site in `Sec-Fetch-Site`.
fn check_origin(app: &App, request: &Request) -> Result<(), Failure> {
    let headers = request.headers();
    let has = |name: &str, value: &str| headers.get(name).is_some_and(|sent| sent == value);
    let from_elsewhere = has("sec-fetch-site", "cross-site") || has("sec-fetch-site", "same-site");
    // The user follows a link: no page can read the response.
    let is_visit = request.method() == Method::GET && has("sec-fetch-dest", "document");
    let suspicious = headers.contains_key(header::ORIGIN) || (from_elsewhere && !is_visit);
    if suspicious && allowed_origin(app, headers).is_none() {
        return Err(Failure::rule(Rule::Origin, "pages of this origin may not call"));
    }
    Ok(())
}

fn allowed_origin(app: &App, headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    let allowed = app.config.server.allow_origins.iter().any(|allowed| allowed.as_bytes() == origin.as_bytes());
    allowed.then(|| origin.clone())
}

/// Lets the page of an allowed origin read the response.
fn share(headers: &mut HeaderMap, origin: HeaderValue) {
    let list = HeaderValue::from_static;
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(header::VARY, list("origin"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, list("GET, POST, PATCH, PUT, DELETE"));
    let allowed = list("authorization, content-type, idempotency-key, last-event-id");
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    headers.insert(
        header::ACCESS_CONTROL_EXPOSE_HEADERS,
        list("x-trace-id, retry-after, ratelimit-limit, ratelimit-remaining, ratelimit-reset"),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_are_loopback() {
        for good in ["localhost", "localhost:4747", "127.0.0.1:1", "127.1.2.3", "[::1]:80", "LOCALHOST:9"] {
            assert!(is_loopback_name(good), "{good}");
        }
        for bad in ["evil.test", "evil.test:4747", "localhost.evil.test", "10.0.0.1", "127.0.0.1.evil.test", ""] {
            assert!(!is_loopback_name(bad), "{bad}");
        }
    }
}
