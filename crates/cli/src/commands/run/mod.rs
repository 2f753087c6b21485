//! `ostler run`: submits one turn and follows it to its end. The reply is streamed to stdout; the exit code is that of the
//! outcome.

mod budgets;
mod session;

use std::{
    io::{IsTerminal, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use ostler_client::{Client, is_transient};
use ostler_protocol::{
    Failure, FailureKind, RawJson,
    ids::{CommandId, RunId},
    kernel::{
        commands::{CommandType, CreateCommand},
        liveness::Phase,
        provider_profiles::secret_ref,
        results::RunResult,
        runs::{Cancel, CreateRun, CreatedRun, SessionRef},
    },
    limits::PROMPT_BYTES_MAX,
};
use serde_json::json;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{Instant, MissedTickBehavior, interval},
};

use crate::{
    candidates,
    commands::labels,
    connection::Connection,
    errors, exit_codes,
    follow::{Followed, follow},
    targets::Target,
    terminal::{
        output::{self, Format, Output},
        paint::Paint,
        screen::Screen,
        status::phase_words,
        turn_view::{self, Piece, TurnView},
    },
};

/// How often the status line is updated.
const STATUS_TICK: Duration = Duration::from_millis(500);
/// How long the reply must pause before the status line is drawn below its unfinished line.
const QUIET_TICKS: u32 = 1;
/// After how many ticks the state of a silent turn is requested.
const LIVENESS_EVERY: u32 = 4;
/// How often the result is requested while the server is unreachable, and the pause in between.
const RESULT_ATTEMPTS_MAX: u32 = 20;
const RESULT_PAUSE: Duration = Duration::from_millis(500);

/// Ask an agent to do something, and follow it to its end
///
/// The reply is streamed to stdout, everything else to stderr; `-o jsonl` streams every event instead, `-o json` prints the
/// whole result at the end. Ctrl-C cancels the turn and waits for its end; a second one exits at once. The exit code is 0
/// only if the turn completed.
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
    /// The backend profile to use
    #[arg(long, default_value = "scripted", add = candidates::profiles())]
    profile: String,
    #[arg(long, help = "The tenant to run for [default: the context's, else local]")]
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
    #[command(flatten)]
    budgets: budgets::BudgetArgs,
    /// Show the request that would be sent, and send nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: Output,
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
    let request = request(args, &prompt, connection.tenant(args.tenant.as_deref())?);
    if args.dry_run {
        output::data(&output::json(&request));
        output::message("dry run; nothing was sent\n");
        return Ok(exit_codes::OK);
    }
    let client = connection.client()?;
    let (created, after_seq) = session::submit(&client, &request).await?;
    let run_id = created.run.run_id;
    if args.detach {
        return Ok(detached(connection, args, &created));
    }
    let Some(command) = &created.command else {
        return Err(errors::hinted(
            FailureKind::Internal,
            "the server made a run without its first command",
            "client and server may be of different versions; compare `ostler --version`",
        ));
    };
    let paint = Paint::stderr();
    output::message(&format!("{}\n", paint.dim(&format!("run {run_id}"))));
    let mut turn = RunTurn {
        client: &client,
        run_id,
        after_seq,
        command_id: command.command_id,
        view: TurnView::new(run_id, command.command_id, connection.invocation(), paint),
        screen: Screen::new(args.output.is_text()),
        began: Instant::now(),
        phase: Phase::WaitingRunner,
        is_verbose: connection.is_verbose(),
    };
    match turn.watch(args.output.format).await? {
        RunEnding::Ended => turn.conclude(args.output.format).await,
        RunEnding::Left => {
            turn.screen.close();
            let again = format!("{} trace -f {run_id}", connection.invocation());
            output::message(&format!("left; the run continues: {again}\n"));
            Ok(exit_codes::LEFT)
        }
    }
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

fn request(args: &RunArgs, prompt: &str, tenant: String) -> CreateRun {
    CreateRun {
        tenant_id: Some(tenant),
        project_id: Some(args.project.clone()),
        workspace_ref: Some(RawJson::of(&workspace(args.workspace.as_deref()))),
        provider_id: Some(args.provider.clone()),
        backend_profile: Some(args.profile.clone()),
        execution_policy: policy(args),
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
fn policy(args: &RunArgs) -> Option<RawJson> {
    let mut policy = serde_json::Map::new();
    if let Some(ms) = args.budgets.timeout_ms() {
        policy.insert("timeoutMs".into(), ms.into());
    }
    for (name, value) in [("sandbox", &args.sandbox), ("approval", &args.approval)] {
        if let Some(value) = value {
            policy.insert(name.into(), value.as_str().into());
        }
    }
    if args.profile != "scripted" {
        let credential = json!({"profile": args.profile, "secretRef": secret_ref(&args.profile)});
        policy.insert("secretScope".into(), json!({"providerCredentials": [credential]}));
    }
    (!policy.is_empty()).then(|| RawJson::of(&policy))
}

fn detached(connection: &Connection, args: &RunArgs, created: &CreatedRun) -> u8 {
    args.output.one(created, || format!("{}\n", created.run.run_id));
    output::message(&format!("submitted; follow it: {} trace -f {}\n", connection.invocation(), created.run.run_id));
    exit_codes::OK
}

enum RunEnding {
    Ended,
    Left,
}

struct RunTurn<'a> {
    client: &'a Client,
    run_id: RunId,
    /// The run's last event before the turn was submitted.
    after_seq: i64,
    command_id: CommandId,
    view: TurnView,
    screen: Screen,
    began: Instant,
    /// As of the last response of the server.
    phase: Phase,
    is_verbose: bool,
}

impl RunTurn<'_> {
    /// Prints events until the turn has ended. The first Ctrl-C cancels it, the second exits.
    async fn watch(&mut self, format: Format) -> Result<RunEnding, Failure> {
        let mut events = follow(self.client.clone(), Target::Run(self.run_id.to_string()), self.after_seq);
        let mut interrupts = interrupts()?;
        let mut ticks = interval(STATUS_TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut silent_ticks = 0;
        let mut polling: Option<BoxFuture<'static, Result<RunResult, Failure>>> = None;
        let mut cancelling: Option<BoxFuture<'static, Result<(), Failure>>> = None;
        let mut cancel_requested = false;
        while self.view.end.is_none() {
            tokio::select! {
                followed = events.recv() => match followed {
                    Some((_, Followed::Event(event))) => {
                        silent_ticks = 0;
                        if format == Format::Jsonl {
                            self.screen.data(&output::json_line(&*event));
                        }
                        self.screen.show(self.view.apply(&event));
                    }
                    Some((_, change @ (Followed::Lost(_) | Followed::Regained(_)))) => {
                        if let Some(line) = change.connection_line(self.is_verbose) {
                            self.screen.note(&format!("{line}\n"));
                        }
                    }
                    Some((_, Followed::Over(Err(failure)))) => {
                        self.screen.close();
                        return Err(failure);
                    }
                    Some((_, Followed::Over(Ok(())))) | None => break,
                },
                _ = ticks.tick(), if self.screen.has_status() => {
                    if silent_ticks % LIVENESS_EVERY == 0 && polling.is_none() {
                        polling = Some(self.fetch_result());
                    }
                    silent_ticks += 1;
                    self.draw_status(cancel_requested, silent_ticks > QUIET_TICKS);
                }
                polled = completion(&mut polling) => {
                    polling = None;
                    // The follower reports an unreachable server.
                    if let Ok(result) = polled {
                        self.phase = result.liveness.phase;
                    }
                }
                _ = interrupts.recv() => {
                    if cancel_requested {
                        return Ok(RunEnding::Left);
                    }
                    cancel_requested = true;
                    self.screen.note("cancelling; Ctrl-C again exits without waiting\n");
                    cancelling = Some(Box::pin(cancel(self.client.clone(), self.command_id)));
                }
                done = completion(&mut cancelling) => {
                    cancelling = None;
                    if let Err(failure) = done {
                        self.screen.note(&errors::render(&failure, Paint::stderr()));
                        // The cancel can be tried again.
                        cancel_requested = false;
                    }
                }
            }
        }
        Ok(RunEnding::Ended)
    }

    /// Requests the current result of the turn.
    fn fetch_result(&self) -> BoxFuture<'static, Result<RunResult, Failure>> {
        let (client, run, command) = (self.client.clone(), self.run_id.to_string(), self.command_id.to_string());
        async move { client.command_result(&run, &command).await }.boxed()
    }

    fn draw_status(&mut self, stopping: bool, is_quiet: bool) {
        let what = if stopping { "cancelling" } else { phase_words(self.phase) };
        let leave = if stopping { "Ctrl-C exits" } else { "Ctrl-C cancels" };
        let line = format!("{what} · {}s · {leave}", self.began.elapsed().as_secs());
        self.screen.status(&line, is_quiet);
    }

    /// The final result. Retries while the server is unreachable.
    async fn result(&self) -> Result<RunResult, Failure> {
        let mut attempt = 0;
        loop {
            match self.fetch_result().await {
                Err(failure) if is_transient(&failure) && attempt < RESULT_ATTEMPTS_MAX => {
                    attempt += 1;
                    tokio::time::sleep(RESULT_PAUSE).await;
                }
                result => return result,
            }
        }
    }

    /// Prints the outcome. The exit code follows the terminal event, even if the result cannot be read.
    async fn conclude(mut self, format: Format) -> Result<u8, Failure> {
        self.screen.close();
        let result = match self.result().await {
            Ok(result) => result,
            Err(failure) => {
                let Some(end) = self.view.end.filter(|_| format == Format::Text) else { return Err(failure) };
                output::message(&errors::render(&failure, Paint::stderr()));
                output::message(&format!("{} · {}\n", end.as_str(), self.run_id));
                return Ok(exit_codes::of_outcome(Some(end)));
            }
        };
        if let Some(reply) = result.reply.as_ref().filter(|_| !self.view.replied) {
            self.screen.show(vec![Piece::Reply(reply.clone())]);
        }
        self.screen.close();
        if format == Format::Json {
            output::data(&output::json(&result));
        }
        output::message(&turn_view::outcome(&result, Paint::stderr()));
        Ok(exit_codes::of_outcome(result.terminal_status.or(self.view.end)))
    }
}

/// The result of a request. Never completes if there is none.
async fn completion<T>(request: &mut Option<BoxFuture<'static, T>>) -> T {
    match request {
        Some(request) => request.await,
        None => std::future::pending().await,
    }
}

async fn cancel(client: Client, command_id: CommandId) -> Result<(), Failure> {
    let why = Cancel { reason: Some("Ctrl-C in `ostler run`".into()) };
    client.cancel_command(&command_id.to_string(), &why).await.map(drop)
}

fn interrupts() -> Result<Signal, Failure> {
    signal(SignalKind::interrupt()).map_err(Failure::internal)
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

    #[test]
    fn an_ssh_address_is_recognized() {
        assert!(is_ssh("git@github.com:a/b.git") && is_ssh("ssh://git@host/a"));
        for place in ["https://host/a.git", "file:///srv/a", "./a", "a:b", "dir@2/x:y", "."] {
            assert!(!is_ssh(place), "{place}");
        }
    }

    #[test]
    fn a_prompt_becomes_a_complete_request() {
        let body = serde_json::to_value(request(&args(&["hello"]), "hello", "local".into())).unwrap();
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
        let body = serde_json::to_value(request(&args, "x", "hwlab".into())).unwrap();
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
        let request_of = |words: &[&str]| serde_json::to_value(request(&args(words), "x", "local".into())).unwrap();
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
