//! The binary `ostler`. Parses the command line, hands over to one file per verb, and turns what comes back into an
//! exit code. No verb prints an error itself: every failure ends here, in one shape.

mod cancel;
mod connect;
mod errors;
mod events;
mod exit_codes;
mod follow;
mod live;
mod output;
mod permissions;
mod ps;
mod result;
mod run;
mod serve;
mod steer;
mod tokens;
mod trace;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ostler_protocol::Failure;

use crate::connect::Connection;

/// Runs agents durably, and lets you watch, steer, answer and stop them.
#[derive(Parser)]
#[command(name = "ostler", version, after_help = exit_codes::after_help(), max_term_width = 120)]
struct Cli {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Serve(serve::Args),
    Run(run::Args),
    Ps(ps::Args),
    Result(result::Args),
    Trace(trace::Args),
    Cancel(cancel::Args),
    Steer(steer::Args),
    Approve(permissions::ApproveArgs),
    Deny(permissions::DenyArgs),
    Token(tokens::Args),
    Verify(verify::Args),
}

/// The server allocates much and in small pieces: a flat profile of trivial runs showed the system's allocator at about 18 %.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match runtime(&cli.verb).block_on(dispatch(&cli)) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            output::words(&errors::render(&failure, output::Paint::stderr()));
            ExitCode::from(failure.kind.row().exit_code)
        }
    }
}

/// The server gets a thread per core; a client that mostly waits starts faster with one.
fn runtime(verb: &Verb) -> tokio::runtime::Runtime {
    let mut builder = match verb {
        Verb::Serve(_) | Verb::Verify(_) => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    builder.enable_all().build().expect("the system gives us threads and a poller")
}

async fn dispatch(cli: &Cli) -> Result<u8, Failure> {
    let connection = &cli.connection;
    match &cli.verb {
        Verb::Serve(args) => serve::serve(connection, args).await,
        Verb::Run(args) => run::run(connection, args).await,
        Verb::Ps(args) => ps::ps(connection, args).await,
        Verb::Result(args) => result::result(connection, args).await,
        Verb::Trace(args) => trace::trace(connection, args).await,
        Verb::Cancel(args) => cancel::cancel(connection, args).await,
        Verb::Steer(args) => steer::steer(connection, args).await,
        Verb::Approve(args) => permissions::approve(connection, args).await,
        Verb::Deny(args) => permissions::deny(connection, args).await,
        Verb::Token(args) => tokens::token(connection, args).await,
        Verb::Verify(args) => verify::verify(connection, args).await,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_verb_shows_an_example() {
        for verb in Cli::command().get_subcommands_mut() {
            let help = verb.render_long_help().to_string();
            assert!(help.contains("Examples:\n  "), "{} has no example", verb.get_name());
        }
    }
}
