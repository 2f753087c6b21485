//! A run that a call has started, and the key by which it is found again.

use ostler_protocol::{
    ids::{CommandId, RunId, SessionId},
    kernel::runs::{CHILD_RUN_KEY, Run},
};

/// A run that was started.
pub(super) struct Child {
    pub(super) run_id: RunId,
    pub(super) command_id: CommandId,
    pub(super) session: SessionId,
}

/// How the keys of the runs begin that calls of a run start. The id of the call follows.
pub(super) fn key_prefix(parent: &Run) -> String {
    format!("{CHILD_RUN_KEY}{}.{}.", depth_of(parent) + 1, parent.run_id)
}

/// The key of the run that a call starts.
pub(super) fn key_of(parent: &Run, call_id: &str) -> String {
    key_prefix(parent) + call_id
}

/// The depth of a run in the tree of runs that started each other. A caller that chooses such a key only makes its own tree smaller.
pub(super) fn depth_of(run: &Run) -> u32 {
    let key = run.idempotency_key.as_deref().and_then(|key| key.strip_prefix(CHILD_RUN_KEY));
    key.and_then(|rest| rest.split('.').next()?.parse().ok()).unwrap_or(0)
}
