//! How a request reaches the server: over HTTP, or by calling the server's router in this process.
//!
//! Both return the same kind of response. Redirects are not followed, so that the token is sent to no other server, and a
//! loopback server is never reached through a proxy.

use std::{error::Error, sync::Arc};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use ostler_protocol::{Failure, Rule, outgoing::OutgoingRules};
use reqwest::redirect::Policy;
use tokio::time::Duration;

use crate::{failures, outgoing, path::Path, pinned};

/// The body of a response, whole or streamed.
pub type ReplyBody = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// A server in the same process.
pub type InProcess = Arc<dyn Fn(Request<Bytes>) -> BoxFuture<'static, Response<ReplyBody>> + Send + Sync>;

const CONNECT_MS_MAX: u64 = 10_000;

#[derive(Clone)]
pub(crate) enum Transport {
    Http { client: reqwest::Client, base: String },
    InProcess(InProcess),
}

impl Transport {
    pub(crate) fn http(base_url: &str, trust: Trust<'_>) -> Result<Self, Failure> {
        let base = base_url.trim_end_matches('/').to_owned();
        let client = build(&base, None, HttpVersions::All, trust).map_err(|failure| match failure.broken_rule() {
            Some(Rule::Address) => bad_address(base_url),
            _ => failure,
        })?;
        Ok(Self::Http { client, base })
    }

    pub(crate) fn uri(&self, path: Path) -> Result<Uri, Failure> {
        let text = match self {
            Self::Http { base, .. } => format!("{base}{}", path.as_str()),
            Self::InProcess(_) => path.as_str().to_owned(),
        };
        Uri::try_from(text).map_err(|_| Failure::invalid(Rule::AddressSize, "the request's address is too long"))
    }

    pub(crate) async fn send(&self, request: Request<Bytes>) -> Result<Response<ReplyBody>, Failure> {
        match self {
            Self::InProcess(call) => Ok(call(request).await),
            Self::Http { client, .. } => send(client, request).await,
        }
    }
}

/// Sends a request over HTTP.
pub(crate) async fn send(client: &reqwest::Client, request: Request<Bytes>) -> Result<Response<ReplyBody>, Failure> {
    let request = reqwest::Request::try_from(request).map_err(|e| failures::unreachable(&e))?;
    let response = client.execute(request).await.map_err(|e| failures::unreachable(&e))?;
    let response: Response<reqwest::Body> = response.into();
    Ok(response.map(|body| body.map_err(|e| Box::new(e) as Box<dyn Error + Send + Sync>).boxed_unsync()))
}

/// A client for one address: no redirects, no proxy for loopback, a limit on the time to connect.
pub fn web_client(address: &str) -> Result<reqwest::Client, Failure> {
    build(address, None, HttpVersions::All, Trust::System)
}

/// The same as [`web_client`], for WebSockets. They begin with a request of HTTP/1.1, so the client must not agree on HTTP/2
/// with a proxy that offers both.
pub(crate) fn web_socket_client(address: &str) -> Result<reqwest::Client, Failure> {
    build(address, None, HttpVersions::OnlyHttp1, Trust::System)
}

/// The servers that a client trusts with TLS. It has no meaning for plain HTTP.
#[derive(Clone, Copy)]
pub(crate) enum Trust<'a> {
    /// Those of the system's authorities.
    System,
    /// Those of these authorities too, in PEM.
    Also(&'a [u8]),
    /// The one with exactly this certificate, in DER.
    Pinned(&'a [u8]),
}

/// The versions of HTTP that a client offers.
#[derive(Clone, Copy, PartialEq)]
enum HttpVersions {
    All,
    OnlyHttp1,
}

/// The same as [`web_client`], for an address that a caller chose: it connects only to addresses that the rules allow,
/// whatever the name resolves to.
pub fn restricted_web_client(address: &str, rules: &OutgoingRules) -> Result<reqwest::Client, Failure> {
    outgoing::check_url(rules, address).map_err(|error| Failure::invalid(Rule::Address, error.to_string()))?;
    build(address, Some(rules), HttpVersions::All, Trust::System)
}

fn build(
    address: &str,
    rules: Option<&OutgoingRules>,
    versions: HttpVersions,
    trust: Trust<'_>,
) -> Result<reqwest::Client, Failure> {
    let bad = || Failure::invalid(Rule::Address, format!("{address:?} is not an http or https address"));
    let url: Uri = address.parse().map_err(|_| bad())?;
    let host = url.host().filter(|host| !host.is_empty()).ok_or_else(bad)?;
    let mut builder = reqwest::Client::builder()
        .redirect(Policy::none())
        .connect_timeout(Duration::from_millis(CONNECT_MS_MAX))
        .user_agent(concat!("ostler/", env!("CARGO_PKG_VERSION")));
    if is_loopback(host) {
        builder = builder.no_proxy();
    }
    // If the process has already chosen a provider, that one stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    builder = match (url.scheme_str(), trust) {
        (Some("https"), Trust::Pinned(certificate)) => {
            builder.tls_backend_preconfigured(pinned::config(certificate).map_err(Failure::internal)?)
        }
        (Some("https"), Trust::Also(authorities)) => {
            let authorities = reqwest::Certificate::from_pem_bundle(authorities).unwrap_or_default();
            if authorities.is_empty() {
                return Err(Failure::invalid(Rule::Address, "the file of certificate authorities holds none, in PEM"));
            }
            builder.tls_certs_merge(authorities)
        }
        (Some("https"), Trust::System) => builder,
        // Plain HTTP needs no root certificates. Loading none also starts faster.
        (Some("http"), _) => builder.tls_certs_only([]),
        _ => return Err(bad()),
    };
    if versions == HttpVersions::OnlyHttp1 {
        builder = builder.http1_only();
    }
    if let Some(rules) = rules {
        builder = outgoing::restrict(builder, rules);
    }
    builder.build().map_err(|e| failures::unreachable(&e))
}

pub(crate) fn is_loopback(host: &str) -> bool {
    let plain = host.trim_start_matches('[').trim_end_matches(']');
    plain.eq_ignore_ascii_case("localhost") || plain.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn bad_address(address: &str) -> Failure {
    let message = format!("{address:?} is not a server address; an example is http://127.0.0.1:4747");
    Failure::invalid(Rule::ServerAddress, message)
}
