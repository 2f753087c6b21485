//! `ostler run`: submits one turn and follows it to its end. The reply is streamed to stdout; the exit code is that of the
//! outcome.

pub(crate) mod answering;
mod budgets;
mod session;
pub(crate) mod turn;

use std::{
    io::{IsTerminal, Read},
    path::{Path, PathBuf},
};

use ostler_protocol::{
    Failure, FailureKind, RawJson,
    ids::AgentId,
    kernel::{
        commands::{CommandType, CreateCommand},
        provider_profiles::secret_ref,
        runs::{CreateRun, CreatedRun, SessionRef},
    },
    limits::PROMPT_BYTES_MAX,
};
use serde_json::json;

use self::turn::{Submitted, follow_turn};
use crate::{
    candidates,
    commands::{labels, trust::agents},
    connection::Connection,
    errors, exit_codes,
    terminal::output::{self, Output},
};

const PROFILE_DEFAULT: &str = "scripted";

/// Ask an agent to do something, and follow it to its end
///
/// The reply is streamed to stdout, everything else to stderr; `-o jsonl` streams every event instead, `-o json` prints the
/// whole result at the end. At a terminal it asks whenever the agent needs permission. Ctrl-C cancels the turn and waits for
/// its end; a second one exits at once. The exit code is 0 only if the turn completed.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler run \"say hello\"\n  git diff | ostler run --session review\n  \
    ostler run --file task.md --timeout 20m\n  ostler run --detach -o json \"a long task\" | jq -r .runId")]
pub(crate) struct RunArgs {
    /// The prompt; `-`, or no prompt when stdin is a pipe, reads it from stdin
    #[arg(conflicts_with = "file")]
    prompt: Option<String>,
    /// Read the prompt from this file
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The backend profile to use [default: the agent's, else scripted]
    #[arg(long, add = candidates::profiles())]
    profile: Option<String>,
    /// Run this agent, by its name, its id or the beginning of it
    #[arg(long)]
    agent: Option<String>,
    #[arg(
        long,
        help = "The tenant to run for [default: the context's, else OSTLER_TENANT, else the token's only one, else local if the token has it]"
    )]
    tenant: Option<String>,
    #[arg(long, default_value = "local/default", help = "The project the run belongs to")]
    project: String,
    #[arg(long, default_value = "local", help = "The provider to run on")]
    provider: String,
    /// Continue this session, or start it under this id. A run of it that waits for another turn takes the prompt
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Where the agent works: a directory on the server's machine, or a git URL, optionally with `#BRANCH`
    #[arg(long, value_name = "DIR|URL")]
    workspace: Option<String>,
    /// What the agent may change: read-only, workspace-write or danger-full-access [default: workspace-write, or less if the
    /// server's ceiling is lower]
    #[arg(long, value_name = "POLICY", value_parser = ["read-only", "workspace-write", "danger-full-access"], hide_possible_values = true)]
    sandbox: Option<String>,
    /// When the agent asks before it acts: untrusted, on-request or never [default: the server's ceiling]
    #[arg(long, value_name = "POLICY", value_parser = ["untrusted", "on-request", "never"], hide_possible_values = true)]
    approval: Option<String>,
    /// Submit, print the run's id, and exit
    #[arg(long)]
    detach: bool,
    /// A label of the run; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = labels::parse)]
    label: Vec<(String, String)>,
    /// Show the request that would be sent, and send nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: Output,
    // The last one: its heading in the help holds for all that follow.
    #[command(flatten)]
    budgets: budgets::BudgetArgs,
}

impl RunArgs {
    pub(crate) fn has_labels(&self) -> bool {
        !self.label.is_empty()
    }
}

pub(crate) async fn run(connection: &Connection, args: &RunArgs) -> Result<u8, Failure> {
    let prompt = prompt(args.prompt.as_deref(), args.file.as_deref())?;
    if args.workspace.as_deref().is_some_and(is_ssh) {
        return Err(errors::usage("repositories cannot be fetched over ssh", "name it as https://HOST/PATH"));
    }
    let tenant = connection.tenant(args.tenant.as_deref()).await?;
    let request = request(args, &prompt, tenant, &chosen_backend(connection, args).await?);
    if args.dry_run {
        args.output.document(&request);
        output::message("dry run; nothing was sent\n");
        return Ok(exit_codes::OK);
    }
    let client = connection.client()?;
    let (created, after_seq) = session::submit(&client, &request).await?;
    if args.detach {
        return Ok(detached(connection, &args.output, &created));
    }
    let command = created.command.as_ref().ok_or_else(no_command)?;
    let submitted = Submitted { run: &created.run, command_id: command.command_id, after_seq };
    follow_turn(connection, &client, submitted, &args.output).await
}

