//! `ostler backends`: which agent profiles the server can run.

use clap::Subcommand;
use ostler_protocol::{Failure, kernel::backends::Backend};

use crate::{
    connect::Connection,
    exit_codes,
    output::{self, Output, line},
    table::table,
};

/// See which agents the server can run
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler backends list")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    List(ListArgs),
}

/// List the profiles that `ostler run --profile` takes
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler backends list\n  \
    ostler backends list -o json | jq -r '.[] | select(.available) | .profile'")]
struct ListArgs {
    #[command(flatten)]
    output: Output,
}

pub async fn backends(connection: &Connection, args: &Args) -> Result<u8, Failure> {
    let Verb::List(args) = &args.verb;
    let all = connection.client()?.list_backends().await?.backends;
    args.output.many(&all, || render(&all, output::width()));
    if all.is_empty() {
        output::words("the server knows no backends\n");
    }
    Ok(exit_codes::OK)
}

fn render(all: &[Backend], width: Option<usize>) -> String {
    let rows = all.iter().map(|backend| {
        let needs = backend.required_secret_keys.join(", ");
        vec![
            line(&backend.profile, 63),
            if backend.available { "yes" } else { "no" }.into(),
            line(&backend.protocol, 80),
            if needs.is_empty() { "-".into() } else { line(&needs, 200) },
            line(&backend.capabilities.join(", "), 200),
        ]
    });
    table(&["PROFILE", "AVAILABLE", "PROTOCOL", "NEEDS", "CAN"], rows.collect(), &[4, 3, 2], width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_says_whether_it_can_run_now_and_what_it_needs() {
        let text = render(&ostler_protocol::kernel::backends::built_in(), None);
        assert!(text.contains("\nscripted    yes"), "{text}");
        assert!(text.contains("auth.json, config.toml"), "{text}");
    }
}
