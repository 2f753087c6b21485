//! Calls to one or several servers, with the one distinction that the ledger needs: whether an answer came, and whether
//! it settles what became of the request.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use ostler_client::Client;
use secrecy::SecretString;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::clock::{now, since};

const CALL_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_PAUSE: Duration = Duration::from_millis(15);
const PAGE_EVENTS: usize = 1_000;

#[derive(Debug)]
pub(crate) enum Reply {
    /// Done, and acknowledged.
    Good(Value),
    /// Refused: nothing was changed.
    Refused(u16, Value),
    /// No answer, or one that leaves open whether the request was carried out.
    Lost(String),
}

#[derive(Clone)]
pub(crate) struct Api {
    pub urls: Arc<Vec<String>>,
    clients: Arc<Vec<Client>>,
    preferred: Arc<AtomicUsize>,
}

impl Api {
    pub(crate) fn new(addresses: &[String], token: &str) -> Result<Self, String> {
        let urls: Vec<String> = addresses.iter().map(|address| format!("http://{address}")).collect();
        let clients: Result<Vec<Client>, _> =
            urls.iter().map(|url| Client::http(url, Some(SecretString::from(token.to_owned())))).collect();
        let clients = clients.map_err(|failure| failure.message)?;
        Ok(Self { urls: Arc::new(urls), clients: Arc::new(clients), preferred: Arc::default() })
    }

    /// The server that answered last, or the one after it if that one did not.
    pub(crate) fn client(&self) -> &Client {
        &self.clients[self.preferred.load(Ordering::Relaxed) % self.clients.len()]
    }

    /// Goes to the next server, if there is one.
    pub(crate) fn turn_away(&self) {
        self.preferred.fetch_add(1, Ordering::Relaxed);
    }

    async fn exchange(&self, method: &str, path: &str, body: Bytes) -> Result<(u16, Bytes), String> {
        let exchange = async {
            let response = self.client().raw(method, path, &[], body).await.map_err(|failure| failure.message)?;
            let status = response.status().as_u16();
            let whole = response.into_body().collect().await.map_err(|error| error.to_string())?;
            Ok((status, whole.to_bytes()))
        };
        timeout(CALL_TIMEOUT, exchange).await.unwrap_or_else(|_| Err(format!("no answer within {CALL_TIMEOUT:?}")))
    }

    /// The value of a metric, with its labels as the server prints them. `None` if no answer came.
    pub(crate) async fn metric(&self, name: &str) -> Option<f64> {
        let (_, page) = self.exchange("GET", "/metrics", Bytes::new()).await.ok()?;
        let page = String::from_utf8_lossy(&page).into_owned();
        page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }

    pub(crate) async fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Reply {
        let body = body.map_or_else(Bytes::new, |body| Bytes::from(body.to_string()));
        let reply = match self.exchange(method, path, body).await {
            Err(error) => Reply::Lost(error),
            Ok((status, bytes)) => match (status, serde_json::from_slice(&bytes)) {
                (200..300, Ok(value)) => Reply::Good(value),
                (429 | 500.., value) => Reply::Lost(format!("{status}: {}", value.unwrap_or(Value::Null))),
                (_, Ok(value)) => Reply::Refused(status, value),
                (_, Err(error)) => Reply::Lost(format!("{status} without JSON: {error}")),
            },
        };
        if matches!(reply, Reply::Lost(_)) {
            self.turn_away();
        }
        reply
    }

    /// Calls again until the request is answered well: for reads, and for writes that may be repeated.
    pub(crate) async fn insist(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        within: Duration,
    ) -> Result<Value, String> {
        let started = now();
        loop {
            let why = match self.call(method, path, body).await {
                Reply::Good(value) => return Ok(value),
                Reply::Refused(status, value) => return Err(format!("{method} {path} was refused: {status} {value}")),
                Reply::Lost(why) => why,
            };
            if since(started) > within {
                return Err(format!("{method} {path} was not answered within {within:?}: {why}"));
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    /// All events of a run. Fails if their numbers have a gap or a repetition.
    pub(crate) async fn events(&self, run_id: &str, within: Duration) -> Result<Vec<Value>, String> {
        let mut events: Vec<Value> = vec![];
        loop {
            let path = format!("/api/v1/runs/{run_id}/events?limit={PAGE_EVENTS}&afterSeq={}", events.len());
            let page = self.insist("GET", &path, None, within).await?;
            events.extend(page["events"].as_array().into_iter().flatten().cloned());
            let numbers = events.iter().map(|event| event["seq"].as_i64().unwrap_or(-1));
            if !numbers.eq(1..=events.len() as i64) {
                return Err(format!("the event numbers of {run_id} have a gap or a repetition"));
            }
            if page["hasMore"] != true {
                return Ok(events);
            }
        }
    }
}

pub(crate) async fn pause() {
    sleep(RETRY_PAUSE).await;
}

pub(crate) fn text(value: &Value, pointer: &str) -> Result<String, String> {
    let found = value.pointer(pointer).and_then(Value::as_str);
    found.map(str::to_owned).ok_or_else(|| format!("an answer without {pointer}: {value}"))
}

pub(crate) fn number(value: &Value, pointer: &str) -> Result<i64, String> {
    value.pointer(pointer).and_then(Value::as_i64).ok_or_else(|| format!("an answer without {pointer}: {value}"))
}
