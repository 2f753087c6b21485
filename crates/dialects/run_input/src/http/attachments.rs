//! `/api/v1/agent/attachments…`: pictures for messages, and the signed URLs that show them.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{FromRequest, Multipart, Request, State, multipart::Field},
    response::{IntoResponse, Response},
};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use ostler_protocol::{
    Failure, Rule,
    limits::BODY_BYTES_MAX,
    run_input::{
        agui::input::{read_run_id, read_thread_id},
        attachments::{
            ATTACHMENT_BYTES_MAX, ATTACHMENT_FORM_BYTES_MAX, Attachment, AttachmentForm, ImageType, Proof, ROOT,
            SignUrl, SignedUrl,
        },
        failures::RunInputProblem,
    },
};

use crate::{
    service::{self, attachments::Upload},
    state::RunInputState,
};
use ostler_server::{
    app::App,
    auth::{Principal, unauthenticated},
    net::{
        body_budget::BodyShare,
        extract::{At, Caller, Params, announced_bytes, drain},
        permits::Permit,
        problem::Refusal,
    },
};

/// How much of a form is read before the request is rejected.
pub(crate) const FORM_BYTES_MAX: usize = 4 * ATTACHMENT_BYTES_MAX;
/// How long a rejected client may continue to send, so that it receives the response.
pub(crate) const REFUSED_PATIENCE: Duration = Duration::from_secs(2);
/// The content security policy of a picture: no script in it runs.
const CONTENT_POLICY: HeaderValue = HeaderValue::from_static("default-src 'none'; sandbox");

/// Upload a picture for a message. The URL in the response can be put into a message's part as it is.
#[utoipa::path(post, path = "/api/v1/agent/attachments", tag = "agent", security(("token" = ["own"])),
    request_body(content = AttachmentForm, content_type = "multipart/form-data"),
    responses((status = 201, body = Attachment), (status = "4XX", body = RunInputProblem)))]
pub(crate) async fn create(
    State(app): State<App>,
    Caller(caller): Caller,
    UploadForm(upload): UploadForm,
) -> Result<(StatusCode, Json<Attachment>), Refusal> {
    Ok((StatusCode::CREATED, Json(service::attachments::create(&app, &caller, upload).await?)))
}

/// Get a new signed URL of a picture of the caller.
#[utoipa::path(get, path = "/api/v1/agent/attachments/signed-url", tag = "agent", security(("token" = ["own"])),
    params(SignUrl), responses((status = 200, body = SignedUrl), (status = "4XX", body = RunInputProblem)))]
pub(crate) async fn sign(
    State(app): State<App>,
    Caller(caller): Caller,
    Params(request): Params<SignUrl>,
) -> Result<Json<SignedUrl>, Refusal> {
    Ok(Json(service::attachments::sign(&app, &caller, &request).await?))
}

/// Get a picture. The URL is its own proof and needs no token.
#[utoipa::path(get, path = "/api/v1/agent/attachments/object/{bucket}/agent-inputs/{owner}/{threadId}/{runId}/{file}",
    tag = "agent", security(("signature" = [])),
    params(("bucket" = String, Path), ("owner" = String, Path), ("threadId" = String, Path), ("runId" = String, Path),
        ("file" = String, Path), Proof),
    responses((status = 200, content_type = "image/*", body = Vec<u8>), (status = "4XX", body = RunInputProblem)))]
pub(crate) async fn get(
    State(app): State<App>,
    At((bucket, owner, thread_id, run_id, file)): At<(String, String, String, String, String)>,
    Params(proof): Params<Proof>,
) -> Result<Response, Refusal> {
    let path = format!("{ROOT}/{owner}/{thread_id}/{run_id}/{file}");
    let (path, bytes) = service::attachments::get(&app, &bucket, &path, &proof).await?;
    let left_s = (proof.expires - app.wall().as_second()).max(0);
    let mime_type = path.image_type().map_or("application/octet-stream", ImageType::mime_type);
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(mime_type));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, CONTENT_POLICY);
    let text = |text: String| HeaderValue::try_from(text).map_err(Failure::internal);
    headers.insert(header::CONTENT_DISPOSITION, text(format!("inline; filename=\"{}\"", path.file_name()))?);
    headers.insert(header::CACHE_CONTROL, text(format!("private, max-age={left_s}, immutable"))?);
    Ok((headers, bytes).into_response())
}

