//! The binary `ostler`. Parses the command line, runs one command, and turns the result into an exit code. No command
//! prints an error itself: every failure is printed here, in one format.

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
mod parser_errors;
mod preflight;
#[cfg(target_os = "linux")]
mod program_pages;
mod runner_variables;
mod suggestions;
mod targets;
mod terminal;

use std::{ffi::OsString, pin::Pin, process::ExitCode};

use clap::{
    CommandFactory, FromArgMatches, Parser,
    error::ErrorKind::{DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion},
};
use ostler_protocol::{Failure, FailureKind};

use crate::{
    commands::{CliCommand, StartedCommand},
    connection::Connection,
    terminal::{output, output_flags, paint::Paint},
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

/// The part of the command line that programs start, and often: defining all of it takes milliseconds and a megabyte.
#[derive(Parser)]
#[command(name = "ostler", version = env!("OSTLER_VERSION"))]
struct StartedCli {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: StartedCommand,
}

/// Reads the command line. What its short definition does not accept is read, or rejected, by the whole one.
fn parse() -> Result<Cli, clap::Error> {
    let first = std::env::args_os().nth(1).unwrap_or_default();
    if first != "--version" && !StartedCommand::NAMES.iter().any(|name| first == *name) {
        return parse_whole(std::env::args_os());
    }
    match StartedCli::try_parse() {
        Ok(StartedCli { connection, command }) => Ok(Cli { connection, command: command.into() }),
        Err(version) if version.kind() == DisplayVersion => Err(version),
        Err(_) => parse_whole(std::env::args_os()),
    }
}

/// Reads the command line by its whole definition, and checks what the definition of single flags cannot express.
fn parse_whole<T: Into<OsString> + Clone>(words: impl IntoIterator<Item = T>) -> Result<Cli, clap::Error> {
    let matches = Cli::command().try_get_matches_from(words)?;
    output_flags::check_filter(&matches)?;
    Cli::from_arg_matches(&matches)
}

/// The server makes many small allocations: in a profile of trivial runs the system allocator took about 18 %.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    commands::completions::complete(Cli::command);
    let cli = match parse() {
        Ok(cli) => cli,
        // Help and the version were requested, so they go to stdout.
        Err(error) if !error.use_stderr() || error.kind() == DisplayHelpOnMissingArgumentOrSubcommand => error.exit(),
        Err(error) => {
            let words: Vec<_> = std::env::args().skip(1).collect();
            output::message(&parser_errors::of_parser(error, &words, named_command(&words), Paint::stderr()));
            return ExitCode::from(FailureKind::SchemaInvalid.row().exit_code);
        }
    };
    let outcome = cli.command.protect().and_then(|()| {
        let runtime = cli.command.runtime()?;
        // Boxed, because the runtime's code for a future is compiled several times, and this one contains every command.
        let command: Pin<Box<dyn Future<Output = Result<u8, Failure>> + '_>> =
            Box::pin(cli.command.execute(&cli.connection, Cli::command));
        runtime.block_on(command)
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

/// The command that these words name.
fn named_command(words: &[String]) -> clap::Command {
    let mut command = Cli::command();
    command.build();
    words.iter().fold(&command, |named, word| named.find_subcommand(word).unwrap_or(named)).clone()
}

#[cfg(test)]
mod tests;
