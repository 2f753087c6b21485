//! Speech to text by a configured endpoint. The recording is passed on and not stored.

use std::time::Duration;

use bytes::Bytes;
use ostler_client::web_client;
use ostler_protocol::{
    Failure, Rule,
    run_input::transcription::{TRANSCRIPT_BYTES_MAX, Transcript, check_wav},
};

use super::threads;
use crate::{config::transcription::TranscriptionSection, state::RunInputState};
use ostler_server::{app::App, auth::Principal};

/// Transcribes a recording. What the endpoint reports of a failure is logged by its kind only: it may repeat the key.
pub(crate) async fn transcribe(app: &App, caller: &Principal, audio: &Bytes) -> Result<Transcript, Failure> {
    threads::owner(caller)?;
    check_wav(audio)?;
    let config = &RunInputState::of(app).transcription;
    let patience = Duration::from_millis(config.timeout_ms);
    let requested = tokio::time::timeout(patience, request(app, config, audio)).await;
    match requested.unwrap_or(Err("it did not answer in time")) {
        Ok(Transcript { text }) => Ok(Transcript { text: app.redactor.redact(&text).into_owned() }),
        Err(cause) => {
            tracing::warn!(cause, "a recording was not transcribed");
            Err(Failure::rule(Rule::AgentAsrUnavailable, format!("the speech endpoint is unavailable: {cause}")))
        }
    }
}

async fn request(app: &App, config: &TranscriptionSection, audio: &Bytes) -> Result<Transcript, &'static str> {
    let base_url = config.base_url.as_deref().ok_or("none is configured")?;
    let url = format!("{}/audio/transcriptions", base_url.trim_end_matches('/'));
    let boundary = format!("ostler-{}", app.ids.body().simple());
    let client = web_client(&url).map_err(|_| "its address cannot be used")?;
    let mut request = client.post(&url).header("accept", "application/json");
    request = request.header("content-type", format!("multipart/form-data; boundary={boundary}"));
    if let Some(key_file) = &config.key_file {
        let key = tokio::fs::read_to_string(key_file).await.map_err(|_| "its key cannot be read")?;
        request = request.bearer_auth(key.trim());
    }
    let response = request.body(form(&boundary, &config.model, audio)).send().await;
    let mut response = response.map_err(|_| "it cannot be reached")?;
    if !response.status().is_success() {
        return Err(match response.status().as_u16() {
            401 | 403 => "it does not accept the key",
            429 => "it accepts no more requests for now",
            _ => "it failed",
        });
    }
    let mut body = vec![];
    while let Some(chunk) = response.chunk().await.map_err(|_| "its reply broke off")? {
        body.extend_from_slice(&chunk);
        if body.len() > TRANSCRIPT_BYTES_MAX {
            return Err("its reply is too long");
        }
    }
    serde_json::from_slice(&body).map_err(|_| "its reply is no transcript")
}

fn form(boundary: &str, model: &str, audio: &[u8]) -> Vec<u8> {
    let field = |name: &str, value: &str| {
        format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    let file = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"audio.wav\"\r\n\
         Content-Type: audio/wav\r\n\r\n"
    );
    let mut form = (field("model", model) + &field("response_format", "json") + &file).into_bytes();
    form.extend_from_slice(audio);
    form.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    form
}
