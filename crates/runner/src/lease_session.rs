//! One claim of a run and everything written under its lease. Each write carries the lease's epoch. The server's reply to
//! a write decides what the runner must do next.

use std::{borrow::Cow, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures_util::future::BoxFuture;
use ostler_client::{Client, is_transient};
use ostler_protocol::{
    Failure, FailureKind, RawJson,
    ids::{AttemptId, CommandId},
    kernel::{
        commands::{AckCommand, Command, CommandPage, PollCommands},
        conversation::{Conversation, HistoryAttachment},
        events::{AppendEvent, AppendEvents, Appended, EventType},
        leases::{Claimed, LeaseState, PatchLease},
        results::RunResult,
        runs::Run,
        session_storage::RefreshStorage,
        whole_payloads::WholePayload,
    },
    redaction::Redactor,
};
use serde_json::Value;
use tokio::time::{Duration, Instant, sleep};

use crate::{
    backend::turn::TurnEnd,
    outcome::idle_summary,
    pending_commands::PendingCommands,
    retries::{RETRY_MS_MAX, retry},
    rules,
    text_cutter::TextCutter,
    tool_port::ToolPort,
};

/// A write is retried for as long as the lease could last, within these bounds.
const RETRY_FOR_MS: (u64, u64) = (1_000, 60_000);

/// Why a runner stops before its work is done.
#[derive(Debug)]
pub(crate) enum Halt {
    /// Another claim is in force. Nothing more may be written.
    FencedOut(Failure),
    /// The run has ended or was cancelled.
    RunEnded(Failure),
    /// The backend asked for a crash.
    Crashed,
    /// It was stopped from outside.
    Stopped,
    Failed(Failure),
}

/// What a rejected write about a command means for the runner.
#[derive(Debug)]
pub(crate) enum LeaseRefusal {
    /// The command has ended. The run continues.
    CommandEnded,
    /// The server does not accept the content.
    Content(Failure),
    Halt(Halt),
}

impl From<Failure> for LeaseRefusal {
    fn from(failure: Failure) -> Self {
        match (failure.kind, failure.broken_rule()) {
            (FailureKind::RunnerLeaseConflict, _) => Self::Halt(Halt::FencedOut(failure)),
            (_, Some(rule)) if rules::ends_run(rule) => Self::Halt(Halt::RunEnded(failure)),
            (_, Some(rule)) if rules::ends_command(rule) => Self::CommandEnded,
            (FailureKind::SchemaInvalid | FailureKind::PayloadTooLarge, _) => Self::Content(failure),
            _ => Self::Halt(Halt::Failed(failure)),
        }
    }
}

impl LeaseRefusal {
    /// Ignores that the command has ended. Every other reason stops the runner.
    pub(crate) fn unless_command_ended(self) -> Result<(), Halt> {
        match self {
            Self::CommandEnded => Ok(()),
            Self::Content(failure) => Err(Halt::Failed(failure)),
            Self::Halt(halt) => Err(halt),
        }
    }
}

impl From<Failure> for Halt {
    fn from(failure: Failure) -> Self {
        match LeaseRefusal::from(failure.clone()) {
            LeaseRefusal::Halt(halt) => halt,
            _ => Self::Failed(failure),
        }
    }
}

fn redacted(redactor: &Redactor, payload: RawJson) -> RawJson {
    let clean = match redactor.redact_json_payload(payload.as_str()) {
        Cow::Borrowed(_) => return payload,
        Cow::Owned(clean) => clean,
    };
    // A text that is no JSON after it was redacted must not be sent as it was.
    RawJson::parse(clean).unwrap_or_else(|_| RawJson::empty_object())
}

/// A runner's hold on a run for the time of one lease.
pub(crate) struct LeaseSession {
    client: Client,
    run_id: String,
    runner_id: String,
    lease_ms: i64,
    pub(crate) lease_epoch: i64,
    pub(crate) attempt_id: AttemptId,
    pub(crate) run: Arc<Run>,
    pub(crate) thread_id: Option<String>,
    pub(crate) pending: PendingCommands,
    last_batch_no: i64,
    /// Release the lease together with the end of the last turn.
    pub(crate) releases_when_idle: bool,
    /// Whether the lease was released that way.
    pub(crate) is_released: bool,
    /// How the last turn ended, as it is reported to the server.
    pub(crate) last_end: Option<TurnEnd>,
    /// Number of turns it worked on.
    pub(crate) turns: u32,
    /// Ends the runner's job together with the lease.
    pub(crate) ends_job: bool,
    /// Whether the job was ended that way.
    pub(crate) is_job_ended: bool,
    /// When the next heartbeat is due.
    pub(crate) heartbeat_due: Instant,
    /// Removes values from reports that only this runner knows to be secret.
    pub(crate) redactor: Option<Redactor>,
    /// Cuts what is reported. It knows the same values.
    pub(crate) cutter: TextCutter,
    /// Where the session's storage is. The first turn reports it.
    pub(crate) storage_mounted: Option<Value>,
}

impl LeaseSession {
    pub(crate) fn new(client: Client, runner_id: String, lease_ms: i64, claimed: Claimed) -> Self {
        let mut pending = PendingCommands::default();
        claimed.commands.into_iter().for_each(|command| pending.add(command));
        let mut lease = Self {
            client,
            run_id: claimed.run.run_id.to_string(),
            runner_id,
            lease_ms,
            lease_epoch: claimed.lease_epoch,
            attempt_id: claimed.attempt_id,
            run: Arc::new(claimed.run),
            thread_id: claimed.thread_id,
            pending,
            last_batch_no: 0,
            releases_when_idle: false,
            is_released: false,
            last_end: None,
            turns: 0,
            ends_job: false,
            is_job_ended: false,
            heartbeat_due: Instant::now(),
            redactor: None,
            cutter: TextCutter::default(),
            storage_mounted: None,
        };
        lease.schedule_heartbeat();
        lease
    }

    /// Appends a batch under the next batch number, and retries under the same one while the server is unreachable.
    pub(crate) fn append(
        &mut self,
        mut events: Vec<AppendEvent>,
    ) -> impl Future<Output = Result<Appended, Failure>> + Send + 'static {
        self.last_batch_no += 1;
        if let Some(redactor) = &self.redactor {
            let clean = |event: AppendEvent| AppendEvent { payload: redacted(redactor, event.payload), ..event };
            events = events.into_iter().map(clean).collect();
        }
        let ends = || events.iter().any(|event| event.event_type == EventType::TerminalStatus.as_str());
        let release_if_idle = self.releases_when_idle && self.pending.is_empty() && ends();
        let batch = AppendEvents {
            runner_id: self.runner_id.clone(),
            lease_epoch: self.lease_epoch,
            attempt_id: Some(self.attempt_id.to_string()),
            batch_no: Some(self.last_batch_no),
            release_if_idle,
            job_summary: (release_if_idle && self.ends_job).then(|| self.job_summary()),
            events,
        };
        let (client, run_id, limit) = (self.client.clone(), self.run_id.clone(), self.retry_for());
        async move { retry(limit, || client.append_events(&run_id, &batch)).await }
    }

    /// The job's summary, if this batch is the runner's last one.
    fn job_summary(&self) -> RawJson {
        let summary = idle_summary(&self.cutter, self.turns, self.last_end.as_ref());
        match &self.redactor {
            Some(redactor) => redacted(redactor, summary),
            None => summary,
        }
    }

    /// Records the reply to an append.
    pub(crate) fn record_append(&mut self, appended: &Appended) {
        self.is_released |= appended.released;
        self.is_job_ended |= appended.job_ended;
    }

    pub(crate) async fn ack(&self, command_id: CommandId) -> Result<Command, Failure> {
        let ack = AckCommand {
            runner_id: self.runner_id.clone(),
            lease_epoch: self.lease_epoch,
            attempt_id: Some(self.attempt_id.to_string()),
        };
        let command_id = command_id.to_string();
        retry(self.retry_for(), || self.client.ack_command(&command_id, &ack)).await
    }

    /// Polls once. The caller decides when to poll again.
    pub(crate) fn poll(
        &self,
        query: PollCommands,
    ) -> impl Future<Output = Result<CommandPage, Failure>> + Send + 'static {
        let (client, run_id) = (self.client.clone(), self.run_id.clone());
        async move { client.poll_commands(&run_id, &query).await }
    }

    pub(crate) fn heartbeat(&self) -> impl Future<Output = Result<LeaseState, Failure>> + Send + 'static {
        let (client, run_id, patch) = (self.client.clone(), self.run_id.clone(), self.patch(false, false));
        async move { client.patch_lease(&run_id, &patch).await }
    }

    /// Renews the lease until the server rejects it, or the run is to be cancelled. Returns the rejection, if that is the reason.
    pub(crate) async fn renew_until_cancelled(&self) -> Option<Failure> {
        self.renew_while(|state| !state.run_cancel_requested).await
    }

    /// Renews the lease until the server rejects it.
    pub(crate) async fn renew_until_rejected(&self) {
        self.renew_while(|_| true).await;
    }

    /// Renews the lease while its state is as wanted. Returns the rejection if the server rejects it.
    async fn renew_while(&self, is_wanted: impl Fn(&LeaseState) -> bool) -> Option<Failure> {
        let interval = self.heartbeat_interval();
        loop {
            match retry(interval, || self.heartbeat()).await {
                Ok(state) if !is_wanted(&state) => return None,
                Ok(_) => sleep(interval).await,
                Err(failure) if is_transient(&failure) => {
                    tracing::warn!(%failure, "the lease could not be renewed; trying again");
                    sleep(interval / 8).await;
                }
                Err(failure) => {
                    tracing::warn!(%failure, "the lease was lost");
                    return Some(failure);
                }
            }
        }
    }

    /// Records a state of the backend that belongs to no command.
    pub(crate) async fn report_status(&mut self, payload: &Value) -> Result<(), Halt> {
        let event = AppendEvent {
            event_type: EventType::BackendStatus.as_str().to_owned(),
            command_id: None,
            payload: RawJson::of(payload),
        };
        let appended = self.append(vec![event]).await?;
        self.record_append(&appended);
        Ok(())
    }

    /// Schedules the next heartbeat, a third of the lease after a renewal.
    pub(crate) fn schedule_heartbeat(&mut self) {
        self.heartbeat_due = Instant::now() + self.heartbeat_interval();
    }

    /// Schedules a heartbeat soon after one that failed, so that the lease does not expire over two short outages.
    pub(crate) fn schedule_heartbeat_retry(&mut self) {
        self.heartbeat_due = Instant::now() + (self.heartbeat_interval() / 8).min(Duration::from_millis(RETRY_MS_MAX));
    }

    pub(crate) fn heartbeat_interval(&self) -> Duration {
        Duration::from_millis(self.lease_ms.unsigned_abs() / 3)
    }

    /// Releases the lease. Returns false if a new command arrived and the lease was therefore kept.
    pub(crate) async fn release(&self, only_if_idle: bool) -> Result<bool, Failure> {
        let patch = self.patch(true, only_if_idle);
        Ok(retry(self.retry_for(), || self.client.patch_lease(&self.run_id, &patch)).await?.released)
    }

    /// The result of a command so far.
    pub(crate) async fn result(&self, command_id: CommandId) -> Result<RunResult, Failure> {
        let command_id = command_id.to_string();
        retry(self.retry_for(), || self.client.command_result(&self.run_id, &command_id)).await
    }

    /// The command with its whole payload, if its own is a short form.
    pub(crate) async fn with_whole_payload(&self, command: Command) -> Result<Command, Failure> {
        if WholePayload::of(&command.payload).is_none() {
            return Ok(command);
        }
        let command_id = command.command_id.to_string();
        let whole = retry(self.retry_for(), || self.client.command_payload(&self.run_id, &command_id)).await?;
        Ok(Command { payload: whole.payload, ..command })
    }

    /// The messages of the session before a command.
    pub(crate) async fn conversation(&self, command_id: CommandId) -> Result<Conversation, Failure> {
        let command_id = command_id.to_string();
        retry(self.retry_for(), || self.client.conversation(&self.run_id, &command_id)).await
    }

    /// The server's tools, for the time of a command.
    pub(crate) fn tool_port(&self, command_id: CommandId) -> ToolPort {
        ToolPort {
            client: self.client.clone(),
            run_id: self.run_id.clone(),
            runner_id: self.runner_id.clone(),
            lease_epoch: self.lease_epoch,
            attempt_id: self.attempt_id.to_string(),
            command_id,
            retry_for: self.retry_for(),
        }
    }

    /// Images in the form that models accept: our own as data URLs, others by their URLs. One that cannot be loaded is left
    /// out.
    pub(crate) fn load_images(&self, images: Vec<HistoryAttachment>) -> BoxFuture<'static, Vec<String>> {
        let (client, limit) = (self.client.clone(), self.retry_for());
        Box::pin(async move {
            let mut loaded = vec![];
            for HistoryAttachment { mime_type, url } in images {
                match retry(limit, || client.attachment(&url)).await {
                    Ok(Some(bytes)) => loaded.push(format!("data:{mime_type};base64,{}", STANDARD.encode(bytes))),
                    Ok(None) => loaded.push(url),
                    Err(failure) => tracing::warn!(%failure, "an image of a message could not be loaded"),
                }
            }
            loaded
        })
    }

    /// Reports the current content of the session's storage.
    pub(crate) async fn report_storage(&self, found: &RefreshStorage) -> Result<(), Failure> {
        let report = || self.client.refresh_session_storage(&self.run.session_id, found);
        retry(self.retry_for(), report).await.map(drop)
    }

    /// Fetches new commands, waiting for one for at most `wait_ms`.
    pub(crate) async fn fetch_commands(&mut self, wait_ms: u64) -> Result<(), Failure> {
        let query =
            PollCommands { after_seq: self.pending.after_seq, wait_ms: Some(wait_ms), ..PollCommands::default() };
        let page = retry(self.retry_for(), || self.client.poll_commands(&self.run_id, &query)).await?;
        page.commands.into_iter().for_each(|command| self.pending.add(command));
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
