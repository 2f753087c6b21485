//! The state of the MCP server in this process: the calls that wait, and the sessions that were ended. Both are hints: a call ends by
//! itself within its bounded wait, and an ended session holds nothing.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use ostler_server::app::App;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Ended sessions that are remembered; the oldest are forgotten.
const ENDED_SESSIONS_MAX: usize = 4_096;

#[derive(Default)]
pub(crate) struct McpServerState {
    /// By their keys. Each has a permit for event streams, so there are never more than that limit.
    waiting: Mutex<HashMap<String, WaitingCall>>,
    ended: Mutex<EndedSessions>,
}

#[derive(Clone)]
pub(crate) struct WaitingCall {
    /// The key of its session.
    pub session: String,
    pub cancelled: Arc<Notify>,
}

#[derive(Default)]
struct EndedSessions {
    known: HashSet<String>,
    in_order: VecDeque<String>,
}

impl McpServerState {
    /// The MCP server of this process.
    pub(crate) fn of(app: &App) -> &Self {
        app.state()
    }

    pub(crate) fn insert(&self, key: &str, call: WaitingCall) {
        self.waiting.lock().insert(key.to_owned(), call);
    }

    /// Removes a call, unless another one has taken its key.
    pub(crate) fn remove(&self, key: &str, cancelled: &Arc<Notify>) {
        let mut waiting = self.waiting.lock();
        if waiting.get(key).is_some_and(|call| Arc::ptr_eq(&call.cancelled, cancelled)) {
            waiting.remove(key);
        }
    }

    /// Ends the wait of a call. Without effect if no such call waits here.
    pub(crate) fn cancel(&self, key: &str) {
        if let Some(call) = self.waiting.lock().get(key) {
            call.cancelled.notify_one();
        }
    }

    /// Ends a session and the waits of its calls.
    pub(crate) fn end(&self, session: &str) {
        self.ended.lock().insert(session);
        for call in self.waiting.lock().values().filter(|call| call.session == session) {
            call.cancelled.notify_one();
        }
    }

    pub(crate) fn is_ended(&self, session: &str) -> bool {
        self.ended.lock().known.contains(session)
    }
}

impl EndedSessions {
    fn insert(&mut self, session: &str) {
        if !self.known.insert(session.to_owned()) {
            return;
        }
        self.in_order.push_back(session.to_owned());
        if self.in_order.len() > ENDED_SESSIONS_MAX
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_ended_sessions_are_remembered() {
        let state = McpServerState::default();
        for n in 0..=ENDED_SESSIONS_MAX {
            state.end(&n.to_string());
            state.end(&n.to_string());
        }
        assert!(!state.is_ended("0") && state.is_ended("1") && state.is_ended(&ENDED_SESSIONS_MAX.to_string()));
        assert_eq!(state.ended.lock().known.len(), ENDED_SESSIONS_MAX);
    }

    #[test]
    fn a_call_that_has_lost_its_key_does_not_remove_the_next_one() {
        let state = McpServerState::default();
        let call = || WaitingCall { session: "s".into(), cancelled: Arc::default() };
        let (first, second) = (call(), call());
        state.insert("k", first.clone());
        state.insert("k", second.clone());
        state.remove("k", &first.cancelled);
        assert_eq!(state.waiting.lock().len(), 1);
        state.remove("k", &second.cancelled);
        assert!(state.waiting.lock().is_empty());
    }
}
