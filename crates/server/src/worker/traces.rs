//! Sends spans to the trace collector.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{
    app::App,
    traces::{Span, text},
};

/// Spans in one message.
const BATCH_SPANS_MAX: usize = 512;
/// How long a span waits for others to be sent with.
const GATHER: Duration = Duration::from_secs(1);
/// How long the collector has to respond.
const SEND: Duration = Duration::from_secs(10);

/// Sends spans until the server stops, and then those that are left.
pub(crate) async fn run(app: App, endpoint: String, mut queue: mpsc::Receiver<Span>) {
    let url = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = match reqwest::Client::builder().timeout(SEND).redirect(reqwest::redirect::Policy::none()).build() {
        Ok(client) => client,
        Err(error) => return tracing::error!(%error, "traces cannot be sent"),
    };
    loop {
        let mut batch = vec![];
        let stopping = tokio::select! {
            _ = queue.recv_many(&mut batch, BATCH_SPANS_MAX) => false,
            () = app.stopped() => true,
        };
        if !stopping && batch.len() < BATCH_SPANS_MAX {
            let _ = tokio::time::timeout(GATHER, app.stopped()).await;
        }
        while batch.len() < BATCH_SPANS_MAX
            && let Ok(span) = queue.try_recv()
        {
            batch.push(span);
        }
        if batch.is_empty() {
            return;
        }
        send(&app, &client, &url, &batch).await;
    }
}

async fn send(app: &App, client: &reqwest::Client, url: &str, batch: &[Span]) {
    let body = message(app, batch).to_string();
    let sent = client.post(url).header("content-type", "application/json").body(body).send().await;
    if let Err(error) = sent.and_then(reqwest::Response::error_for_status) {
        app.metrics.spans_dropped(batch.len());
        let error = app.redactor.redact(&error.to_string()).into_owned();
        tracing::warn!(%error, spans = batch.len(), "the trace collector did not take the spans; they are dropped");
    }
}

/// OTLP's JSON: ids in hex, 64-bit numbers as text.
fn message(app: &App, batch: &[Span]) -> Value {
    let written = |span: &Span| span.json(&app.ids.body().simple().to_string()[16..], &app.redactor);
    let spans: Vec<_> = batch.iter().map(written).collect();
    let attributes = [text("service.name", "ostler"), text("service.version", env!("CARGO_PKG_VERSION"))];
    json!({"resourceSpans": [{
        "resource": {"attributes": attributes},
        "scopeSpans": [{"scope": {"name": "ostler"}, "spans": spans}],
    }]})
}
