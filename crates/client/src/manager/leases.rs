//! Leases: a runner's claim of a run, its heartbeats, and its release.

use ostler_protocol::{
    Failure,
    kernel::leases::{ClaimRun, Claimed, LeaseState, PatchLease},
};

use crate::{client::Client, path::Path};

impl Client {
    pub async fn claim_run(&self, run_id: &str, claim: &ClaimRun) -> Result<Claimed, Failure> {
        self.post(Path::api(&["runs", run_id, "claim"]), claim).await
    }

    /// A heartbeat, or with `release` the end of the lease.
    pub async fn patch_lease(&self, run_id: &str, lease: &PatchLease) -> Result<LeaseState, Failure> {
        self.patch(Path::api(&["runs", run_id, "lease"]), lease).await
    }
}
