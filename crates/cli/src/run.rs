//! `ostler run`: asks an agent for one turn and follows it to its end. The reply goes to stdout as it comes; the exit
//! code is the outcome's.

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
    completions,
    connect::Connection,
    errors, exit_codes,
    follow::{Followed, follow},
    live::{self, Live, Piece, phase_words},
    output::{self, Format, Output},
    paint::Paint,
    screen::Screen,
    targets::Target,
};

/// How often the status line counts on.
const STATUS_TICK: Duration = Duration::from_millis(500);
/// How long nothing must come before the status line stands below an unfinished reply.
const QUIET_TICKS: u32 = 1;
/// How often the server is asked what a silent turn waits for.
const LIVENESS_EVERY: u32 = 4;
/// How often a result is asked for when the server is away, and how long is waited in between.
const RESULT_ATTEMPTS_MAX: u32 = 20;
const RESULT_PAUSE: Duration = Duration::from_millis(500);

/// Ask an agent to do something, and follow it to its end
///
/// The reply is streamed to stdout, everything else to stderr; `-o jsonl` streams every event instead, `-o json` prints the
/// whole result at the end. Ctrl-C cancels the turn and waits for its end; a second
/// one leaves at once. The exit code is 0 only if the turn completed.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler run \"say hello\"\n  git diff | ostler run --session review\n  \
    ostler run --file task.md --timeout 20m\n  ostler run --detach -o json \"a long task\" | jq -r .runId")]
pub struct Args {
    /// What to do; `-`, or nothing when stdin is a pipe, reads it from stdin
    #[arg(conflicts_with = "file")]
    prompt: Option<String>,
    /// Read what to do from this file
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The backend profile that does it
    #[arg(long, default_value = "scripted", add = completions::profiles())]
    profile: String,
    #[arg(long, help = "The tenant to run for [default: the context's, else local]")]
    tenant: Option<String>,
    #[arg(long, default_value = "local/default", help = "The project the run belongs to")]
    project: String,
    #[arg(long, default_value = "local", help = "The provider to run at")]
    provider: String,
    /// Go on with this session, or start it under this id. A run of it that is kept for another turn takes the prompt
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Where the agent works: a directory of the server's machine, or a git URL, with `#BRANCH` if need be
    #[arg(long, value_name = "DIR|URL")]
    workspace: Option<String>,
    /// What the agent may touch: read-only, workspace-write or danger-full-access [default: workspace-write, or less where
    /// the server's ceiling is less]
    #[arg(long, value_name = "POLICY", value_parser = ["read-only", "workspace-write", "danger-full-access"], hide_possible_values = true)]
    sandbox: Option<String>,
    /// When the agent asks before it acts: untrusted, on-request or never [default: the server's ceiling]
    #[arg(long, value_name = "POLICY", value_parser = ["untrusted", "on-request", "never"], hide_possible_values = true)]
    approval: Option<String>,
    /// Submit, print the run's id, and leave
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    budgets: budgets::Budgets,
    /// Show the request that would be sent, and send nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: Output,
}

