//! The endpoint of a model: its URL, the model's name and the key. A request is sent once; the caller decides whether to
//! retry. The key is read for each turn from the backend's home, and is sent to no other place.

use std::{collections::BTreeMap, io::ErrorKind, path::Path};

use ostler_client::{connection_cause, restricted_web_client, web_client};
use ostler_protocol::{FailureKind, Rule, outgoing::OutgoingRules, redaction::Redactor};
use reqwest::{
    Client, Response, StatusCode, Url,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER},
};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::{
    io::AsyncReadExt,
    time::{Duration, timeout},
};

use super::{
    error::{ProviderError, error_text},
    stream::{ReplyStream, usage_payload},
    tools::ModelTools,
    wire::{ChatMessage, ChatRequest, StreamOptions},
};
use crate::text_cutter::TextCutter;

/// A large model may have to be loaded before it replies.
const FIRST_BYTE_MS_MAX: u64 = 300_000;
const KEY_FILE: &str = "auth.json";
const KEY_FILE_BYTES_MAX: u64 = 64 * 1024;
const REFUSAL_BYTES_MAX: usize = 64 * 1024;
const REFUSAL_MS_MAX: u64 = 10_000;

pub(super) struct Endpoint {
    client: Client,
    url: String,
    /// Host and port, for messages: a URL may contain a key.
    address: String,
    model: String,
    key: Option<SecretString>,
    /// Knows the key.
    cutter: TextCutter,
}

#[derive(Deserialize)]
struct KeyFile {
    #[serde(rename = "OPENAI_API_KEY")]
    key: Option<SecretString>,
}

impl Endpoint {
    /// Opens the endpoint. `outgoing` restricts its address, unless the operator configured it.
    pub(super) async fn open(
        base_url: &str,
        model: &str,
        home: Option<&Path>,
        outgoing: Option<&OutgoingRules>,
    ) -> Result<Self, ProviderError> {
        let key = match home {
            Some(home) => read_key(&home.join(KEY_FILE)).await?,
            None => None,
        };
        Self::with_key(base_url, model, key, outgoing)
    }

    /// As [`Endpoint::open`], with the key in these files, by their paths in a home that is not made.
    pub(super) fn of_files(
        base_url: &str,
        model: &str,
        files: &BTreeMap<String, SecretString>,
        outgoing: Option<&OutgoingRules>,
    ) -> Result<Self, ProviderError> {
        let key = files.get(KEY_FILE).map(|text| parse_key(text.expose_secret().as_bytes())).transpose()?;
        Self::with_key(base_url, model, key, outgoing)
    }

    /// As [`Endpoint::open`], with this key.
    pub(super) fn with_key(
        base_url: &str,
        model: &str,
        key: Option<SecretString>,
        outgoing: Option<&OutgoingRules>,
    ) -> Result<Self, ProviderError> {
        let client = match outgoing {
            None => web_client(base_url),
            Some(rules) => restricted_web_client(base_url, rules),
        };
        let client = client.map_err(|failure| ProviderError::new(FailureKind::BackendFailed, failure.message))?;
        let redactor = Redactor::new(&key.iter().map(|key| key.expose_secret()).collect::<Vec<_>>());
        let cutter = TextCutter::new(redactor);
        let url = format!("{}/chat/completions", base_url.trim_end_matches('/'));
        Ok(Self { client, url, address: host_and_port(base_url), model: model.to_owned(), key, cutter })
    }

    /// The body of a request.
    #[expect(clippy::expect_used, reason = "strings, lists and JSON values always serialise")]
    pub(super) fn body(&self, messages: &[ChatMessage], tools: &ModelTools) -> String {
        let (stream_options, tools) = (StreamOptions { include_usage: true }, tools.offered());
        let request = ChatRequest { model: &self.model, messages, stream: true, stream_options, tools };
        serde_json::to_string(&request).expect("a request serialises")
    }

    /// The usage of a request whose reply did not begin: one call of the model, with unknown tokens.
    pub(super) fn unknown_usage(&self) -> Map<String, Value> {
        usage_payload(self.model.clone(), None, None)
    }

