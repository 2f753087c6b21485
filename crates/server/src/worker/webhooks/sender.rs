//! The way out: one attempt to tell a receiver something. Its owner chose the address, so nothing about it is trusted: names
//! are resolved once, checked, and connected to as checked; no redirect is followed, no proxy asked, and of the answer
//! nothing is read but its head.

use std::{error::Error, fmt, net::IpAddr, sync::Arc, time::Duration};

use ostler_protocol::{Failure, addresses, webhooks::WEBHOOK_URL_BYTES_MAX};
use reqwest::{
    Client, Url,
    dns::{Addrs, Name, Resolve, Resolving},
    header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER},
    redirect::Policy,
};

const CONNECT_MAX: Duration = Duration::from_secs(5);

pub struct Sender {
    http: Client,
    reach: Reach,
    patience: Duration,
}

/// What an attempt brought.
pub struct Answer {
    pub status: u16,
    pub retry_after: Option<String>,
}

impl Sender {
    pub fn new(reach: Reach, patience: Duration) -> Result<Self, Failure> {
        // The process may have chosen a provider already; then that one stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = Client::builder()
            .no_proxy()
            .redirect(Policy::none())
            .dns_resolver(Arc::new(Checked(reach)))
            .pool_max_idle_per_host(0)
            .connect_timeout(CONNECT_MAX.min(patience))
            .timeout(patience)
            .user_agent(concat!("ostler/", env!("CARGO_PKG_VERSION")));
        Ok(Self { http: http.build().map_err(Failure::internal)?, reach, patience })
    }

    /// `Err` says why there was no answer, for the webhook's owner.
    pub async fn post(&self, url: &str, headers: HeaderMap, body: String) -> Result<Answer, String> {
        // What was allowed when the webhook was set need not be allowed now.
        let url = self.reach.check(url).map_err(|failure| failure.message)?;
        let request = self.http.post(url).headers(headers).header(CONTENT_TYPE, "application/json").body(body);
        let response = request.send().await.map_err(|error| self.why(&error))?;
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()).map(str::to_owned);
        Ok(Answer { status: response.status().as_u16(), retry_after })
    }

    /// In our words: what a receiver, or a resolver, says is not passed on.
    fn why(&self, error: &reqwest::Error) -> String {
        let mut cause = error.source();
        while let Some(found) = cause {
            if found.is::<AddressRefused>() {
                return AddressRefused.to_string();
            }
            cause = found.source();
        }
        if error.is_timeout() {
            return format!("no answer within {} ms", self.patience.as_millis());
        }
        if error.is_connect() { "no connection" } else { "the connection ended before an answer" }.to_owned()
    }
}

/// How far webhooks may reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reach {
    /// Public addresses, over HTTPS.
    Public,
    /// This machine too, also in the clear: for development.
    Loopback,
}

impl Reach {
    fn admits(self, address: IpAddr) -> bool {
        addresses::is_public(address) || self == Self::Loopback && address.is_loopback()
    }

    /// Checks all that can be told of a URL without asking for addresses. A name is checked when it is resolved; an address
    /// is here, because it is never resolved.
    pub fn check(self, text: &str) -> Result<Url, Failure> {
        let refused = |why: &str| Err(Failure::invalid("webhook-url", format!("this cannot be a webhook: {why}")));
        if text.len() > WEBHOOK_URL_BYTES_MAX {
            return refused("the URL is too long");
        }
        let Ok(url) = Url::parse(text) else { return refused("not a URL") };
        let address = url.host_str().map(|host| host.trim_matches(['[', ']'])).and_then(|host| host.parse().ok());
        let is_loopback = address.map_or(url.host_str() == Some("localhost"), |address: IpAddr| address.is_loopback());
        match url.scheme() {
            "https" => {}
            "http" if self == Self::Loopback && is_loopback => {}
            _ => return refused("it must be https"),
        }
        if url.host_str().is_none_or(str::is_empty) || !url.username().is_empty() || url.password().is_some() {
            return refused("it must have a host, and no user");
        }
        if address.is_some_and(|address| !self.admits(address)) {
            return refused(&AddressRefused.to_string());
        }
        Ok(url)
    }
}

#[derive(Debug)]
struct AddressRefused;

impl fmt::Display for AddressRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("its address is not a public one")
    }
}

impl Error for AddressRefused {}

/// Resolves a name to the addresses that may be reached. The connection is made to these and no others, so that a name that
/// means something else a moment later changes nothing.
struct Checked(Reach);

impl Resolve for Checked {
    fn resolve(&self, name: Name) -> Resolving {
        let reach = self.0;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let admitted: Vec<_> = found.filter(|address| reach.admits(address.ip())).collect();
            if admitted.is_empty() {
                return Err(AddressRefused.into());
            }
            Ok(Box::new(admitted.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(reach: Reach, url: &str) -> bool {
        reach.check(url).is_ok()
    }

    #[test]
    fn a_webhook_is_https_to_a_public_host() {
        for good in [
            "https://agent.example/hook",
            "https://agent.example:8443/a?b=c",
            "https://8.8.8.8/",
            "https://[2606:4700::1]/",
        ] {
            assert!(allows(Reach::Public, good), "{good}");
        }
        for bad in [
            "http://agent.example/hook",
            "http://127.0.0.1:9/",
            "https://127.0.0.1/",
            "https://10.0.0.1/",
            "https://169.254.169.254/latest/meta-data",
            "https://[::1]/",
            "https://[::ffff:8.8.8.8]/",
            "https://[fd00::1]/",
            // Other ways to write 127.0.0.1.
            "https://2130706433/",
            "https://0x7f.1/",
            "https://0177.0.0.1/",
            "https://user@agent.example/",
            "https://:secret@agent.example/",
            "ftp://agent.example/",
            "file:///etc/passwd",
            "https://",
            "agent.example",
            "",
        ] {
            assert!(!allows(Reach::Public, bad), "{bad}");
        }
        assert!(!allows(Reach::Public, &format!("https://agent.example/{}", "a".repeat(WEBHOOK_URL_BYTES_MAX))));
    }

    #[test]
    fn development_reaches_this_machine_and_no_further() {
        for good in ["http://127.0.0.1:9/hook", "http://localhost:9/", "http://[::1]:9/", "https://localhost/"] {
            assert!(allows(Reach::Loopback, good), "{good}");
        }
        for bad in ["http://agent.example/", "http://10.0.0.1/", "https://192.168.0.1/", "http://localhost.example/"] {
            assert!(!allows(Reach::Loopback, bad), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_name_that_resolves_to_this_machine_is_refused_after_it_is_resolved() {
        let resolved = |reach| Checked(reach).resolve("localhost".parse().unwrap());
        let refused = resolved(Reach::Public).await.err().unwrap();
        assert!(refused.is::<AddressRefused>(), "{refused}");
        let mut found = resolved(Reach::Loopback).await.unwrap();
        assert!(found.all(|address| address.ip().is_loopback()));
    }
}