pub async fn run(connection: &Connection, args: &Args) -> Result<u8, Failure> {
    let prompt = prompt(args.prompt.as_deref(), args.file.as_deref())?;
    if args.workspace.as_deref().is_some_and(is_ssh) {
        return Err(errors::usage("repositories are not fetched over ssh", "name it as https://HOST/PATH"));
    }
    let request = request(args, &prompt, connection.tenant(args.tenant.as_deref())?);
    if args.dry_run {
        output::data(&output::json(&request));
        output::words("dry run; nothing was sent\n");
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
    output::words(&format!("{}\n", paint.dim(&format!("run {run_id}"))));
    let mut turn = Turn {
        client: &client,
        run_id,
        after_seq,
        command_id: command.command_id,
        live: Live::new(run_id, command.command_id, connection.invocation(), paint),
        screen: Screen::new(args.output.is_text()),
        began: Instant::now(),
        phase: Phase::WaitingRunner,
    };
    match turn.watch(args.output.format).await? {
        Ending::Ended => turn.conclude(args.output.format).await,
        Ending::Left => {
            turn.screen.close();
            let again = format!("{} trace -f {run_id}", connection.invocation());
            output::words(&format!("left; the run goes on: {again}\n"));
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
            return Err(errors::usage("no prompt was given", "say what to do: ostler run \"say hello\""));
        }
        _ => read_prompt(std::io::stdin().lock())?,
    };
    if text.trim().is_empty() {
        return Err(errors::usage("the prompt is empty", "say what to do: ostler run \"say hello\""));
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

fn request(args: &Args, prompt: &str, tenant: String) -> CreateRun {
    CreateRun {
        tenant_id: Some(tenant),
        project_id: Some(args.project.clone()),
        workspace_ref: Some(RawJson::of(&workspace(args.workspace.as_deref()))),
        provider_id: Some(args.provider.clone()),
        backend_profile: Some(args.profile.clone()),
        execution_policy: policy(args),
        trace_sink: Some(RawJson::null()),
        session_ref: args.session.clone().map(|session_id| SessionRef { session_id }),
        command: Some(CreateCommand {
            command_type: CommandType::Turn,
            payload: RawJson::of(&payload(args, prompt)),
            idempotency_key: None,
        }),
        ..CreateRun::default()
    }
}

fn payload(args: &Args, prompt: &str) -> serde_json::Value {
    match args.budgets.of_turn() {
        none if none.is_empty() => json!({"prompt": prompt}),
        budgets => json!({"prompt": prompt, "budgets": budgets}),
    }
}

/// `git@host:path`, as people write it; a directory has no such name.
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
        // On another machine it may be somewhere else; then it is the server's to say that it is not there.
        Some(directory) => {
            let whole = std::path::absolute(directory).unwrap_or_else(|_| directory.into());
            json!({"kind": "local", "path": whole})
        }
    }
}

/// The time it may take, and the profile's credential by its name: only the scripted agent never has one.
fn policy(args: &Args) -> Option<RawJson> {
    let mut policy = serde_json::Map::new();
    if let Some(ms) = args.budgets.timeout_ms() {
        policy.insert("timeoutMs".into(), ms.into());
    }
    for (name, asked) in [("sandbox", &args.sandbox), ("approval", &args.approval)] {
        if let Some(asked) = asked {
            policy.insert(name.into(), asked.as_str().into());
        }
    }
    if args.profile != "scripted" {
        let credential = json!({"profile": args.profile, "secretRef": secret_ref(&args.profile)});
        policy.insert("secretScope".into(), json!({"providerCredentials": [credential]}));
    }
    (!policy.is_empty()).then(|| RawJson::of(&policy))
}

fn detached(connection: &Connection, args: &Args, created: &CreatedRun) -> u8 {
    args.output.one(created, || format!("{}\n", created.run.run_id));
    output::words(&format!("submitted; follow it: {} trace -f {}\n", connection.invocation(), created.run.run_id));
    exit_codes::OK
}

enum Ending {
    Ended,
    Left,
}

struct Turn<'a> {
    client: &'a Client,
    run_id: RunId,
    /// The run's last event before the turn was asked for.
    after_seq: i64,
    command_id: CommandId,
    live: Live,
    screen: Screen,
    began: Instant,
    /// As of the last time the server was asked.
    phase: Phase,
}

