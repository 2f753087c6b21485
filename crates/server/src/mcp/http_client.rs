//! The HTTP client of connections to MCP servers. It reads a bounded part of every response: the client that comes with the
//! protocol's library reads a JSON body whole, whatever its size.

use std::{borrow::Cow, collections::HashMap, error::Error, fmt, io, sync::Arc};

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream::BoxStream};
use http::{
    HeaderName, HeaderValue, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
};
use reqwest::{Client, RequestBuilder, Response};
use rmcp::{
    ServiceError,
    model::{ClientJsonRpcMessage, ClientRequest, ErrorData, ServerJsonRpcMessage},
    transport::{
        common::http_header::{EVENT_STREAM_MIME_TYPE, HEADER_LAST_EVENT_ID, HEADER_SESSION_ID, JSON_MIME_TYPE},
        streamable_http_client::{
            AuthRequiredError, HttpStatusError, InsufficientScopeError, SseError, StreamableHttpClient,
            StreamableHttpError, StreamableHttpPostResponse,
        },
    },
};
use sse_stream::{Sse, SseStream};

use super::bounded_lines::is_replacement;

type HttpError = StreamableHttpError<reqwest::Error>;
type Headers = HashMap<HeaderName, HeaderValue>;
type Events = BoxStream<'static, Result<Sse, SseError>>;

/// A client that refuses messages of more than `message_bytes_max`.
#[derive(Clone)]
pub(super) struct BoundedHttpClient {
    pub client: Client,
    pub message_bytes_max: usize,
}

/// A server sent a message that is too large.
#[derive(Clone, Copy, Debug)]
struct MessageTooLarge;

impl fmt::Display for MessageTooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the message is too large")
    }
}

impl Error for MessageTooLarge {}

fn too_large() -> io::Error {
    io::Error::other(MessageTooLarge)
}

/// Whether a request failed because its response was too large.
pub(super) fn is_too_large(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(found) = cause {
        // An I/O error does not report the error it wraps as its source.
        let wrapped = found.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if wrapped.is_some_and(|wrapped| wrapped.is::<MessageTooLarge>()) {
            return true;
        }
        cause = found.source();
    }
    false
}

/// As [`is_too_large`], for a request of the connection, whose failure does not report its cause as its source.
pub(super) fn is_reply_too_large(error: &ServiceError) -> bool {
    match error {
        ServiceError::TransportSend(cause) => is_too_large(cause),
        ServiceError::McpError(error) => is_replacement(error),
        _ => false,
    }
}

impl StreamableHttpClient for BoundedHttpClient {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_token: Option<String>,
        custom_headers: Headers,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let mut request = self.client.post(uri.as_ref());
        request = request.header(ACCEPT, [EVENT_STREAM_MIME_TYPE, JSON_MIME_TYPE].join(", "));
        if let Some(token) = auth_token {
            request = request.bearer_auth(token);
        }
        request = add_headers(request, custom_headers)?;
        let has_session = session_id.is_some();
        if let Some(session_id) = session_id {
            request = request.header(HEADER_SESSION_ID, session_id.as_ref());
        }
        let response = request.json(&message).send().await?;
        self.read(&message, has_session, response).await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_token: Option<String>,
        custom_headers: Headers,
    ) -> Result<(), HttpError> {
        self.client.delete_session(uri, session_id, auth_token, custom_headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_token: Option<String>,
        custom_headers: Headers,
    ) -> Result<Events, HttpError> {
        let (client, bytes_max) = (&self.client, self.message_bytes_max);
        client
            .get_stream_with_max_sse_event_size(uri, session_id, last_event_id, auth_token, custom_headers, bytes_max)
            .await
    }
}

