//! The log on stderr, of the long-running processes: the server and the runner.

use std::io::{self, Write};

use ostler_protocol::Failure;
use ostler_server::config::LogFormat;
use tracing_subscriber::EnvFilter;

use crate::{errors, terminal::paint::Paint};

const LOG_DEFAULT: &str = "info,sqlx=warn";

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

/// Writes to stderr and ignores errors: a log whose reader is gone must not end the program.
struct BestEffortStderr;

impl Write for BestEffortStderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
