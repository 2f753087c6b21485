//! `http_request`: a request to a host that the operator has listed.

use futures_util::future::BoxFuture;
use ostler_client::{outgoing, restricted_web_client};
use ostler_protocol::{json::text_of, outgoing::OutgoingRules, text::clip, tools::ToolDefinition};
use reqwest::{
    Method, Request,
    header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, LOCATION},
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    definitions::{argument, define},
    fetching,
};
use crate::{
    app::App,
    tools::{
        call_redactor::CallRedactor,
        source::{Invocation, ToolError},
    },
};

/// The scope that the user must have granted to a run's agent.
const SCOPE: &str = "network:request";
const DEADLINE_MS: u64 = 30_000;
const URL_BYTES_MAX: usize = 2_048;
const HEADERS_MAX: usize = 32;
/// Characters of a response's headers that a model gets.
const LOCATION_CHARS_MAX: usize = 2_048;
const MEDIA_TYPE_CHARS_MAX: usize = 200;
const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];
/// Headers that the connection decides.
const REFUSED: [&str; 7] = ["connection", "content-length", "expect", "host", "te", "transfer-encoding", "upgrade"];

pub(super) fn definition(hosts: &[String]) -> Option<ToolDefinition> {
    let properties = json!({
        "method": {"type": "string", "enum": METHODS},
        "url": {"type": "string", "maxLength": URL_BYTES_MAX},
        "headers": {"type": "object", "maxProperties": HEADERS_MAX, "additionalProperties": {"type": "string"}},
        "body": {"type": "string"},
    });
    let schema = json!({"type": "object", "properties": properties, "required": ["method", "url"], "additionalProperties": false});
    let description = format!(
        "Sends an HTTP request to one of these hosts: {}. Returns status, content type, body, and where a redirect \
         leads: redirects are not followed.",
        hosts.join(", ")
    );
    Some(define("http_request", &description, schema)?.networked().scope(SCOPE).deadline_ms(DEADLINE_MS))
}

pub(super) fn call<'a>(app: &'a App, invocation: &'a Invocation) -> BoxFuture<'a, Result<String, ToolError>> {
    Box::pin(async move {
        let rules = fetching::rules(&app.config.tools.http_request.hosts);
        let request = read_request(&rules, &invocation.arguments).map_err(ToolError::Invalid)?;
        let client = restricted_web_client(request.url().as_str(), &rules);
        let client = client.map_err(|failure| ToolError::Invalid(refused(&failure.message)))?;
        let response = fetching::send(&client, request).await?;
        let (status, media_type) = (response.status().as_u16(), fetching::media_type(&response));
        // Texts are redacted before they are cut: half of a secret could not be recognised.
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let redactor = CallRedactor::of_context(app, &invocation.context);
        let location = match location {
            Some(location) => Some(clip(&redactor.redact(location).await, LOCATION_CHARS_MAX)),
            None => None,
        };
        let (body, is_cut) = fetching::read(response).await?;
        let body = match fetching::is_text(&media_type) {
            true => redactor.redact(String::from_utf8_lossy(&body).into_owned()).await,
            false => format!("[{} bytes that are not text]", body.len()),
        };
        let content_type = clip(&media_type, MEDIA_TYPE_CHARS_MAX);
        let result = HttpResult { status, content_type, location, truncated: is_cut, body };
        Ok(result.within(invocation.tool.output_bytes_max))
    })
}

/// Checks a request without sending it.
pub(super) fn check(app: &App, arguments: &Map<String, Value>) -> Result<(), String> {
    read_request(&fetching::rules(&app.config.tools.http_request.hosts), arguments).map(drop)
}

/// The result of a call. The body comes last, because it is the longest.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HttpResult {
    status: u16,
    content_type: String,
    /// Redirects are not followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    location: Option<String>,
    /// The body was longer.
    truncated: bool,
    body: String,
}

impl HttpResult {
    /// The result as JSON of at most so many bytes. The body is cut to what fits.
    fn within(mut self, bytes_max: usize) -> String {
        let body = std::mem::take(&mut self.body);
        let room = bytes_max.saturating_sub(text_of(&self).len());
        let mut bytes = 0;
        let end = body.char_indices().find(|(_, char)| {
            bytes += escaped_bytes(*char);
            bytes > room
        });
        self.truncated |= end.is_some();
        self.body = match end {
            Some((end, _)) => body[..end].to_owned(),
            None => body,
        };
        text_of(&self)
    }
}

/// The bytes of a character in a JSON text.
fn escaped_bytes(char: char) -> usize {
    match char {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        char if char < ' ' => 6,
        char => char.len_utf8(),
    }
}

fn refused(why: &str) -> String {
    format!("this URL is not requested: {why}")
}

/// The request of checked arguments. The error is the message for the model.
fn read_request(rules: &OutgoingRules, arguments: &Map<String, Value>) -> Result<Request, String> {
    let url = outgoing::check_url(rules, argument(arguments, "url").unwrap_or_default());
    let url = url.map_err(|error| refused(&error.to_string()))?;
    if !rules.lists(url.host_str().unwrap_or_default()) {
        return Err(refused("its host is not listed"));
    }
    let method = argument(arguments, "method").and_then(|method| method.parse().ok()).unwrap_or(Method::GET);
    let has_content = [Method::POST, Method::PUT, Method::PATCH].contains(&method);
    let mut request = Request::new(method, url);
    *request.headers_mut() = headers(arguments)?;
    match argument(arguments, "body").filter(|body| !body.is_empty()) {
        Some(body) => *request.body_mut() = Some(body.to_owned().into()),
        // Some servers require the length of the content of these methods, and the client does not send that of an empty one.
        None if has_content => drop(request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("0"))),
        None => {}
    }
    Ok(request)
}

fn headers(arguments: &Map<String, Value>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    let given = arguments.get("headers").and_then(Value::as_object);
    for (name, value) in given.into_iter().flatten() {
        let bad = || format!("the header {name:?} cannot be sent");
        let parsed: HeaderName = name.parse().map_err(|_| bad())?;
        if REFUSED.contains(&parsed.as_str()) {
            return Err(bad());
        }
        let value = value.as_str().and_then(|value| HeaderValue::from_str(value).ok()).ok_or_else(bad)?;
        headers.insert(parsed, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(body: &str) -> HttpResult {
        let (content_type, body) = ("text/plain".to_owned(), body.to_owned());
        HttpResult { status: 200, content_type, location: None, truncated: false, body }
    }

    #[test]
    fn a_long_body_is_cut_so_that_the_result_stays_whole() {
        assert_eq!(
            result("short").within(200),
            r#"{"status":200,"contentType":"text/plain","truncated":false,"body":"short"}"#
        );
        for piece in ["a", "ü", "\"", "\n", "\u{1}", "😀"] {
            for bytes_max in 100..130 {
                let text = result(&piece.repeat(500)).within(bytes_max);
                assert!((bytes_max - 7..=bytes_max).contains(&text.len()), "{piece:?} {bytes_max}: {text}");
                let read: Value = serde_json::from_str(&text).unwrap();
                assert_eq!((&read["status"], &read["truncated"]), (&json!(200), &json!(true)));
            }
        }
    }
}
