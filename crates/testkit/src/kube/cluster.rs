//! A namespace for one test, on either kind of cluster: what passes on both is true of real clusters.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use ::kube::Client;
use hyper::http::{Method, Request};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::kubelet::{Kubelet, client};
use super::{KubeApi, NAMESPACE};

/// Names the kubeconfig of a cluster that tests may use.
const VARIABLE: &str = "OSTLER_TEST_KUBECONFIG";
const PROVISION_INTERVAL: Duration = Duration::from_millis(100);

/// A namespace of the cluster that `OSTLER_TEST_KUBECONFIG` names, or the test kit's own cluster. Dropping it deletes
/// what the test has created.
pub enum KubeCluster {
    Own(KubeApi),
    Named(NamedCluster),
}

/// A namespace of a cluster that other tests use, too, and the name of a node for this test alone.
pub struct NamedCluster {
    kubeconfig: PathBuf,
    node: String,
    calls: Arc<NamespaceCalls>,
    /// Set when the cluster is dropped.
    has_ended: Arc<AtomicBool>,
    directory: TempDir,
}

/// Calls of the API server about one namespace.
struct NamespaceCalls {
    namespace: String,
    client: Client,
    /// `None` while it is dropped.
    runtime: Option<Runtime>,
}

impl KubeCluster {
    pub fn start() -> Result<Self, String> {
        match std::env::var_os(VARIABLE) {
            Some(kubeconfig) => NamedCluster::start(kubeconfig.into()).map(Self::Named),
            None => KubeApi::start().map(Self::Own),
        }
    }

    /// The API server of the test kit. `None` on another cluster, whose calls cannot be counted or disturbed.
    pub fn own(&self) -> Option<&KubeApi> {
        match self {
            Self::Own(api) => Some(api),
            Self::Named(_) => None,
        }
    }

    pub fn kubeconfig(&self) -> PathBuf {
        match self {
            Self::Own(api) => api.kubeconfig(),
            Self::Named(cluster) => cluster.kubeconfig.clone(),
        }
    }

    /// The kubeconfig of a server's account. On a cluster that is not the test kit's, it is the only one there is.
    pub fn server_kubeconfig(&self) -> PathBuf {
        match self {
            Self::Own(api) => api.server_kubeconfig(),
            Self::Named(_) => self.kubeconfig(),
        }
    }

    pub fn namespace(&self) -> &str {
        match self {
            Self::Own(_) => NAMESPACE,
            Self::Named(cluster) => &cluster.calls.namespace,
        }
    }

    /// The name of this test's node.
    pub fn node(&self) -> &str {
        match self {
            Self::Own(_) => "node-a",
            Self::Named(cluster) => &cluster.node,
        }
    }

    /// Volumes and logs of the node.
    pub fn directory(&self) -> &Path {
        match self {
            Self::Own(api) => api.directory(),
            Self::Named(cluster) => cluster.directory.path(),
        }
    }

    /// Starts this test's node, and provides volumes for the claims of its pods.
    pub fn start_node(&self, images: &[(&str, &Path)]) -> Result<Kubelet, String> {
        let kubeconfig = match self {
            Self::Own(api) => api.kubelet_kubeconfig(),
            Self::Named(cluster) => cluster.kubeconfig.clone(),
        };
        self.provide_volumes();
        Kubelet::start(&kubeconfig, self.directory(), self.node(), images)
    }

    /// Provides volumes for the claims of the namespace from now on, as a provisioner does. The test kit's own cluster has one.
    pub fn provide_volumes(&self) {
        if let Self::Named(cluster) = self {
            cluster.provide_volumes();
        }
    }

    pub fn object(&self, resource: &str, name: &str) -> Option<Value> {
        match self {
            Self::Own(api) => api.object(resource, NAMESPACE, name),
            Self::Named(cluster) => cluster.calls.request(Method::GET, &cluster.calls.path(resource, name), None).ok(),
        }
    }

    pub fn objects(&self, resource: &str) -> Vec<Value> {
        match self {
            Self::Own(api) => api.objects(resource),
            Self::Named(cluster) => {
                let list = cluster.calls.request(Method::GET, &cluster.calls.path(resource, ""), None);
                list.ok().and_then(|list| list["items"].as_array().cloned()).unwrap_or_default()
            }
        }
    }

    pub fn create(&self, resource: &str, object: Value) -> Result<Value, String> {
        match self {
            Self::Own(api) => api.create(resource, NAMESPACE, object),
            Self::Named(cluster) => {
                cluster.calls.request(Method::POST, &cluster.calls.path(resource, ""), Some(&object))
            }
        }
    }

