//! `ostler deny`: refuses an agent's request for permission.

use ostler_protocol::Failure;

use crate::{
    commands::permissions::{RequestArgs, Verdict, answer},
    connection::Connection,
};

/// Refuse an agent's request for permission
///
/// Without a run it lists every request that waits, and at a terminal asks about each. With a run it answers the only open
/// request, or lists them where there are several. A refusal with a run needs no confirmation; without one, `--yes` refuses
/// the only request that waits.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler deny RUN\n  ostler deny RUN prm_01a1\n  ostler deny --yes")]
pub(crate) struct DenyArgs {
    #[command(flatten)]
    request: RequestArgs,
}

pub(crate) async fn deny(connection: &Connection, args: &DenyArgs) -> Result<u8, Failure> {
    answer(connection, &args.request, Verdict::Reject).await
}
