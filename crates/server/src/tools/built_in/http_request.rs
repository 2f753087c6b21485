//! `http_request`: a request to a host that the operator has listed.

use futures_util::future::BoxFuture;
use ostler_client::{outgoing, restricted_web_client};
use ostler_protocol::{outgoing::OutgoingRules, tools::ToolDefinition};
use reqwest::{
    Method, Request,
    header::{HeaderMap, HeaderName, HeaderValue},
};
use serde_json::{Value, json};

use super::{
    definitions::{define, text},
    fetching,
};
use crate::{
    app::App,
    tools::source::{Invocation, ToolError},
};

const DEADLINE_MS: u64 = 30_000;
const URL_BYTES_MAX: usize = 2_048;
const HEADERS_MAX: usize = 32;
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
        "Sends an HTTP request to one of these hosts: {}. Returns status, content type and body.",
        hosts.join(", ")
    );
    Some(define("http_request", &description, schema)?.networked().deadline_ms(DEADLINE_MS))
}

pub(super) fn call<'a>(app: &'a App, invocation: &'a Invocation) -> BoxFuture<'a, Result<String, ToolError>> {
    Box::pin(async move {
        let rules = OutgoingRules::read(&app.config.tools.http_request.hosts).unwrap_or_default();
        let refused = |why: &str| ToolError::invalid(format!("this URL is not requested: {why}"));
        let url = outgoing::check_url(&rules, text(invocation, "url").unwrap_or_default());
        let url = url.map_err(|error| refused(&error.to_string()))?;
        if !rules.lists(url.host_str().unwrap_or_default()) {
            return Err(refused("its host is not listed"));
        }
        let method = text(invocation, "method").and_then(|method| method.parse().ok()).unwrap_or(Method::GET);
        let client = restricted_web_client(url.as_str(), &rules).map_err(|failure| refused(&failure.message))?;
        let mut request = Request::new(method, url);
        *request.headers_mut() = headers(invocation)?;
        *request.body_mut() = text(invocation, "body").map(|body| body.to_owned().into());
        let response = fetching::send(&client, request).await?;
        let (status, media_type) = (response.status().as_u16(), fetching::media_type(&response));
        let (body, is_cut) = fetching::read(response).await?;
        let body = match fetching::is_text(&media_type) {
            true => String::from_utf8_lossy(&body).into_owned(),
            false => format!("[{} bytes that are not text]", body.len()),
        };
        Ok(json!({"status": status, "contentType": media_type, "body": body, "truncated": is_cut}).to_string())
    })
}

fn headers(invocation: &Invocation) -> Result<HeaderMap, ToolError> {
    let mut headers = HeaderMap::new();
    let given = invocation.arguments.get("headers").and_then(Value::as_object);
    for (name, value) in given.into_iter().flatten() {
        let bad = || ToolError::invalid(format!("the header {name:?} cannot be sent"));
        let parsed: HeaderName = name.parse().map_err(|_| bad())?;
        if REFUSED.contains(&parsed.as_str()) {
            return Err(bad());
        }
        let value = value.as_str().and_then(|value| HeaderValue::from_str(value).ok()).ok_or_else(bad)?;
        headers.insert(parsed, value);
    }
    Ok(headers)
}
