//! The calls that this process executes or has executed, so that a repeated request finds its call.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use ostler_protocol::{
    Failure, Rule,
    created::Created,
    ids::RunId,
    kernel::chain::Hash,
    tools::wire::{CallStatus, CalledTool},
};
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

/// Most calls of one run that are open at once.
const OPEN_PER_RUN_MAX: usize = 64;
/// Most calls that are remembered after their end.
const ENDED_MAX: usize = 1_024;

/// A call in its run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CallKey {
    pub run_id: RunId,
    pub call_id: String,
}

/// `None` while the call has not ended.
type CallResult = Option<Result<CalledTool, Failure>>;

/// A call that this process executes or has executed.
pub(super) struct LocalCall {
    /// Of everything that was requested.
    fingerprint: Hash,
    result: watch::Sender<CallResult>,
    /// The order in which calls began.
    number: u64,
}

#[derive(Default)]
pub(super) struct Calls(Mutex<CallTable>);

#[derive(Default)]
struct CallTable {
    by_key: HashMap<CallKey, Arc<LocalCall>>,
    /// How many calls of a run have not ended. Runs without one are not in it.
    open: HashMap<RunId, usize>,
    next_number: u64,
}

impl LocalCall {
    fn has_ended(&self) -> bool {
        self.result.borrow().is_some()
    }

    /// Waits for the end of the call. Returns that it is running if it has not ended by then.
    pub(super) async fn wait(&self, call_id: &str, until: Instant) -> Result<CalledTool, Failure> {
        let mut receiver = self.result.subscribe();
        // An error means that the sender is gone, which `self` owns.
        let waited = timeout_at(until, receiver.wait_for(Option::is_some)).await;
        let result = waited.ok().and_then(|result| result.ok()?.clone());
        result.unwrap_or_else(|| {
            Ok(CalledTool {
                call_id: call_id.to_owned(),
                status: CallStatus::Running,
                content: String::new(),
                truncated: false,
                edited_arguments: None,
                delegated_tokens: None,
                delegated_cost_usd: None,
                delegated_tool_calls: None,
            })
        })
    }
}

impl Calls {
    /// The call of this key. If it is new, the caller executes it, and reports its end.
    pub(super) fn begin(&self, key: &CallKey, fingerprint: Hash) -> Result<Created<Arc<LocalCall>>, Failure> {
        let mut calls = self.0.lock();
        if let Some(call) = calls.by_key.get(key) {
            if call.fingerprint != fingerprint {
                let message = format!("callId {:?} was used for another call", key.call_id);
                return Err(Failure::rule(Rule::ToolCallReused, message));
            }
            return Ok(Created::existing(call.clone()));
        }
        if calls.open.get(&key.run_id).is_some_and(|open| *open >= OPEN_PER_RUN_MAX) {
            let message = format!("run {} has {OPEN_PER_RUN_MAX} open calls of tools", key.run_id);
            return Err(Failure::rule(Rule::ToolCallsOpen, message));
        }
        forget_oldest(&mut calls.by_key);
        calls.next_number += 1;
        let call = Arc::new(LocalCall { fingerprint, result: watch::Sender::new(None), number: calls.next_number });
        calls.by_key.insert(key.clone(), call.clone());
        *calls.open.entry(key.run_id).or_default() += 1;
        Ok(Created::new(call))
    }

    /// Reports the end of a call. One that failed before anything was recorded is forgotten, so that it can be requested again.
    pub(super) fn end(&self, key: &CallKey, call: &LocalCall, result: Result<CalledTool, Failure>) {
        let mut calls = self.0.lock();
        if let Entry::Occupied(mut open) = calls.open.entry(key.run_id) {
            *open.get_mut() -= 1;
            if *open.get() == 0 {
                open.remove();
            }
        }
        if result.is_err() {
            calls.by_key.remove(key);
        }
        // Under the lock, so that a call that is not counted as open has its result.
        call.result.send_replace(Some(result));
    }
}

/// Makes room for another call.
fn forget_oldest(calls: &mut HashMap<CallKey, Arc<LocalCall>>) {
    if calls.len() < 2 * ENDED_MAX {
        return;
    }
    let mut ended_numbers: Vec<_> = calls.values().filter(|call| call.has_ended()).map(|call| call.number).collect();
    ended_numbers.sort_unstable();
    let Some(newest_forgotten) = ended_numbers.len().checked_sub(ENDED_MAX).and_then(|count| ended_numbers.get(count))
    else {
        return;
    };
    calls.retain(|_, call| !call.has_ended() || call.number >= *newest_forgotten);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ONE: Hash = [1; 32];
    const OTHER: Hash = [2; 32];

    fn key(call_id: &str) -> CallKey {
        CallKey { run_id: RunId::new(uuid::Uuid::nil()), call_id: call_id.into() }
    }

    fn completed(call_id: &str) -> CalledTool {
        CalledTool {
            call_id: call_id.into(),
            status: CallStatus::Completed,
            content: "x".into(),
            truncated: false,
            edited_arguments: None,
            delegated_tokens: None,
            delegated_cost_usd: None,
            delegated_tool_calls: None,
        }
    }

    #[tokio::test]
    async fn a_repeated_request_finds_its_call_and_another_one_is_refused() {
        let calls = Calls::default();
        let Created { value: call, is_new } = calls.begin(&key("a"), ONE).unwrap();
        assert!(is_new);
        let running = call.wait("a", Instant::now() + Duration::from_millis(5)).await.unwrap();
        assert_eq!(running.status, CallStatus::Running);
        calls.end(&key("a"), &call, Ok(completed("a")));
        let Created { value: again, is_new } = calls.begin(&key("a"), ONE).unwrap();
        assert!(!is_new);
        assert_eq!(again.wait("a", Instant::now()).await.unwrap(), completed("a"));
        let refused = calls.begin(&key("a"), OTHER).err().unwrap();
        assert_eq!(refused.broken_rule(), Some(Rule::ToolCallReused));
    }

    #[tokio::test]
    async fn a_call_that_was_not_recorded_can_be_requested_again() {
        let calls = Calls::default();
        let call = calls.begin(&key("a"), ONE).unwrap().value;
        calls.end(&key("a"), &call, Err(Failure::internal("x")));
        assert!(call.wait("a", Instant::now()).await.is_err());
        assert!(calls.begin(&key("a"), ONE).unwrap().is_new);
    }

    #[test]
    fn open_calls_of_a_run_and_ended_ones_are_bounded() {
        let calls = Calls::default();
        for number in 0..OPEN_PER_RUN_MAX {
            calls.begin(&key(&format!("open{number}")), ONE).unwrap();
        }
        let refused = calls.begin(&key("more"), ONE).err().unwrap();
        assert_eq!(refused.broken_rule(), Some(Rule::ToolCallsOpen));
        let Created { value: first, is_new } = calls.begin(&key("open0"), ONE).unwrap();
        assert!(!is_new);
        calls.end(&key("open0"), &first, Ok(completed("open0")));
        assert!(calls.begin(&key("more"), ONE).unwrap().is_new, "one has ended");
        let calls = Calls::default();
        for number in 0..5 * ENDED_MAX {
            let key = key(&number.to_string());
            let call = calls.begin(&key, ONE).unwrap().value;
            calls.end(&key, &call, Ok(completed("x")));
        }
        assert!(calls.0.lock().by_key.len() <= 2 * ENDED_MAX);
        assert!(calls.0.lock().open.is_empty());
        let newest = key(&(5 * ENDED_MAX - 1).to_string());
        assert!(!calls.begin(&newest, ONE).unwrap().is_new, "the newest are remembered");
    }
}
