//! Drives one turn, from its acknowledgement to its end. While the backend works, this sends the events it emits, renews
//! the lease, and polls for what concerns the turn: steers, interrupts, cancels and permission decisions. It also stops
//! the backend when a budget runs out.
//!
//! A turn that never waits costs one append, which also releases the lease: polling starts only after the backend has
//! worked for a moment.

mod prepare;

use futures_util::future::BoxFuture;
use ostler_protocol::{
    Failure, FailureKind,
    ids::CommandId,
    kernel::{
        budgets::Allowance,
        commands::{Command, CommandPage, CommandType, PollCommands},
        events::{AppendEvent, Appended, EventType, PHASE_WORKSPACE_CHANGED},
        leases::LeaseState,
        runs::TerminalStatus,
        workspaces::RecordedChanges,
    },
};
use serde::Serialize;
use tokio::time::{Duration, Instant, sleep_until};

use crate::{
    backend::{
        interface::Backend,
        turn::{Turn, TurnAbort, TurnEnd, TurnResult},
    },
    budgets::StopReason,
    changes::TurnChanges,
    environment::BackendEnvironment,
    lease_session::{Halt, LeaseRefusal, LeaseSession},
    leave_order::LeaveOrder,
    turn_sink::{self, RunnerSide, terminal_payload},
};
use prepare::{Start, prepare_turn};

/// A turn that ends before this costs no poll at all.
const POLL_AFTER_MS: u64 = 5;
const POLL_WAIT_MS: u64 = 25_000;
/// First and longest pause between two polls without news. The pause grows, so that a server that replies at once is not
/// flooded.
const POLL_PAUSE_MS: (u64, u64) = (25, 1_000);
/// A backend that was stopped and has not ended is dropped after this.
const STOP_GRACE_MS: u64 = 10_000;

/// Works on one turn. Only what ends the whole lease session is an error. After an order to leave, the backend is stopped and the
/// turn stays unfinished; this returns when the backend has ended the turn, however long that takes.
pub(crate) async fn drive_turn(
    lease: &mut LeaseSession,
    environment: &BackendEnvironment,
    backend: &mut dyn Backend,
    command: Command,
    leave: &LeaveOrder,
) -> Result<(), Halt> {
    let prepared = prepare_turn(lease, environment, backend, command).await;
    let (turn, allowance, meter) = match prepared {
        Ok(Start::Run(parts)) => *parts,
        Ok(Start::EndNow(command_id, end)) => return end_command(lease, command_id, &end).await,
        Err(refusal) => return refusal.unless_command_ended(),
    };
    let (mut sink, side) = turn_sink::open(&turn, lease.lease_epoch, meter, lease.cutter.clone());
    sink.attach_tools(lease.tool_port(turn.command.command_id));
    if let Some(mounted) = lease.storage_mounted.take() {
        sink.emit(EventType::BackendStatus, &mounted).await;
    }
    let targeting = lease.pending.take_targeting(turn.command.command_id);
    let mut driver = TurnDriver::new(lease, &turn, side, &allowance, leave);
    for command in targeting {
        driver.deliver(command).await?;
    }
    let changes = TurnChanges::begin(environment).await;
    if leave.is_given() {
        return Ok(());
    }
    let outcome = driver.run_backend(backend.turn(&turn, sink)).await?;
    if let (Some(changes), Outcome::Left(Ok(_) | Err(TurnAbort::Stopped))) = (changes, &outcome) {
        driver.report_changes(&changes).await;
    }
    driver.finish(outcome).await?;
    // Commands that target the turn and were never delivered have ended with it.
    lease.pending.take_targeting(turn.command.command_id);
    Ok(())
}

#[derive(Serialize)]
struct ChangesPayload {
    phase: &'static str,
    #[serde(flatten)]
    changes: RecordedChanges,
}

/// Ends a command that is not run.
async fn end_command(lease: &mut LeaseSession, command_id: CommandId, end: &TurnEnd) -> Result<(), Halt> {
    let event = AppendEvent {
        event_type: EventType::TerminalStatus.as_str().to_owned(),
        command_id: Some(command_id.to_string()),
        payload: terminal_payload(end),
    };
    lease.last_end = Some(end.clone());
    match lease.append(vec![event]).await.map_err(LeaseRefusal::from) {
        Ok(appended) => {
            lease.record_append(&appended);
            Ok(())
        }
        Err(refusal) => refusal.unless_command_ended(),
    }
}

