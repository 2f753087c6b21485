//! A node: it watches the pods that are bound to it, starts the real program for each, and reports what becomes of it.
//! Containers are plain processes: a mounted volume is a directory, and arguments and variables that name a mount path
//! get the directory's path instead.

mod container;
mod local;
mod log_server;
mod pods;
mod reports;
mod tls;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use ::kube::config::{KubeConfigOptions, Kubeconfig};
use ::kube::{Client, Config};
use rustix::process::{Signal, kill_process_group};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

use crate::process::pid;

pub use container::find_claim_directory;
use local::{KubeletShared, PodOrder};

const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A running node. Dropping it kills its processes; the cluster is not notified.
pub struct Kubelet {
    shared: Arc<KubeletShared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Kubelet {
    /// Registers a node and starts pods that are bound to it. `images` gives the program of each image; a pod with
    /// another image ends up in `ImagePullBackOff`. Volumes and logs are kept in the directory.
    pub fn start(kubeconfig: &Path, directory: &Path, node: &str, images: &[(&str, &Path)]) -> Result<Self, String> {
        let images = images.iter().map(|(image, program)| ((*image).to_owned(), program.to_path_buf())).collect();
        let (kubeconfig, directory, node) = (kubeconfig.to_owned(), directory.to_owned(), node.to_owned());
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("no runtime for the kubelet: {error}"))?;
        let work = async move {
            let started = join(&kubeconfig, directory, node, images).await;
            let (shared, listener, tls) = match started {
                Ok(started) => started,
                Err(error) => return drop(ready.send(Err(error))),
            };
            let _ = ready.send(Ok(shared.clone()));
            tokio::select! {
                () = pods::run(shared.clone()) => {}
                () = log_server::serve(shared, listener, tls) => {}
                _ = stopped => {}
            }
        };
        let thread = std::thread::Builder::new().name("kubelet".into()).spawn(move || {
            runtime.block_on(work);
            runtime.shutdown_background();
        });
        let thread = thread.map_err(|error| format!("no thread for the kubelet: {error}"))?;
        let shared =
            is_ready.recv_timeout(START_TIMEOUT).map_err(|error| format!("the kubelet did not start: {error}"))??;
        Ok(Self { shared, stop: Some(stop), thread: Some(thread) })
    }

    /// The process of a pod. `None` if it has none, yet or any more.
    pub fn process_of(&self, pod: &str) -> Option<u32> {
        self.shared.pods().values().filter(|local| local.name == pod).find_map(|local| local.process)
    }

    /// The names of the pods whose processes run.
    pub fn running(&self) -> Vec<String> {
        let pods = self.shared.pods();
        pods.values().filter(|local| local.process.is_some()).map(|local| local.name.clone()).collect()
    }

    /// Kills a pod's process as the kernel does when its memory is used up. `false` if there is no such pod.
    pub fn oom_kill(&self, pod: &str) -> bool {
        self.order(pod, PodOrder::Kill { reason: "OOMKilled" })
    }

    /// Kills a pod's process: it ends with code 137 and the reason `Error`.
    pub fn kill(&self, pod: &str) -> bool {
        self.order(pod, PodOrder::Kill { reason: "Error" })
    }

    /// Evicts a pod, as a node under pressure does.
    pub fn evict(&self, pod: &str, message: &str) -> bool {
        self.order(pod, PodOrder::Evict { message: message.to_owned() })
    }

    /// Ends a pod as the drain of its node does: SIGTERM, SIGKILL after the grace period, then the pod is deleted.
    pub fn terminate(&self, pod: &str, grace_s: u64) -> bool {
        self.order(pod, PodOrder::Terminate { grace_s })
    }

    fn order(&self, pod: &str, order: PodOrder) -> bool {
        let pods = self.shared.pods();
        let local = pods.values().find(|local| local.name == pod && !local.has_ended);
        local.map(|local| local.order.send_replace(order)).is_some()
    }

    /// The node loses its power: its processes die and nothing is reported any more. The Node object stays; delete it
    /// to have the cluster notice.
    pub fn power_off(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let mut pods = self.shared.pods();
        for local in pods.values_mut() {
            if let Some(group) = local.process.take().and_then(pid) {
                let _ = kill_process_group(group, Signal::KILL);
            }
        }
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.power_off();
    }
}

/// Connects, registers the node, and opens the port for logs.
async fn join(
    kubeconfig: &Path,
    directory: PathBuf,
    node: String,
    images: BTreeMap<String, PathBuf>,
) -> Result<(Arc<KubeletShared>, TcpListener, Option<TlsAcceptor>), String> {
    let config = config(kubeconfig).await?;
    // A real API server reads logs over TLS, the test kit's does not.
    let uses_tls = config.cluster_url.scheme_str() == Some("https");
    let tls = if uses_tls { Some(tls::acceptor(&directory)?) } else { None };
    let client = Client::try_from(config).map_err(|error| format!("cannot connect: {error}"))?;
    let refuse = |error: std::io::Error| format!("no port for the kubelet: {error}");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(refuse)?;
    let port = listener.local_addr().map_err(refuse)?.port();
    reports::register_node(&client, &node, port).await.map_err(|error| format!("cannot register {node}: {error}"))?;
    Ok((Arc::new(KubeletShared::new(client, node, directory, images)), listener, tls))
}

/// A client for the cluster that a kubeconfig names. It does not retry by itself.
pub async fn client(kubeconfig: &Path) -> Result<Client, String> {
    Client::try_from(config(kubeconfig).await?).map_err(|error| format!("cannot connect: {error}"))
}

async fn config(kubeconfig: &Path) -> Result<Config, String> {
    let refuse = |error: &dyn std::fmt::Display| format!("cannot use {}: {error}", kubeconfig.display());
    let read = Kubeconfig::read_from(kubeconfig).map_err(|error| refuse(&error))?;
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
    let mut config = config.map_err(|error| refuse(&error))?;
    config.default_retry = false;
    Ok(config)
}
