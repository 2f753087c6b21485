//! Extractors whose rejections are our failures: JSON with the failure kind and the rule.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::{Body as AxumBody, Bytes},
    extract::{FromRequest, FromRequestParts, Path, Query, Request},
};
use bytes::BytesMut;
use http::{HeaderMap, header, request::Parts};
use http_body_util::BodyExt;
use ostler_protocol::{
    Failure, Rule,
    bodies::{JsonScan, RequestBody},
    json::{BODY, read_shape},
    limits::{BODY_BYTES_MAX, JSON_VALUES_MAX},
};
use serde::de::DeserializeOwned;

use super::{body_problems::SentBody, problem::Refusal};
use crate::{
    app::App,
    auth::{Principal, unauthenticated},
    net::body_budget::BodyShare,
};

const JSON: &str = "application/json";
/// How much of a body that is too large is read after the response, before the connection is closed.
const DRAIN_BYTES_MAX: usize = 4 * BODY_BYTES_MAX;
/// Bounds of a body that has its own rules: the largest that any body may have.
pub const LARGEST: BodyBounds = BodyBounds { bytes_max: BODY_BYTES_MAX, values_max: 5 * JSON_VALUES_MAX };

/// Limits that are checked before a body is parsed.
#[derive(Clone, Copy)]
pub struct BodyBounds {
    pub bytes_max: usize,
    pub values_max: usize,
}

impl BodyBounds {
    fn of<T: RequestBody>() -> Self {
        Self { bytes_max: T::BYTES_MAX, values_max: T::VALUES_MAX }
    }
}

/// The caller. A handler that takes it cannot be reached without a token.
pub struct Caller(pub Principal);

impl FromRequestParts<App> for Caller {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Refusal> {
        let principal = parts.extensions.get::<Principal>().cloned();
        principal.map(Self).ok_or_else(|| Refusal(unauthenticated("this needs a token: Authorization: Bearer …")))
    }
}

/// The caller, for routes that need no token.
pub struct MaybeCaller(pub Option<Principal>);

impl FromRequestParts<App> for MaybeCaller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Infallible> {
        Ok(Self(parts.extensions.get().cloned()))
    }
}

/// A JSON body.
pub struct Body<T>(pub T);

impl<T: RequestBody> FromRequest<App> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &App) -> Result<Self, Refusal> {
        check_content_type(request.headers(), JSON)?;
        read_json(request, app).await.map(Self)
    }
}

/// A JSON body that may be left out altogether.
pub struct OptionalBody<T>(pub T);