/// How the backend left the turn.
enum Outcome {
    Left(TurnResult),
    /// The server has ended the command, so there is nothing to report.
    EndedElsewhere,
    /// The server does not accept what the backend emits.
    Rejected(Failure),
}

/// A call to the server that is in flight.
type InFlight<T> = Option<BoxFuture<'static, Result<T, Failure>>>;

/// The runner's side of a turn.
struct TurnDriver<'a> {
    lease: &'a mut LeaseSession,
    turn: &'a Turn,
    side: RunnerSide,
    append: InFlight<Appended>,
    poll: InFlight<CommandPage>,
    heartbeat: InFlight<LeaseState>,
    poll_at: Option<Instant>,
    poll_pause: Duration,
    time_up_at: Option<Instant>,
    time_up: StopReason,
    drop_at: Option<Instant>,
    leave: &'a LeaveOrder,
    is_leaving: bool,
    news_mark: String,
}

enum DriverEvent {
    Left(TurnResult),
    Appended(Result<Appended, Failure>),
    Batch(Vec<AppendEvent>),
    Page(Result<CommandPage, Failure>),
    Heartbeat(Result<LeaseState, Failure>),
    Stopping,
    Leaving,
    Tick,
}

impl<'a> TurnDriver<'a> {
    fn new(
        lease: &'a mut LeaseSession,
        turn: &'a Turn,
        side: RunnerSide,
        allowance: &Allowance,
        leave: &'a LeaveOrder,
    ) -> Self {
        let now = Instant::now();
        Self {
            lease,
            turn,
            side,
            append: None,
            poll: None,
            heartbeat: None,
            poll_at: Some(now + Duration::from_millis(POLL_AFTER_MS)),
            poll_pause: Duration::from_millis(POLL_PAUSE_MS.0),
            time_up_at: now.checked_add(Duration::from_millis(allowance.timeout_ms.unsigned_abs())),
            time_up: StopReason::Budget(allowance.timed_out()),
            drop_at: None,
            leave,
            is_leaving: false,
            news_mark: String::new(),
        }
    }

    /// Runs the backend until it ends the turn, or until there is no point in continuing.
    async fn run_backend(&mut self, mut work: BoxFuture<'_, TurnResult>) -> Result<Outcome, Halt> {
        loop {
            let tick = self.next_tick();
            let event = tokio::select! {
                biased;
                left = &mut work => DriverEvent::Left(left),
                appended = completion(&mut self.append) => DriverEvent::Appended(appended),
                batch = self.side.next_batch(), if self.append.is_none() => DriverEvent::Batch(batch),
                page = completion(&mut self.poll) => DriverEvent::Page(page),
                state = completion(&mut self.heartbeat) => DriverEvent::Heartbeat(state),
                () = self.leave.wait(), if !self.is_leaving => DriverEvent::Leaving,
                () = self.side.stopped(), if self.drop_at.is_none() && !self.is_leaving => DriverEvent::Stopping,
                () = sleep_until(tick) => DriverEvent::Tick,
            };
            match event {
                DriverEvent::Left(left) => return Ok(Outcome::Left(left)),
                DriverEvent::Batch(batch) => self.append = Some(Box::pin(self.lease.append(batch))),
                DriverEvent::Appended(appended) => {
                    self.append = None;
                    match appended.map_err(LeaseRefusal::from) {
                        Ok(appended) => {
                            self.lease.record_append(&appended);
                            self.side.mark_sent();
                        }
                        Err(LeaseRefusal::CommandEnded) => return Ok(Outcome::EndedElsewhere),
                        Err(LeaseRefusal::Content(failure)) => return Ok(Outcome::Rejected(failure)),
                        Err(LeaseRefusal::Halt(halt)) => return Err(halt),
                    }
                }
                DriverEvent::Page(page) => {
                    self.poll = None;
                    self.read_page(page).await?;
                }
                DriverEvent::Heartbeat(state) => {
                    self.heartbeat = None;
                    self.read_heartbeat(state)?;
                }
                DriverEvent::Stopping => self.drop_at = Some(Instant::now() + Duration::from_millis(STOP_GRACE_MS)),
                DriverEvent::Leaving => self.begin_to_leave(),
                DriverEvent::Tick => {
                    if self.tick(Instant::now()) {
                        return Ok(Outcome::Left(Err(TurnAbort::Stopped)));
                    }
                }
            }
        }
    }

    /// Stops the backend and waits for it without a limit of our own: the lease is released afterwards, and a backend that was only
    /// dropped could still be at work then. Nothing is polled any more: an interrupt is for the next runner.
    fn begin_to_leave(&mut self) {
        self.is_leaving = true;
        (self.poll, self.poll_at, self.drop_at) = (None, None, None);
        self.side.stop(StopReason::Leave);
    }

