//! Follows one turn to its end: prints its reply and what happens, answers its permission requests at a terminal, and cancels
//! it on Ctrl-C.

use std::{io::IsTerminal, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use ostler_client::{Client, is_transient};
use ostler_protocol::{
    Failure,
    ids::{CommandId, RunId},
    kernel::{
        events::{EventType, EventView},
        liveness::Phase,
        permissions::{AskPermission, ParsedPermission},
        results::RunResult,
        runs::{Cancel, Run},
        sessions::ReadSession,
    },
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{Instant, MissedTickBehavior, interval},
};

use super::answering::Questions;
use crate::{
    connection::Connection,
    errors, exit_codes,
    follow::{Followed, follow},
    targets::Target,
    terminal::{
        events::field,
        output::{self, Format, Output},
        paint::Paint,
        screen::Screen,
        status::waiting_words,
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
/// The pause before a cancel is sent again to a server that is unreachable.
const CANCEL_PAUSE: Duration = Duration::from_millis(500);

/// A turn that was submitted.
pub(crate) struct Submitted<'a> {
    pub run: &'a Run,
    pub command_id: CommandId,
    /// The run's last event before the turn was submitted.
    pub after_seq: i64,
}

/// Follows a turn to its end, answers its permission requests at a terminal, and returns the exit code of its outcome.
pub(crate) async fn follow_turn(
    connection: &Connection,
    client: &Client,
    submitted: Submitted<'_>,
    output: &Output,
) -> Result<u8, Failure> {
    let Submitted { run, command_id, after_seq } = submitted;
    let run_id = run.run_id;
    let paint = Paint::stderr();
    output::message(&format!("{}\n", paint.dim(&format!("run {run_id}"))));
    let questions = Questions::new(run_id, connection.invocation(), output.is_text());
    let mut view = TurnView::new(run_id, command_id, connection.invocation(), paint);
    view.answers_in_place = questions.is_possible();
    let mut turn = RunTurn {
        client,
        run_id,
        after_seq,
        command_id,
        view,
        questions,
        screen: Screen::new(output.is_text()),
        began: Instant::now(),
        phase: Phase::WaitingRunner,
        external_profile: None,
        is_verbose: connection.is_verbose(),
        server: connection.settings()?.server.value,
    };
    match turn.watch(output).await? {
        RunEnding::Ended => {
            let code = turn.conclude(output).await?;
            if output.is_text() && std::io::stdout().is_terminal() {
                mark_read(client, run).await;
            }
            Ok(code)
        }
        RunEnding::Left => {
            turn.screen.close();
            let again = format!("{} trace -f {run_id}", connection.invocation());
            output::message(&format!("left; the run continues: {again}\n"));
            Ok(exit_codes::LEFT)
        }
    }
}

/// Marks the session as read: the person at the terminal has just seen its outcome. A failure changes nothing for them.
async fn mark_read(client: &Client, run: &Run) {
    let reader_id = std::env::var("OSTLER_READER").ok().filter(|reader| !reader.is_empty());
    let read = ReadSession { reader_id, tenant_id: Some(run.tenant_id.clone()), version: None };
    let _ = client.read_session(&run.session_id, &read).await;
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
    questions: Questions,
    screen: Screen,
    began: Instant,
    /// As of the last response of the server.
    phase: Phase,
    /// The profile whose runner the turn waits for, if the server starts none.
    external_profile: Option<String>,
    is_verbose: bool,
    /// The server's address.
    server: String,
}

impl RunTurn<'_> {
    /// Prints events until the turn has ended. The first Ctrl-C cancels it, the second exits.
    async fn watch(&mut self, output: &Output) -> Result<RunEnding, Failure> {
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
                        // What was polled before is older than the event.
                        polling = None;
                        if output.format == Format::Jsonl {
                            output.record(&*event, |line| self.screen.data(line));
                        }
                        self.show(&event);
                    }
                    Some((_, change @ (Followed::Lost(_) | Followed::Regained(_)))) => {
                        self.questions.interrupt();
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
                typed = self.questions.line() => {
                    self.questions.answer(self.client, typed).await;
                    self.view.answers_in_place = self.questions.is_possible();
                }
                _ = ticks.tick(), if self.screen.has_status() && !self.questions.is_open() => {
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
                        self.external_profile = result.liveness.external_profile.clone();
                    }
                }
                _ = interrupts.recv() => {
                    if cancel_requested {
                        return Ok(RunEnding::Left);
                    }
                    cancel_requested = true;
                    self.questions.interrupt();
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
            if self.view.end.is_none() && !cancel_requested {
                self.questions.prompt();
            }
        }
        self.questions.interrupt();
        Ok(RunEnding::Ended)
    }

    /// Prints an event. A permission request becomes a question, if there is a person to ask.
    fn show(&mut self, event: &EventView) {
        let is_ours = event.command_id == Some(self.command_id);
        if is_ours {
            self.phase = phase_after(event.event_type, self.phase);
        }
        let pieces = self.view.apply(event);
        if !pieces.is_empty() {
            self.questions.interrupt();
        }
        self.screen.show(pieces);
        match event.event_type {
            EventType::PermissionRequest if is_ours && self.questions.is_possible() => {
                if let ParsedPermission::Valid(ask) = AskPermission::read(&event.payload) {
                    self.questions.add(ask);
                }
            }
            EventType::PermissionResolved => {
                self.questions.remove(&field(&event.payload.to_value(), "permissionId"));
            }
            _ => {}
        }
    }

    /// Requests the current result of the turn.
    fn fetch_result(&self) -> BoxFuture<'static, Result<RunResult, Failure>> {
        let (client, run, command) = (self.client.clone(), self.run_id.to_string(), self.command_id.to_string());
        async move { client.command_result(&run, &command).await }.boxed()
    }

    fn draw_status(&mut self, stopping: bool, is_quiet: bool) {
        let phase = || waiting_words(self.phase, self.external_profile.as_deref());
        let what = if stopping { "cancelling".to_owned() } else { phase() };
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
    async fn conclude(mut self, output: &Output) -> Result<u8, Failure> {
        self.screen.close();
        let result = match self.result().await {
            Ok(result) => result,
            Err(failure) => {
                let Some(end) = self.view.end.filter(|_| output.is_text()) else { return Err(failure) };
                output::message(&errors::render(&failure, Paint::stderr()));
                output::message(&format!("{} · {}\n", end.as_str(), self.run_id));
                return Ok(exit_codes::of_outcome(Some(end)));
            }
        };
        if let Some(reply) = result.reply.as_ref().filter(|_| !self.view.replied) {
            self.screen.show(vec![Piece::Reply(reply.clone())]);
        }
        self.screen.close();
        if output.format == Format::Json {
            output.document(&result);
        }
        output::message(&turn_view::outcome(&result, Paint::stderr()));
        output::message(&errors::guide_about(&result, &self.server).unwrap_or_default());
        Ok(exit_codes::of_outcome(result.terminal_status.or(self.view.end)))
    }
}

/// The phase of a turn after this event of it, until the server returns the exact one.
fn phase_after(event_type: EventType, phase: Phase) -> Phase {
    match event_type {
        EventType::UserMessage | EventType::Audit | EventType::Lease | EventType::Session => phase,
        EventType::PermissionRequest => Phase::WaitingPermission,
        // Most others come from a runner that works on the turn.
        _ => Phase::WaitingModel,
    }
}

/// The result of a request. Never completes if there is none.
async fn completion<T>(request: &mut Option<BoxFuture<'static, T>>) -> T {
    match request {
        Some(request) => request.await,
        None => std::future::pending().await,
    }
}

/// Cancels the turn. While the server is unreachable it tries again, because the turn continues when the server is back.
async fn cancel(client: Client, command_id: CommandId) -> Result<(), Failure> {
    let why = Cancel { reason: Some("Ctrl-C in `ostler run`".into()) };
    loop {
        match client.cancel_command(&command_id.to_string(), &why).await {
            Err(failure) if is_transient(&failure) => tokio::time::sleep(CANCEL_PAUSE).await,
            done => return done.map(drop),
        }
    }
}

fn interrupts() -> Result<Signal, Failure> {
    signal(SignalKind::interrupt()).map_err(Failure::internal)
}
