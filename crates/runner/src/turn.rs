//! One turn, from its acknowledgement to its end. While the agent works, this sends what it emits, keeps the lease, and
//! listens for what concerns the turn: steers, interrupts, cancels, answers, and budgets running out.
//!
//! A turn that never waits costs one append, which also gives the lease back: listening starts only when the agent has
//! been at it for a moment.

use futures_util::future::BoxFuture;
use ostler_protocol::{
    Failure, FailureKind, RawJson,
    budgets::Allowance,
    commands::{Command, CommandPage, CommandState, CommandType, PollCommands},
    conversation::Conversation,
    events::{AppendEvent, Appended, EventType, PHASE_WORKSPACE_CHANGED},
    history,
    ids::CommandId,
    leases::LeaseState,
    workspaces::WorkspaceChanges,
};
use serde::Serialize;
use serde_json::json;
use tokio::time::{Duration, Instant, sleep_until};

use crate::{
    Outfit,
    agent::{AfterCrash, Agent, Left, Turn, TurnEnd, TurnResult},
    budgets::{Meter, Stop},
    changes::Changes,
    link::{self, RunnerEnd},
    tenure::{Halt, Refusal, Tenure},
};

/// A turn that is over before this costs no poll at all.
const LISTEN_AFTER_MS: u64 = 5;
const LISTEN_WAIT_MS: u64 = 25_000;
/// Between two polls that brought nothing new: growing, so that a server that answers at once is not flooded.
const QUIET_MS: (u64, u64) = (25, 1_000);
/// An agent that was told to stop and does not is dropped after this.
const STOP_GRACE_MS: u64 = 10_000;

/// Works on one turn of the backlog. Only what ends the whole tenure is an error.
pub async fn work(tenure: &mut Tenure, outfit: &Outfit, agent: &mut dyn Agent, command: Command) -> Result<(), Halt> {
    let prepared = prepare(tenure, outfit, agent, command).await;
    let (turn, allowance, meter) = match prepared {
        Ok(Start::Go(go)) => *go,
        Ok(Start::EndAtOnce(command_id, end)) => return end_at_once(tenure, command_id, &end).await,
        Err(Refusal::CommandEnded) => return Ok(()),
        Err(Refusal::Content(failure)) => return Err(Halt::Failed(failure)),
        Err(Refusal::Halt(halt)) => return Err(halt),
    };
    let (link, end) = link::open(&turn, tenure.lease_epoch, meter);
    let aimed = tenure.backlog.aimed_at(turn.command.command_id);
    let mut watch = Watch::new(tenure, &turn, end, &allowance);
    for command in aimed {
        watch.deliver(command).await?;
    }
    let begun = Changes::begin(outfit).await;
    let left = watch.attend(agent.turn(&turn, link)).await?;
    if let (Some(begun), Outcome::Left(Ok(_) | Err(Left::Stopped))) = (begun, &left) {
        watch.tell_changes(&begun).await;
    }
    watch.finish(left).await?;
    // What was aimed at the turn and never delivered has ended with it.
    tenure.backlog.aimed_at(turn.command.command_id);
    Ok(())
}

#[derive(Serialize)]
struct Told {
    phase: &'static str,
    #[serde(flatten)]
    changes: WorkspaceChanges,
}

enum Start {
    Go(Box<(Turn, Allowance, Meter)>),
    /// There is nothing to run; only the end has to be stated.
    EndAtOnce(CommandId, TurnEnd),
}