    fn heartbeat_at(&self) -> Option<Instant> {
        self.heartbeat.is_none().then_some(self.lease.heartbeat_due)
    }

    /// The earliest time at which something is due.
    fn next_tick(&self) -> Instant {
        let far = || Instant::now() + Duration::from_millis(POLL_WAIT_MS);
        let due = [self.poll_at, self.time_up_at, self.drop_at, self.heartbeat_at()];
        due.into_iter().flatten().min().unwrap_or_else(far)
    }

    /// Starts what is due. Returns true if the backend had its time to stop and has not stopped.
    fn tick(&mut self, now: Instant) -> bool {
        if self.poll_at.is_some_and(|at| at <= now) {
            self.poll_at = None;
            let query = PollCommands {
                after_seq: self.lease.pending.after_seq,
                wait_ms: Some(POLL_WAIT_MS),
                known_news: Some(self.news_mark.clone()),
                ..PollCommands::default()
            };
            self.poll = Some(Box::pin(self.lease.poll(query)));
        }
        if self.heartbeat_at().is_some_and(|at| at <= now) {
            self.heartbeat = Some(Box::pin(self.lease.heartbeat()));
        }
        if self.time_up_at.is_some_and(|at| at <= now) {
            self.time_up_at = None;
            self.side.stop(self.time_up.clone());
        }
        self.drop_at.is_some_and(|at| at <= now)
    }

    /// Handles the part of a poll's reply that concerns this turn. Other commands are added to the pending ones.
    async fn read_page(&mut self, page: Result<CommandPage, Failure>) -> Result<(), Halt> {
        let Ok(page) = page else {
            // The heartbeat finds out what is wrong. Here it is enough not to poll too often.
            self.schedule_poll(false);
            return Ok(());
        };
        let id = self.turn.command.command_id;
        let mut has_news = !page.commands.is_empty();
        let is_stopping = self.side.stop_reason().is_some();
        if page.run_cancel_requested || page.cancel_requested.contains(&id) {
            has_news |= !is_stopping;
            self.side.stop(StopReason::Cancel);
        }
        self.news_mark = page.news_mark;
        for resolved in page.resolved_permissions {
            has_news |= self.side.resolve_permission(resolved);
        }
        for command in page.commands {
            if command.target_command_id == Some(id) {
                self.lease.pending.after_seq = self.lease.pending.after_seq.max(command.seq);
                self.deliver(command).await?;
            } else {
                self.lease.pending.add(command);
            }
        }
        self.schedule_poll(has_news);
        Ok(())
    }

    fn schedule_poll(&mut self, has_news: bool) {
        let now = Instant::now();
        if has_news {
            self.poll_pause = Duration::from_millis(POLL_PAUSE_MS.0);
            self.poll_at = Some(now);
        } else {
            self.poll_at = Some(now + self.poll_pause);
            self.poll_pause = (self.poll_pause * 2).min(Duration::from_millis(POLL_PAUSE_MS.1));
        }
    }

    /// Delivers a steer or an interrupt to the turn.
    async fn deliver(&mut self, command: Command) -> Result<(), Halt> {
        if let Err(refusal) = self.lease.ack(command.command_id).await.map_err(LeaseRefusal::from) {
            return refusal.unless_command_ended();
        }
        match command.command_type {
            CommandType::Steer => self.side.steer(&command),
            CommandType::Interrupt => {
                // Its own end must come before the turn's, which ends every command that still targets the turn.
                self.side.end_command(&command.command_id.to_string(), &TurnEnd::completed());
                self.side.stop(StopReason::Interrupt);
            }
            CommandType::Turn => self.lease.pending.add(command),
        }
        Ok(())
    }

    fn read_heartbeat(&mut self, state: Result<LeaseState, Failure>) -> Result<(), Halt> {
        self.lease.schedule_heartbeat();
        match state {
            Ok(state) if state.run_cancel_requested => self.side.stop(StopReason::Cancel),
            Ok(_) => {}
            Err(failure) if ostler_client::is_transient(&failure) => {
                tracing::warn!(%failure, "the lease could not be renewed; retrying");
                self.lease.schedule_heartbeat_retry();
            }
            Err(failure) => return Err(failure.into()),
        }
        Ok(())
    }

