//! An endpoint: where the model answers, under which name, with which key. It asks once and says what a failure means;
//! asking again is its caller's business. The key is read for each turn, from the agent's home, and goes nowhere else.

use std::{io::ErrorKind, path::Path};

use ostler_client::{restricted_web_client, web_client};
use ostler_protocol::{FailureKind, outgoing::OutgoingRules, redaction::Redactor};
use reqwest::{
    Client, Response, StatusCode,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER},
};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::Value;
use tokio::{
    io::AsyncReadExt,
    time::{Duration, timeout},
};

use super::{
    answer::Answer,
    tools::Tools,
    wire::{Message, Request, StreamOptions},
};
use crate::{agent::TurnEnd, holdback::clip};

/// A large model may have to be loaded before it says anything.
const FIRST_BYTE_MS_MAX: u64 = 300_000;
const KEY_FILE: &str = "auth.json";
const KEY_FILE_BYTES_MAX: u64 = 64 * 1024;
const REFUSAL_BYTES_MAX: usize = 64 * 1024;
const REFUSAL_MS_MAX: u64 = 10_000;
const MESSAGE_CHARS_MAX: usize = 300;

pub struct Endpoint {
    client: Client,
    url: String,
    model: String,
    key: Option<SecretString>,
    redactor: Redactor,
}

/// Why there is no answer, and whether the same request may find one later.
#[derive(Debug)]
pub struct Trouble {
    pub kind: FailureKind,
    pub message: String,
    pub may_pass: bool,
    pub retry_after_ms: Option<u64>,
    /// The provider itself said to come later.
    pub says_later: bool,
    /// There is no connection to the provider.
    pub disconnected: bool,
}

impl Trouble {
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            may_pass: false,
            retry_after_ms: None,
            says_later: false,
            disconnected: false,
        }
    }

    pub fn passing(message: impl Into<String>) -> Self {
        Self { may_pass: true, ..Self::new(FailureKind::ProviderUnavailable, message) }
    }

    pub fn end(self) -> TurnEnd {
        match self.says_later {
            true => TurnEnd::blocked(self.kind, self.message),
            false => TurnEnd::failed(self.kind, self.message),
        }
    }
}

#[derive(Deserialize)]
struct KeyFile {
    #[serde(rename = "OPENAI_API_KEY")]
    key: Option<SecretString>,
}

impl Endpoint {
    /// `outgoing` bounds where the endpoint may be, unless the operator named it.
    pub async fn open(
        base_url: &str,
        model: &str,
        home: Option<&Path>,
        outgoing: Option<&OutgoingRules>,
    ) -> Result<Self, Trouble> {
        let client = match outgoing {
            None => web_client(base_url),
            Some(rules) => restricted_web_client(base_url, rules),
        };
        let client = client.map_err(|failure| Trouble::new(FailureKind::BackendFailed, failure.message))?;
        let key = match home {
            Some(home) => read_key(&home.join(KEY_FILE)).await?,
            None => None,
        };
        let redactor = Redactor::new(&key.iter().map(|key| key.expose_secret()).collect::<Vec<_>>());
        let url = format!("{}/chat/completions", base_url.trim_end_matches('/'));
        Ok(Self { client, url, model: model.to_owned(), key, redactor })
    }

    pub fn body(&self, messages: &[Message], tools: &Tools) -> String {
        let stream_options = StreamOptions { include_usage: true };
        let request = Request { model: &self.model, messages, stream: true, stream_options, tools: tools.offered() };
        serde_json::to_string(&request).expect("our own types serialise")
    }

