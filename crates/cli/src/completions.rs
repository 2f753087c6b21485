//! `ostler completions`, and what a shell is offered for a word: commands and flags from the command line's own
//! description, ids and names from the server and the context file. A server that does not answer at once offers nothing.

use std::{ffi::OsStr, time::Duration};

use clap::{Command, ValueEnum};
use clap_complete::{
    ArgValueCompleter, CompletionCandidate,
    env::{Bash, EnvCompleter, Fish, Powershell, Zsh},
};
use ostler_client::Client;
use ostler_protocol::{
    Failure,
    kernel::{
        backends::Backend,
        runs::ListRuns,
        sessions::{ListSessions, SessionView},
    },
    tokens::{ListTokens, ServiceToken},
    users::{ListUsers, User},
};

use crate::{
    connect::Connection,
    contexts::Contexts,
    exit_codes, output, runs,
    times::{age, now},
};

/// The variable by which a shell's script asks us for candidates.
const VARIABLE: &str = "COMPLETE";
/// Somebody waits at a prompt.
const ANSWER_WITHIN: Duration = Duration::from_millis(800);
const CANDIDATES_MAX: u32 = 50;

/// Print the script that completes commands, flags and ids in a shell
///
/// Ids come from the server that the environment or the current context names.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  echo 'source <(ostler completions bash)' >> ~/.bashrc\n  \
    echo 'source <(ostler completions zsh)' >> ~/.zshrc\n  \
    ostler completions fish > ~/.config/fish/completions/ostler.fish\n  \
    ostler completions powershell >> $PROFILE")]
pub struct Args {
    shell: Shell,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
    Powershell,
}

pub fn completions(args: &Args) -> Result<u8, Failure> {
    let shell: &dyn EnvCompleter = match args.shell {
        Shell::Bash => &Bash,
        Shell::Zsh => &Zsh,
        Shell::Fish => &Fish,
        Shell::Powershell => &Powershell,
    };
    let mut script = vec![];
    shell.write_registration(VARIABLE, "ostler", "ostler", "ostler", &mut script).map_err(Failure::internal)?;
    output::data(&String::from_utf8_lossy(&script));
    Ok(exit_codes::OK)
}

/// Answers a shell that asks for candidates, and ends; returns if none does.
pub fn answer(command: fn() -> Command) {
    clap_complete::CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

/// Runs and sessions, for an argument that takes either.
pub fn targets() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| ask(word, known_targets))
}

/// Names of contexts.
pub fn contexts(word: &OsStr) -> Vec<CompletionCandidate> {
    let names = Contexts::load().map(|all| all.contexts).unwrap_or_default().into_iter();
    let candidates = names.map(|(name, context)| CompletionCandidate::new(name).help(Some(context.server.into())));
    candidates.filter(|candidate| fits(candidate, word)).collect()
}

fn fits(candidate: &CompletionCandidate, word: &OsStr) -> bool {
    let begun = word.to_str().unwrap_or_default();
    candidate.get_value().to_str().is_some_and(|value| value.starts_with(begun))
}

fn ask(
    word: &OsStr,
    known: impl AsyncFnOnce(&Client) -> Result<Vec<CompletionCandidate>, Failure>,
) -> Vec<CompletionCandidate> {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return vec![] };
    let answer = runtime.block_on(async {
        let client = Connection::default().client()?;
        tokio::time::timeout(ANSWER_WITHIN, known(&client)).await.map_err(Failure::internal)?
    });
    answer.unwrap_or_default().into_iter().filter(|candidate| fits(candidate, word)).collect()
}

/// Service tokens.
pub fn tokens() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| {
        ask(word, async |client: &Client| {
            let query = ListTokens { limit: Some(CANDIDATES_MAX), cursor: None };
            let one = |token: ServiceToken| {
                CompletionCandidate::new(token.token_id.to_string()).help(Some(token.name.into()))
            };
            Ok(client.list_tokens(&query).await?.tokens.into_iter().map(one).collect())
        })
    })
}

/// Names of users.
pub fn users() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| {
        ask(word, async |client: &Client| {
            let query = ListUsers { limit: Some(CANDIDATES_MAX), cursor: None };
            let one = |user: User| CompletionCandidate::new(user.name).help(Some(user.tenants.join(", ").into()));
            Ok(client.list_users(&query).await?.users.into_iter().map(one).collect())
        })
    })
}

/// Backend profiles.
pub fn profiles() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| {
        ask(word, async |client: &Client| {
            let one =
                |backend: Backend| CompletionCandidate::new(backend.profile).help(Some(backend.backend_kind.into()));
            Ok(client.list_backends().await?.backends.into_iter().map(one).collect())
        })
    })
}

async fn known_targets(client: &Client) -> Result<Vec<CompletionCandidate>, Failure> {
    let runs = ListRuns { limit: Some(CANDIDATES_MAX), ..ListRuns::default() };
    let sessions = ListSessions { state: Some("all".into()), limit: Some(CANDIDATES_MAX), ..ListSessions::default() };
    let (runs, sessions) = tokio::try_join!(client.list_runs(&runs), client.list_sessions(&sessions))?;
    let session = |session: SessionView| {
        let help = format!("session, {}, {} ago", session.execution_state.as_str(), age(session.updated_at, now()));
        CompletionCandidate::new(session.session_id).help(Some(help.into()))
    };
    let run = |run: ostler_protocol::kernel::runs::Run| {
        let help = format!("run, {}, {} ago", runs::status(&run), age(run.updated_at, now()));
        CompletionCandidate::new(run.run_id.to_string()).help(Some(help.into()))
    };
    Ok(runs.runs.into_iter().map(run).chain(sessions.sessions.into_iter().map(session)).collect())
}