impl Turn<'_> {
    /// Shows events until the turn has ended. The first Ctrl-C cancels it, the second leaves it.
    async fn watch(&mut self, format: Format) -> Result<Ending, Failure> {
        let mut events = follow(self.client.clone(), Target::Run(self.run_id.to_string()), self.after_seq);
        let mut interrupts = interrupts()?;
        let mut ticks = interval(STATUS_TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut silent_ticks = 0;
        let mut asking: Option<BoxFuture<'static, Result<RunResult, Failure>>> = None;
        let mut cancelling: Option<BoxFuture<'static, Result<(), Failure>>> = None;
        let mut asked_to_stop = false;
        while self.live.end.is_none() {
            tokio::select! {
                followed = events.recv() => match followed {
                    Some((_, Followed::Event(event))) => {
                        silent_ticks = 0;
                        if format == Format::Jsonl {
                            self.screen.data(&output::json_line(&*event));
                        }
                        self.screen.show(self.live.apply(&event));
                    }
                    Some((_, Followed::Lost(line))) => self.screen.note(&format!("{line}\n")),
                    Some((_, Followed::Over(Err(failure)))) => {
                        self.screen.close();
                        return Err(failure);
                    }
                    Some((_, Followed::Over(Ok(())))) | None => break,
                },
                _ = ticks.tick(), if self.screen.has_status() => {
                    if silent_ticks % LIVENESS_EVERY == 0 && asking.is_none() {
                        asking = Some(self.ask());
                    }
                    silent_ticks += 1;
                    self.draw_status(asked_to_stop, silent_ticks > QUIET_TICKS);
                }
                asked = async { asking.as_mut().expect("guarded").await }, if asking.is_some() => {
                    asking = None;
                    // A server that is away says nothing new; the follower speaks of it.
                    if let Ok(result) = asked {
                        self.phase = result.liveness.phase;
                    }
                }
                _ = interrupts.recv() => {
                    if asked_to_stop {
                        return Ok(Ending::Left);
                    }
                    asked_to_stop = true;
                    self.screen.note("cancelling; Ctrl-C again leaves without waiting\n");
                    cancelling = Some(Box::pin(cancel(self.client.clone(), self.command_id)));
                }
                done = async { cancelling.as_mut().expect("guarded").await }, if cancelling.is_some() => {
                    cancelling = None;
                    if let Err(failure) = done {
                        self.screen.note(&errors::render(&failure, Paint::stderr()));
                        // It may be tried again.
                        asked_to_stop = false;
                    }
                }
            }
        }
        Ok(Ending::Ended)
    }

    /// Asks where the turn stands.
    fn ask(&self) -> BoxFuture<'static, Result<RunResult, Failure>> {
        let (client, run, command) = (self.client.clone(), self.run_id.to_string(), self.command_id.to_string());
        async move { client.command_result(&run, &command).await }.boxed()
    }

    fn draw_status(&mut self, stopping: bool, is_quiet: bool) {
        let what = if stopping { "cancelling" } else { phase_words(self.phase) };
        let leave = if stopping { "Ctrl-C leaves" } else { "Ctrl-C cancels" };
        let line = format!("{what} · {}s · {leave}", self.began.elapsed().as_secs());
        self.screen.status(&line, is_quiet);
    }

    /// The result, also from a server that is just coming back.
    async fn result(&self) -> Result<RunResult, Failure> {
        let mut attempt = 0;
        loop {
            match self.ask().await {
                Err(failure) if is_transient(&failure) && attempt < RESULT_ATTEMPTS_MAX => {
                    attempt += 1;
                    tokio::time::sleep(RESULT_PAUSE).await;
                }
                answer => return answer,
            }
        }
    }

    /// Says how it ended. The exit code follows the terminal fact, whether or not the result can be read.
    async fn conclude(mut self, format: Format) -> Result<u8, Failure> {
        self.screen.close();
        let result = match self.result().await {
            Ok(result) => result,
            Err(failure) => {
                let Some(end) = self.live.end.filter(|_| format == Format::Text) else { return Err(failure) };
                output::words(&errors::render(&failure, Paint::stderr()));
                output::words(&format!("{} · {}\n", end.as_str(), self.run_id));
                return Ok(exit_codes::of_outcome(Some(end)));
            }
        };
        if let Some(reply) = result.reply.as_ref().filter(|_| !self.live.replied) {
            self.screen.show(vec![Piece::Reply(reply.clone())]);
        }
        self.screen.close();
        if format == Format::Json {
            output::data(&output::json(&result));
        }
        output::words(&live::outcome(&result, Paint::stderr()));
        Ok(exit_codes::of_outcome(result.terminal_status.or(self.live.end)))
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
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(words: &[&str]) -> Args {
        Line::parse_from(std::iter::once("run").chain(words.iter().copied())).args
    }

    #[test]
    fn a_repository_over_ssh_is_no_directory() {
        assert!(is_ssh("git@github.com:a/b.git") && is_ssh("ssh://git@host/a"));
        for place in ["https://host/a.git", "file:///srv/a", "./a", "a:b", "dir@2/x:y", "."] {
            assert!(!is_ssh(place), "{place}");
        }
    }

    #[test]
    fn a_plain_prompt_becomes_a_whole_request() {
        let body = serde_json::to_value(request(&args(&["hello"]), "hello", "local".into())).unwrap();
        assert_eq!(
            body,
            json!({"tenantId": "local", "projectId": "local/default", "workspaceRef": {"kind": "none"},
                "providerId": "local", "backendProfile": "scripted", "traceSink": null,
                "command": {"type": "turn", "payload": {"prompt": "hello"}}})
        );
    }

    #[test]
    fn flags_reach_the_request() {
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
        let asked = |words: &[&str]| serde_json::to_value(request(&args(words), "x", "local".into())).unwrap();
        let body = asked(&["x", "--workspace", "/srv/app", "--sandbox", "read-only", "--approval", "on-request"]);
        assert_eq!(body["workspaceRef"], json!({"kind": "local", "path": "/srv/app"}));
        assert_eq!(body["executionPolicy"], json!({"sandbox": "read-only", "approval": "on-request"}));
        let body = asked(&["x", "--workspace", "https://git.example/app.git#main"]);
        assert_eq!(
            body["workspaceRef"],
            json!({"kind": "git", "repoUrl": "https://git.example/app.git", "ref": "main"})
        );
    }

    #[test]
    fn a_prompt_may_be_piped_up_to_its_limit() {
        assert_eq!(read_prompt(&b"hello"[..]).unwrap(), "hello");
        let most = vec![b'x'; PROMPT_BYTES_MAX];
        assert_eq!(read_prompt(&most[..]).unwrap().len(), PROMPT_BYTES_MAX);
        let more = vec![b'x'; PROMPT_BYTES_MAX + 1];
        assert_eq!(read_prompt(&more[..]).unwrap_err().kind, FailureKind::PayloadTooLarge);
        assert_eq!(read_prompt(&b"\xff"[..]).unwrap_err().kind, FailureKind::SchemaInvalid);
    }
}