/// What runs the turn.
struct ChosenBackend {
    profile: String,
    agent_id: Option<AgentId>,
}

/// The profile that was named, else the agent's, else the scripted one.
async fn chosen_backend(connection: &Connection, args: &RunArgs) -> Result<ChosenBackend, Failure> {
    let agent = match &args.agent {
        Some(word) => Some(agents::find(&connection.client()?, word).await?),
        None => None,
    };
    let agent_id = agent.as_ref().map(|agent| agent.id);
    let profile = args.profile.clone().or(agent.and_then(|agent| agent.backend_profile));
    Ok(ChosenBackend { profile: profile.unwrap_or_else(|| PROFILE_DEFAULT.to_owned()), agent_id })
}

fn prompt(given: Option<&str>, file: Option<&Path>) -> Result<String, Failure> {
    let text = match (given, file) {
        (Some(text), _) if text != "-" => text.to_owned(),
        (_, Some(path)) => {
            let file = std::fs::File::open(path).map_err(|error| {
                errors::usage(
                    format!("cannot read the prompt from {}: {error}", path.display()),
                    "check the file's name",
                )
            })?;
            read_prompt(file)?
        }
        (None, None) if std::io::stdin().is_terminal() => {
            return Err(errors::usage("no prompt was given", "give a prompt: ostler run \"say hello\""));
        }
        _ => read_prompt(std::io::stdin().lock())?,
    };
    if text.trim().is_empty() {
        return Err(errors::usage("the prompt is empty", "give a prompt: ostler run \"say hello\""));
    }
    Ok(text)
}

fn read_prompt(input: impl Read) -> Result<String, Failure> {
    let mut bytes = vec![];
    let read = input.take(PROMPT_BYTES_MAX as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| errors::usage(format!("cannot read the prompt: {error}"), "give it as an argument"))?;
    if bytes.len() > PROMPT_BYTES_MAX {
        let message = format!("the prompt is over {PROMPT_BYTES_MAX} bytes");
        return Err(Failure::new(FailureKind::PayloadTooLarge, message));
    }
    String::from_utf8(bytes).map_err(|_| errors::usage("the prompt is not UTF-8", "send text"))
}

fn request(args: &RunArgs, prompt: &str, tenant: Option<String>, backend: &ChosenBackend) -> CreateRun {
    CreateRun {
        tenant_id: tenant,
        project_id: Some(args.project.clone()),
        workspace_ref: Some(RawJson::of(&workspace(args.workspace.as_deref()))),
        provider_id: Some(args.provider.clone()),
        backend_profile: Some(backend.profile.clone()),
        agent_id: backend.agent_id,
        execution_policy: policy(args, &backend.profile),
        trace_sink: Some(RawJson::null()),
        labels: labels::of_new(&args.label),
        session_ref: args.session.clone().map(|session_id| SessionRef { session_id }),
        command: Some(CreateCommand {
            command_type: CommandType::Turn,
            payload: RawJson::of(&payload(args, prompt)),
            idempotency_key: None,
        }),
        ..CreateRun::default()
    }
}

fn payload(args: &RunArgs, prompt: &str) -> serde_json::Value {
    match args.budgets.of_turn() {
        none if none.is_empty() => json!({"prompt": prompt}),
        budgets => json!({"prompt": prompt, "budgets": budgets}),
    }
}

/// Whether this is an ssh address of a repository, such as `git@host:path`.
fn is_ssh(place: &str) -> bool {
    let (host, path) = place.split_once(':').unwrap_or_default();
    place.starts_with("ssh://") || (host.contains('@') && !host.contains('/') && !path.is_empty())
}

fn workspace(place: Option<&str>) -> serde_json::Value {
    match place {
        None => json!({"kind": "none"}),
        Some(url) if url.contains("://") => match url.split_once('#') {
            Some((url, name)) => json!({"kind": "git", "repoUrl": url, "ref": name}),
            None => json!({"kind": "git", "repoUrl": url}),
        },
        // If the server is on another machine, it reports that the directory does not exist there.
        Some(directory) => {
            let whole = std::path::absolute(directory).unwrap_or_else(|_| directory.into());
            json!({"kind": "local", "path": whole})
        }
    }
}

