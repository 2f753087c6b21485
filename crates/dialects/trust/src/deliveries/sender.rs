//! One attempt to deliver to a webhook. The agent's owner chose the address, so the rules for outgoing connections apply, and
//! only the head of the response is read.

use std::{sync::OnceLock, time::Duration};

use ostler_client::outgoing::{self, OutgoingError};
use ostler_protocol::{Failure, Rule, outgoing::OutgoingRules, trust::webhooks::WEBHOOK_URL_BYTES_MAX};
use reqwest::{
    Client, Url,
    header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER},
};

const CONNECT_MAX: Duration = Duration::from_secs(5);

pub(crate) struct Sender {
    /// Made for the first attempt: reading the certificates of the public authorities takes milliseconds and half a megabyte.
    http: OnceLock<Client>,
    rules: OutgoingRules,
    patience: Duration,
}

/// The head of a receiver's response.
pub(crate) struct HookResponse {
    pub status: u16,
    pub retry_after: Option<String>,
}

impl Sender {
    pub(crate) fn new(rules: OutgoingRules, patience: Duration) -> Self {
        // The process may have installed a provider already; then that one stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self { http: OnceLock::new(), rules, patience }
    }

    fn http(&self) -> Result<&Client, String> {
        if let Some(http) = self.http.get() {
            return Ok(http);
        }
        let builder = Client::builder()
            .pool_max_idle_per_host(0)
            .connect_timeout(CONNECT_MAX.min(self.patience))
            .timeout(self.patience)
            .user_agent(concat!("ostler/", env!("CARGO_PKG_VERSION")));
        let made = outgoing::restrict(builder, &self.rules).build().map_err(|error| {
            tracing::error!(%error, "the HTTP client of webhooks cannot be made");
            "the server cannot make connections".to_owned()
        })?;
        Ok(self.http.get_or_init(|| made))
    }

    /// `Err` is the reason why there was no response, for the webhook's owner.
    pub(crate) async fn post(&self, url: &str, headers: HeaderMap, body: String) -> Result<HookResponse, String> {
        // The rules may have changed since the webhook was set.
        let url = check_url(&self.rules, url).map_err(|failure| failure.message)?;
        let request = self.http()?.post(url).headers(headers).header(CONTENT_TYPE, "application/json").body(body);
        let response = request.send().await.map_err(|error| self.describe(&error))?;
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()).map(str::to_owned);
        Ok(HookResponse { status: response.status().as_u16(), retry_after })
    }

    /// Why there was no response. The texts of receivers and resolvers are not passed on.
    fn describe(&self, error: &reqwest::Error) -> String {
        if outgoing::is_refused(error) {
            return OutgoingError::Address.to_string();
        }
        if error.is_timeout() {
            return format!("no answer within {} ms", self.patience.as_millis());
        }
        if error.is_connect() { "no connection" } else { "the connection ended before an answer" }.to_owned()
    }
}

/// Checks everything about a webhook's URL that can be checked without resolving its name.
pub(crate) fn check_url(rules: &OutgoingRules, text: &str) -> Result<Url, Failure> {
    let refused = |why: String| Failure::invalid(Rule::WebhookUrl, format!("this cannot be a webhook: {why}"));
    if text.len() > WEBHOOK_URL_BYTES_MAX {
        return Err(refused("the URL is too long".into()));
    }
    outgoing::check_url(rules, text).map_err(|why| refused(why.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_is_https_to_a_public_host_within_a_bound() {
        let allows = |url: &str| check_url(&OutgoingRules::default(), url).is_ok();
        assert!(allows("https://agent.example/hook"));
        assert!(!allows("http://agent.example/hook") && !allows("https://10.0.0.1/"));
        assert!(!allows(&format!("https://agent.example/{}", "a".repeat(WEBHOOK_URL_BYTES_MAX))));
    }

    #[tokio::test]
    async fn the_error_states_that_an_address_is_not_public() {
        let sender = Sender::new(OutgoingRules::default(), Duration::from_secs(5));
        let why = sender.post("https://127.0.0.1:1/hook", HeaderMap::new(), "{}".into()).await.err();
        assert_eq!(why.as_deref(), Some("this cannot be a webhook: its address is not a public one"));
    }
}
