//! The jobs that this server's launcher has in hand. The launcher renews the heartbeat of these jobs only, and the sweeper of
//! the same server does not abandon them.

use std::sync::Arc;

use ostler_protocol::{Timestamp, ids::RunnerJobId, kernel::launching::Hand};
use parking_lot::{Mutex, MutexGuard};

#[derive(Clone, Default)]
pub struct InHand(Arc<Mutex<Hand>>);

/// A job in hand. Dropping it removes the job, also when its task panics.
pub struct HeldJob {
    in_hand: InHand,
    job_id: RunnerJobId,
}

impl InHand {
    /// `None` if the job is in hand already.
    pub fn take_up(&self, job_id: RunnerJobId) -> Option<HeldJob> {
        self.lock().take_up(job_id).then(|| HeldJob { in_hand: self.clone(), job_id })
    }

    pub fn claim_unanswered(&self, claimed_at: Timestamp) {
        self.lock().claim_unanswered(claimed_at);
    }

    pub fn forget_unanswered(&self, until: Timestamp) {
        self.lock().forget_unanswered(until);
    }

    /// The current jobs in hand.
    pub fn snapshot(&self) -> Hand {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Hand> {
        // No change to the hand can panic half-way.
        self.0.lock()
    }
}

impl Drop for HeldJob {
    fn drop(&mut self) {
        self.in_hand.lock().put_down(self.job_id);
    }
}