impl<T: RequestBody + Default> FromRequest<App> for OptionalBody<T> {
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

/// A body of another content type than JSON, as received.
pub async fn read_raw(request: Request, app: &App, content_type: &str, bytes_max: usize) -> Result<Bytes, Failure> {
    check_content_type(request.headers(), content_type)?;
    read_bytes(request, app, bytes_max, None).await
}

/// A web page can send some content types without a CORS preflight; JSON is not one of them.
fn check_content_type(headers: &HeaderMap, wanted: &str) -> Result<(), Failure> {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut parts = value.split(';').map(str::trim);
    if !parts.next().is_some_and(|essence| essence.eq_ignore_ascii_case(wanted)) {
        let message = format!("the body must be {wanted}");
        return Err(Failure::rule(Rule::ContentType, message));
    }
    for part in parts {
        let Some((name, value)) = part.split_once('=') else { continue };
        let is_utf8 = || value.trim().trim_matches('"').eq_ignore_ascii_case("utf-8");
        if name.trim().eq_ignore_ascii_case("charset") && !is_utf8() {
            return Err(Failure::invalid(Rule::Charset, "the body must be UTF-8"));
        }
    }
    Ok(())
}

async fn read_json<T: RequestBody>(request: Request, app: &App) -> Result<T, Refusal> {
    let bounds = BodyBounds::of::<T>();
    let scan = JsonScan::new(bounds.values_max).with_string_bytes_max(T::STRING_BYTES_MAX);
    let bytes = read_bytes(request, app, bounds.bytes_max, Some(scan)).await?;
    let size = bytes.len();
    let parse = move || {
        let text = std::str::from_utf8(&bytes);
        let text = text.map_err(|_| Failure::invalid(Rule::JsonMalformed, "the body is not UTF-8 text"))?;
        read_shape(Rule::BodyShape, BODY, text)
    };
    Ok(app.compute(size, parse).await?)
}

/// A JSON body as received, for handlers that parse it by their own rules.
pub async fn read_body(request: Request, app: &App, bounds: BodyBounds) -> Result<Bytes, Failure> {
    check_content_type(request.headers(), JSON)?;
    read_bytes(request, app, bounds.bytes_max, Some(JsonScan::new(bounds.values_max))).await
}

/// Reads a body, checked by `scan` as it arrives.
async fn read_bytes(
    mut request: Request,
    app: &App,
    bytes_max: usize,
    scan: Option<JsonScan>,
) -> Result<Bytes, Failure> {
    let too_large = || {
        let message = format!("the body is over {bytes_max} bytes");
        Failure::rule(Rule::BodySize, message).detail("bytesMax", bytes_max)
    };
    let patience = Duration::from_millis(app.config.limits.body_ms);
    let announced = announced_bytes(request.headers());
    let share = request.extensions_mut().remove::<Arc<BodyShare>>();
    let sent_body = request.extensions_mut().remove::<SentBody>().filter(|_| scan.is_some());
    // A client that waits for `100 Continue` sends nothing more; reading on would make it send the body.
    let reads_on = !request.headers().contains_key(header::EXPECT);
    let mut body = request.into_body();
    if announced.is_some_and(|bytes| bytes > bytes_max) {
        if reads_on {
            drain_later(body, patience);
        }
        return Err(too_large());
    }
    if let Some(share) = &share {
        share.reserve(announced.unwrap_or(bytes_max)).await?;
    }
    let read = tokio::time::timeout(patience, collect(&mut body, share.as_deref(), bytes_max, scan)).await;
    let read = read.map_err(|_| Failure::invalid(Rule::BodyLate, "the body did not arrive in time"))?;
    match read {
        Ok(bytes) => {
            if let Some(sent_body) = sent_body {
                sent_body.store(&bytes);
            }
            Ok(bytes)
        }
        Err(BodyError::TooLarge) => {
            drain_later(body, patience);
            Err(too_large())
        }
        Err(BodyError::OutOfBounds(failure)) => {
            drain_later(body, patience);
            Err(failure)
        }
        Err(BodyError::Broken) => Err(Failure::invalid(Rule::BodyRead, "the body ended before it was whole")),
        Err(BodyError::Refused(failure)) => Err(failure),
    }
}

/// Why a body was not read to its end.
enum BodyError {
    TooLarge,
    OutOfBounds(Failure),
    Broken,
    Refused(Failure),
}

/// Reads a body into memory. What has arrived is counted in the request's share of the budget for bodies.
async fn collect(
    body: &mut AxumBody,
    share: Option<&BodyShare>,
    bytes_max: usize,
    mut scan: Option<JsonScan>,
) -> Result<Bytes, BodyError> {
    let mut reading = share.map(BodyShare::start_reading);
    let mut bytes = BytesMut::new();
    loop {
        let frame = match &reading {
            None => body.frame().await,
            Some(reading) => tokio::select! {
                frame = body.frame() => frame,
                failure = reading.dropped() => return Err(BodyError::Refused(failure)),
            },
        };
        let Some(frame) = frame else { return Ok(bytes.freeze()) };
        // Trailers are ignored.
        let Ok(data) = frame.map_err(|_| BodyError::Broken)?.into_data() else { continue };
        let size = bytes.len() + data.len();
        if size > bytes_max {
            return Err(BodyError::TooLarge);
        }
        // Piece by piece: scanning the whole body at once would block other tasks of this thread for too long.
        if let Some(scan) = &mut scan {
            scan.feed(&data).map_err(BodyError::OutOfBounds)?;
        }
        if let Some(reading) = &mut reading {
            reading.grow_to(size).await.map_err(BodyError::Refused)?;
        }
        bytes.extend_from_slice(&data);
    }
}

/// The length of the body that the request announces, if it announces one.
pub fn announced_bytes(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Reads on in the background while the response is sent: a client whose connection is reset while it writes may never read the
/// response.
fn drain_later(mut body: AxumBody, patience: Duration) {
    tokio::spawn(async move { drain(&mut body, patience).await });
}

/// Reads on for a while: a sender that is cut off while it writes does not receive the response.
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

/// Ids in the path. An id that does not parse is reported as not found.
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
            .map_err(|error| Refusal(Failure::invalid(Rule::QueryShape, query_problem(&error.body_text()))))
    }
}

/// What is wrong with a parameter, in words of people who call the API.
fn query_problem(text: &str) -> String {
    let problem = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(text);
    format!("the query: {}", problem.replace("invalid digit found in string", "must be a whole number"))
}

/// The idempotency key of a create: from the body, or else from the header. Two different keys are rejected.
pub fn idempotency_key(headers: &HeaderMap, body: Option<String>) -> Result<Option<String>, Failure> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(body) };
    let header =
        value.to_str().map_err(|_| Failure::invalid(Rule::IdempotencyKey, "the Idempotency-Key header is not text"))?;
    match body {
        Some(body) if body != header => Err(Failure::invalid(
            Rule::IdempotencyKey,
            "the Idempotency-Key header and the body's idempotencyKey differ",
        )),
        _ => Ok(Some(header.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_parameter_is_named_in_plain_words() {
        let text = "Failed to deserialize query string: limit: invalid digit found in string";
        assert_eq!(query_problem(text), "the query: limit: must be a whole number");
        assert_eq!(query_problem("missing field `by`"), "the query: missing field `by`");
    }
}
