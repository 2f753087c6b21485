//! The log on stderr, of the long-running processes: the server and the runner.

use std::{
    io::{self, Write},
    sync::OnceLock,
};

use ostler_protocol::{Failure, redaction::Redactor};
use ostler_server::config::LogFormat;
use tracing_subscriber::EnvFilter;

use crate::{errors, terminal::paint::Paint};

/// The library of MCP logs whole messages of servers at the level `info`.
const LOG_DEFAULT: &str = "info,sqlx=warn,rmcp=warn";

pub(crate) fn init(format: LogFormat) -> Result<(), Failure> {
    let named =
        ["OSTLER_LOG", "RUST_LOG"].into_iter().find_map(|name| std::env::var(name).ok().filter(|v| !v.is_empty()));
    let filter = EnvFilter::try_new(named.as_deref().unwrap_or(LOG_DEFAULT)).map_err(|error| {
        errors::usage(
            format!("OSTLER_LOG or RUST_LOG cannot be read: {error}"),
            "for example OSTLER_LOG=info,ostler_server=debug",
        )
    })?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| BestEffortStderr);
    match format {
        LogFormat::Text => log.with_ansi(Paint::stderr().is_on()).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    Ok(())
}

/// Removes secret values of this process from its log.
static REDACTOR: OnceLock<Redactor> = OnceLock::new();

/// Removes secret values from the log from now on. For a runner: other servers than the one that knows the values may serve its log.
/// The first redactor stays.
pub(crate) fn redact_with(redactor: Redactor) {
    let _ = REDACTOR.set(redactor);
}

/// A JSON text without the secret values that the log must not contain.
pub(crate) fn redacted_json(text: &str) -> String {
    REDACTOR.get().map_or_else(|| text.to_owned(), |redactor| redactor.redact_json(text).into_owned())
}

/// Writes to stderr and ignores errors: a log whose reader is gone must not end the program. Each write is one event.
struct BestEffortStderr;

impl Write for BestEffortStderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = match REDACTOR.get() {
            Some(redactor) => io::stderr().write_all(redactor.redact(&String::from_utf8_lossy(bytes)).as_bytes()),
            None => io::stderr().write_all(bytes),
        };
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