/// Takes the command up, and sees to what an earlier attempt left behind.
async fn prepare(tenure: &mut Tenure, outfit: &Outfit, agent: &dyn Agent, command: Command) -> Result<Start, Refusal> {
    let id = command.command_id;
    let is_repeat = command.state != CommandState::Pending && command.attempt_id != Some(tenure.attempt_id);
    let mut before = None;
    if is_repeat && command.state == CommandState::Running {
        let result = tenure.result(id).await?;
        mark_unknown(tenure, id, &result.liveness.open_tool_calls).await?;
        before = Some(result);
    }
    let taken_up = command.state == CommandState::Acked && command.attempt_id == Some(tenure.attempt_id);
    let command = if taken_up { command } else { tenure.ack(id).await? };
    if command.cancel_requested_at.is_some() {
        return Ok(Start::EndAtOnce(id, TurnEnd::cancelled("cancelled on request")));
    }
    if is_repeat && agent.after_crash() == AfterCrash::GiveUp {
        let message = "its runner died, and this agent can neither resume nor repeat a turn";
        return Ok(Start::EndAtOnce(id, TurnEnd::failed(FailureKind::InfraFailed, message)));
    }
    let allowance = match Allowance::of(&tenure.run.execution_policy, &command.payload) {
        Ok(allowance) => allowance,
        Err(failure) => return Ok(Start::EndAtOnce(id, TurnEnd::failed(failure.kind, failure.message))),
    };
    let mut meter = Meter::new(allowance.budgets.clone(), outfit.prices.clone());
    if let Some(result) = &before {
        meter.used_before(result);
    }
    let pictures = history::pictures(command.payload.as_str()).len();
    let looks = pictures > 0 && agent.sees_images();
    let told =
        if looks || agent.wants_conversation() { tenure.conversation(id).await? } else { Conversation::default() };
    let images = if looks { tenure.images(told.images).await } else { vec![] };
    let conversation = if agent.wants_conversation() { told.messages } else { vec![] };
    let images_unseen = pictures - images.len();
    let prompt = command.prompt().unwrap_or_default();
    let (run, thread_id, attempt_id) = (tenure.run.clone(), tenure.thread_id.clone(), tenure.attempt_id);
    let turn = Turn { run, command, prompt, thread_id, attempt_id, is_repeat, conversation, images, images_unseen };
    Ok(Start::Go(Box::new((turn, allowance, meter))))
}

/// States that nobody can know how these tool calls ended.
async fn mark_unknown(tenure: &mut Tenure, command_id: CommandId, open: &[String]) -> Result<(), Failure> {
    if open.is_empty() {
        return Ok(());
    }
    let fact = |tool_call_id: &String| AppendEvent {
        event_type: EventType::ToolCall.as_str().to_owned(),
        command_id: Some(command_id.to_string()),
        payload: RawJson::of(&json!({"toolCallId": tool_call_id, "status": "outcome-unknown"})),
    };
    let events = open.iter().map(fact).collect();
    let appended = tenure.append(events).await?;
    tenure.noted(appended);
    Ok(())
}

async fn end_at_once(tenure: &mut Tenure, command_id: CommandId, end: &TurnEnd) -> Result<(), Halt> {
    let event = AppendEvent {
        event_type: EventType::TerminalStatus.as_str().to_owned(),
        command_id: Some(command_id.to_string()),
        payload: link::terminal(end),
    };
    match tenure.append(vec![event]).await.map_err(Refusal::from) {
        Ok(appended) => {
            tenure.noted(appended);
            tenure.last_end = Some(end.clone());
            Ok(())
        }
        Err(Refusal::CommandEnded) => Ok(()),
        Err(Refusal::Content(failure)) => Err(Halt::Failed(failure)),
        Err(Refusal::Halt(halt)) => Err(halt),
    }
}

/// How the agent left the turn, as far as the runner still has to say something about it.
enum Outcome {
    Left(TurnResult),
    /// The server ended the command meanwhile.
    EndedElsewhere,
    /// The server does not accept what the agent emits.
    Refused(Failure),
}

type Slot<T> = Option<BoxFuture<'static, Result<T, Failure>>>;

/// The runner's side of a turn.
struct Watch<'a> {
    tenure: &'a mut Tenure,
    turn: &'a Turn,
    end: RunnerEnd,
    append: Slot<Appended>,
    poll: Slot<CommandPage>,
    beat: Slot<LeaseState>,
    listen_at: Option<Instant>,
    quiet: Duration,
    time_up_at: Option<Instant>,
    time_up: Stop,
    drop_at: Option<Instant>,
    known_news: String,
}

enum Happening {
    Left(TurnResult),
    Sent(Result<Appended, Failure>),
    Batch(Vec<AppendEvent>),
    Page(Result<CommandPage, Failure>),
    Beat(Result<LeaseState, Failure>),
    Stopping,
    Tick,
}

impl<'a> Watch<'a> {
    fn new(tenure: &'a mut Tenure, turn: &'a Turn, end: RunnerEnd, allowance: &Allowance) -> Self {
        let now = Instant::now();
        Self {
            tenure,
            turn,
            end,
            append: None,
            poll: None,
            beat: None,
            listen_at: Some(now + Duration::from_millis(LISTEN_AFTER_MS)),
            quiet: Duration::from_millis(QUIET_MS.0),
            time_up_at: now.checked_add(Duration::from_millis(allowance.timeout_ms.unsigned_abs())),
            time_up: Stop::Budget(allowance.timed_out()),
            drop_at: None,
            known_news: String::new(),
        }
    }

