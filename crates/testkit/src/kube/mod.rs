//! A Kubernetes API server and a kubelet for tests: the real wire protocol over a real socket, for the resources that
//! Ostler uses. State is in memory, controllers act at once, and faults happen on demand. Differences from a real
//! cluster that tests may notice: failed pods of a job are replaced without a delay, bookmarks come every second, pods
//! of a missing node are collected at once, and patches of the type `json-patch` are not supported.

mod access;
mod admission;
mod cluster;
mod controllers;
mod failures;
mod faults;
mod fields;
mod http;
pub mod kubelet;
mod lists;
mod logs;
mod managers;
mod patch;
mod resources;
mod selectors;
mod serve;
mod shared;
mod store;
mod verbs;
mod watch;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::SignedDuration;
use serde_json::{Value, json};
use tempfile::TempDir;

pub use cluster::{KubeCluster, NamedCluster};
pub use faults::{ANY, KubeFault};

pub use access::NAMESPACE;
use access::SecretNames;
use http::{CLIENT_TOKEN, KUBELET_TOKEN, SERVER_TOKEN};
use patch::merge_strategic;
use serve::ApiListener;
use shared::KubeShared;
use store::ObjectKey;
use verbs::WriteOptions;

/// The storage class for claims that name none.
pub const STORAGE_CLASS: &str = "standard";

/// A running API server with its controllers. Dropping it stops both.
pub struct KubeApi {
    shared: Arc<KubeShared>,
    address: SocketAddr,
    /// `None` while it is stopped.
    listener: Option<ApiListener>,
    directory: TempDir,
}

impl KubeApi {
    /// Starts a cluster with the namespace [`NAMESPACE`], the storage class [`STORAGE_CLASS`] and no node.
    pub fn start() -> Result<Self, String> {
        let shared = Arc::new(KubeShared::new());
        let (listener, address) = ApiListener::start(shared.clone(), (Ipv4Addr::LOCALHOST, 0).into())
            .map_err(|error| format!("cannot start the API server: {error}"))?;
        let api = Self { shared, address, listener: Some(listener), directory: crate::scratch::in_memory() };
        api.create("namespaces", "", json!({"metadata": {"name": NAMESPACE}}))?;
        let annotations = json!({"storageclass.kubernetes.io/is-default-class": "true"});
        let class = json!({"metadata": {"name": STORAGE_CLASS, "annotations": annotations}, "provisioner": "testkit"});
        api.create("storageclasses", "", class)?;
        api.write_kubeconfig("kubeconfig", address, CLIENT_TOKEN)?;
        api.write_kubeconfig("server", address, SERVER_TOKEN)?;
        api.write_kubeconfig("kubelet", address, KUBELET_TOKEN)?;
        Ok(api)
    }

