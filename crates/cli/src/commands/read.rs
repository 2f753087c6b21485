//! `ostler read`: marks sessions as read.

use clap::builder::NonEmptyStringValueParser;
use ostler_client::Client;
use ostler_protocol::{
    Failure,
    kernel::sessions::{ListSessions, ReadSession},
    limits::PAGE_ITEMS_MAX,
};

use crate::{
    candidates,
    commands::list::all_pages,
    connection::Connection,
    exit_codes,
    targets::{SessionKey, Within},
    terminal::output::{self, Output, line},
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
#[command(after_help = "Examples:\n  ostler read my-session\n  ostler read --all")]
pub(crate) struct ReadArgs {
    #[arg(value_name = "SESSION", required_unless_present = "all", value_parser = NonEmptyStringValueParser::new(), add = candidates::targets(),
        help = "The session, or one of its runs")]
    sessions: Vec<String>,
    /// Every session that is unread
    #[arg(long, conflicts_with = "sessions")]
    all: bool,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    reader: ReaderArgs,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn read(connection: &Connection, args: &ReadArgs) -> Result<u8, Failure> {
    let finder = args.within.finder(connection)?;
    let mut keys = vec![];
    for word in &args.sessions {
        keys.push((finder.session(word).await?, None));
    }
    if args.all {
        keys.extend(unread(&finder.client, args).await?);
    }
    let mut all = vec![];
    for (session, version) in keys {
        let read = ReadSession { reader_id: args.reader.id(), tenant_id: session.tenant, version };
        all.push(finder.client.read_session(&session.id, &read).await?);
    }
    args.output.many(&all, || all.iter().map(|session| format!("{} read\n", line(&session.session_id, 200))).collect());
    if all.is_empty() {
        output::message("nothing is unread\n");
    }
    Ok(exit_codes::OK)
}

/// The unread sessions, each with the version that is marked as read: a turn that ends in the meantime stays unread.
async fn unread(client: &Client, args: &ReadArgs) -> Result<Vec<(SessionKey, Option<i64>)>, Failure> {
    let all = all_pages(async |cursor| {
        let (reader_id, tenant_id) = (args.reader.id(), args.within.tenant());
        let query =
            ListSessions { reader_id, tenant_id, limit: Some(PAGE_ITEMS_MAX), cursor, ..ListSessions::default() };
        let page = client.list_sessions(&query).await?;
        Ok((page.sessions, page.next_cursor))
    });
    let unread = all.await?.into_iter().filter(|session| session.unread);
    Ok(unread.map(|session| (SessionKey::of(&session), Some(session.version))).collect())
}
