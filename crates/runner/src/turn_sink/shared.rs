//! The state that both sides of a turn's connection share.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use ostler_protocol::{
    FailureKind, RawJson, Rule,
    ids::{CommandId, PermissionId},
    kernel::{events::EventType, permissions::PermissionRequest, runs::TerminalStatus},
    tools::wire::CalledTool,
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::{Notify, oneshot, watch};

use super::open_calls::OpenCalls;
use crate::{
    backend::turn::TurnEnd,
    budgets::{Meter, StopReason},
    outbox::EventOutbox,
    text_cutter::TextCutter,
};

pub(super) struct SinkShared {
    pub(super) command_id: CommandId,
    pub(super) command: String,
    pub(super) lease_epoch: i64,
    /// Cuts the text of events.
    pub(super) cutter: TextCutter,
    state: Mutex<SinkState>,
    /// Notified when an event was queued.
    pub(super) queued: Notify,
    /// Notified when a batch was sent, or taken to be sent.
    pub(super) moved: Notify,
    stop: watch::Sender<Option<StopReason>>,
    /// Calls of server tools that the backend made through the gateway.
    gateway_calls: AtomicU32,
    pub(super) open_calls: watch::Sender<OpenCalls>,
}

pub(super) struct SinkState {
    pub(super) outbox: EventOutbox,
    pub(super) in_flight: bool,
    pub(super) meter: Meter,
    /// Permission requests without a decision.
    pub(super) undecided: HashMap<PermissionId, oneshot::Sender<PermissionRequest>>,
}

impl SinkShared {
    pub(super) fn new(
        command_id: CommandId,
        lease_epoch: i64,
        meter: Meter,
        cutter: TextCutter,
        stop: watch::Sender<Option<StopReason>>,
    ) -> Self {
        Self {
            command_id,
            command: command_id.to_string(),
            lease_epoch,
            cutter,
            state: Mutex::new(SinkState {
                outbox: EventOutbox::default(),
                in_flight: false,
                meter,
                undecided: HashMap::new(),
            }),
            queued: Notify::new(),
            moved: Notify::new(),
            stop,
            gateway_calls: AtomicU32::new(0),
            open_calls: watch::Sender::new(OpenCalls::default()),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, SinkState> {
        // No code panics in the middle of a change while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues an event of the turn's command and counts it against the budgets.
    pub(super) fn push(&self, event_type: EventType, payload: RawJson) {
        if event_type == EventType::ToolCall {
            self.open_calls.send_modify(|calls| calls.observe(&payload));
        }
        let mut state = self.state();
        let spent = state.meter.observe(event_type, &payload);
        state.outbox.push(event_type, &self.command, payload);
        drop(state);
        self.queued.notify_one();
        if let Some(spent) = spent {
            self.stop(spent);
        }
    }

    /// Counts a call of a server's tool, which the server records. `false` if the budget has no room for it: then the backend stops.
    pub(super) fn count_tool(&self) -> bool {
        let mut state = self.state();
        let spent = state.meter.check_next_tool();
        if spent.is_none() {
            state.meter.observe(EventType::ToolCall, &RawJson::of(&json!({"status": "started"})));
        }
        drop(state);
        let has_room = spent.is_none();
        if let Some(spent) = spent {
            self.stop(spent);
        }
        has_room
    }

    /// Counts what runs that a call started have used. The backend stops if a budget is used up.
    pub(super) fn charge_call(&self, called: &CalledTool) {
        let spent = self.state().meter.add_delegated(called.delegated());
        if let Some(spent) = spent {
            self.stop(spent);
        }
    }

    /// The part of an id that names the turn: its command, and the claim of its runner.
    pub(super) fn id_base(&self) -> String {
        format!("{}_{}", self.command.trim_start_matches(CommandId::PREFIX), self.lease_epoch)
    }

    /// An id for a call through the gateway. It differs from all ids of the sink.
    pub(super) fn new_gateway_call_id(&self) -> String {
        let number = self.gateway_calls.fetch_add(1, Ordering::Relaxed) + 1;
        format!("tool_{}_g{number}", self.id_base())
    }

    /// Waits until everything emitted so far is durable.
    pub(super) async fn flush(&self) {
        self.wait_until(|state| state.outbox.is_empty() && !state.in_flight).await;
    }

    /// Waits while the server is far behind.
    pub(super) async fn wait_for_room(&self) {
        self.wait_until(|state| state.outbox.has_room()).await;
    }

    pub(super) async fn wait_until(&self, holds: impl Fn(&SinkState) -> bool) {
        loop {
            let moved = self.moved.notified();
            if holds(&self.state()) {
                return;
            }
            moved.await;
        }
    }

    /// Stops the backend. Only the first reason counts.
    pub(super) fn stop(&self, reason: StopReason) {
        self.stop.send_if_modified(|stop| {
            let first = stop.is_none();
            stop.get_or_insert(reason);
            first
        });
    }
}

/// The payload of the event that ends a command.
pub(crate) fn terminal_payload(end: &TurnEnd) -> RawJson {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Payload<'a> {
        status: TerminalStatus,
        failure_kind: Option<FailureKind>,
        #[serde(skip_serializing_if = "Option::is_none")]
        rule: Option<Rule>,
        message: Option<&'a str>,
        source: Value,
    }
    let (status, failure_kind, rule) = (end.status, end.failure_kind, end.rule);
    RawJson::of(&Payload { status, failure_kind, rule, message: end.message.as_deref(), source: "runner".into() })
}
