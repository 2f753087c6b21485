//! `/api/v1/agent/transcribe`: speech to text.

use std::time::Duration;

use axum::{
    Json,
    extract::{FromRequest, Multipart, Request, State},
};
use bytes::Bytes;
use ostler_protocol::{
    Failure, Rule,
    run_input::{
        failures::RunInputProblem,
        transcription::{AUDIO_BYTES_MAX, Transcript, TranscriptionForm},
    },
};

use super::attachments::{FORM_BYTES_MAX, REFUSED_PATIENCE, malformed, read_within};
use crate::{service, state::RunInputState};
use ostler_server::{
    app::App,
    auth::Principal,
    net::{
        body_budget::BodyShare,
        extract::{Caller, announced_bytes, drain},
        permits::Permit,
        problem::Refusal,
    },
};

/// Transcribe a WAV recording. It is passed to the configured speech endpoint and not stored.
#[utoipa::path(post, path = "/api/v1/agent/transcribe", tag = "agent", security(("token" = ["own"])),
    request_body(content = TranscriptionForm, content_type = "multipart/form-data"),
    responses((status = 200, body = Transcript), (status = "4XX", body = RunInputProblem),
        (status = "5XX", body = RunInputProblem)))]
pub(crate) async fn create(
    State(app): State<App>,
    Caller(caller): Caller,
    recording: Recording,
) -> Result<Json<Transcript>, Refusal> {
    Ok(Json(service::transcription::transcribe(&app, &caller, &recording.audio).await?))
}

/// A recording, with the permit that bounds how many are in memory at once.
pub(crate) struct Recording {
    audio: Bytes,
    _permit: Permit,
}

impl FromRequest<App> for Recording {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &App) -> Result<Self, Refusal> {
        if announced_bytes(request.headers()).is_some_and(|bytes| bytes > FORM_BYTES_MAX) {
            return Err(too_large().into());
        }
        let caller = request.extensions().get::<Principal>().cloned();
        let caller = caller.ok_or_else(|| ostler_server::auth::unauthenticated("this needs a token"))?;
        let permit = match RunInputState::of(app).files.admit(&caller) {
            Ok(permit) => permit,
            Err(refused) => {
                drain(&mut request.into_body(), REFUSED_PATIENCE).await;
                return Err(refused.into());
            }
        };
        if let Some(share) = request.extensions().get::<std::sync::Arc<BodyShare>>().cloned() {
            share.reserve(announced_bytes(request.headers()).unwrap_or(AUDIO_BYTES_MAX)).await?;
        }
        let form = Multipart::from_request(request, app).await;
        let form = form.map_err(|_| Failure::rule(Rule::ContentType, "the body must be multipart/form-data"))?;
        let patience = Duration::from_millis(app.config.limits.body_ms);
        let read = tokio::time::timeout(patience, read(form)).await;
        let audio = read.map_err(|_| Failure::invalid(Rule::BodyLate, "the body did not arrive in time"))??;
        Ok(Self { audio, _permit: permit })
    }
}

async fn read(mut form: Multipart) -> Result<Bytes, Failure> {
    let mut audio = None;
    while let Some(field) = form.next_field().await.map_err(|_| malformed())? {
        if field.name() != Some("file") || audio.is_some() {
            return Err(Failure::invalid(Rule::FormField, "the form has one file, and nothing else"));
        }
        audio = Some(read_within(field, AUDIO_BYTES_MAX).await?.map_err(|_| too_large())?);
    }
    audio.ok_or_else(|| Failure::invalid(Rule::FormField, "the form needs a file"))
}

fn too_large() -> Failure {
    Failure::rule(Rule::AgentAudioTooLarge, format!("the recording exceeds {AUDIO_BYTES_MAX} bytes"))
}
