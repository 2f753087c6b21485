//! Children whose calls were lost with the runner of their parent, or with the server that executed the calls. Such a call cannot
//! record anything. When another runner claims the parent, its server cancels these children and, when they have ended, charges the
//! command for what they have used. An open call of `run_agent` does so when it ends, and is left to it.

use std::{collections::HashSet, time::Duration};

use ostler_protocol::{
    Failure, FailureKind,
    ids::{CommandId, RunId},
    kernel::{
        commands::Command,
        events::{Event, EventType, NewEvent, PHASE_RUNS_CHARGED},
        facts::DelegatedUse,
        launching::is_worth_repeating,
        leases::Claimed,
        operations::AppendOp,
    },
};
use ostler_store as store;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;
use tracing::Instrument;

use super::{NAME, creator::creator_of, reservations};
use crate::{
    app::{App, RunRef},
    launcher::{STORE_PAUSE, longer},
    recheck::SessionWatch,
    service::lookup,
};

/// The longest wait for one event. The store is read more often than that in any case.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The commands whose children this server settles.
#[derive(Default)]
pub(crate) struct SettlingCommands(Mutex<HashSet<CommandId>>);

/// A command whose children are being settled. Dropping it removes the command.
struct SettlingCommand {
    app: App,
    command_id: CommandId,
}

impl SettlingCommand {
    /// `None` if its children are being settled already.
    fn begin(app: &App, command_id: CommandId) -> Option<Self> {
        let is_new = app.state::<SettlingCommands>().0.lock().insert(command_id);
        is_new.then(|| Self { app: app.clone(), command_id })
    }
}

impl Drop for SettlingCommand {
    fn drop(&mut self) {
        self.app.state::<SettlingCommands>().0.lock().remove(&self.command_id);
    }
}

/// Settles the children of the commands that a runner has taken over, in the background.
pub(crate) fn settle_lost_runs(app: &App, claimed: &Claimed) {
    // A command that has made no call has started no run.
    let taken_over = claimed.commands.iter().filter(|command| command.fold.tools.count > 0);
    for settling in taken_over.filter_map(|command| SettlingCommand::begin(app, command.command_id)) {
        let run_id = claimed.run.run_id;
        let work = async move {
            tokio::select! {
                () = settle_repeatedly(&settling.app, run_id, settling.command_id) => {}
                () = settling.app.stopped() => {}
            }
        };
        tokio::spawn(work.in_current_span());
    }
}

/// Repeats [`settle`] while the store does not respond.
async fn settle_repeatedly(app: &App, run_id: RunId, command_id: CommandId) {
    let mut pause = STORE_PAUSE.0;
    while let Err(failure) = settle(app, run_id, command_id).await {
        let is_repeated = is_worth_repeating(&failure);
        tracing::warn!(%failure, %run_id, is_repeated, "what lost runs of run_agent have used was not charged");
        if !is_repeated {
            return;
        }
        tokio::time::sleep(longer(&mut pause)).await;
    }
}

/// Returns when the command has ended or was charged for all of its children.
async fn settle(app: &App, run_id: RunId, command_id: CommandId) -> Result<(), Failure> {
    let run = app.run_ref(run_id).await?;
    let mut watch = SessionWatch::new(app, run.session);
    loop {
        let parent = lookup::run_unchecked(app, run_id).await?;
        let command = lookup::command_of(app, run_id, command_id).await?;
        let children = reservations::children_of(app, &parent, &command).await?;
        // Read after the children: a call whose child was read is open, unless it has ended.
        let current = lookup::command_of(app, run_id, command_id).await?;
        if children.is_empty() || current.state.is_terminal() {
            return Ok(());
        }
        if let Some(total) = reservations::total_of_closed(&current, &children)
            && !has_open_call(&current)
        {
            if reservations::is_charged(&current, total) {
                return Ok(());
            }
            if charge(app, &run, command_id, total).await? {
                continue;
            }
        }
        let mut orphans = reservations::orphans(&current, &children).peekable();
        let first = orphans.peek().map(|orphan| orphan.session);
        if let Some(creator) = creator_of(app, &parent, &current).await? {
            for orphan in orphans {
                orphan.cancel(app, &creator, "the call that started it was lost").await;
            }
        }
        let until = Instant::now() + WAIT_MAX;
        match first {
            Some(session) => {
                let mut watch_child = SessionWatch::new(app, session);
                tokio::select! {
                    () = watch_child.changed(until, |event| event.event_type == EventType::TerminalStatus) => {}
                    () = watch.changed(until, may_close) => {}
                }
            }
            None => watch.changed(until, may_close).await,
        }
    }
}

/// Whether the command has an open call that will be charged for the lost ones when it ends.
fn has_open_call(command: &Command) -> bool {
    let tools = &command.fold.tools;
    let is_own = |call_id: &String| tools.item(call_id).is_none_or(|item| item.tool_name.as_deref() == Some(NAME));
    tools.open.iter().any(is_own)
}

/// Whether an event may close a call of the command, or end the command.
fn may_close(event: &Event) -> bool {
    use EventType::{BackendStatus, Lease, TerminalStatus, ToolCall};
    matches!(event.event_type, BackendStatus | Lease | TerminalStatus | ToolCall)
}

/// Records what all children have used, under the lease of the current runner. False if there is none, or if another runner has claimed
/// the run in the meantime.
async fn charge(app: &App, run: &RunRef, command_id: CommandId, total: DelegatedUse) -> Result<bool, Failure> {
    let lease = store::kernel::leases::get(&app.db, run.run_id).await?;
    let Some(lease) = lease.filter(|lease| lease.is_live(app.now())) else { return Ok(false) };
    let payload = json!({"phase": PHASE_RUNS_CHARGED, "totalTokens": total.tokens, "costUsd": total.cost_usd,
        "toolCalls": total.tool_calls});
    let op = AppendOp {
        runner_id: lease.runner_id,
        lease_epoch: lease.epoch,
        attempt_id: None,
        batch_no: None,
        release_if_idle: false,
        ends_job: None,
        voting: app.config.policy.voting_rules(),
        known_calls: None,
        events: vec![NewEvent::written(EventType::BackendStatus, Some(command_id), &payload)],
    };
    match app.submit(run, op).await {
        Ok(_) => Ok(true),
        Err(failure) if failure.kind == FailureKind::RunnerLeaseConflict => Ok(false),
        Err(failure) => Err(failure),
    }
}
