//! A tenure: one claim of a run and everything written under it. Each write carries the lease's epoch; what the server
//! says about a write is turned into what the runner must do next.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures_util::future::BoxFuture;
use ostler_client::{Client, is_transient};
use ostler_protocol::{
    Failure, FailureKind,
    commands::{AckCommand, Command, CommandPage, PollCommands},
    conversation::Conversation,
    events::{AppendEvent, AppendEvents, Appended, EventType},
    history::HistoryAttachment,
    ids::{AttemptId, CommandId},
    leases::{Claimed, LeaseState, PatchLease},
    results::RunResult,
    runs::Run,
    session_storage::RefreshStorage,
};
use tokio::time::{Duration, Instant, sleep};

use crate::{agent::TurnEnd, backlog::Backlog};

const RETRY_FIRST_MS: u64 = 50;
const RETRY_MS_MAX: u64 = 2_000;
/// A write is tried again for as long as the lease could last, within these bounds.
const RETRY_FOR_MS: (u64, u64) = (1_000, 60_000);

/// Why a runner stops before its work is done.
#[derive(Debug)]
pub enum Halt {
    /// Another claim is in force. Nothing more may be written.
    FencedOut(Failure),
    /// The run has ended or was cancelled.
    RunEnded(Failure),
    /// The agent asked for a crash.
    Crashed,
    Failed(Failure),
}

/// What a refused write about a command means.
#[derive(Debug)]
pub enum Refusal {
    /// That command has ended; the rest goes on.
    CommandEnded,
    /// The server does not accept what was written.
    Content(Failure),
    Halt(Halt),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        match (failure.kind, failure.rule_name()) {
            (FailureKind::RunnerLeaseConflict, _) => Self::Halt(Halt::FencedOut(failure)),
            (_, Some("run-cancelled" | "run-terminal" | "run-cancelling")) => Self::Halt(Halt::RunEnded(failure)),
            (_, Some("command-terminal" | "command-cancelled")) => Self::CommandEnded,
            (FailureKind::SchemaInvalid | FailureKind::PayloadTooLarge, _) => Self::Content(failure),
            _ => Self::Halt(Halt::Failed(failure)),
        }
    }
}

impl From<Failure> for Halt {
    fn from(failure: Failure) -> Self {
        match Refusal::from(failure.clone()) {
            Refusal::Halt(halt) => halt,
            _ => Self::Failed(failure),
        }
    }
}

pub struct Tenure {
    client: Client,
    run_id: String,
    runner_id: String,
    lease_ms: i64,
    pub lease_epoch: i64,
    pub attempt_id: AttemptId,
    pub run: Arc<Run>,
    pub thread_id: Option<String>,
    pub backlog: Backlog,
    last_batch_no: i64,
    /// Give the lease back with the end of the last turn.
    pub leaves_when_idle: bool,
    /// That was done.
    pub has_left: bool,
    /// How the last turn ended, as it was told to the server.
    pub last_end: Option<TurnEnd>,
    /// When the next heartbeat should go.
    pub beat_due: Instant,
}

impl Tenure {
    pub fn new(client: Client, runner_id: String, lease_ms: i64, claimed: Claimed) -> Self {
        let mut backlog = Backlog::default();
        claimed.commands.into_iter().for_each(|command| backlog.add(command));
        let mut tenure = Self {
            client,
            run_id: claimed.run.run_id.to_string(),
            runner_id,
            lease_ms,
            lease_epoch: claimed.lease_epoch,
            attempt_id: claimed.attempt_id,
            run: Arc::new(claimed.run),
            thread_id: claimed.thread_id,
            backlog,
            last_batch_no: 0,
            leaves_when_idle: false,
            has_left: false,
            last_end: None,
            beat_due: Instant::now(),
        };
        tenure.beaten();
        tenure
    }