    /// Runs the agent to its end, or until there is no point in going on.
    async fn attend(&mut self, mut work: BoxFuture<'_, TurnResult>) -> Result<Outcome, Halt> {
        loop {
            let tick = self.next_tick();
            let happening = tokio::select! {
                biased;
                left = &mut work => Happening::Left(left),
                sent = filled(&mut self.append) => Happening::Sent(sent),
                batch = self.end.next_batch(), if self.append.is_none() => Happening::Batch(batch),
                page = filled(&mut self.poll) => Happening::Page(page),
                beat = filled(&mut self.beat) => Happening::Beat(beat),
                () = self.end.stopped(), if self.drop_at.is_none() => Happening::Stopping,
                () = sleep_until(tick) => Happening::Tick,
            };
            match happening {
                Happening::Left(left) => return Ok(Outcome::Left(left)),
                Happening::Batch(batch) => self.append = Some(Box::pin(self.tenure.append(batch))),
                Happening::Sent(sent) => {
                    self.append = None;
                    match sent.map_err(Refusal::from) {
                        Ok(appended) => {
                            self.tenure.noted(appended);
                            self.end.sent();
                        }
                        Err(Refusal::CommandEnded) => return Ok(Outcome::EndedElsewhere),
                        Err(Refusal::Content(failure)) => return Ok(Outcome::Refused(failure)),
                        Err(Refusal::Halt(halt)) => return Err(halt),
                    }
                }
                Happening::Page(page) => {
                    self.poll = None;
                    self.read(page).await?;
                }
                Happening::Beat(beat) => {
                    self.beat = None;
                    self.beaten(beat)?;
                }
                Happening::Stopping => self.drop_at = Some(Instant::now() + Duration::from_millis(STOP_GRACE_MS)),
                Happening::Tick => {
                    if self.tick(Instant::now()) {
                        return Ok(Outcome::Left(Err(Left::Stopped)));
                    }
                }
            }
        }
    }

    fn beat_at(&self) -> Option<Instant> {
        self.beat.is_none().then_some(self.tenure.beat_due)
    }

    /// The earliest of what is due; there is always something.
    fn next_tick(&self) -> Instant {
        let far = || Instant::now() + Duration::from_millis(LISTEN_WAIT_MS);
        [self.listen_at, self.time_up_at, self.drop_at, self.beat_at()].into_iter().flatten().min().unwrap_or_else(far)
    }

    /// Starts what is due. True: the agent had its time to stop and has not.
    fn tick(&mut self, now: Instant) -> bool {
        if self.listen_at.is_some_and(|at| at <= now) {
            self.listen_at = None;
            let query = PollCommands {
                after_seq: self.tenure.backlog.after_seq,
                wait_ms: Some(LISTEN_WAIT_MS),
                known_news: Some(self.known_news.clone()),
                ..PollCommands::default()
            };
            self.poll = Some(Box::pin(self.tenure.poll(query)));
        }
        if self.beat_at().is_some_and(|at| at <= now) {
            self.beat = Some(Box::pin(self.tenure.heartbeat()));
        }
        if self.time_up_at.is_some_and(|at| at <= now) {
            self.time_up_at = None;
            self.end.stop(self.time_up.clone());
        }
        self.drop_at.is_some_and(|at| at <= now)
    }

    /// Takes from a poll what concerns this turn; the rest waits in the backlog.
    async fn read(&mut self, page: Result<CommandPage, Failure>) -> Result<(), Halt> {
        let Ok(page) = page else {
            // The heartbeat finds out what is wrong; here it is enough not to ask too often.
            self.listen_again(false);
            return Ok(());
        };
        let id = self.turn.command.command_id;
        let mut news = !page.commands.is_empty();
        let stopping = self.end.stop_reason().is_some();
        if page.run_cancel_requested || page.cancel_requested.contains(&id) {
            news |= !stopping;
            self.end.stop(Stop::Cancel);
        }
        self.known_news = page.news_mark;
        for resolved in page.resolved_permissions {
            news |= self.end.answer(resolved);
        }
        for command in page.commands {
            if command.target_command_id == Some(id) {
                self.tenure.backlog.after_seq = self.tenure.backlog.after_seq.max(command.seq);
                self.deliver(command).await?;
            } else {
                self.tenure.backlog.add(command);
            }
        }
        self.listen_again(news);
        Ok(())
    }

    fn listen_again(&mut self, news: bool) {
        let now = Instant::now();
        if news {
            self.quiet = Duration::from_millis(QUIET_MS.0);
            self.listen_at = Some(now);
        } else {
            self.listen_at = Some(now + self.quiet);
            self.quiet = (self.quiet * 2).min(Duration::from_millis(QUIET_MS.1));
        }
    }

