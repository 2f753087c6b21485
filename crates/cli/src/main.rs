//! The binary `ostler`. Parses the command line, runs one command, and turns the result into an exit code. No command
//! prints an error itself: every failure is printed here, in one format.

#![warn(clippy::allow_attributes, clippy::expect_used, clippy::print_stdout, unreachable_pub)]

mod candidates;
mod commands;
mod connection;
mod context_file;
mod environment;
mod errors;
mod exit_codes;
mod follow;
mod foreign_words;
mod log;
mod preflight;
mod runner_variables;
mod targets;
mod terminal;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand};
use ostler_protocol::FailureKind;

use crate::{
    commands::CliCommand,
    connection::Connection,
    terminal::{output, paint::Paint},
};

/// Runs agents durably, and lets you watch, steer, answer and stop them.
#[derive(Parser)]
#[command(name = "ostler", version = env!("OSTLER_VERSION"), after_help = exit_codes::after_help(), max_term_width = 120)]
struct Cli {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: CliCommand,
}

/// The server makes many small allocations: in a profile of trivial runs the system allocator took about 18 %.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    commands::completions::complete(Cli::command);
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Help and the version were requested, so they go to stdout.
        Err(error) if !error.use_stderr() || error.kind() == DisplayHelpOnMissingArgumentOrSubcommand => error.exit(),
        Err(error) => {
            let words: Vec<_> = std::env::args().skip(1).collect();
            output::message(&errors::of_parser(&error, &words, &usage(&words), Paint::stderr()));
            return ExitCode::from(FailureKind::SchemaInvalid.row().exit_code);
        }
    };
    let outcome = cli.command.protect().and_then(|()| {
        let runtime = cli.command.runtime()?;
        runtime.block_on(cli.command.execute(&cli.connection, Cli::command))
    });
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            let failure = cli.connection.explain(failure);
            output::message(&errors::render_with_causes(&failure, Paint::stderr(), cli.connection.is_verbose()));
            let server = cli.connection.settings().map(|settings| settings.server.value);
            if let Some(line) = server.ok().and_then(|server| errors::guide_line(&failure, &server)) {
                output::message(&line);
            }
            ExitCode::from(exit_codes::of_failure(&failure))
        }
    }
}

/// The usage line of the command that these words name.
fn usage(words: &[String]) -> String {
    let mut command = Cli::command();
    command.build();
    let named = words.iter().fold(&command, |named, word| named.find_subcommand(word).unwrap_or(named));
    named.clone().render_usage().to_string()
}

#[cfg(test)]
mod tests;
