//! Kubernetes, as far as this server uses it: the calls of the API server, the manifests of Jobs and volume claims, and what Jobs
//! and pods show of runners. What follows from it is decided by `ostler_protocol::kernel::cluster_launching`; the launcher carries it out.

mod cache;
pub mod claims;
mod cluster;
mod diagnosis;
pub mod job_manifest;
mod log;
pub mod observe;
mod rights;
mod watch;

use std::sync::Arc;

use ostler_protocol::{Failure, kernel::runner_jobs::Launcher};

use crate::config::Config;

pub use cache::{CachedObjects, ClusterCache, FinishedJob};
pub use cluster::{ACCOUNT_TOKEN, CallCounts, Cluster, ClusterError, is_of_cluster};
pub use diagnosis::{ClaimClass, ImagePulls};
pub use log::{LogLines, later_lines, next_second};
pub use rights::Right;
pub(crate) use watch::watch;

/// The cluster of this server, and what it shows.
#[derive(Clone)]
pub struct Kubernetes {
    pub cluster: Arc<Cluster>,
    pub cache: Arc<ClusterCache>,
}

/// The state of a server that may have a cluster.
pub struct KubernetesState(Option<Kubernetes>);

impl KubernetesState {
    /// Reads the settings of the cluster, if runners are its Jobs. Connects to nothing: an API server that does not respond
    /// must not keep the server from starting.
    pub async fn open(config: &Config) -> Result<Self, Failure> {
        if config.runner.launcher != Launcher::Kubernetes {
            return Ok(Self(None));
        }
        let cluster = Arc::new(Cluster::open(&config.kubernetes, &config.environment).await?);
        Ok(Self(Some(Kubernetes { cluster, cache: Arc::default() })))
    }

    pub fn get(&self) -> Option<&Kubernetes> {
        self.0.as_ref()
    }
}