    /// Hands a steer or an interrupt to the turn.
    async fn deliver(&mut self, command: Command) -> Result<(), Halt> {
        match self.tenure.ack(command.command_id).await.map_err(Refusal::from) {
            Ok(_) => {}
            Err(Refusal::CommandEnded) => return Ok(()),
            Err(Refusal::Content(failure)) => return Err(Halt::Failed(failure)),
            Err(Refusal::Halt(halt)) => return Err(halt),
        }
        match command.command_type {
            CommandType::Steer => self.end.steer(&command),
            CommandType::Interrupt => {
                // Its own end must come before the turn's, which ends whatever is still aimed at it.
                self.end.end(&command.command_id.to_string(), &TurnEnd::completed());
                self.end.stop(Stop::Interrupt);
            }
            CommandType::Turn => self.tenure.backlog.add(command),
        }
        Ok(())
    }

    fn beaten(&mut self, beat: Result<LeaseState, Failure>) -> Result<(), Halt> {
        self.tenure.beaten();
        match beat {
            Ok(state) if state.run_cancel_requested => self.end.stop(Stop::Cancel),
            Ok(_) => {}
            Err(failure) if ostler_client::is_transient(&failure) => {
                tracing::warn!(%failure, "the lease could not be renewed; trying again");
                self.tenure.beat_failed();
            }
            Err(failure) => return Err(failure.into()),
        }
        Ok(())
    }

    /// Says what the agent changed in its workspace, before the turn's end is stated.
    async fn tell_changes(&mut self, begun: &Changes) {
        if let Some(changes) = begun.end().await {
            let fact = Told { phase: PHASE_WORKSPACE_CHANGED, changes };
            self.end.tell(EventType::BackendStatus, &fact);
        }
    }

    /// Sends what is left, and the end.
    async fn finish(&mut self, outcome: Outcome) -> Result<(), Halt> {
        let end = match (outcome, self.end.stop_reason()) {
            (Outcome::EndedElsewhere, _) => return Ok(()),
            (Outcome::Left(Err(Left::Crashed)), _) => return Err(Halt::Crashed),
            (Outcome::Refused(failure), _) => self.refused(failure),
            (Outcome::Left(_), Some(stop)) => stop_end(&stop),
            (Outcome::Left(Ok(end)), None) => end,
            (Outcome::Left(Err(Left::Stopped)), None) => {
                TurnEnd::failed(FailureKind::BackendFailed, "the agent stopped without being told to")
            }
        };
        let mut refusal = match self.append.take() {
            Some(append) => self.sent(append.await),
            None => None,
        };
        let command_id = self.turn.command.command_id.to_string();
        self.tenure.last_end = Some(end.clone());
        if !matches!(refusal, Some(Refusal::Content(_))) {
            self.end.end(&command_id, &end);
        }
        let mut tries = 0;
        loop {
            match refusal.take() {
                None => {}
                Some(Refusal::CommandEnded) => return Ok(()),
                Some(Refusal::Halt(halt)) => return Err(halt),
                Some(Refusal::Content(failure)) if tries > 0 => return Err(Halt::Failed(failure)),
                Some(Refusal::Content(failure)) => {
                    tries += 1;
                    let end = self.refused(failure);
                    self.end.end(&command_id, &end);
                    self.tenure.last_end = Some(end);
                }
            }
            let batch = self.end.take();
            if batch.is_empty() {
                return Ok(());
            }
            let sent = self.tenure.append(batch).await;
            refusal = self.sent(sent);
        }
    }

    fn sent(&mut self, sent: Result<Appended, Failure>) -> Option<Refusal> {
        match sent {
            Ok(appended) => {
                self.tenure.noted(appended);
                None
            }
            Err(failure) => Some(failure.into()),
        }
    }

    /// Nothing the agent has queued can be trusted to be accepted any more; the end still must be.
    fn refused(&self, failure: Failure) -> TurnEnd {
        self.end.discard();
        TurnEnd::failed(
            FailureKind::InfraFailed,
            format!("the server refused what the agent emitted: {}", failure.message),
        )
    }
}

fn stop_end(stop: &Stop) -> TurnEnd {
    match stop {
        Stop::Cancel => TurnEnd::cancelled("cancelled on request"),
        Stop::Interrupt => TurnEnd::cancelled("interrupted"),
        Stop::Budget(used_up) => TurnEnd::blocked(FailureKind::BudgetExceeded, used_up.to_string()),
    }
}

/// The answer to the call in the slot; never, while it is empty.
async fn filled<T>(slot: &mut Slot<T>) -> Result<T, Failure> {
    match slot {
        Some(call) => call.await,
        None => std::future::pending().await,
    }
}