impl BoundedHttpClient {
    async fn read(
        &self,
        message: &ClientJsonRpcMessage,
        has_session: bool,
        response: Response,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let status = response.status();
        check_login(&response)?;
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if status == StatusCode::NOT_FOUND && has_session {
            return Err(StreamableHttpError::SessionExpired);
        }
        let header = |name: &HeaderName| Some(response.headers().get(name)?.to_str().ok()?.to_owned());
        let content_type = header(&CONTENT_TYPE);
        let has_type = |wanted: &str| content_type.as_ref().is_some_and(|found| found.starts_with(wanted));
        let (is_json, is_stream) = (has_type(JSON_MIME_TYPE), has_type(EVENT_STREAM_MIME_TYPE));
        let new_session = response.headers().get(HEADER_SESSION_ID);
        let new_session = new_session.and_then(|value| value.to_str().ok()).map(str::to_owned);
        // The server need not reply to what is no request.
        let needs_reply = matches!(message, ClientJsonRpcMessage::Request(_));
        if !status.is_success() {
            let is_limited = status == StatusCode::TOO_MANY_REQUESTS;
            if is_limited || status.is_server_error() && !is_json {
                return Err(HttpStatusError::new(status.as_u16(), header(&RETRY_AFTER)).into());
            }
            let body = self.body(response).await?;
            if status == StatusCode::BAD_REQUEST && has_session && is_about_session(&body) {
                return Err(StreamableHttpError::SessionExpired);
            }
            return refused(message, has_session, status, &body, is_json.then_some(new_session));
        }
        if !needs_reply && response.content_length() == Some(0) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if is_stream {
            let events = bounded_events(response.bytes_stream(), self.message_bytes_max);
            return Ok(StreamableHttpPostResponse::Sse(events, new_session));
        }
        if !is_json {
            return Err(StreamableHttpError::UnexpectedContentType(content_type));
        }
        match serde_json::from_slice::<ServerJsonRpcMessage>(&self.body(response).await?) {
            Ok(reply) => Ok(StreamableHttpPostResponse::Json(reply, new_session)),
            Err(_) if !needs_reply => Ok(StreamableHttpPostResponse::Accepted),
            Err(error) => Err(error.into()),
        }
    }