    /// Merges a change into an object. `false` if it was refused.
    pub fn patch(&self, resource: &str, name: &str, change: &Value) -> bool {
        match self {
            Self::Own(api) => api.patch(resource, NAMESPACE, name, change),
            Self::Named(cluster) => {
                let status = if change["status"].is_object() { "/status" } else { "" };
                let path = format!("{}{status}", cluster.calls.path(resource, name));
                cluster.calls.request(Method::PATCH, &path, Some(change)).is_ok()
            }
        }
    }

    /// Deletes an object. Its dependents are deleted with it. `false` if there is none.
    pub fn remove(&self, resource: &str, name: &str) -> bool {
        match self {
            Self::Own(api) => api.remove(resource, NAMESPACE, name),
            Self::Named(cluster) => {
                let options = json!({"propagationPolicy": "Background"});
                cluster.calls.request(Method::DELETE, &cluster.calls.path(resource, name), Some(&options)).is_ok()
            }
        }
    }
}

impl NamedCluster {
    fn start(kubeconfig: PathBuf) -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("no runtime for the cluster: {error}"))?;
        let client = outside_of_runtimes(|| runtime.block_on(client(&kubeconfig)))?;
        let namespace = format!("ostler-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
        let node = format!("node-{namespace}");
        let calls = NamespaceCalls { namespace, client, runtime: Some(runtime) };
        let object = json!({"metadata": {"name": calls.namespace}});
        calls.request(Method::POST, "/api/v1/namespaces", Some(&object))?;
        let (calls, has_ended) = (Arc::new(calls), Arc::default());
        Ok(Self { kubeconfig, node, calls, has_ended, directory: crate::scratch::in_memory() })
    }

    /// Creates a volume for each claim that has none, as a provisioner does.
    fn provide_volumes(&self) {
        let (calls, has_ended) = (self.calls.clone(), self.has_ended.clone());
        std::thread::spawn(move || {
            while !has_ended.load(Ordering::SeqCst) {
                let claims =
                    calls.request(Method::GET, &calls.path("persistentvolumeclaims", ""), None).unwrap_or_default();
                for claim in claims["items"].as_array().into_iter().flatten() {
                    if claim["spec"]["volumeName"].is_null() {
                        // One that exists already is about to be bound.
                        let _ = calls.provide_volume(claim);
                    }
                }
                std::thread::sleep(PROVISION_INTERVAL);
            }
        });
    }
}

impl NamespaceCalls {
    fn provide_volume(&self, claim: &Value) -> Result<Value, String> {
        let name = claim["metadata"]["name"].as_str().unwrap_or_default();
        let volume = json!({
            "metadata": {"name": format!("{}-{name}", self.namespace)},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": claim["spec"]["resources"]["requests"],
                "storageClassName": claim["spec"]["storageClassName"],
                "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "/var/lib/ostler-test"},
                "claimRef": {"namespace": self.namespace, "name": name}
            }
        });
        self.request(Method::POST, "/api/v1/persistentvolumes", Some(&volume))
    }

    fn path(&self, resource: &str, name: &str) -> String {
        let group = if resource == "jobs" { "apis/batch/v1" } else { "api/v1" };
        let path = format!("/{group}/namespaces/{}/{resource}", self.namespace);
        if name.is_empty() { path } else { format!("{path}/{name}") }
    }

    fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let kind = if method == Method::PATCH { "application/strategic-merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(method).uri(path).header("content-type", kind);
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = request.body(body).map_err(|error| error.to_string())?;
        outside_of_runtimes(|| {
            let runtime = self.runtime.as_ref().ok_or("the cluster is being dropped")?;
            runtime.block_on(self.client.request(request)).map_err(|error| error.to_string())
        })
    }
}

impl Drop for NamedCluster {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::SeqCst);
        let calls = &self.calls;
        let paths = [format!("/api/v1/namespaces/{}", calls.namespace), format!("/api/v1/nodes/{}", self.node)];
        for path in paths {
            // A test that started no node has none to delete.
            let _ = calls.request(Method::DELETE, &path, None);
        }
        let volumes = calls.request(Method::GET, "/api/v1/persistentvolumes", None).unwrap_or_default();
        for volume in volumes["items"].as_array().into_iter().flatten() {
            if volume["spec"]["claimRef"]["namespace"] == calls.namespace.as_str() {
                let name = volume["metadata"]["name"].as_str().unwrap_or_default();
                let _ = calls.request(Method::DELETE, &format!("/api/v1/persistentvolumes/{name}"), None);
            }
        }
    }
}

impl Drop for NamespaceCalls {
    fn drop(&mut self) {
        // An asynchronous test must not wait for the end of a runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Runs on a thread of its own: a thread that drives a runtime must not wait for another one.
fn outside_of_runtimes<T: Send>(work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    std::thread::scope(|scope| scope.spawn(work).join().map_err(|_| "the request panicked".to_owned())?)
}
