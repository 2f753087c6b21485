//! Calls that a model made in one reply. The permission requests for them are appended together, so that a person is asked about all of
//! them at once: each waits until every other call of the reply either has a request, too, or needs none.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use ostler_protocol::{
    Failure, RawJson,
    ids::{CommandId, RunId},
    tools::wire::CallTool,
};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, timeout_at},
};

/// How long a request waits for the other calls of its reply. They may have been sent to another server, or be lost.
const WAIT_MAX: Duration = Duration::from_secs(2);

#[derive(Clone, PartialEq, Eq, Hash)]
struct SetKey {
    run_id: RunId,
    command_id: CommandId,
    lease_epoch: i64,
    /// All calls of the reply.
    calls: Vec<String>,
}

/// The replies of which this server executes calls.
#[derive(Default)]
pub(super) struct ReplySets(Mutex<HashMap<SetKey, Arc<ReplySet>>>);

struct ReplySet {
    state: Mutex<SetState>,
    changed: Notify,
}

struct SetState {
    /// Calls of which it is not known yet whether a person is asked about them.
    undecided: HashSet<String>,
    queued: Vec<QueuedRequest>,
    /// Calls that this server executes.
    members: usize,
}

/// A permission request that is to be appended with others of its reply.
pub(super) struct QueuedRequest {
    pub payload: RawJson,
    appended: oneshot::Sender<Result<(), Failure>>,
}

impl QueuedRequest {
    /// Reports to the call of the request whether it was appended.
    pub(super) fn report(self, appended: Result<(), Failure>) {
        // The call may have been given up.
        let _ = self.appended.send(appended);
    }
}

/// A call of a reply with several. Dropping it reports that the call needs no permission request.
pub(super) struct ReplyCall {
    sets: Arc<ReplySets>,
    set: Arc<ReplySet>,
    key: SetKey,
    call_id: String,
}

impl ReplySets {
    /// `None` if the call is the only one of its reply.
    pub(super) fn join(sets: &Arc<Self>, run_id: RunId, request: &CallTool) -> Option<ReplyCall> {
        let CallTool { command_id, lease_epoch, call_id, reply_calls, .. } = request;
        if reply_calls.len() < 2 || !reply_calls.contains(call_id) {
            return None;
        }
        let (command_id, lease_epoch) = (*command_id, *lease_epoch);
        let key = SetKey { run_id, command_id, lease_epoch, calls: reply_calls.clone() };
        let mut open = sets.0.lock();
        let set = open.entry(key.clone()).or_insert_with(|| {
            let undecided = reply_calls.iter().cloned().collect();
            let state = Mutex::new(SetState { undecided, queued: vec![], members: 0 });
            Arc::new(ReplySet { state, changed: Notify::new() })
        });
        set.state.lock().members += 1;
        Some(ReplyCall { sets: sets.clone(), set: set.clone(), key, call_id: call_id.clone() })
    }
}

impl ReplyCall {
    /// Reports that the call needs no permission request.
    pub(super) fn mark_no_request(&self) {
        if self.set.state.lock().undecided.remove(&self.call_id) {
            self.set.changed.notify_waiters();
        }
    }

    /// Adds the permission request for the call to those of its reply, and waits until all are there. Returns the requests that the caller
    /// must append, if it is the first to get them, and where it learns whether its own was appended.
    pub(super) async fn queue(&self, payload: RawJson) -> (Vec<QueuedRequest>, oneshot::Receiver<Result<(), Failure>>) {
        let (appended, own) = oneshot::channel();
        {
            let mut state = self.set.state.lock();
            state.queued.push(QueuedRequest { payload, appended });
            state.undecided.remove(&self.call_id);
        }
        self.set.changed.notify_waiters();
        let until = Instant::now() + WAIT_MAX;
        loop {
            let changed = self.set.changed.notified();
            tokio::pin!(changed);
            // Enabled before the state is read, so that no change is missed.
            changed.as_mut().enable();
            let is_complete = self.set.state.lock().undecided.is_empty();
            if is_complete || timeout_at(until, changed).await.is_err() {
                break;
            }
        }
        (std::mem::take(&mut self.set.state.lock().queued), own)
    }
}

impl Drop for ReplyCall {
    fn drop(&mut self) {
        self.mark_no_request();
        let mut open = self.sets.0.lock();
        let members = {
            let mut state = self.set.state.lock();
            state.members -= 1;
            state.members
        };
        if let Entry::Occupied(entry) = open.entry(self.key.clone())
            && members == 0
        {
            entry.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn call(call_id: &str, reply_calls: &[&str]) -> CallTool {
        serde_json::from_value(serde_json::json!({"runnerId": "r", "leaseEpoch": 1, "name": "t", "callId": call_id,
            "commandId": CommandId::new(Uuid::nil()), "replyCalls": reply_calls}))
        .unwrap()
    }

    fn join(sets: &Arc<ReplySets>, call_id: &str, reply_calls: &[&str]) -> Option<ReplyCall> {
        ReplySets::join(sets, RunId::new(Uuid::nil()), &call(call_id, reply_calls))
    }

    fn request(text: &str) -> RawJson {
        RawJson::of(&text)
    }

    #[tokio::test(start_paused = true)]
    async fn requests_of_one_reply_are_appended_by_the_first_that_gets_all() {
        let sets = Arc::new(ReplySets::default());
        let reply = ["a", "b", "c"];
        let [a, b, c] = reply.map(|call_id| join(&sets, call_id, &reply).unwrap());
        let began = Instant::now();
        let ((of_a, _), (of_b, own), ()) = tokio::join!(a.queue(request("a")), b.queue(request("b")), async {
            c.mark_no_request();
        });
        assert_eq!((of_a.len() + of_b.len(), began.elapsed()), (2, Duration::ZERO));
        for queued in of_a.into_iter().chain(of_b) {
            queued.report(Ok(()));
        }
        own.await.unwrap().unwrap();
        drop([a, b, c]);
        assert!(sets.0.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_never_comes_is_not_waited_for_longer_than_that() {
        let sets = Arc::new(ReplySets::default());
        let a = join(&sets, "a", &["a", "b"]).unwrap();
        let began = Instant::now();
        assert_eq!(a.queue(request("a")).await.0.len(), 1);
        assert_eq!(began.elapsed(), WAIT_MAX);
        let b = join(&sets, "b", &["a", "b"]).unwrap();
        assert_eq!(b.queue(request("b")).await.0.len(), 1, "it comes late, and waits for no other");
        assert_eq!(began.elapsed(), WAIT_MAX);
        assert!(join(&sets, "a", &["a"]).is_none() && join(&sets, "a", &["b", "c"]).is_none());
    }
}
