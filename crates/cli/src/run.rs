//! `ostler run`: asks an agent for one turn and follows it to its end. The reply goes to stdout as it comes; the exit
//! code is the outcome's.

use std::io::{IsTerminal, Read};

use futures_util::future::BoxFuture;
use ostler_client::Client;
use ostler_protocol::{
    Failure, FailureKind, RawJson,
    commands::{CommandType, CreateCommand},
    ids::{CommandId, RunId},
    limits::PROMPT_BYTES_MAX,
    runs::{Cancel, CreateRun, CreatedRun, SessionRef},
};
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{
    connect::Connection,
    errors, exit_codes,
    follow::{Followed, follow},
    live::{self, Live, Piece},
    output::{self, Format, Paint},
};

/// Ask an agent to do something, and follow it to its end
///
/// The reply is streamed to stdout, everything else to stderr. Ctrl-C cancels the turn and waits for its end; a second
/// one leaves at once. The exit code is 0 only if the turn completed.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler run \"say hello\"\n  git diff | ostler run --session review\n  \
    ostler run --detach -o json \"a long task\"")]
pub struct Args {
    /// What to do; `-`, or nothing when stdin is a pipe, reads it from stdin
    prompt: Option<String>,
    /// The backend profile that does it
    #[arg(long, default_value = "scripted")]
    profile: String,
    #[arg(long, default_value = "local", help = "The tenant to run for")]
    tenant: String,
    #[arg(long, default_value = "local/default", help = "The project the run belongs to")]
    project: String,
    #[arg(long, default_value = "local", help = "The provider to run at")]
    provider: String,
    /// Go on with this session, or start it under this id
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Submit, print the run's id, and leave
    #[arg(long)]
    detach: bool,
    /// The longest the turn may take
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..))]
    timeout_ms: Option<u32>,
    /// `json` prints the whole result at the end instead of streaming the reply
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

pub async fn run(connection: &Connection, args: &Args) -> Result<u8, Failure> {
    let prompt = prompt(args.prompt.as_deref())?;
    let client = connection.client()?;
    let created = client.create_run(&request(args, &prompt)).await?;
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
        command_id: command.command_id,
        live: Live::new(run_id, command.command_id, connection.invocation(), paint),
        screen: Screen::new(args.output == Format::Text),
    };
    match turn.watch().await? {
        Ending::Ended => turn.conclude(args.output).await,
        Ending::Left => {
            turn.screen.close();
            let again = format!("{} trace -f {run_id}", connection.invocation());
            output::words(&format!("left; the run goes on: {again}\n"));
            Ok(exit_codes::LEFT)
        }
    }
}

