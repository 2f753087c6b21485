//! The commands of `ostler`, one file per verb or noun; the nouns of a dialect are in a folder of that dialect.
//! `docs/cli.md` explains which commands are verbs and which are nouns.

mod api;
mod apply;
mod approve;
mod backends;
mod backup;
mod can_i;
mod cancel;
pub(crate) mod completions;
mod config;
mod contexts;
mod daemon;
mod deny;
mod diff;
mod doctor;
mod explain;
mod guard;
mod inbox;
mod job_log;
mod jobs;
mod labels;
mod list;
mod man;
mod mesh;
mod migrate;
mod outcome_text;
mod output;
mod permissions;
mod profile_files;
mod profile_table;
mod profiles;
mod ps;
mod read;
mod restore;
mod result;
mod retention;
mod retry;
mod run;
mod run_input;
mod runner;
mod runs;
pub(crate) mod serve;
mod session_table;
mod sessions;
mod steer;
mod tokens;
mod tools;
mod trace;
mod trust;
mod usage;
mod users;
mod verify;
mod wait;
mod waiting_requests;
mod whoami;

use clap::Subcommand;
use ostler_protocol::Failure;
use tokio::runtime::{Builder, Runtime};

use crate::{
    commands::{
        daemon::{attach, mcp, server as daemon_server},
        mesh::{identities, pki},
        run_input::{automations, calendar},
        trust::{agents, consent, webhooks},
    },
    connection::Connection,
    environment, errors, preflight,
};

/// Runs have a state for people, which is printed wherever a run is.
const RUN_STATES: &str = "ostler_run_states";
/// The server describes the caller, with the tenant of new work.
const CALLER: &str = "ostler_caller";
/// The server lists every action that depends on the caller.
const ACTIONS: &str = "ostler_caller_actions";

/// Verbs for runs and sessions, then a noun with verbs for everything else.
#[derive(Subcommand)]
pub(crate) enum CliCommand {
    Run(run::RunArgs),
    Ps(ps::PsArgs),
    Inbox(inbox::InboxListArgs),
    Result(result::ResultArgs),
    Wait(wait::WaitArgs),
    Retry(retry::RetryArgs),
    Trace(trace::TraceArgs),
    Diff(diff::DiffArgs),
    Output(output::OutputArgs),
    Read(read::ReadArgs),
    Steer(steer::SteerArgs),
    Attach(attach::AttachArgs),
    Approve(approve::ApproveArgs),
    Deny(deny::DenyArgs),
    Cancel(cancel::CancelArgs),
    Runs(runs::RunsArgs),
    Sessions(sessions::SessionsArgs),
    Usage(usage::UsageArgs),
    Jobs(jobs::JobsArgs),
    Automations(automations::AutomationsArgs),
    Calendar(calendar::CalendarArgs),
    Agents(agents::AgentsArgs),
    Backends(backends::BackendsArgs),
    Mcp(mcp::McpArgs),
    Tools(tools::ToolsArgs),
    Profiles(profiles::ProfilesArgs),
    #[command(alias = "context")]
    Contexts(contexts::ContextsArgs),
    Whoami(whoami::WhoamiArgs),
    CanI(can_i::CanIArgs),
    Apply(apply::ApplyArgs),
    Explain(explain::ExplainArgs),
    Config(config::ConfigArgs),
    Api(api::ApiArgs),
    #[command(alias = "token")]
    Tokens(tokens::TokensArgs),
    Users(users::UsersArgs),
    Retention(retention::RetentionArgs),
    Consent(consent::ConsentArgs),
    Identities(identities::IdentitiesArgs),
    Pki(pki::PkiArgs),
    Webhooks(webhooks::WebhooksArgs),
    Mesh(mesh::MeshArgs),
    Serve(serve::ServeArgs),
    Daemon(daemon_server::DaemonArgs),
    Runner(runner::RunnerArgs),
    #[command(hide = true)]
    Guard(guard::GuardArgs),
    Doctor(doctor::DoctorArgs),
    Verify(verify::VerifyArgs),
    Migrate(migrate::MigrateArgs),
    Backup(backup::BackupArgs),
    Restore(restore::RestoreArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
}

/// The commands that programs start rather than people: services, launchers and guards.
#[derive(Subcommand)]
pub(crate) enum StartedCommand {
    Serve(Box<serve::ServeArgs>),
    Runner(Box<runner::RunnerArgs>),
    Guard(guard::GuardArgs),
}

impl StartedCommand {
    pub(crate) const NAMES: [&str; 3] = ["serve", "runner", "guard"];
}

impl From<StartedCommand> for CliCommand {
    fn from(started: StartedCommand) -> Self {
        match started {
            StartedCommand::Serve(args) => Self::Serve(*args),
            StartedCommand::Runner(args) => Self::Runner(*args),
            StartedCommand::Guard(args) => Self::Guard(args),
        }
    }
}

impl CliCommand {
    /// Protects the secrets of this process from the programs it will start. Called before anything else.
    pub(crate) fn protect(&self) -> Result<(), Failure> {
        match self {
            Self::Serve(_) | Self::Daemon(_) | Self::Runner(_) => environment::protect(),
            Self::Guard(_) => guard::protect(),
            _ => Ok(()),
        }
    }