    /// Where it listens. The address stays the same across restarts.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn token(&self) -> &'static str {
        CLIENT_TOKEN
    }

    /// The kubeconfig of the client, an administrator whose calls are counted and disturbed.
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("kubeconfig")
    }

    /// The kubeconfig of the account that `deploy/kubernetes` gives a server. Its calls are counted and disturbed as the client's, and
    /// those that its role does not grant or the policy of Secrets' names does not allow are refused.
    pub fn server_kubeconfig(&self) -> PathBuf {
        self.directory.path().join("server")
    }

    /// The kubeconfig of a kubelet, whose calls are neither counted nor disturbed.
    pub fn kubelet_kubeconfig(&self) -> PathBuf {
        self.directory.path().join("kubelet")
    }

    /// A kubeconfig of the client that connects to this address: a proxy that slows and cuts connections by the byte.
    pub fn kubeconfig_via(&self, proxy: SocketAddr) -> Result<PathBuf, String> {
        self.write_kubeconfig(&format!("via-{}", proxy.port()), proxy, CLIENT_TOKEN)
    }

    fn write_kubeconfig(&self, name: &str, address: SocketAddr, token: &str) -> Result<PathBuf, String> {
        let path = self.directory.path().join(name);
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "testkit",
            "clusters": [{"name": "testkit", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": "testkit", "context": {"cluster": "testkit", "user": name, "namespace": NAMESPACE}}]
        });
        // JSON is YAML.
        std::fs::write(&path, text.to_string()).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(path)
    }

    /// Stops the API server: connections are closed, new ones are refused. The state stays.
    pub fn stop(&mut self) {
        self.listener = None;
    }

    /// Starts it again on the same port, with the same state.
    pub fn start_again(&mut self) -> Result<(), String> {
        if self.listener.is_none() {
            let started = ApiListener::start(self.shared.clone(), self.address);
            let (listener, _) = started.map_err(|error| format!("cannot start the API server again: {error}"))?;
            self.listener = Some(listener);
        }
        Ok(())
    }

    pub fn restart(&mut self) -> Result<(), String> {
        self.stop();
        self.start_again()
    }

    /// While set, connections are closed as soon as they are accepted, and existing ones are cut. Controllers go on.
    pub fn cut_off(&self, is_cut_off: bool) {
        self.shared.is_cut_off.store(is_cut_off, Ordering::SeqCst);
        if is_cut_off {
            self.cut_connections();
        }
    }

    /// Cuts every open connection, watches too.
    pub fn cut_connections(&self) {
        self.shared.cut_connections();
    }

    /// Arms a fault for the next requests of the client with this verb (`create`, `watch`, …) and resource (`jobs`,
    /// `pods/log`, …); [`ANY`] matches all. The fault armed first is used first.
    pub fn inject(&self, fault: KubeFault, verb: &str, resource: &str, times: u32) {
        self.shared.lock().faults.arm(fault, verb, resource, times);
    }

    /// How many requests armed faults still wait for.
    pub fn faults_waiting(&self) -> u32 {
        self.shared.lock().faults.waiting()
    }

    /// Forbids the client and the server's account a verb on a resource: 403, and `allowed: false` in access reviews.
    pub fn deny(&self, verb: &str, resource: &str) {
        self.shared.lock().faults.deny(verb, resource);
    }

    /// Limits the Secrets that the server's account may write to those of this admission policy. Before, the policy of
    /// `deploy/kubernetes/base` applies.
    pub fn limit_secret_names(&self, policy: &str) {
        self.shared.lock().secret_names = SecretNames::of_policy(policy);
    }

    /// Ends armed faults, forbidden access and the cut-off.
    pub fn heal(&self) {
        self.shared.lock().faults.heal();
        self.cut_off(false);
    }

    /// Ends every open watch without an error, as the real server does after some minutes.
    pub fn end_watches(&self) {
        self.shared.change(|state| state.watches_ended += 1);
    }

    /// Ends every open watch with 410 and compacts the history: a client must list again.
    pub fn expire_watches(&self) {
        self.shared.change(|state| {
            state.store.skip_revision();
            state.store.compact();
            state.watches_expired += 1;
        });
    }

    /// Forgets the history: watches from older versions and continued lists are answered with 410.
    pub fn compact(&self) {
        self.shared.change(|state| {
            state.store.skip_revision();
            state.store.compact();
        });
    }

    pub fn set_bookmark_interval(&self, interval: Duration) {
        self.shared.set_bookmark_interval(interval);
    }

    /// Moves the cluster's clock forward, so that deadlines and times to live pass.
    pub fn advance(&self, by: Duration) {
        let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
        self.shared.change(|state| state.store.advance(by));
    }

    /// The calls of the client and of the server's account, by verb and resource.
    pub fn calls(&self) -> BTreeMap<(String, String), u64> {
        self.shared.lock().faults.calls()
    }

    /// How often they used this verb on this resource.
    pub fn count(&self, verb: &str, resource: &str) -> u64 {
        self.calls().get(&(verb.to_owned(), resource.to_owned())).copied().unwrap_or(0)
    }

    pub fn reset_calls(&self) {
        self.shared.lock().faults.reset_calls();
    }

    /// Creates an object as an administrator would. The namespace is empty for resources of the cluster.
    pub fn create(&self, resource: &str, namespace: &str, object: Value) -> Result<Value, String> {
        let resource = resources::by_plural(resource).ok_or_else(|| format!("no resource {resource}"))?;
        let namespace = Some(namespace).filter(|_| resource.is_namespaced);
        let options = WriteOptions::default();
        let created =
            self.shared.change(|state| verbs::create(&mut state.store, resource, namespace, object, &options));
        created.map_err(|failure| failure.to_json().to_string())
    }

    /// An object. `None` if there is none of this name.
    pub fn object(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        let key = ObjectKey::new(resources::by_plural(resource)?, namespace, name);
        self.shared.lock().store.get(&key).map(|object| Value::clone(object))
    }

    /// All objects of a resource, in all namespaces.
    pub fn objects(&self, resource: &str) -> Vec<Value> {
        let Some(resource) = resources::by_plural(resource) else { return vec![] };
        self.shared.lock().store.list(resource, None).map(|(_, object)| Value::clone(object)).collect()
    }

    /// Changes an object by a strategic merge, whatever the rules for its fields are. `false` if there is none.
    pub fn patch(&self, resource: &str, namespace: &str, name: &str, change: &Value) -> bool {
        let Some(resource) = resources::by_plural(resource) else { return false };
        let key = ObjectKey::new(resource, namespace, name);
        self.shared.change(|state| {
            let Some(mut object) = state.store.get(&key).map(|object| Value::clone(object)) else { return false };
            merge_strategic(&mut object, change);
            state.store.put(key, object);
            true
        })
    }

    /// Deletes an object at once: no grace period, no finalizers. `false` if there is none.
    pub fn remove(&self, resource: &str, namespace: &str, name: &str) -> bool {
        let Some(resource) = resources::by_plural(resource) else { return false };
        let key = ObjectKey::new(resource, namespace, name);
        self.shared.change(|state| state.store.remove(&key).is_some())
    }

    /// A directory that lives as long as the cluster: volumes and logs of kubelets.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }
}