fn prompt(given: Option<&str>) -> Result<String, Failure> {
    let text = match given {
        Some(text) if text != "-" => text.to_owned(),
        None if std::io::stdin().is_terminal() => {
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
    read.map_err(|error| {
        errors::usage(format!("cannot read the prompt from stdin: {error}"), "give it as an argument")
    })?;
    if bytes.len() > PROMPT_BYTES_MAX {
        let message = format!("the prompt on stdin is over {PROMPT_BYTES_MAX} bytes");
        return Err(Failure::new(FailureKind::PayloadTooLarge, message));
    }
    String::from_utf8(bytes).map_err(|_| errors::usage("the prompt on stdin is not UTF-8", "send text"))
}

fn request(args: &Args, prompt: &str) -> CreateRun {
    CreateRun {
        tenant_id: Some(args.tenant.clone()),
        project_id: Some(args.project.clone()),
        workspace_ref: Some(RawJson::of(&json!({"kind": "none"}))),
        provider_id: Some(args.provider.clone()),
        backend_profile: Some(args.profile.clone()),
        execution_policy: args.timeout_ms.map(|ms| RawJson::of(&json!({"timeoutMs": ms}))),
        trace_sink: Some(RawJson::null()),
        session_ref: args.session.clone().map(|session_id| SessionRef { session_id }),
        command: Some(CreateCommand {
            command_type: CommandType::Turn,
            payload: RawJson::of(&json!({"prompt": prompt})),
            idempotency_key: None,
        }),
        ..CreateRun::default()
    }
}

fn detached(connection: &Connection, args: &Args, created: &CreatedRun) -> u8 {
    match args.output {
        Format::Json => output::data(&output::json(created)),
        Format::Text => output::data(&format!("{}\n", created.run.run_id)),
    }
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
    command_id: CommandId,
    live: Live,
    screen: Screen,
}

impl Turn<'_> {
    /// Shows events until the turn has ended. The first Ctrl-C cancels it, the second leaves it.
    async fn watch(&mut self) -> Result<Ending, Failure> {
        let mut events = follow(self.client.clone(), self.run_id.to_string(), 0);
        let mut interrupts = interrupts()?;
        let mut cancelling: Option<BoxFuture<'static, Result<(), Failure>>> = None;
        let mut asked_to_stop = false;
        while self.live.end.is_none() {
            tokio::select! {
                followed = events.recv() => match followed {
                    Some(Followed::Event(event)) => self.screen.show(self.live.apply(&event)),
                    Some(Followed::Lost(line)) => self.screen.note(&format!("{line}\n")),
                    Some(Followed::Over(Err(failure))) => {
                        self.screen.close();
                        return Err(failure);
                    }
                    Some(Followed::Over(Ok(()))) | None => break,
                },
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

    /// Says how it ended. The exit code follows the terminal fact, whether or not the result can be read.
    async fn conclude(mut self, format: Format) -> Result<u8, Failure> {
        let result = match self.client.command_result(&self.run_id.to_string(), &self.command_id.to_string()).await {
            Ok(result) => result,
            Err(failure) => {
                self.screen.close();
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

/// The two streams. Where both end on one terminal, a note never starts in the middle of the reply's line.
struct Screen {
    shows_reply: bool,
    is_terminal: bool,
    /// The reply's last character was no line end.
    reply_open: bool,
    /// The terminal's cursor stands after the reply's last character.
    mid_line: bool,
}

impl Screen {
    fn new(shows_reply: bool) -> Self {
        Self { shows_reply, is_terminal: std::io::stdout().is_terminal(), reply_open: false, mid_line: false }
    }

    fn show(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            match piece {
                Piece::Note(text) => self.note(&text),
                Piece::Reply(text) if self.shows_reply => {
                    output::data(&if self.is_terminal { output::harmless(&text) } else { text.clone() });
                    self.reply_open = !text.ends_with('\n');
                    self.mid_line = self.reply_open;
                }
                Piece::Reply(_) => {}
            }
        }
    }

    fn note(&mut self, text: &str) {
        if self.mid_line && self.is_terminal {
            output::words("\n");
        }
        self.mid_line = false;
        output::words(text);
    }

    /// Ends the reply's last line.
    fn close(&mut self) {
        if self.reply_open && (self.mid_line || !self.is_terminal) {
            output::data("\n");
        }
        self.reply_open = false;
        self.mid_line = false;
    }
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
    fn a_plain_prompt_becomes_a_whole_request() {
        let body = serde_json::to_value(request(&args(&["hello"]), "hello")).unwrap();
        assert_eq!(
            body,
            json!({"tenantId": "local", "projectId": "local/default", "workspaceRef": {"kind": "none"},
                "providerId": "local", "backendProfile": "scripted", "traceSink": null,
                "command": {"type": "turn", "payload": {"prompt": "hello"}}})
        );
    }

    #[test]
    fn flags_reach_the_request() {
        let args = args(&["x", "--session", "s", "--timeout-ms", "5", "--profile", "model", "--tenant", "hwlab"]);
        let body = serde_json::to_value(request(&args, "x")).unwrap();
        assert_eq!(body["sessionRef"], json!({"sessionId": "s"}));
        assert_eq!(body["executionPolicy"], json!({"timeoutMs": 5}));
        assert_eq!((&body["backendProfile"], &body["tenantId"]), (&json!("model"), &json!("hwlab")));
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