    /// Reports what the backend changed in its workspace. Comes before the turn's end.
    async fn report_changes(&mut self, changes: &TurnChanges) {
        if let Some(changes) = changes.end().await {
            let payload = ChangesPayload { phase: PHASE_WORKSPACE_CHANGED, changes };
            self.side.emit(EventType::BackendStatus, &payload);
        }
    }

    /// Sends the remaining events and the turn's end.
    async fn finish(&mut self, outcome: Outcome) -> Result<(), Halt> {
        let end = match (outcome, self.side.stop_reason()) {
            (Outcome::EndedElsewhere, _) => return Ok(()),
            (Outcome::Left(Err(TurnAbort::Crashed)), _) => return Err(Halt::Crashed),
            (Outcome::Rejected(failure), _) => self.discard_rejected(&failure),
            (Outcome::Left(left), Some(reason)) => match (stop_end(&reason), left) {
                (Some(end), _) => end,
                // The backend was done before it received the order.
                (None, Ok(end)) if end.status == TerminalStatus::Completed => end,
                (None, _) => return self.send_rest().await,
            },
            (Outcome::Left(Ok(end)), None) => end,
            (Outcome::Left(Err(TurnAbort::Stopped)), None) => TurnEnd::failed(
                FailureKind::BackendFailed,
                "the backend stopped, although nothing had requested it to stop",
            ),
        };
        let mut refusal = match self.append.take() {
            Some(append) => self.record_append(append.await),
            None => None,
        };
        let command_id = self.turn.command.command_id.to_string();
        self.lease.last_end = Some(end.clone());
        if !matches!(refusal, Some(LeaseRefusal::Content(_))) {
            self.side.end_command(&command_id, &end);
        }
        let mut rejections = 0;
        loop {
            match refusal.take() {
                None => {}
                Some(LeaseRefusal::CommandEnded) => return Ok(()),
                Some(LeaseRefusal::Halt(halt)) => return Err(halt),
                Some(LeaseRefusal::Content(failure)) if rejections > 0 => return Err(Halt::Failed(failure)),
                Some(LeaseRefusal::Content(failure)) => {
                    rejections += 1;
                    let end = self.discard_rejected(&failure);
                    self.side.end_command(&command_id, &end);
                    self.lease.last_end = Some(end);
                }
            }
            let batch = self.side.take_batch();
            if batch.is_empty() {
                return Ok(());
            }
            let appended = self.lease.append(batch).await;
            refusal = self.record_append(appended);
        }
    }

    /// Sends the remaining events of a turn that is left unfinished.
    async fn send_rest(&mut self) -> Result<(), Halt> {
        let mut in_flight = self.append.take();
        loop {
            let appended = match in_flight.take() {
                Some(append) => append.await,
                None => match self.side.take_batch() {
                    batch if batch.is_empty() => return Ok(()),
                    batch => self.lease.append(batch).await,
                },
            };
            match self.record_append(appended) {
                None => {}
                Some(LeaseRefusal::Content(failure)) => {
                    tracing::warn!(%failure, "the server rejected the last events of an unfinished turn");
                    return Ok(());
                }
                Some(refusal) => return refusal.unless_command_ended(),
            }
        }
    }

    fn record_append(&mut self, appended: Result<Appended, Failure>) -> Option<LeaseRefusal> {
        match appended {
            Ok(appended) => {
                self.lease.record_append(&appended);
                None
            }
            Err(failure) => Some(failure.into()),
        }
    }

    /// Drops all queued events, because the server may reject any of them. The end must still be accepted.
    fn discard_rejected(&self, failure: &Failure) -> TurnEnd {
        self.side.discard();
        TurnEnd::failed(
            FailureKind::InfraFailed,
            format!("the server rejected what the agent emitted: {}", failure.message),
        )
    }
}

/// How a turn ends that was stopped for this reason. `None` if it does not end.
fn stop_end(reason: &StopReason) -> Option<TurnEnd> {
    Some(match reason {
        StopReason::Cancel => TurnEnd::cancelled("cancelled on request"),
        StopReason::Interrupt => TurnEnd::cancelled("interrupted"),
        StopReason::Budget(used_up) => TurnEnd::blocked(FailureKind::BudgetExceeded, used_up.to_string()),
        // The turn is complete as it is: its calls are pending.
        StopReason::HandedOver => TurnEnd::completed(),
        StopReason::Leave => return None,
    })
}

/// The result of the call in flight. Never resolves if there is none.
async fn completion<T>(call: &mut InFlight<T>) -> Result<T, Failure> {
    match call {
        Some(call) => call.await,
        None => std::future::pending().await,
    }
}
