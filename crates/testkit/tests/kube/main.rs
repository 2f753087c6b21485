//! The Kubernetes API server and the kubelet of the test kit. The tests of the API run against the cluster that
//! `OSTLER_TEST_KUBECONFIG` names instead, if it is set: what passes on both is what the test kit may claim. Tests of
//! faults and of the kubelet need the test kit's own server.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test program: a failed unwrap is a failed test")]

mod applying;
mod faults;
mod jobs;
mod kubelet;
mod objects;
mod watching;

use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, Error, Resource};
use ostler_testkit::kube::KubeCluster;
use ostler_testkit::kube::kubelet::client;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);

/// A namespace of a cluster, with a client.
struct World {
    client: Client,
    namespace: String,
    // Dropping it deletes the namespace.
    _cluster: KubeCluster,
}

impl World {
    async fn start() -> Self {
        let cluster = KubeCluster::start().unwrap();
        let client = client(&cluster.kubeconfig()).await.unwrap();
        Self { client, namespace: cluster.namespace().to_owned(), _cluster: cluster }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

fn from<T: DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}

fn secret(name: &str, label: &str) -> Secret {
    from(json!({"metadata": {"name": name, "labels": {"group": label}}, "stringData": {"key": "value"}}))
}

/// The HTTP status of a refusal; 0 if there was no response.
fn code(error: &Error) -> u16 {
    if let Error::Api(status) = error { status.code } else { 0 }
}

fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> (u16, String) {
    match result.unwrap_err() {
        Error::Api(status) => (status.code, status.reason),
        error => panic!("not refused by the server: {error}"),
    }
}

/// Waits until a check returns something.
async fn eventually<T>(mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = check().await {
                return found;
            }
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::time::timeout(PATIENCE, found).await.expect("the condition did not come true")
}