    /// One thread per core for the server; a client, which mostly waits, starts faster with one thread.
    pub(crate) fn runtime(&self) -> Result<Runtime, Failure> {
        let mut builder = match self {
            Self::Serve(_) | Self::Daemon(_) => Builder::new_multi_thread(),
            Self::Verify(_) | Self::Migrate(_) | Self::Backup(_) | Self::Restore(_) => Builder::new_multi_thread(),
            _ => Builder::new_current_thread(),
        };
        builder.enable_all().build().map_err(Failure::internal)
    }

    /// The capabilities that this command requires of the server. `None` if it talks to no server, or to any version of
    /// one.
    fn required_capabilities(&self) -> Option<&'static [&'static str]> {
        Some(match self {
            Self::Serve(_) | Self::Daemon(_) | Self::Verify(_) | Self::Contexts(_) | Self::Config(_) => return None,
            Self::Completions(_) | Self::Man(_) => return None,
            Self::Migrate(_) | Self::Backup(_) | Self::Restore(_) => return None,
            // The mesh negotiates a version of its own at the start of a session.
            Self::Mesh(_) => return None,
            Self::Api(_) | Self::Doctor(_) | Self::Guard(_) => return None,
            // A server without a workspace lacks the capability, and explains it.
            Self::Mcp(_) => return None,
            // The keys of the authorities are on this machine.
            Self::Pki(args) if !args.is_remote() => return None,
            // It checks the server itself, because its environment may name another one.
            Self::Runner(_) => return None,
            Self::Run(args) if args.has_labels() => &[
                CALLER,
                "ostler_runs",
                "ostler_commands",
                "ostler_run_events",
                "ostler_results",
                RUN_STATES,
                "ostler_labels",
            ],
            Self::Run(_) => {
                &[CALLER, "ostler_runs", "ostler_commands", "ostler_run_events", "ostler_results", RUN_STATES]
            }
            Self::Sessions(args) if args.needs_labels() => &["ostler_sessions", RUN_STATES, "ostler_labels"],
            Self::Ps(_) | Self::Output(_) | Self::Read(_) | Self::Sessions(_) => &["ostler_sessions", RUN_STATES],
            Self::Trace(_) => &["ostler_run_events", "ostler_session_events", RUN_STATES],
            Self::Result(_) => &["ostler_results", RUN_STATES],
            Self::Wait(_) => &["ostler_runs", RUN_STATES],
            Self::Retry(_) => &["ostler_runs", "ostler_commands", "ostler_run_events", "ostler_results", RUN_STATES],
            Self::Inbox(_) => &["ostler_sessions", "ostler_permissions", RUN_STATES],
            Self::Whoami(_) => &[CALLER],
            Self::CanI(_) => &[ACTIONS],
            Self::Apply(_) => &[ACTIONS, "ostler_provider_profiles", "ostler_agents"],
            Self::Explain(_) => return None,
            Self::Diff(_) => &["ostler_results", "ostler_diffs", RUN_STATES],
            Self::Runs(args) if args.needs_labels() => &["ostler_runs", RUN_STATES, "ostler_labels"],
            Self::Usage(_) => &["ostler_usage"],
            Self::Runs(_) => &["ostler_runs", RUN_STATES],
            Self::Cancel(_) | Self::Steer(_) => &["ostler_runs", "ostler_commands", RUN_STATES],
            Self::Attach(_) => {
                &["session_create", "session_load", "session_prompt", "session_cancel", "session_events"]
            }
            Self::Approve(_) | Self::Deny(_) => &["ostler_permissions", RUN_STATES],
            Self::Jobs(_) => &["ostler_runner_jobs"],
            Self::Automations(_) => &["ostler_automations"],
            Self::Calendar(_) => &["ostler_calendar"],
            Self::Agents(args) if args.is_offline() => return None,
            Self::Agents(_) => &["ostler_agents"],
            Self::Backends(_) => &["ostler_backends"],
            Self::Tools(_) => &["ostler_tools"],
            Self::Profiles(_) => &[CALLER, "ostler_provider_profiles"],
            Self::Retention(args) if args.is_offline() => return None,
            Self::Retention(_) => &["ostler_retention"],
            Self::Tokens(_) => &["ostler_service_tokens"],
            Self::Users(args) if args.is_change() => &["ostler_users", "ostler_user_changes"],
            Self::Users(_) => &["ostler_users"],
            Self::Consent(args) if args.is_offline() => return None,
            Self::Consent(_) => &["ostler_agents", "ostler_consent"],
            Self::Identities(_) | Self::Pki(_) => &["ostler_identities"],
            Self::Webhooks(_) => &["ostler_webhooks"],
        })
    }

