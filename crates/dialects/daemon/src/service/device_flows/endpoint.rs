//! Requests to a provider. Redirects are not followed, replies are bounded, and nothing of a reply is logged.

use std::time::Duration;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use ostler_client::outgoing;
use ostler_protocol::{
    Failure,
    daemon::device_flows::{
        DeviceAuthorization, DeviceFlowErrorKind, PollOutcome, REPLY_BYTES_MAX, authorization, poll_outcome,
    },
    sha256::sha256,
};
use ostler_server::{app::App, clock::fill};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{
    Client, Url,
    header::{ACCEPT, CONTENT_TYPE},
};
use secrecy::{ExposeSecret, SecretString};

use crate::config::DeviceFlowSection;

/// How long a provider may take for a whole reply.
const REPLY_MAX: Duration = Duration::from_secs(10);
const CONNECT_MAX: Duration = Duration::from_secs(5);
const GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";
/// Random bytes of a verifier.
const VERIFIER_BYTES: usize = 32;

/// One provider's endpoints, for one flow.
pub(super) struct Endpoint {
    section: DeviceFlowSection,
    authorization: (Client, Url),
    token: (Client, Url),
    /// Binds the request for the token to the request for codes.
    verifier: Option<SecretString>,
}

/// Why there is no reply.
enum NoReply {
    Unreachable,
    TooLarge,
}

impl Endpoint {
    pub(super) fn new(app: &App, section: &DeviceFlowSection) -> Result<Self, Failure> {
        let verifier = section.pkce.then(|| {
            let mut bytes = [0; VERIFIER_BYTES];
            fill(&mut bytes);
            BASE64_URL_SAFE_NO_PAD.encode(bytes).into()
        });
        Ok(Self {
            authorization: http_client(app, &section.device_authorization_url)?,
            token: http_client(app, &section.token_url)?,
            section: section.clone(),
            verifier,
        })
    }

    /// Requests codes. `Err` is the reason why there are none, for the caller.
    pub(super) async fn authorize(&self) -> Result<DeviceAuthorization, &'static str> {
        let mut form = vec![("client_id", self.section.client_id.as_str())];
        form.extend(self.section.scope.as_deref().map(|scope| ("scope", scope)));
        let challenge = self.verifier.as_ref().map(challenge);
        if let Some(challenge) = &challenge {
            form.extend([("code_challenge", challenge.as_str()), ("code_challenge_method", "S256")]);
        }
        match post(&self.authorization, &form).await {
            Ok((status, body)) => authorization(status, &body),
            Err(NoReply::Unreachable) => Err("the provider cannot be reached"),
            Err(NoReply::TooLarge) => Err("the provider's reply is too large"),
        }
    }

    pub(super) async fn poll(&self, device_code: &SecretString) -> PollOutcome {
        let mut form = vec![
            ("grant_type", GRANT),
            ("client_id", self.section.client_id.as_str()),
            ("device_code", device_code.expose_secret()),
        ];
        form.extend(self.verifier.as_ref().map(|verifier| ("code_verifier", verifier.expose_secret())));
        match post(&self.token, &form).await {
            Ok((status, body)) => poll_outcome(status, &body),
            Err(NoReply::Unreachable) => PollOutcome::Unreachable,
            Err(NoReply::TooLarge) => {
                PollOutcome::Refused(DeviceFlowErrorKind::UpstreamError, "the provider's reply is too large")
            }
        }
    }
}

fn challenge(verifier: &SecretString) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(sha256(verifier.expose_secret().as_bytes()))
}

/// A client for one URL of the configuration. The operator named the host, so it may have a private address; a name that leads to this
/// machine is only connected to if the URL names it as such.
fn http_client(app: &App, url: &str) -> Result<(Client, Url), Failure> {
    let url = Url::parse(url).map_err(Failure::internal)?;
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let is_loopback =
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    let rules = app.config.outgoing.rules()?.with_host(host);
    let rules = if is_loopback { rules.with_loopback() } else { rules };
    // The process may have installed a provider already; then that one stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = Client::builder()
        .pool_max_idle_per_host(0)
        .connect_timeout(CONNECT_MAX)
        .timeout(REPLY_MAX)
        .user_agent(concat!("ostler/", env!("CARGO_PKG_VERSION")));
    let builder = outgoing::restrict_host(builder, host, &rules);
    let builder = match (url.scheme(), is_loopback) {
        ("http", true) => builder.no_proxy().tls_certs_only([]),
        (_, true) => builder.no_proxy(),
        _ => builder.https_only(true),
    };
    Ok((builder.build().map_err(Failure::internal)?, url))
}

async fn post((client, url): &(Client, Url), form: &[(&str, &str)]) -> Result<(u16, Vec<u8>), NoReply> {
    let encoded = |text| utf8_percent_encode(text, NON_ALPHANUMERIC);
    let form: Vec<_> = form.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    let request = client.post(url.clone()).header(CONTENT_TYPE, "application/x-www-form-urlencoded");
    let request = request.header(ACCEPT, "application/json").body(form.join("&"));
    let mut response = request.send().await.map_err(|_| NoReply::Unreachable)?;
    let mut whole = vec![];
    while let Some(chunk) = response.chunk().await.map_err(|_| NoReply::Unreachable)? {
        if whole.len() + chunk.len() > REPLY_BYTES_MAX {
            return Err(NoReply::TooLarge);
        }
        whole.extend_from_slice(&chunk);
    }
    Ok((response.status().as_u16(), whole))
}
