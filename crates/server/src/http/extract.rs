//! Extractors whose refusals are ours: JSON with the right kind, naming the rule.

use std::{convert::Infallible, time::Duration};

use axum::{
    body::{Body as AxumBody, Bytes},
    extract::{FromRequest, FromRequestParts, Path, Query, Request},
};
use http::{HeaderMap, header, request::Parts};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use ostler_protocol::{
    Failure, FailureKind,
    json::{BODY, read_shape},
    limits::BODY_BYTES_MAX,
};
use serde::de::DeserializeOwned;

use super::problem::Refusal;
use crate::{
    app::App,
    auth::{Principal, unauthenticated},
};

const JSON: &str = "application/json";
/// What is read of a body that is too large before it is given up.
const DRAIN_BYTES_MAX: usize = 4 * BODY_BYTES_MAX;

/// Who calls. A handler that takes it cannot be reached without a token.
pub struct Caller(pub Principal);

impl FromRequestParts<App> for Caller {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Refusal> {
        let principal = parts.extensions.get::<Principal>().cloned();
        principal.map(Self).ok_or_else(|| Refusal(unauthenticated("this needs a token: Authorization: Bearer …")))
    }
}

/// Who calls, where anybody may.
pub struct MaybeCaller(pub Option<Principal>);

impl FromRequestParts<App> for MaybeCaller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Infallible> {
        Ok(Self(parts.extensions.get().cloned()))
    }
}

/// A JSON body.
pub struct Body<T>(pub T);

impl<T: DeserializeOwned> FromRequest<App> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &App) -> Result<Self, Refusal> {
        check_content_type(request.headers(), JSON)?;
        read_json(request, app).await.map(Self)
    }
}

/// A JSON body that may be left out altogether.
pub struct OptionalBody<T>(pub T);

impl<T: DeserializeOwned + Default> FromRequest<App> for OptionalBody<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &App) -> Result<Self, Refusal> {
        let headers = request.headers();
        let empty = headers.get(header::CONTENT_LENGTH).is_none_or(|length| length == "0")
            && !headers.contains_key(header::TRANSFER_ENCODING)
            && axum::body::HttpBody::is_end_stream(request.body());
        if empty {
            return Ok(Self(T::default()));
        }
        check_content_type(headers, JSON)?;
        read_json(request, app).await.map(Self)
    }
}

/// A body of another content type than JSON, as it came.
pub async fn read_raw(request: Request, app: &App, content_type: &str) -> Result<Bytes, Failure> {
    check_content_type(request.headers(), content_type)?;
    read_bytes(request, app).await
}

/// A page can send some content types without asking; JSON is not one of them.
fn check_content_type(headers: &HeaderMap, wanted: &str) -> Result<(), Failure> {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = value.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case(wanted) {
        return Ok(());
    }
    let message = format!("the body must be {wanted}");
    Err(Failure::rule(FailureKind::UnsupportedMediaType, "content-type", message))
}

async fn read_json<T: DeserializeOwned>(request: Request, app: &App) -> Result<T, Refusal> {
    let bytes = read_bytes(request, app).await?;
    let text =
        std::str::from_utf8(&bytes).map_err(|_| Failure::invalid("json-malformed", "the body is not UTF-8 text"))?;
    Ok(read_shape("body-shape", BODY, text)?)
}

/// A JSON body as it came, for what reads it by rules of its own.
pub async fn read_body(request: Request, app: &App) -> Result<Bytes, Failure> {
    check_content_type(request.headers(), JSON)?;
    read_bytes(request, app).await
}

async fn read_bytes(request: Request, app: &App) -> Result<Bytes, Failure> {
    let too_large = || {
        let message = format!("the body is over {BODY_BYTES_MAX} bytes");
        Failure::rule(FailureKind::PayloadTooLarge, "body-size", message)
    };
    let declared =
        request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let patience = Duration::from_millis(app.config.limits.body_ms);
    let mut body = request.into_body();
    if declared.is_some_and(|length| length > BODY_BYTES_MAX) {
        drain(&mut body, patience).await;
        return Err(too_large());
    }
    let read = tokio::time::timeout(patience, Limited::new(&mut body, BODY_BYTES_MAX).collect()).await;
    let read = read.map_err(|_| Failure::invalid("body-late", "the body did not come in time"))?;
    match read {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            drain(&mut body, patience).await;
            Err(too_large())
        }
        Err(_) => Err(Failure::invalid("body-read", "the body ended before it was whole")),
    }
}

/// Reads on for a while: a sender that is cut off while it writes never learns why.
pub async fn drain(body: &mut AxumBody, patience: Duration) {
    let mut left = DRAIN_BYTES_MAX;
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
            if left == 0 {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(patience, reading).await;
}

/// Ids in the path. One that does not parse is simply unknown.
pub struct At<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<App> for At<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        let found = Path::<T>::from_request_parts(parts, app).await;
        found.map(|Path(ids)| Self(ids)).map_err(|_| Refusal(Failure::not_found("thing under this path")))
    }
}

/// The query string.
pub struct Params<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<App> for Params<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Refusal> {
        let query = Query::<T>::try_from_uri(&parts.uri);
        query
            .map(|Query(params)| Self(params))
            .map_err(|error| Refusal(Failure::invalid("query-shape", error.body_text())))
    }
}

/// The key of a create: the header where the body has none. Both, and different, is a mistake.
pub fn idempotency_key(headers: &HeaderMap, body: Option<String>) -> Result<Option<String>, Failure> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(body) };
    let header =
        value.to_str().map_err(|_| Failure::invalid("idempotency-key", "the Idempotency-Key header is not text"))?;
    match body {
        Some(body) if body != header => {
            Err(Failure::invalid("idempotency-key", "the Idempotency-Key header and the body's idempotencyKey differ"))
        }
        _ => Ok(Some(header.to_owned())),
    }
}
