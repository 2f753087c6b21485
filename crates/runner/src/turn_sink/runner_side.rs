//! The runner's side of a turn's connection: takes batches, delivers steers and permission decisions, and stops the
//! backend.

use std::sync::Arc;

use ostler_protocol::{
    RawJson,
    kernel::{
        commands::Command,
        events::{AppendEvent, EventType},
        permissions::{PermissionRequest, PermissionStatus},
    },
};
use serde::Serialize;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

use super::{
    shared::{SinkShared, terminal_payload},
    steer::Steer,
};
use crate::{backend::turn::TurnEnd, budgets::StopReason};

pub(crate) struct RunnerSide {
    shared: Arc<SinkShared>,
    stop: watch::Receiver<Option<StopReason>>,
    steers: mpsc::Sender<Steer>,
}

impl RunnerSide {
    pub(super) fn new(
        shared: Arc<SinkShared>,
        stop: watch::Receiver<Option<StopReason>>,
        steers: mpsc::Sender<Steer>,
    ) -> Self {
        Self { shared, stop, steers }
    }

    /// The next batch, when one is due. It counts as in flight until [`RunnerSide::mark_sent`].
    pub(crate) async fn next_batch(&self) -> Vec<AppendEvent> {
        loop {
            let now = Instant::now();
            let due = self.shared.state().outbox.due(now);
            match due {
                Some(due) if due <= now => return self.take_batch(),
                Some(due) => tokio::select! {
                    () = sleep_until(due) => {}
                    () = self.shared.queued.notified() => {}
                },
                None => self.shared.queued.notified().await,
            }
        }
    }

    /// Takes whatever is queued, due or not. Empty if nothing is.
    pub(crate) fn take_batch(&self) -> Vec<AppendEvent> {
        let mut state = self.shared.state();
        let batch = state.outbox.take(Instant::now());
        state.in_flight = !batch.is_empty();
        drop(state);
        self.shared.moved.notify_waiters();
        batch
    }

    /// The batch that was in flight is durable.
    pub(crate) fn mark_sent(&self) {
        self.shared.state().in_flight = false;
        self.shared.moved.notify_waiters();
    }

    /// Drops all events that have not been sent.
    pub(crate) fn discard(&self) {
        self.shared.state().outbox.clear();
    }

    /// Queues an event of the runner's own about the turn.
    pub(crate) fn emit<T: Serialize>(&self, event_type: EventType, payload: &T) {
        self.shared.push(event_type, RawJson::of(payload));
    }

    /// Queues the end of a command: the turn's, or that of an interrupt.
    pub(crate) fn end_command(&self, command_id: &str, end: &TurnEnd) {
        self.shared.state().outbox.push(EventType::TerminalStatus, command_id, terminal_payload(end));
        self.shared.queued.notify_one();
    }

    pub(crate) fn steer(&self, command: &Command) {
        let text = command.prompt().unwrap_or_default();
        let steer = Steer::new(command.command_id, text, self.shared.clone());
        // A backend that no longer listens leaves its steers undelivered. They end with the turn.
        let _ = self.steers.try_send(steer);
    }

    /// Delivers the decision on a permission request. Returns false if the backend does not wait for it.
    pub(crate) fn resolve_permission(&self, resolved: PermissionRequest) -> bool {
        if resolved.status == PermissionStatus::Pending {
            return false;
        }
        let waiting = self.shared.state().undecided.remove(&resolved.permission_id);
        waiting.is_some_and(|waiting| waiting.send(resolved).is_ok())
    }

    pub(crate) fn stop(&self, reason: StopReason) {
        self.shared.stop(reason);
    }

    pub(crate) fn stop_reason(&self) -> Option<StopReason> {
        self.stop.borrow().clone()
    }

    /// Resolves when the backend has been ordered to stop, for any reason.
    pub(crate) async fn stopped(&self) {
        let mut stop = self.stop.clone();
        if stop.wait_for(Option::is_some).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
