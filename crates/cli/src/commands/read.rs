//! `ostler read`: marks sessions as read.

use clap::builder::NonEmptyStringValueParser;
use ostler_protocol::{Failure, kernel::sessions::ReadSession};

use crate::{
    candidates,
    connection::Connection,
    exit_codes,
    targets::Within,
    terminal::output::{Output, line},
};

/// The reader whose unread marks are used. Flattened into commands that list or read sessions.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ReaderArgs {
    /// The reader whose unread marks to use, if several people share a token
    #[arg(long, value_name = "NAME", env = "OSTLER_READER", hide_env_values = true)]
    reader: Option<String>,
}

impl ReaderArgs {
    pub(crate) fn id(&self) -> Option<String> {
        self.reader.clone().filter(|reader| !reader.is_empty())
    }
}

/// Mark sessions as read, so that `ps` no longer lists them
///
/// A session is listed again as soon as another turn ends in it. A running session is always listed.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler read my-session\n  ostler ps -o jsonl | jq -r .sessionId | xargs ostler read"
)]
pub(crate) struct ReadArgs {
    #[arg(value_name = "SESSION", required = true, value_parser = NonEmptyStringValueParser::new(), add = candidates::targets(),
        help = "The session, or one of its runs")]
    sessions: Vec<String>,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    reader: ReaderArgs,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn read(connection: &Connection, args: &ReadArgs) -> Result<u8, Failure> {
    let finder = args.within.finder(connection)?;
    let mut all = vec![];
    for word in &args.sessions {
        let session = finder.session(word).await?;
        let read = ReadSession { reader_id: args.reader.id(), tenant_id: session.tenant, version: None };
        all.push(finder.client.read_session(&session.id, &read).await?);
    }
    args.output.many(&all, || {
        all.iter()
            .map(|session| format!("{} read up to version {}\n", line(&session.session_id, 200), session.read_version))
            .collect()
    });
    Ok(exit_codes::OK)
}
