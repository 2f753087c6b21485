//! What the parts of a node share: its pods, and what each of them is to do.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ::kube::Client;
use tokio::sync::watch;

/// What a pod is to do, apart from what it does by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PodOrder {
    Run,
    /// SIGTERM, and SIGKILL after the grace period.
    Terminate {
        grace_s: u64,
    },
    /// SIGKILL, reported with this reason: `OOMKilled`, `Error`.
    Kill {
        reason: &'static str,
    },
    /// SIGKILL, and the pod fails with the reason `Evicted`.
    Evict {
        message: String,
    },
    /// SIGKILL, and no report: the pod was removed, or its node is gone.
    Vanish,
}

/// A pod that this node has started.
pub(super) struct LocalPod {
    pub namespace: String,
    pub name: String,
    pub log: PathBuf,
    pub order: watch::Sender<PodOrder>,
    /// The process, while it runs.
    pub process: Option<u32>,
    pub has_ended: bool,
}

pub(super) struct KubeletShared {
    pub client: Client,
    pub node: String,
    pub directory: PathBuf,
    /// The program of each image.
    pub images: BTreeMap<String, PathBuf>,
    pods: Mutex<BTreeMap<String, LocalPod>>,
}

impl KubeletShared {
    pub(super) fn new(client: Client, node: String, directory: PathBuf, images: BTreeMap<String, PathBuf>) -> Self {
        Self { client, node, directory, images, pods: Mutex::default() }
    }

    /// The pods by their ids.
    pub(super) fn pods(&self) -> MutexGuard<'_, BTreeMap<String, LocalPod>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
