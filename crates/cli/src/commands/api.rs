//! `ostler api`: a raw call of the HTTP API, with the token applied. The response goes to stdout unchanged; an error status
//! is also reported as a failure.

use std::io::{IsTerminal, Read};

use bytes::{Bytes, BytesMut};
use http::{HeaderName, HeaderValue};
use http_body_util::BodyExt;
use ostler_client::problem;
use ostler_protocol::{Failure, FailureKind, limits::BODY_BYTES_MAX};

use crate::{connection::Connection, errors, exit_codes, terminal::output};

/// Call the HTTP API directly, with the token applied
///
/// A path without a leading slash is below /api/v1. The response is printed as it arrives, also an event stream. With an
/// error status the exit code is that of the failure.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler api GET 'runs?limit=1' | jq\n  ostler api GET /health/readiness\n  \
    ostler api POST runs/RUN/cancel -d '{\"reason\":\"enough\"}'\n  ostler api POST runs -d @run.json\n  \
    ostler api GET runs/RUN/events -H 'Accept: text/event-stream'")]
pub(crate) struct ApiArgs {
    #[arg(help = "GET, POST, PATCH, DELETE …")]
    method: String,
    #[arg(help = "The path, with its query")]
    path: String,
    /// The body, as JSON; `@FILE` reads it from a file, `-` from stdin
    #[arg(short, long, value_name = "BODY")]
    data: Option<String>,
    /// A header to send, as `Name: value`; can be repeated
    #[arg(short = 'H', long = "header", value_name = "HEADER", value_parser = header)]
    headers: Vec<(HeaderName, HeaderValue)>,
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("a header is `Name: value`")?;
    let name: HeaderName = name.trim().parse().map_err(|_| "not a valid header name")?;
    if name == http::header::AUTHORIZATION {
        return Err("the token is applied automatically; a command line can be read by every process".into());
    }
    Ok((name, value.trim().parse().map_err(|_| "not a valid header value")?))
}

pub(crate) async fn api(connection: &Connection, args: &ApiArgs) -> Result<u8, Failure> {
    let body = body(args.data.as_deref())?;
    let path = if args.path.starts_with('/') { args.path.clone() } else { format!("/api/v1/{}", args.path) };
    let method = args.method.to_ascii_uppercase();
    let response = connection.client()?.raw(&method, &path, &args.headers, body).await?;
    let status = response.status();
    let mut stream = response.into_body();
    // Only a failure is needed as a whole.
    let mut problem_body = BytesMut::new();
    let mut ends_line = true;
    while let Some(frame) = stream.frame().await {
        let frame = frame.map_err(|error| Failure::new(FailureKind::InfraFailed, error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        ends_line = data.ends_with(b"\n");
        print(&data);
        if !status.is_success() && problem_body.len() + data.len() <= BODY_BYTES_MAX {
            problem_body.extend_from_slice(&data);
        }
    }
    if !ends_line {
        output::data("\n");
    }
    if status.is_success() {
        return Ok(exit_codes::OK);
    }
    Err(match problem(status, &problem_body.freeze()) {
        failure if failure.kind == FailureKind::NotFound => errors::with_hint(
            failure,
            "check the path and the ids in it; `ostler api GET /openapi.json` lists the paths",
        ),
        failure => failure,
    })
}

/// Prints bytes unchanged; on a terminal, without control characters.
fn print(data: &Bytes) {
    if std::io::stdout().is_terminal() {
        output::data(&output::harmless(&String::from_utf8_lossy(data)));
    } else {
        output::bytes(data);
    }
}

fn body(data: Option<&str>) -> Result<Bytes, Failure> {
    let body = match data {
        None => return Ok(Bytes::new()),
        Some("-") => read(std::io::stdin().lock()),
        Some(text) => match text.strip_prefix('@') {
            None => Ok(text.as_bytes().to_vec()),
            Some(path) => std::fs::File::open(path).and_then(read),
        },
    };
    let source = data.unwrap_or_default().trim_start_matches('@');
    let body = body.map_err(|error| {
        errors::usage(format!("cannot read the body from {source}: {error}"), "check the name of the file")
    })?;
    if body.len() > BODY_BYTES_MAX {
        return Err(Failure::new(FailureKind::PayloadTooLarge, format!("the body is over {BODY_BYTES_MAX} bytes")));
    }
    Ok(body.into())
}

/// Reads at most one byte more than is allowed.
fn read(input: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![];
    input.take(BODY_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_a_name_and_a_value() {
        assert_eq!(header("Accept: text/event-stream").unwrap().1, "text/event-stream");
        assert!(header("Accept").is_err() && header("A b: c").is_err());
        assert!(header("authorization: Bearer x").is_err());
    }

    #[test]
    fn a_body_is_given_or_read() {
        assert_eq!(body(Some("{}")).unwrap(), "{}");
        assert_eq!(body(None).unwrap(), "");
        assert!(
            body(Some("@/no/such/file")).unwrap_err().message.starts_with("cannot read the body from /no/such/file: ")
        );
    }
}