    /// Appends a batch under the next number, and again under the same one while the server cannot be reached.
    pub fn append(
        &mut self,
        events: Vec<AppendEvent>,
    ) -> impl Future<Output = Result<Appended, Failure>> + Send + 'static {
        self.last_batch_no += 1;
        let ends = || events.iter().any(|event| event.event_type == EventType::TerminalStatus.as_str());
        let release_if_idle = self.leaves_when_idle && self.backlog.is_empty() && ends();
        let batch = AppendEvents {
            runner_id: self.runner_id.clone(),
            lease_epoch: self.lease_epoch,
            attempt_id: Some(self.attempt_id.to_string()),
            batch_no: Some(self.last_batch_no),
            release_if_idle,
            events,
        };
        let (client, run_id, limit) = (self.client.clone(), self.run_id.clone(), self.retry_for());
        async move { insist(limit, || client.append_events(&run_id, &batch)).await }
    }

    /// Takes note of what a batch's answer says.
    pub fn noted(&mut self, appended: Appended) {
        self.has_left |= appended.released;
    }

    pub async fn ack(&self, command_id: CommandId) -> Result<Command, Failure> {
        let ack = AckCommand {
            runner_id: self.runner_id.clone(),
            lease_epoch: self.lease_epoch,
            attempt_id: Some(self.attempt_id.to_string()),
        };
        let command_id = command_id.to_string();
        insist(self.retry_for(), || self.client.ack_command(&command_id, &ack)).await
    }

    /// Asks once; who polls in a loop decides when to ask again.
    pub fn poll(&self, query: PollCommands) -> impl Future<Output = Result<CommandPage, Failure>> + Send + 'static {
        let (client, run_id) = (self.client.clone(), self.run_id.clone());
        async move { client.poll_commands(&run_id, &query).await }
    }

    pub fn heartbeat(&self) -> impl Future<Output = Result<LeaseState, Failure>> + Send + 'static {
        let (client, run_id, patch) = (self.client.clone(), self.run_id.clone(), self.patch(false, false));
        async move { client.patch_lease(&run_id, &patch).await }
    }

    /// The lease was renewed: the next renewal is due after a third of the lease.
    pub fn beaten(&mut self) {
        self.beat_due = Instant::now() + self.beat_every();
    }

    /// A renewal failed, and the next one may succeed: it is due soon, so that the lease does not run out over two short
    /// outages.
    pub fn beat_failed(&mut self) {
        self.beat_due = Instant::now() + (self.beat_every() / 8).min(Duration::from_millis(RETRY_MS_MAX));
    }

    pub fn beat_every(&self) -> Duration {
        Duration::from_millis(self.lease_ms.unsigned_abs() / 3)
    }

    /// Gives the lease back. False: a command came meanwhile, and the lease is kept.
    pub async fn release(&self, only_if_idle: bool) -> Result<bool, Failure> {
        let patch = self.patch(true, only_if_idle);
        Ok(insist(self.retry_for(), || self.client.patch_lease(&self.run_id, &patch)).await?.released)
    }

    /// What became of a command so far.
    pub async fn result(&self, command_id: CommandId) -> Result<RunResult, Failure> {
        let command_id = command_id.to_string();
        insist(self.retry_for(), || self.client.command_result(&self.run_id, &command_id)).await
    }

    /// What was said in the session before a command.
    pub async fn conversation(&self, command_id: CommandId) -> Result<Conversation, Failure> {
        let command_id = command_id.to_string();
        insist(self.retry_for(), || self.client.conversation(&self.run_id, &command_id)).await
    }

    /// Pictures as a model takes them: ours as data, others by their URLs. One that cannot be had is left out.
    pub fn images(&self, images: Vec<HistoryAttachment>) -> BoxFuture<'static, Vec<String>> {
        let (client, limit) = (self.client.clone(), self.retry_for());
        Box::pin(async move {
            let mut shown = vec![];
            for HistoryAttachment { mime_type, url } in images {
                match insist(limit, || client.attachment(&url)).await {
                    Ok(Some(bytes)) => shown.push(format!("data:{mime_type};base64,{}", STANDARD.encode(bytes))),
                    Ok(None) => shown.push(url),
                    Err(failure) => tracing::warn!(%failure, "a picture of a message could not be had"),
                }
            }
            shown
        })
    }

    /// Reports what the session's storage holds now.
    pub async fn refresh_storage(&self, found: &RefreshStorage) -> Result<(), Failure> {
        let report = || self.client.refresh_session_storage(&self.run.session_id, found);
        insist(self.retry_for(), report).await.map(drop)
    }

    /// Asks for commands that came meanwhile, waiting at most `wait_ms`.
    pub async fn refill(&mut self, wait_ms: u64) -> Result<(), Failure> {
        let query =
            PollCommands { after_seq: self.backlog.after_seq, wait_ms: Some(wait_ms), ..PollCommands::default() };
        let page = insist(self.retry_for(), || self.client.poll_commands(&self.run_id, &query)).await?;
        page.commands.into_iter().for_each(|command| self.backlog.add(command));
        Ok(())
    }

    fn patch(&self, release: bool, only_if_idle: bool) -> PatchLease {
        let (runner_id, lease_epoch) = (self.runner_id.clone(), self.lease_epoch);
        PatchLease { runner_id, lease_epoch, lease_ms: None, release, only_if_idle }
    }

    fn retry_for(&self) -> Duration {
        Duration::from_millis(self.lease_ms.unsigned_abs().clamp(RETRY_FOR_MS.0, RETRY_FOR_MS.1))
    }
}

/// Calls until it is answered, or `limit` has passed. Only for calls that may be repeated.
pub async fn insist<T, F: Future<Output = Result<T, Failure>>>(
    limit: Duration,
    mut call: impl FnMut() -> F,
) -> Result<T, Failure> {
    let until = Instant::now() + limit;
    let mut pause = Duration::from_millis(RETRY_FIRST_MS);
    loop {
        match call().await {
            Err(failure) if is_transient(&failure) && Instant::now() + pause < until => {
                tracing::debug!(%failure, "trying again");
                sleep(pause).await;
                pause = (pause * 2).min(Duration::from_millis(RETRY_MS_MAX));
            }
            answer => return answer,
        }
    }
}
