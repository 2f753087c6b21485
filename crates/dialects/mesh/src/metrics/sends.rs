//! Messages sent, by status.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ostler_protocol::mesh::messages::SendStatus;

/// Messages sent, by status.
#[derive(Default)]
pub(crate) struct Sends([AtomicU64; STATUSES.len()]);

const STATUSES: [(SendStatus, &str); 3] =
    [(SendStatus::Sent, "sent"), (SendStatus::Delivered, "delivered"), (SendStatus::Duplicate, "duplicate")];

impl Sends {
    pub(crate) fn count(&self, status: SendStatus) {
        if let Some(at) = STATUSES.iter().position(|(known, _)| *known == status) {
            self.0[at].fetch_add(1, Relaxed);
        }
    }

    pub(super) fn each(&self, mut write: impl FnMut(&str, u64)) {
        STATUSES.iter().zip(&self.0).for_each(|((_, name), count)| write(name, count.load(Relaxed)));
    }
}
