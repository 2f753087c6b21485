//! `ostler backends`: the profiles that the server can run.

use clap::Subcommand;
use ostler_protocol::{Failure, kernel::backends::Backend};

use crate::{
    commands::list::Listing,
    connection::Connection,
    terminal::{
        output::{Output, line},
        table::Column,
        times::Times,
    },
};

/// List the backends that the server can run
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler backends list")]
pub(crate) struct BackendsArgs {
    #[command(subcommand)]
    verb: BackendsVerb,
}

#[derive(Subcommand, Debug)]
enum BackendsVerb {
    List(ListBackendsArgs),
}

/// List the profiles that `ostler run --profile` accepts
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler backends list\n  \
    ostler backends list -o json | jq -r '.[] | select(.available) | .profile'")]
struct ListBackendsArgs {
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn backends(connection: &Connection, args: &BackendsArgs) -> Result<u8, Failure> {
    let BackendsVerb::List(args) = &args.verb;
    let all = connection.client()?.list_backends().await?.backends;
    BACKENDS.print(&all, false, Times::default(), args.output)
}

const BACKENDS: Listing<Backend> = Listing {
    nothing: "the server has no backends\n",
    columns: &[
        Column::whole("PROFILE"),
        Column::whole("AVAILABLE"),
        Column::spare(1, "PROTOCOL"),
        Column::text(3, "NEEDS"),
        Column::text(2, "CAN"),
    ],
    row: |backend, _, _| {
        let needs = backend.required_secret_keys.join(", ");
        vec![
            line(&backend.profile, 63),
            if backend.available { "yes" } else { "no" }.into(),
            line(&backend.protocol, 80),
            if needs.is_empty() { "-".into() } else { line(&needs, 200) },
            line(&backend.capabilities.join(", "), 200),
        ]
    },
};

#[cfg(test)]
mod tests {
    use ostler_protocol::Timestamp;

    use super::*;

    #[test]
    fn a_backend_shows_whether_it_is_available_and_what_it_needs() {
        let text = BACKENDS.render(
            &ostler_protocol::kernel::backends::built_in(),
            Times::default(),
            Timestamp::UNIX_EPOCH,
            None,
        );
        assert!(text.contains("\nscripted    yes"), "{text}");
        assert!(text.contains("auth.json, config.toml"), "{text}");
    }
}
