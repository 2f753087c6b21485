//! `ostler deny`: refuses what an agent asks for.

use ostler_protocol::Failure;

use crate::{
    commands::permissions::{RequestArgs, Verdict, answer},
    connection::Connection,
};

/// Refuse what an agent asks for
///
/// Without a request's id it answers the only open one, and lists them where there are several.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler deny RUN\n  ostler deny RUN prm_01a1")]
pub(crate) struct DenyArgs {
    #[command(flatten)]
    request: RequestArgs,
}

pub(crate) async fn deny(connection: &Connection, args: &DenyArgs) -> Result<u8, Failure> {
    answer(connection, &args.request, Verdict::Reject).await
}
