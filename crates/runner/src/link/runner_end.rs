//! The runner's end of a link: it takes batches, delivers steers and answers, and tells the agent to stop.

use std::sync::Arc;

use ostler_protocol::{
    RawJson,
    commands::Command,
    events::{AppendEvent, EventType},
    permissions::{PermissionRequest, PermissionStatus},
};
use serde::Serialize;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

use super::{Shared, Steer, terminal};
use crate::{agent::TurnEnd, budgets::Stop};

pub struct RunnerEnd {
    pub(super) shared: Arc<Shared>,
    pub(super) stop: watch::Receiver<Option<Stop>>,
    pub(super) steers: mpsc::Sender<Steer>,
}

impl RunnerEnd {
    /// The next batch, when one is due. It counts as in flight until [`RunnerEnd::sent`].
    pub async fn next_batch(&self) -> Vec<AppendEvent> {
        loop {
            let now = Instant::now();
            let due = self.shared.state().outbox.due(now);
            match due {
                Some(due) if due <= now => return self.take(),
                Some(due) => tokio::select! {
                    () = sleep_until(due) => {}
                    () = self.shared.queued.notified() => {}
                },
                None => self.shared.queued.notified().await,
            }
        }
    }

    /// Whatever is queued, due or not. Empty: there is nothing.
    pub fn take(&self) -> Vec<AppendEvent> {
        let mut state = self.shared.state();
        let batch = state.outbox.take(Instant::now());
        state.in_flight = !batch.is_empty();
        drop(state);
        self.shared.moved.notify_waiters();
        batch
    }

    /// The batch that was in flight is durable.
    pub fn sent(&self) {
        self.shared.state().in_flight = false;
        self.shared.moved.notify_waiters();
    }

    /// Forgets what has not been sent.
    pub fn discard(&self) {
        self.shared.state().outbox.clear();
    }

    /// Queues what the runner itself has to say about the turn.
    pub fn tell<T: Serialize>(&self, event_type: EventType, payload: &T) {
        self.shared.push(event_type, RawJson::of(payload));
    }

    /// Queues the end of a command: the turn's, or that of an interrupt.
    pub fn end(&self, command_id: &str, end: &TurnEnd) {
        self.shared.state().outbox.push(EventType::TerminalStatus, command_id, terminal(end));
        self.shared.queued.notify_one();
    }

    pub fn steer(&self, command: &Command) {
        let text = command.prompt().unwrap_or_default();
        let steer = Steer { command_id: command.command_id, text, shared: self.shared.clone() };
        // An agent that has stopped listening leaves its steers undelivered; they end with the turn.
        let _ = self.steers.try_send(steer);
    }

    /// Brings the answer to a question. False: nobody waits for it (any more).
    pub fn answer(&self, resolved: PermissionRequest) -> bool {
        if resolved.status == PermissionStatus::Pending {
            return false;
        }
        let asked = self.shared.state().asked.remove(&resolved.permission_id);
        asked.is_some_and(|asked| asked.send(resolved).is_ok())
    }

    pub fn stop(&self, reason: Stop) {
        self.shared.stop(reason);
    }

    pub fn stop_reason(&self) -> Option<Stop> {
        self.stop.borrow().clone()
    }

    /// Resolves when the agent was told to stop, by whomever.
    pub async fn stopped(&self) {
        let mut stop = self.stop.clone();
        if stop.wait_for(Option::is_some).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
