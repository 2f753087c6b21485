//! `ostler approve`: allows an agent's request for permission.

use ostler_protocol::Failure;

use crate::{
    commands::permissions::{RequestArgs, Verdict, answer},
    connection::Connection,
};

/// Allow an agent's request for permission
///
/// Without a run it lists every request that waits, and at a terminal asks about each. With a run it answers the only open
/// request, or lists them where there are several. It shows the whole call and asks before it allows; `--yes` skips the
/// question, and is required without a terminal. The option chosen is the first that allows once, else the first that allows,
/// unless `--option` names one.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler approve\n  ostler approve RUN\n  \
    ostler approve RUN prm_01a1 --option allow-always\n  ostler approve RUN --yes")]
pub(crate) struct ApproveArgs {
    #[command(flatten)]
    request: RequestArgs,
}

pub(crate) async fn approve(connection: &Connection, args: &ApproveArgs) -> Result<u8, Failure> {
    answer(connection, &args.request, Verdict::Allow).await
}