    /// The name of a command that works on the data of this machine, and what its flags are for. Such a command talks to no
    /// server.
    fn local(&self) -> Option<(&'static str, &'static str)> {
        const STORE: &str = "`--data-dir` and `--database-url` name the data that it works on";
        const LISTEN: &str = "`--listen` sets the address that the server listens on";
        Some(match self {
            Self::Serve(_) => ("serve", LISTEN),
            Self::Daemon(_) => ("daemon", LISTEN),
            Self::Verify(_) => ("verify", STORE),
            Self::Migrate(_) => ("migrate", STORE),
            Self::Backup(_) => ("backup", STORE),
            Self::Restore(_) => ("restore", STORE),
            Self::Retention(args) if args.is_offline() => ("retention compact", STORE),
            _ => return None,
        })
    }

    /// Runs the command and returns its exit code. `command_line` is the definition of the whole command line.
    pub(crate) async fn execute(
        &self,
        connection: &Connection,
        command_line: fn() -> clap::Command,
    ) -> Result<u8, Failure> {
        if let (Some((name, hint)), Some(flag)) = (self.local(), connection.remote_flag()) {
            return Err(errors::usage(format!("`ostler {name}` works on this machine and takes no {flag}"), hint));
        }
        if let Some(required) = self.required_capabilities() {
            preflight::preflight(&connection.client()?, required).await?;
        }
        match self {
            Self::Run(args) => run::run(connection, args).await,
            Self::Ps(args) => ps::ps(connection, args).await,
            Self::Inbox(args) => inbox::inbox(connection, args).await,
            Self::Result(args) => result::result(connection, args).await,
            Self::Wait(args) => wait::wait(connection, args).await,
            Self::Retry(args) => retry::retry(connection, args).await,
            Self::Whoami(args) => whoami::whoami(connection, args).await,
            Self::CanI(args) => can_i::can_i(connection, args).await,
            Self::Apply(args) => apply::apply(connection, args).await,
            Self::Explain(args) => explain::explain(args),
            Self::Trace(args) => trace::trace(connection, args).await,
            Self::Diff(args) => diff::diff(connection, args).await,
            Self::Output(args) => output::output(connection, args).await,
            Self::Read(args) => read::read(connection, args).await,
            Self::Steer(args) => steer::steer(connection, args).await,
            Self::Attach(args) => attach::attach(connection, args).await,
            Self::Approve(args) => approve::approve(connection, args).await,
            Self::Deny(args) => deny::deny(connection, args).await,
            Self::Cancel(args) => cancel::cancel(connection, args).await,
            Self::Runs(args) => runs::runs(connection, args).await,
            Self::Sessions(args) => sessions::sessions(connection, args).await,
            Self::Usage(args) => usage::usage(connection, args).await,
            Self::Jobs(args) => jobs::jobs(connection, args).await,
            Self::Automations(args) => automations::automations(connection, args).await,
            Self::Calendar(args) => calendar::calendar(connection, args).await,
            Self::Agents(args) => agents::agents(connection, args).await,
            Self::Backends(args) => backends::backends(connection, args).await,
            Self::Mcp(args) => mcp::mcp(connection, args).await,
            Self::Tools(args) => tools::tools(connection, args).await,
            Self::Profiles(args) => profiles::profiles(connection, args).await,
            Self::Contexts(args) => contexts::contexts(connection, args),
            Self::Config(args) => config::config(connection, args),
            Self::Api(args) => api::api(connection, args).await,
            Self::Tokens(args) => tokens::tokens(connection, args).await,
            Self::Retention(args) => retention::retention(connection, args).await,
            Self::Users(args) => users::users(connection, args).await,
            Self::Consent(args) => consent::consent(connection, args).await,
            Self::Identities(args) => identities::identities(connection, args).await,
            Self::Pki(args) => pki::pki(connection, args).await,
            Self::Webhooks(args) => webhooks::webhooks(connection, args).await,
            Self::Mesh(args) => mesh::mesh(connection, args).await,
            Self::Serve(args) => serve::serve(connection, args).await,
            Self::Daemon(args) => daemon_server::daemon(connection, args).await,
            Self::Runner(args) => runner::runner(connection, args).await,
            Self::Guard(args) => guard::guard(args).await,
            Self::Doctor(args) => doctor::doctor(connection, args).await,
            Self::Verify(args) => verify::verify(connection, args).await,
            Self::Migrate(args) => migrate::migrate(connection, args).await,
            Self::Backup(args) => backup::backup(connection, args).await,
            Self::Restore(args) => restore::restore(connection, args).await,
            Self::Completions(args) => completions::completions(args),
            Self::Man(args) => man::man(args, command_line),
        }
    }
}
