//! Reading responses of other servers, within limits.

use ostler_client::outgoing;
use ostler_protocol::outgoing::OutgoingRules;
use reqwest::{Client, Response, header::CONTENT_TYPE};

use crate::tools::source::ToolError;

/// Most bytes of a response that are read. What a model gets of them is the tool's own limit.
pub(super) const RESPONSE_BYTES_MAX: usize = 1024 * 1024;

/// The rules of a list of hosts, addresses and networks. A listed `localhost` leads to this machine: unlike other names, which
/// must not lead there, it can mean nothing else.
pub(super) fn rules(entries: &[String]) -> OutgoingRules {
    OutgoingRules::read(entries).unwrap_or_default().with_listed_localhost()
}

/// Sends a request once. The error does not say more about the network than the model has to know. A request that was not sent has
/// failed; of any other one the effect is not known.
pub(super) async fn send(client: &Client, request: reqwest::Request) -> Result<Response, ToolError> {
    let host = request.url().host_str().unwrap_or_default().to_owned();
    client.execute(request).await.map_err(|error| match () {
        () if outgoing::is_refused(&error) => ToolError::failed(format!("{host}: its address is not a public one")),
        () if error.is_connect() => ToolError::failed(format!("{host}: it cannot be reached")),
        () if error.is_timeout() => ToolError::OutcomeUnknown(format!("{host}: it did not respond in time")),
        () => ToolError::OutcomeUnknown(format!("{host}: it sent no proper response")),
    })
}

/// The body of a response, as far as it is read, and whether there was more.
pub(super) async fn read(mut response: Response) -> Result<(Vec<u8>, bool), ToolError> {
    let mut body = vec![];
    loop {
        // The request was received: it may have had an effect.
        let broke_off = |_| ToolError::OutcomeUnknown("the response broke off".into());
        let Some(piece) = response.chunk().await.map_err(broke_off)? else { return Ok((body, false)) };
        let room = RESPONSE_BYTES_MAX - body.len();
        body.extend_from_slice(&piece[..piece.len().min(room)]);
        if piece.len() > room {
            return Ok((body, true));
        }
    }
}

/// The type of a response without its parameters, in lower case.
pub(super) fn media_type(response: &Response) -> String {
    let value = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Whether a model can read the content.
pub(super) fn is_text(media_type: &str) -> bool {
    let suffix = media_type.rsplit_once('+').map(|(_, suffix)| suffix);
    media_type.is_empty()
        || media_type.starts_with("text/")
        || matches!(media_type, "application/json" | "application/xml" | "application/javascript")
        || matches!(suffix, Some("json" | "xml"))
}
