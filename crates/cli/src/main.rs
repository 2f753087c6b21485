//! The binary `ostler`. Parses the command line, hands over to one file per verb or noun, and turns what comes back into
//! an exit code. No verb prints an error itself: every failure ends here, in one shape.

mod agents;
mod api;
mod backends;
mod cancel;
mod completions;
mod config;
mod confirm;
mod connect;
mod consent;
mod contexts;
mod diff;
mod doctor;
mod environment;
mod errors;
mod events;
mod exit_codes;
mod follow;
mod guard;
mod jobs;
mod live;
mod log;
mod mesh;
mod output;
mod paint;
mod permissions;
mod pki;
mod preflight;
mod profiles;
mod ps;
mod repaint;
mod result;
mod run;
mod runner;
mod runs;
mod screen;
mod secret_input;
mod serve;
mod sessions;
mod steer;
mod table;
mod targets;
mod times;
mod tokens;
mod trace;
mod users;
mod verify;
mod webhooks;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand, error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand};
use ostler_protocol::{Failure, FailureKind};

use crate::{connect::Connection, paint::Paint};

/// Runs agents durably, and lets you watch, steer, answer and stop them.
#[derive(Parser)]
#[command(name = "ostler", version, after_help = exit_codes::after_help(), max_term_width = 120)]
struct Cli {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    verb: Verb,
}

/// Verbs for runs and sessions, then a noun with verbs for everything else. `docs/cli.md` says why.
#[derive(Subcommand)]
enum Verb {
    Run(run::Args),
    Ps(ps::Args),
    Result(result::Args),
    Trace(trace::Args),
    Diff(diff::Args),
    Output(sessions::OutputArgs),
    Read(sessions::ReadArgs),
    Steer(steer::Args),
    Approve(permissions::ApproveArgs),
    Deny(permissions::DenyArgs),
    Cancel(cancel::Args),
    Runs(runs::Args),
    Sessions(sessions::Args),
    Jobs(jobs::Args),
    Agents(agents::Args),
    Backends(backends::Args),
    Profiles(profiles::Args),
    Context(contexts::Args),
    Config(config::Args),
    Api(api::Args),
    Token(tokens::Args),
    Users(users::Args),
    Consent(consent::Args),
    Pki(pki::Args),
    Webhooks(webhooks::Args),
    Mesh(mesh::Args),
    Serve(serve::Args),
    Runner(runner::Args),
    #[command(hide = true)]
    Guard(guard::Args),
    Doctor(doctor::Args),
    Verify(verify::Args),
    Completions(completions::Args),
}

/// The server allocates much and in small pieces: a flat profile of trivial runs showed the system's allocator at about 18 %.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    completions::answer(Cli::command);
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Help and the version are asked for, and go to stdout.
        Err(error) if !error.use_stderr() || error.kind() == DisplayHelpOnMissingArgumentOrSubcommand => error.exit(),
        Err(error) => {
            output::words(&errors::of_parser(&error, Paint::stderr()));
            return ExitCode::from(FailureKind::SchemaInvalid.row().exit_code);
        }
    };
    let done = protect(&cli.verb).and_then(|()| runtime(&cli.verb).block_on(dispatch(&cli)));
    match done {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            output::words(&errors::render(&failure, Paint::stderr()));
            ExitCode::from(exit_codes::of_failure(&failure))
        }
    }
}

