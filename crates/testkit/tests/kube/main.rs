//! The Kubernetes API server and the kubelet of the test kit. The tests of the API run against the cluster that
//! `OSTLER_TEST_KUBECONFIG` names instead, if it is set: what passes on both is what the test kit may claim. Tests of
//! faults and of the kubelet need the test kit's own server.

#![allow(clippy::unwrap_used, reason = "a test program: a failed unwrap is a failed test")]

mod applying;
mod faults;
mod jobs;
mod kubelet;
mod objects;
mod watching;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, Error, Resource};
use ostler_testkit::kube::KubeApi;
use ostler_testkit::kube::kubelet::client;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);

/// A namespace of a cluster: the real one of `OSTLER_TEST_KUBECONFIG`, or the test kit's.
struct World {
    _own: Option<KubeApi>,
    client: Client,
    namespace: String,
}

impl World {
    async fn start() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let real = std::env::var_os("OSTLER_TEST_KUBECONFIG").map(PathBuf::from);
        let own = real.is_none().then(|| KubeApi::start().unwrap());
        let kubeconfig = real.unwrap_or_else(|| own.as_ref().unwrap().kubeconfig());
        let client = client(&kubeconfig).await.unwrap();
        let namespace = format!("ostler-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
        let object = from(json!({"metadata": {"name": namespace}}));
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &object).await.unwrap();
        Self { _own: own, client, namespace }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Deletes the namespace, so that a real cluster is left as it was.
    async fn end(self) {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let _ = namespaces.delete(&self.namespace, &DeleteParams::default()).await;
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
