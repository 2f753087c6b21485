//! The connection between a backend and its runner for the time of one turn. The backend's side, [`TurnSink`], emits
//! events, asks for permission, and receives steers and the order to stop. The runner's side, [`RunnerSide`], takes
//! batches of events and delivers replies.
//!
//! Events are queued, not sent: the runner sends them as soon as the backend waits for something, and a backend that is
//! far ahead of the server has to wait. The digests of permissions are checked here, before a backend may proceed.

mod front_end_tools;
mod open_calls;
mod permission;
mod runner_side;
mod shared;
mod sink;
mod steer;
mod turn_tools;

use std::sync::Arc;

use tokio::sync::{mpsc, watch};

pub use permission::{PendingPermission, PermissionDecision};
pub use sink::TurnSink;
pub use steer::Steer;

pub(crate) use runner_side::RunnerSide;
pub(crate) use shared::terminal_payload;
pub(crate) use sink::{DeclineReason, NEVER_ASKS, NOT_DISPLAYABLE, TEXT_BYTES_MAX};

use crate::{backend::turn::Turn, budgets::Meter, text_cutter::TextCutter};
use shared::SinkShared;

/// Steers of one turn that wait for the backend. The server allows fewer unfinished commands.
const STEERS_MAX: usize = 128;

/// Opens the connection for a turn and returns its two sides.
pub(crate) fn open(turn: &Turn, lease_epoch: i64, meter: Meter, cutter: TextCutter) -> (TurnSink, RunnerSide) {
    let (stop, stopped) = watch::channel(None);
    let (steer_sender, steers) = mpsc::channel(STEERS_MAX);
    let shared = Arc::new(SinkShared::new(turn.command.command_id, lease_epoch, meter, cutter, stop));
    let sink = TurnSink::new(shared.clone(), stopped.clone(), steers);
    (sink, RunnerSide::new(shared, stopped, steer_sender))
}