/// Protects what a process holds from the programs that it starts, before it does anything else.
fn protect(verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::Serve(_) | Verb::Runner(_) => environment::protect(),
        Verb::Guard(_) => guard::protect(),
        _ => Ok(()),
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

impl Verb {
    /// The capabilities of a server that this verb cannot do without. `None`: it does not talk to one, or to whatever is
    /// there.
    fn needs(&self) -> Option<&'static [&'static str]> {
        Some(match self {
            Self::Serve(_) | Self::Verify(_) | Self::Context(_) | Self::Config(_) | Self::Completions(_) => {
                return None;
            }
            // The mesh has a version of its own, which a session begins with.
            Self::Mesh(_) => return None,
            Self::Api(_) | Self::Doctor(_) | Self::Guard(_) => return None,
            // The mesh's keys lie on this machine.
            Self::Pki(args) if !args.is_remote() => return None,
            // Its launcher is of the same build, and started it from its own program.
            Self::Runner(args) if args.is_launched() => return None,
            Self::Runner(_) => &["ostler_runners"],
            Self::Run(_) => &["ostler_runs", "ostler_commands", "ostler_run_events", "ostler_results"],
            Self::Ps(_) | Self::Output(_) | Self::Read(_) | Self::Sessions(_) => &["ostler_sessions"],
            Self::Trace(_) => &["ostler_run_events", "ostler_session_events"],
            Self::Result(_) => &["ostler_results"],
            Self::Diff(_) => &["ostler_results", "ostler_diffs"],
            Self::Runs(_) => &["ostler_runs"],
            Self::Cancel(_) | Self::Steer(_) => &["ostler_runs", "ostler_commands"],
            Self::Approve(_) | Self::Deny(_) => &["ostler_permissions"],
            Self::Jobs(_) => &["ostler_runner_jobs"],
            Self::Agents(_) => &["ostler_agents"],
            Self::Backends(_) => &["ostler_backends"],
            Self::Profiles(_) => &["ostler_provider_profiles"],
            Self::Token(_) => &["ostler_service_tokens"],
            Self::Users(args) if args.is_change() => &["ostler_users", "ostler_user_changes"],
            Self::Users(_) => &["ostler_users"],
            Self::Consent(args) if args.is_offline() => return None,
            Self::Consent(_) => &["ostler_agents", "ostler_consent"],
            Self::Pki(_) => &["ostler_identities"],
            Self::Webhooks(_) => &["ostler_webhooks"],
        })
    }
}

async fn dispatch(cli: &Cli) -> Result<u8, Failure> {
    let connection = &cli.connection;
    if let Some(needs) = cli.verb.needs() {
        preflight::preflight(&connection.client()?, needs).await?;
    }
    match &cli.verb {
        Verb::Run(args) => run::run(connection, args).await,
        Verb::Ps(args) => ps::ps(connection, args).await,
        Verb::Result(args) => result::result(connection, args).await,
        Verb::Trace(args) => trace::trace(connection, args).await,
        Verb::Diff(args) => diff::diff(connection, args).await,
        Verb::Output(args) => sessions::output(connection, args).await,
        Verb::Read(args) => sessions::read(connection, args).await,
        Verb::Steer(args) => steer::steer(connection, args).await,
        Verb::Approve(args) => permissions::approve(connection, args).await,
        Verb::Deny(args) => permissions::deny(connection, args).await,
        Verb::Cancel(args) => cancel::cancel(connection, args).await,
        Verb::Runs(args) => runs::runs(connection, args).await,
        Verb::Sessions(args) => sessions::sessions(connection, args).await,
        Verb::Jobs(args) => jobs::jobs(connection, args).await,
        Verb::Agents(args) => agents::agents(connection, args).await,
        Verb::Backends(args) => backends::backends(connection, args).await,
        Verb::Profiles(args) => profiles::profiles(connection, args).await,
        Verb::Context(args) => contexts::context(connection, args),
        Verb::Config(args) => config::config(connection, args),
        Verb::Api(args) => api::api(connection, args).await,
        Verb::Token(args) => tokens::token(connection, args).await,
        Verb::Users(args) => users::users(connection, args).await,
        Verb::Consent(args) => consent::consent(connection, args).await,
        Verb::Pki(args) => pki::pki(connection, args).await,
        Verb::Webhooks(args) => webhooks::webhooks(connection, args).await,
        Verb::Mesh(args) => mesh::mesh(connection, args).await,
        Verb::Serve(args) => serve::serve(connection, args).await,
        Verb::Runner(args) => runner::runner(connection, args).await,
        Verb::Guard(args) => guard::guard(args).await,
        Verb::Doctor(args) => doctor::doctor(connection, args).await,
        Verb::Verify(args) => verify::verify(connection, args).await,
        Verb::Completions(args) => completions::completions(args),
    }
}

#[cfg(test)]
mod tests;