/// The form of an upload. Its size and time are limited while it is read.
pub(crate) struct UploadForm(Upload);

impl FromRequest<App> for UploadForm {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &App) -> Result<Self, Refusal> {
        let caller = request.extensions().get::<Principal>().cloned();
        let caller = caller.ok_or_else(|| unauthenticated("this needs a token: Authorization: Bearer …"))?;
        if announced_bytes(request.headers()).is_some_and(|bytes| bytes > FORM_BYTES_MAX) {
            let message = format!("the form is over {FORM_BYTES_MAX} bytes");
            return Err(Failure::rule(Rule::BodySize, message).into());
        }
        let permit = match RunInputState::of(app).files.admit(&caller) {
            Ok(permit) => permit,
            Err(refused) => {
                drain(&mut request.into_body(), REFUSED_PATIENCE).await;
                return Err(refused.into());
            }
        };
        // The number of concurrent uploads bounds the bytes themselves.
        if let Some(share) = request.extensions().get::<Arc<BodyShare>>().cloned() {
            share.reserve(announced_bytes(request.headers()).unwrap_or(BODY_BYTES_MAX)).await?;
        }
        let form = Multipart::from_request(request, app).await.map_err(|_| {
            let message = "the body must be multipart/form-data";
            Failure::rule(Rule::ContentType, message)
        })?;
        let patience = Duration::from_millis(app.config.limits.body_ms);
        let read = tokio::time::timeout(patience, read(form, permit)).await;
        Ok(read.map_err(|_| Failure::invalid(Rule::BodyLate, "the body did not arrive in time"))?.map(Self)?)
    }
}

async fn read(mut form: Multipart, permit: Permit) -> Result<Upload, Failure> {
    let (mut thread_id, mut run_id, mut bytes) = (None, None, None);
    while let Some(field) = form.next_field().await.map_err(|_| malformed())? {
        let (slot, max): (&mut Option<Bytes>, usize) = match field.name() {
            Some("file") => (&mut bytes, ATTACHMENT_BYTES_MAX),
            Some("threadId" | "thread_id") => (&mut thread_id, ATTACHMENT_FORM_BYTES_MAX),
            Some("runId" | "run_id") => (&mut run_id, ATTACHMENT_FORM_BYTES_MAX),
            _ => {
                return Err(Failure::invalid(
                    Rule::FormField,
                    "the form has file, threadId and runId, and nothing else",
                ));
            }
        };
        if slot.replace(read_field(field, max).await?).is_some() {
            return Err(Failure::invalid(Rule::FormField, "the form has one of each field"));
        }
    }
    let text = |bytes: Option<Bytes>| String::from_utf8(bytes.unwrap_or_default().to_vec()).unwrap_or_default();
    let bytes = bytes.ok_or_else(|| Failure::invalid(Rule::FormField, "the form needs a file"))?;
    Ok(Upload { thread_id: read_thread_id(&text(thread_id))?, run_id: read_run_id(&text(run_id))?, bytes, permit })
}

async fn read_field(field: Field<'_>, max: usize) -> Result<Bytes, Failure> {
    let too_large = |size| Failure::too_large(Rule::AttachmentSize, "a field of the form", size, max);
    read_within(field, max).await?.map_err(too_large)
}

/// The bytes of a field, or how many there are if that is more than `max`.
pub(crate) async fn read_within(mut field: Field<'_>, max: usize) -> Result<Result<Bytes, usize>, Failure> {
    let (mut bytes, mut size) = (BytesMut::new(), 0);
    while let Some(chunk) = field.chunk().await.map_err(|_| malformed())? {
        size += chunk.len();
        // Bytes over the limit are read and dropped: a client that is disconnected while it sends never receives the response.
        if size <= max {
            bytes.extend_from_slice(&chunk);
        }
    }
    Ok(if size > max { Err(size) } else { Ok(bytes.freeze()) })
}

pub(crate) fn malformed() -> Failure {
    Failure::invalid(Rule::FormMalformed, "the body is not a whole form")
}
