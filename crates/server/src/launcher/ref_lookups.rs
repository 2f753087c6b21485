//! Lookups of the commit that a branch or tag names, while runners are started in a cluster. Callers name the hosts, and a host may
//! never respond. So a tenant has few lookups at a time, and a start that waits for one does not keep other starts from going on.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ostler_protocol::{Failure, FailureKind, kernel::runner_jobs::Launcher};
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::app::App;

/// Lookups of one tenant at a time.
const LOOKUPS_OF_TENANT_MAX: usize = 4;
/// For how long a start waits until its tenant may look up another ref. After that it is tried again later.
const WAIT: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(crate) struct RefLookups {
    /// The tenants that have lookups at the moment.
    tenants: Mutex<BTreeMap<String, Arc<Semaphore>>>,
    waiting: AtomicUsize,
}

impl RefLookups {
    /// Starts that wait for a lookup at the moment.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Counts a start as waiting until the returned value is dropped.
    fn begin(&self) -> WaitingStart<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        WaitingStart(&self.waiting)
    }

    /// Waits until the tenant may have another lookup. Fails if that takes too long.
    async fn permit(&self, tenant_id: &str) -> Result<OwnedSemaphorePermit, Failure> {
        let permits = self.permits_of(tenant_id);
        match timeout(WAIT, permits.acquire_owned()).await {
            Ok(permit) => permit.map_err(Failure::internal),
            Err(_) => {
                let message = "too many repositories are being looked up for this tenant; the runner is started later";
                Err(Failure::new(FailureKind::Overloaded, message))
            }
        }
    }

    fn permits_of(&self, tenant_id: &str) -> Arc<Semaphore> {
        let mut tenants = self.tenants.lock();
        // A permit, and a start that waits for one, keeps its semaphore.
        tenants.retain(|_, permits| Arc::strong_count(permits) > 1);
        let permits = tenants.entry(tenant_id.to_owned());
        permits.or_insert_with(|| Arc::new(Semaphore::new(LOOKUPS_OF_TENANT_MAX))).clone()
    }
}

/// A lookup of a start. `_permit` is dropped with it.
pub(super) struct RefLookup<'a> {
    _permit: OwnedSemaphorePermit,
    _waiting: WaitingStart<'a>,
}

/// Waits until a start may look up a ref of the tenant. `None` with other launchers: their slots limit the starts already.
pub(super) async fn enter<'a>(app: &'a App, tenant_id: &str) -> Result<Option<RefLookup<'a>>, Failure> {
    if app.config.runner.launcher != Launcher::Kubernetes {
        return Ok(None);
    }
    let lookups = app.state::<RefLookups>();
    let waiting = lookups.begin();
    // Its place among the starts is free now.
    app.hub.jobs.notify_one();
    Ok(Some(RefLookup { _permit: lookups.permit(tenant_id).await?, _waiting: waiting }))
}

/// A start that waits for a lookup.
struct WaitingStart<'a>(&'a AtomicUsize);

impl Drop for WaitingStart<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lookups_of_one_tenant_do_not_delay_those_of_another() {
        let lookups = RefLookups::default();
        let mut permits = vec![];
        for _ in 0..LOOKUPS_OF_TENANT_MAX {
            permits.push(lookups.permit("busy").await.unwrap());
        }
        assert_eq!(lookups.permit("busy").await.unwrap_err().kind, FailureKind::Overloaded);
        drop(lookups.permit("other").await.unwrap());
        permits.pop();
        drop(lookups.permit("busy").await.unwrap());
        permits.clear();
        drop(lookups.permit("other").await.unwrap());
        assert_eq!(lookups.tenants.lock().len(), 1, "tenants without lookups are forgotten");
    }

    #[test]
    fn a_start_is_counted_while_it_waits() {
        let lookups = RefLookups::default();
        let (one, two) = (lookups.begin(), lookups.begin());
        assert_eq!(lookups.waiting(), 2);
        drop(one);
        assert_eq!(lookups.waiting(), 1);
        drop(two);
        assert_eq!(lookups.waiting(), 0);
    }
}
