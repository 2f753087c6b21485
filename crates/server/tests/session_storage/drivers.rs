//! Servers whose sessions have storage of one kind, and what tests do to it behind the server's back.

use std::{
    ops::{Deref, DerefMut},
    path::PathBuf,
};

#[cfg(feature = "kubernetes")]
use serde_json::json;

use crate::harness::{Engine, Setup, TestServer, eventually};
#[cfg(feature = "kubernetes")]
use crate::kubernetes::cluster::TestCluster;

#[cfg(feature = "kubernetes")]
const CLAIMS: &str = "persistentvolumeclaims";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Driver {
    Directories,
    #[cfg(feature = "kubernetes")]
    Claims,
}

const DRIVERS: &[Driver] = &[
    Driver::Directories,
    #[cfg(feature = "kubernetes")]
    Driver::Claims,
];

/// Runs a scenario on a server for each driver.
pub(crate) async fn each_driver(engine: Engine, choose: impl Fn(&mut Setup), scenario: impl AsyncFn(StorageServer)) {
    for driver in DRIVERS {
        scenario(StorageServer::start(engine, *driver, &choose).await).await;
    }
}

/// Fields go in this order: the server first, then its cluster.
pub(crate) struct StorageServer {
    server: TestServer,
    #[cfg(feature = "kubernetes")]
    cluster: Option<TestCluster>,
}

impl Deref for StorageServer {
    type Target = TestServer;

    fn deref(&self) -> &TestServer {
        &self.server
    }
}

impl DerefMut for StorageServer {
    fn deref_mut(&mut self) -> &mut TestServer {
        &mut self.server
    }
}

impl StorageServer {
    #[cfg(feature = "kubernetes")]
    pub(crate) async fn start(engine: Engine, driver: Driver, choose: impl FnOnce(&mut Setup)) -> Self {
        let cluster = (driver == Driver::Claims).then(TestCluster::any);
        let server = TestServer::with(engine, |setup| {
            if let Some(cluster) = &cluster {
                cluster.choose(setup);
                cluster.cluster.provide_volumes();
            }
            choose(setup);
        })
        .await;
        Self { server, cluster }
    }

    #[cfg(not(feature = "kubernetes"))]
    pub(crate) async fn start(engine: Engine, _: Driver, choose: impl FnOnce(&mut Setup)) -> Self {
        Self { server: TestServer::with(engine, choose).await }
    }

    /// The kind of storage that its runners reach.
    pub(crate) fn kind(&self) -> &'static str {
        #[cfg(feature = "kubernetes")]
        if self.cluster.is_some() {
            return "pvc";
        }
        "local"
    }

    pub(crate) fn directory(&self, session_id: &str) -> PathBuf {
        self.config.server.data_dir.as_ref().unwrap().join("sessions").join(session_id)
    }

    pub(crate) fn has_storage(&self, session_id: &str) -> bool {
        #[cfg(feature = "kubernetes")]
        if let Some(cluster) = &self.cluster {
            let claim = cluster.object(CLAIMS, &claim_name(session_id));
            return claim.is_some_and(|claim| claim["metadata"]["deletionTimestamp"].is_null());
        }
        self.directory(session_id).is_dir()
    }

    /// Waits until the storage is gone. A cluster deletes a claim some time after the request.
    pub(crate) async fn storage_is_removed(&self, session_id: &str) {
        eventually("the storage is removed", async || {
            #[cfg(feature = "kubernetes")]
            if let Some(cluster) = &self.cluster {
                return cluster.object(CLAIMS, &claim_name(session_id)).is_none().then_some(());
            }
            (!self.directory(session_id).exists()).then_some(())
        })
        .await;
    }

    /// Writes a file where the test can.
    pub(crate) fn fill_storage(&self, session_id: &str) {
        let directory = self.directory(session_id);
        if directory.is_dir() {
            std::fs::write(directory.join("rollout"), "what was said").unwrap();
        }
    }

    /// Deletes storage behind the server's back. Returns when the server can know it.
    pub(crate) async fn lose_storage(&self, session_id: &str) {
        #[cfg(feature = "kubernetes")]
        if let Some(cluster) = &self.cluster {
            assert!(cluster.remove(CLAIMS, &claim_name(session_id)));
            let path = format!("/api/v1/sessions/{session_id}/storage");
            eventually("the server misses the claim", async || {
                self.get(&path).await.ok()["pvcPhase"].is_null().then_some(())
            })
            .await;
            return;
        }
        std::fs::remove_dir(self.directory(session_id)).unwrap();
    }

    /// Makes the storage of a session again, as if it had never been deleted.
    pub(crate) fn put_back_storage(&self, session_id: &str) {
        #[cfg(feature = "kubernetes")]
        if let Some(cluster) = &self.cluster {
            let labels = json!({"app.kubernetes.io/managed-by": "ostler", "ostler.dev/session": session_id});
            let claim = json!({
                "metadata": {"name": claim_name(session_id), "labels": labels},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
            });
            cluster.create(CLAIMS, claim).unwrap();
            return;
        }
        std::fs::create_dir(self.directory(session_id)).unwrap();
    }
}

#[cfg(feature = "kubernetes")]
fn claim_name(session_id: &str) -> String {
    format!("ostler-session-{}", session_id.trim_start_matches("ses_"))
}