    /// Asks once. The answer has begun when this returns.
    pub async fn ask(&self, body: &str) -> Result<Answer, Trouble> {
        let mut request = self.client.post(&self.url).header(CONTENT_TYPE, "application/json");
        request = request.header(ACCEPT, "text/event-stream").body(body.to_owned());
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, bearer(key)?);
        }
        let response = match timeout(Duration::from_millis(FIRST_BYTE_MS_MAX), request.send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.unreachable(&error)),
            Err(_) => return Err(Trouble::passing("the provider did not begin to answer in time")),
        };
        if !response.status().is_success() {
            return Err(self.refused(response).await);
        }
        let streams =
            response.headers().get(CONTENT_TYPE).is_some_and(|t| t.as_bytes().starts_with(b"text/event-stream"));
        if !streams {
            return Err(Trouble::new(
                FailureKind::BackendFailed,
                "the provider answered with something else than a stream",
            ));
        }
        Ok(Answer::new(response, self.model.clone()))
    }

    fn unreachable(&self, error: &reqwest::Error) -> Trouble {
        let what = if error.is_connect() { "cannot be reached" } else { "broke off before it answered" };
        tracing::debug!(%error, "the provider {what}");
        Trouble { disconnected: true, ..Trouble::passing(format!("the provider {what}")) }
    }

    async fn refused(&self, mut response: Response) -> Trouble {
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
        // What it says is for people; without it the status says enough.
        let _ = timeout(Duration::from_millis(REFUSAL_MS_MAX), read).await;
        let said = self.redactor.redact(&said(&body)).into_owned();
        let has_key = self.key.is_some();
        Trouble {
            retry_after_ms: retry_after.map(|seconds| seconds.saturating_mul(1_000)),
            ..of_status(status, &said, has_key)
        }
    }
}

fn of_status(status: StatusCode, said: &str, has_key: bool) -> Trouble {
    let told =
        |what: &str| if said.is_empty() { format!("{what} ({status})") } else { format!("{what} ({status}): {said}") };
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if !has_key => {
            Trouble::new(FailureKind::SecretUnavailable, told("the provider asks for a key, and the profile has none"))
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            Trouble::new(FailureKind::ProviderAuthFailed, told("the provider refused the key"))
        }
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            Trouble { says_later: true, ..Trouble::passing(told("the provider says later")) }
        }
        status if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT => {
            Trouble::passing(told("the provider failed"))
        }
        _ => Trouble::new(FailureKind::BackendFailed, told("the provider refused the request")),
    }
}

/// What a provider says about an error, wherever it puts it.
pub fn said(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let told = match serde_json::from_str::<Value>(&text) {
        Ok(value) => {
            let error = value.get("error").unwrap_or(&value);
            let message = error.get("message").or_else(|| value.get("message")).or_else(|| value.get("detail"));
            message.unwrap_or(error).as_str().unwrap_or_default().to_owned()
        }
        Err(_) => text.trim().to_owned(),
    };
    clip(&told, MESSAGE_CHARS_MAX)
}

fn bearer(key: &SecretString) -> Result<HeaderValue, Trouble> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", key.expose_secret()))
        .map_err(|_| Trouble::new(FailureKind::SecretUnavailable, "the profile's key has unprintable characters"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// `None`: there is no such file, so the endpoint needs no key.
async fn read_key(file: &Path) -> Result<Option<SecretString>, Trouble> {
    let unusable = |why: &str| Trouble::new(FailureKind::SecretUnavailable, format!("{KEY_FILE} {why}"));
    let opened = match tokio::fs::File::open(file).await {
        Ok(opened) => opened,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unusable(&format!("cannot be read: {}", error.kind()))),
    };
    let mut text = vec![];
    let read = opened.take(KEY_FILE_BYTES_MAX).read_to_end(&mut text).await;
    read.map_err(|error| unusable(&format!("cannot be read: {}", error.kind())))?;
    // An error of the parser could quote the key.
    let parsed: KeyFile = serde_json::from_slice(&text).map_err(|_| unusable("is not a JSON object of strings"))?;
    match parsed.key.filter(|key| !key.expose_secret().is_empty()) {
        Some(key) => Ok(Some(key)),
        None => Err(unusable("has no OPENAI_API_KEY")),
    }
}