    /// Sends the request once. The reply has begun when this returns.
    pub(super) async fn send(&self, body: &str) -> Result<ReplyStream, ProviderError> {
        let mut request = self.client.post(&self.url).header(CONTENT_TYPE, "application/json");
        request = request.header(ACCEPT, "text/event-stream").body(body.to_owned());
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, bearer(key)?);
        }
        let response = match timeout(Duration::from_millis(FIRST_BYTE_MS_MAX), request.send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.unreachable(&error)),
            Err(_) => {
                let message = format!("the provider at {} did not begin to reply in time", self.address);
                return Err(ProviderError::transient(message));
            }
        };
        if !response.status().is_success() {
            return Err(self.read_refusal(response).await);
        }
        let streams =
            response.headers().get(CONTENT_TYPE).is_some_and(|t| t.as_bytes().starts_with(b"text/event-stream"));
        if !streams {
            return Err(ProviderError::new(FailureKind::BackendFailed, "the provider's reply is not a stream"));
        }
        Ok(ReplyStream::new(response, self.model.clone(), self.cutter.clone()))
    }

    fn unreachable(&self, error: &reqwest::Error) -> ProviderError {
        let what = if error.is_connect() { "cannot be reached" } else { "broke off before it replied" };
        let (address, cause) = (&self.address, connection_cause(error));
        tracing::info!(address, cause, "the provider {what}");
        let message = format!("the provider at {address} {what} ({cause})");
        ProviderError { is_disconnected: true, ..ProviderError::transient(message) }
    }

    async fn read_refusal(&self, mut response: Response) -> ProviderError {
        let status = response.status();
        let retry_after =
            response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        let mut body = vec![];
        let read = async {
            while let Ok(Some(piece)) = response.chunk().await
                && body.len() < REFUSAL_BYTES_MAX
            {
                body.extend_from_slice(&piece);
            }
        };
        // The message is for people. Without it, the status is enough.
        let _ = timeout(Duration::from_millis(REFUSAL_MS_MAX), read).await;
        let message = error_text(&self.cutter, &body);
        let has_key = self.key.is_some();
        ProviderError {
            retry_after_ms: retry_after.map(|seconds| seconds.saturating_mul(1_000)),
            ..status_error(status, &message, has_key)
        }
    }
}

fn status_error(status: StatusCode, message: &str, has_key: bool) -> ProviderError {
    let text = |what: &str| match message.is_empty() {
        true => format!("{what} ({status})"),
        false => format!("{what} ({status}): {message}"),
    };
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if !has_key => {
            ProviderError::of_rule(Rule::ProfileKey, text("the provider requires a key, and the profile has none"))
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            ProviderError::new(FailureKind::ProviderAuthFailed, text("the provider refused the key"))
        }
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            ProviderError { is_throttled: true, ..ProviderError::transient(text("the provider asks to retry later")) }
        }
        status if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT => {
            ProviderError::transient(text("the provider failed"))
        }
        _ => ProviderError::new(FailureKind::BackendFailed, text("the provider refused the request")),
    }
}

/// The host and the port of a URL, without user, path and query.
fn host_and_port(url: &str) -> String {
    let parsed = Url::parse(url).ok();
    let address = parsed.and_then(|url| Some(format!("{}:{}", url.host_str()?, url.port_or_known_default()?)));
    address.unwrap_or_else(|| "its address".to_owned())
}

fn bearer(key: &SecretString) -> Result<HeaderValue, ProviderError> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", key.expose_secret()))
        .map_err(|_| ProviderError::of_rule(Rule::ProfileKey, "the profile's key has unprintable characters"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Reads the key. `None` if there is no such file: the endpoint needs no key.
async fn read_key(file: &Path) -> Result<Option<SecretString>, ProviderError> {
    let opened = match tokio::fs::File::open(file).await {
        Ok(opened) => opened,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unusable(&format!("cannot be read: {}", error.kind()))),
    };
    let mut text = vec![];
    let read = opened.take(KEY_FILE_BYTES_MAX).read_to_end(&mut text).await;
    read.map_err(|error| unusable(&format!("cannot be read: {}", error.kind())))?;
    parse_key(&text).map(Some)
}

/// The key in the text of its file.
fn parse_key(text: &[u8]) -> Result<SecretString, ProviderError> {
    // The parser's error could quote the key.
    let parsed: KeyFile = serde_json::from_slice(text).map_err(|_| unusable("is not a JSON object of strings"))?;
    let key = parsed.key.filter(|key| !key.expose_secret().is_empty());
    key.ok_or_else(|| unusable("has no OPENAI_API_KEY"))
}

fn unusable(why: &str) -> ProviderError {
    ProviderError::of_rule(Rule::ProfileKey, format!("{KEY_FILE} {why}"))
}