    /// The body, as long as it is not too large. What is beyond the bound is not read.
    async fn body(&self, response: Response) -> Result<Vec<u8>, HttpError> {
        let bytes_max = self.message_bytes_max;
        if response.content_length().is_some_and(|length| length > bytes_max as u64) {
            return Err(too_large().into());
        }
        let (mut body, mut chunks) = (vec![], response.bytes_stream());
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk?;
            if body.len() + chunk.len() > bytes_max {
                return Err(too_large().into());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }
}

/// Adds the headers of the configuration. Those that belong to the protocol are refused.
fn add_headers(mut request: RequestBuilder, headers: Headers) -> Result<RequestBuilder, HttpError> {
    let reserved = [ACCEPT.as_str(), HEADER_SESSION_ID, HEADER_LAST_EVENT_ID];
    for (name, value) in headers {
        if reserved.iter().any(|reserved| name.as_str().eq_ignore_ascii_case(reserved)) {
            return Err(StreamableHttpError::ReservedHeaderConflict(name.to_string()));
        }
        request = request.header(name, value);
    }
    Ok(request)
}

fn check_login(response: &Response) -> Result<(), HttpError> {
    let Some(header) = response.headers().get(WWW_AUTHENTICATE) else { return Ok(()) };
    let header = String::from_utf8_lossy(header.as_bytes()).into_owned();
    match response.status() {
        StatusCode::UNAUTHORIZED => Err(StreamableHttpError::AuthRequired(AuthRequiredError::new(header))),
        StatusCode::FORBIDDEN => Err(StreamableHttpError::InsufficientScope(InsufficientScopeError::new(header, None))),
        _ => Ok(()),
    }
}

/// Whether a refusal names the session. The protocol wants 404 for a session that the server does not know, but servers made after the
/// reference server return 400 with such a message. The request was not executed, and is sent once more in a new session.
fn is_about_session(body: &[u8]) -> bool {
    String::from_utf8_lossy(body).to_ascii_lowercase().contains("session")
}

/// Reads a response that is no success. It may contain an error of the protocol; a server that only knows the older handshake
/// refuses the newer one this way.
fn refused(
    message: &ClientJsonRpcMessage,
    has_session: bool,
    status: StatusCode,
    body: &[u8],
    json_session: Option<Option<String>>,
) -> Result<StreamableHttpPostResponse, HttpError> {
    let is_login = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    let error = serde_json::from_slice::<ServerJsonRpcMessage>(body).ok();
    let error = error.filter(|message| matches!(message, ServerJsonRpcMessage::Error(_)));
    if let ClientJsonRpcMessage::Request(request) = message
        && matches!(request.request, ClientRequest::DiscoverRequest(_))
        && !has_session
        && status.is_client_error()
        && !is_login
    {
        let error = match error {
            Some(ServerJsonRpcMessage::Error(error)) => error.error,
            _ => ErrorData::invalid_request(format!("server/discover was refused with HTTP {status}"), None),
        };
        let reply = ServerJsonRpcMessage::error(error, Some(request.id.clone()));
        return Ok(StreamableHttpPostResponse::Json(reply, None));
    }
    match (error, json_session) {
        (Some(error), Some(session)) if !is_login => Ok(StreamableHttpPostResponse::Json(error, session)),
        _ if status.is_server_error() => Err(HttpStatusError::new(status.as_u16(), None).into()),
        _ => Err(StreamableHttpError::UnexpectedServerResponse(Cow::Owned(format!("HTTP {status}")))),
    }
}

/// The events of a stream. It ends with an error at an event that is too large.
fn bounded_events(
    chunks: impl Stream<Item = reqwest::Result<Bytes>> + Send + 'static,
    event_bytes_max: usize,
) -> Events {
    let mut size = EventSize::default();
    let chunks = chunks.map(move |chunk| {
        let chunk = chunk.map_err(io::Error::other)?;
        if size.add(&chunk) > event_bytes_max { Err(too_large()) } else { Ok(chunk) }
    });
    SseStream::from_bytes_stream(chunks).boxed()
}

/// Counts the bytes of the current event. Bytes after an empty line belong to the next one.
#[derive(Default)]
struct EventSize {
    bytes: usize,
    is_line_start: bool,
}

impl EventSize {
    /// The size of the largest event that the chunk is part of.
    fn add(&mut self, chunk: &[u8]) -> usize {
        let mut largest = 0;
        for byte in chunk {
            match byte {
                b'\n' if self.is_line_start => self.bytes = 0,
                b'\n' => self.is_line_start = true,
                // Part of CR LF. A stream with CR alone as the end of its lines counts as one event.
                b'\r' => {}
                _ => self.is_line_start = false,
            }
            self.bytes += 1;
            largest = largest.max(self.bytes);
        }
        largest
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    fn events(chunks: &[&'static str]) -> Events {
        let chunks: Vec<reqwest::Result<Bytes>> =
            chunks.iter().map(|chunk| Ok(Bytes::from_static(chunk.as_bytes()))).collect();
        bounded_events(stream::iter(chunks), 16)
    }

    #[tokio::test]
    async fn an_event_that_is_too_large_ends_the_stream() {
        let small: Vec<_> = events(&["data: a\n\n", "data: b\r\n\r\ndata: ", "c\n\n"]).collect().await;
        let texts: Vec<_> = small.into_iter().map(|event| event.unwrap().data.unwrap()).collect();
        assert_eq!(texts, ["a", "b", "c"]);
        let mut large = events(&["data: a\n\ndata: ", "0123456789", "0123456789\n\n"]);
        assert_eq!(large.next().await.unwrap().unwrap().data.as_deref(), Some("a"));
        assert!(large.next().await.unwrap().is_err());
    }
}
