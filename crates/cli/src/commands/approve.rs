//! `ostler approve`: allows what an agent asks for.

use ostler_protocol::Failure;

use crate::{
    commands::permissions::{RequestArgs, Verdict, answer},
    connection::Connection,
};

/// Allow what an agent asks for
///
/// Without a request's id it answers the only open one, and lists them where there are several. The option chosen is
/// the first that allows once, else the first that allows, unless `--option` names one.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler approve RUN\n  ostler approve RUN prm_01a1 --option allow-always")]
pub(crate) struct ApproveArgs {
    #[command(flatten)]
    request: RequestArgs,
}

pub(crate) async fn approve(connection: &Connection, args: &ApproveArgs) -> Result<u8, Failure> {
    answer(connection, &args.request, Verdict::Allow).await
}
