//! The controllers that a cluster has and the tests rely on: jobs, garbage collection, times to live, the scheduler,
//! and the binding and protection of claims. Each is a step over the whole store; steps repeat until none changes it.

mod binding;
mod garbage;
mod jobs;

use std::sync::Arc;
use std::time::Duration;

use super::shared::KubeShared;
use super::store::KubeStore;

/// How late a deadline or a time to live may be noticed.
const TICK: Duration = Duration::from_millis(50);
/// Steps settle after a few rounds; more are a fault of the test kit.
const ROUNDS_MAX: usize = 100;

/// Runs the controllers until the runtime ends.
pub(super) async fn run(shared: Arc<KubeShared>) {
    let mut changes = shared.changes.subscribe();
    loop {
        changes.borrow_and_update();
        let before = shared.lock().store.revision();
        settle(&mut shared.lock().store);
        if shared.lock().store.revision() != before {
            shared.change(|_| {});
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(TICK) => {}
        }
    }
}

fn settle(store: &mut KubeStore) {
    for _ in 0..ROUNDS_MAX {
        let before = store.revision();
        binding::bind_claims(store);
        binding::schedule(store);
        jobs::reconcile(store);
        garbage::collect(store);
        binding::release_claims(store);
        if store.revision() == before {
            return;
        }
    }
}