/// The timeout, sandbox and approval, and the name of the profile's credential, which only the scripted backend lacks.
fn policy(args: &RunArgs, profile: &str) -> Option<RawJson> {
    let mut policy = serde_json::Map::new();
    if let Some(ms) = args.budgets.timeout_ms() {
        policy.insert("timeoutMs".into(), ms.into());
    }
    for (name, value) in [("sandbox", &args.sandbox), ("approval", &args.approval)] {
        if let Some(value) = value {
            policy.insert(name.into(), value.as_str().into());
        }
    }
    if profile != PROFILE_DEFAULT {
        let credential = json!({"profile": profile, "secretRef": secret_ref(profile)});
        policy.insert("secretScope".into(), json!({"providerCredentials": [credential]}));
    }
    (!policy.is_empty()).then(|| RawJson::of(&policy))
}

pub(crate) fn no_command() -> Failure {
    let message = "the server made a run without its first command";
    let hint = "client and server may be of different versions; compare `ostler --version`";
    errors::hinted(FailureKind::Internal, message, hint)
}

/// Prints the id of a run that is not followed.
pub(crate) fn detached(connection: &Connection, output: &Output, created: &CreatedRun) -> u8 {
    output.one(created, || format!("{}\n", created.run.run_id));
    output::message(&format!("submitted; follow it: {} trace -f {}\n", connection.invocation(), created.run.run_id));
    exit_codes::OK
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct TestCommandLine {
        #[command(flatten)]
        args: RunArgs,
    }

    fn args(words: &[&str]) -> RunArgs {
        TestCommandLine::parse_from(std::iter::once("run").chain(words.iter().copied())).args
    }

    fn body_of(args: &RunArgs, prompt: &str, tenant: &str) -> serde_json::Value {
        let profile = args.profile.clone().unwrap_or_else(|| PROFILE_DEFAULT.to_owned());
        let backend = ChosenBackend { profile, agent_id: None };
        serde_json::to_value(request(args, prompt, Some(tenant.into()), &backend)).unwrap()
    }

    #[test]
    fn an_ssh_address_is_recognized() {
        assert!(is_ssh("git@github.com:a/b.git") && is_ssh("ssh://git@host/a"));
        for place in ["https://host/a.git", "file:///srv/a", "./a", "a:b", "dir@2/x:y", "."] {
            assert!(!is_ssh(place), "{place}");
        }
    }

    #[test]
    fn a_prompt_becomes_a_complete_request() {
        let body = body_of(&args(&["hello"]), "hello", "local");
        assert_eq!(
            body,
            json!({"tenantId": "local", "projectId": "local/default", "workspaceRef": {"kind": "none"},
                "providerId": "local", "backendProfile": "scripted", "traceSink": null,
                "command": {"type": "turn", "payload": {"prompt": "hello"}}})
        );
    }

    #[test]
    fn flags_are_part_of_the_request() {
        let args = args(&["x", "--session", "s", "--timeout", "65s", "--profile", "model"]);
        let body = body_of(&args, "x", "hwlab");
        assert_eq!(body["sessionRef"], json!({"sessionId": "s"}));
        assert_eq!(
            body["executionPolicy"],
            json!({"timeoutMs": 65_000, "secretScope": {"providerCredentials": [{"profile": "model",
                "secretRef": {"name": "agentrun-v01-provider-model", "keys": ["auth.json", "config.toml"]}}]}})
        );
        assert_eq!((&body["backendProfile"], &body["tenantId"]), (&json!("model"), &json!("hwlab")));
    }

    #[test]
    fn a_workspace_is_a_directory_or_a_repository() {
        let request_of = |words: &[&str]| body_of(&args(words), "x", "local");
        let body = request_of(&["x", "--workspace", "/srv/app", "--sandbox", "read-only", "--approval", "on-request"]);
        assert_eq!(body["workspaceRef"], json!({"kind": "local", "path": "/srv/app"}));
        assert_eq!(body["executionPolicy"], json!({"sandbox": "read-only", "approval": "on-request"}));
        let body = request_of(&["x", "--workspace", "https://git.example/app.git#main"]);
        assert_eq!(
            body["workspaceRef"],
            json!({"kind": "git", "repoUrl": "https://git.example/app.git", "ref": "main"})
        );
    }

    #[test]
    fn a_prompt_is_read_up_to_its_limit() {
        assert_eq!(read_prompt(&b"hello"[..]).unwrap(), "hello");
        let most = vec![b'x'; PROMPT_BYTES_MAX];
        assert_eq!(read_prompt(&most[..]).unwrap().len(), PROMPT_BYTES_MAX);
        let more = vec![b'x'; PROMPT_BYTES_MAX + 1];
        assert_eq!(read_prompt(&more[..]).unwrap_err().kind, FailureKind::PayloadTooLarge);
        assert_eq!(read_prompt(&b"\xff"[..]).unwrap_err().kind, FailureKind::SchemaInvalid);
    }
}
