//! The pods of the node: found by a watch, started once each, stopped when they are deleted.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ::kube::Error;
use ::kube::api::{Api, ListParams, WatchEvent, WatchParams};
use futures_util::TryStreamExt;
use k8s_openapi::api::core::v1::{Pod, Secret};
use rustix::process::{Signal, kill_process_group};
use serde_json::Value;
use tokio::process::{Child, Command};
use tokio::sync::watch;

use super::container::{ContainerPlan, ContainerWait, PodSecrets, plan, pod_directory, secret_names};
use super::local::{KubeletShared, LocalPod, PodOrder};
use super::reports::Reporter;
use crate::kube::store::text;
use crate::process::{pid, send};

const RETRY: Duration = Duration::from_millis(100);
/// How long one watch lasts.
const WATCH_S: u32 = 240;
const SIGNAL_CODE_BASE: i32 = 128;
/// What a shell reports for a program that cannot be started.
const CANNOT_START_CODE: i32 = 128;

/// Follows the pods of this node until the runtime ends.
pub(super) async fn run(shared: Arc<KubeletShared>) {
    loop {
        // A watch that ends or fails is started again with a list.
        let _ = follow(&shared).await;
        tokio::time::sleep(RETRY).await;
    }
}

async fn follow(shared: &Arc<KubeletShared>) -> Result<(), Error> {
    let pods: Api<Pod> = Api::all(shared.client.clone());
    let on_this_node = format!("spec.nodeName={}", shared.node);
    let listed = pods.list(&ListParams::default().fields(&on_this_node)).await?;
    let version = listed.metadata.resource_version.clone().unwrap_or_default();
    let existing: Vec<Value> = listed.items.iter().map(to_value).collect();
    shared.pods().retain(|uid, local| {
        let exists = existing.iter().any(|pod| text(pod, "/metadata/uid") == uid);
        if !exists {
            local.order.send_replace(PodOrder::Vanish);
        }
        exists
    });
    existing.iter().for_each(|pod| sync(shared, pod));
    let params = WatchParams::default().fields(&on_this_node).timeout(WATCH_S);
    let mut events = pin!(pods.watch(&params, &version).await?);
    while let Some(event) = events.try_next().await? {
        match event {
            WatchEvent::Added(pod) | WatchEvent::Modified(pod) => sync(shared, &to_value(&pod)),
            WatchEvent::Deleted(pod) => forget(shared, &to_value(&pod)),
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(_) => return Ok(()),
        }
    }
    Ok(())
}

fn to_value(pod: &Pod) -> Value {
    serde_json::to_value(pod).unwrap_or_default()
}

/// The pod was removed without waiting for this node.
fn forget(shared: &KubeletShared, pod: &Value) {
    if let Some(local) = shared.pods().remove(text(pod, "/metadata/uid")) {
        local.order.send_replace(PodOrder::Vanish);
    }
}

/// Starts a pod that is new here, and stops one that was deleted.
fn sync(shared: &Arc<KubeletShared>, pod: &Value) {
    let uid = text(pod, "/metadata/uid").to_owned();
    let is_deleted = pod["metadata"]["deletionTimestamp"].is_string();
    let has_ended = ["Succeeded", "Failed"].contains(&text(pod, "/status/phase"));
    let mut pods = shared.pods();
    if let Some(local) = pods.get(&uid) {
        let grace_s = pod["metadata"]["deletionGracePeriodSeconds"].as_u64().unwrap_or(0);
        let is_ending = matches!(*local.order.borrow(), PodOrder::Terminate { .. } | PodOrder::Vanish);
        if is_deleted && !is_ending {
            local.order.send_replace(PodOrder::Terminate { grace_s });
        }
        return;
    }
    if has_ended {
        return;
    }
    let (order, orders) = watch::channel(PodOrder::Run);
    if is_deleted {
        order.send_replace(PodOrder::Terminate { grace_s: 0 });
    }
    let local = LocalPod {
        namespace: text(pod, "/metadata/namespace").to_owned(),
        name: text(pod, "/metadata/name").to_owned(),
        log: pod_directory(&shared.directory, pod).join("log"),
        order,
        process: None,
        has_ended: false,
    };
    pods.insert(uid, local);
    tokio::spawn(run_pod(shared.clone(), pod.clone(), orders));
}

async fn run_pod(shared: Arc<KubeletShared>, pod: Value, mut orders: watch::Receiver<PodOrder>) {
    let uid = text(&pod, "/metadata/uid").to_owned();
    let mut reporter = Reporter::new(&shared.client, &pod, &shared.directory);
    if let Some(child) = prepare(&shared, &pod, &reporter, &mut orders).await {
        match child {
            Ok(child) => run_process(&shared, &uid, child, &mut reporter, &mut orders).await,
            Err(_) => reporter.terminated(CANNOT_START_CODE, "StartError").await,
        }
    }
    if let Some(local) = shared.pods().get_mut(&uid) {
        local.has_ended = true;
    }
    // A pod that was deleted while it ran stays until this node has removed it.
    let is_last = |order: &PodOrder| matches!(order, PodOrder::Terminate { .. } | PodOrder::Vanish);
    let order = orders.wait_for(is_last).await.map_or(PodOrder::Vanish, |order| order.clone());
    if order != PodOrder::Vanish {
        reporter.delete().await;
    }
}

/// Starts the process as soon as its image and its secrets are there. `None` if the pod is to end before that.
async fn prepare(
    shared: &KubeletShared,
    pod: &Value,
    reporter: &Reporter,
    orders: &mut watch::Receiver<PodOrder>,
) -> Option<io::Result<Child>> {
    let mut reported = None;
    loop {
        let order = orders.borrow_and_update().clone();
        match order {
            PodOrder::Run => {}
            PodOrder::Evict { message } => {
                reporter.stopped_before_start(Some(&message)).await;
                return None;
            }
            PodOrder::Terminate { .. } => {
                reporter.stopped_before_start(None).await;
                return None;
            }
            PodOrder::Kill { .. } | PodOrder::Vanish => return None,
        }
        let planned = match read_secrets(shared, pod).await {
            Ok(secrets) => plan(pod, &secrets, &shared.directory, &shared.images),
            Err(error) => Err(ContainerWait { reason: "ContainerCreating", message: error.to_string() }),
        };
        match planned {
            Ok(plan) => return Some(start(shared, pod, &plan)),
            Err(why) => {
                if reported.as_ref() != Some(&why) {
                    // The first failure to pull is an error; only then is there something to back off from.
                    if why.reason == "ImagePullBackOff" {
                        reporter.waiting("ErrImagePull", &why.message).await;
                    }
                    reporter.waiting(why.reason, &why.message).await;
                    reported = Some(why);
                }
            }
        }
        tokio::select! {
            _ = orders.changed() => {}
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

async fn read_secrets(shared: &KubeletShared, pod: &Value) -> Result<PodSecrets, Error> {
    let api: Api<Secret> = Api::namespaced(shared.client.clone(), text(pod, "/metadata/namespace"));
    let mut found = PodSecrets::new();
    for name in secret_names(pod) {
        let secret = api.get_opt(&name).await?;
        found.insert(name, secret.map(|secret| serde_json::to_value(secret).unwrap_or_default()));
    }
    Ok(found)
}

fn start(shared: &KubeletShared, pod: &Value, plan: &ContainerPlan) -> io::Result<Child> {
    plan.materialise()?;
    let directory = pod_directory(&shared.directory, pod);
    let home = directory.join("home");
    fs::create_dir_all(&home)?;
    let log = File::create(directory.join("log"))?;
    let mut command = Command::new(&plan.program);
    command.args(&plan.arguments).env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", &home).envs(&plan.environment);
    command.env("HOSTNAME", text(pod, "/metadata/name")).current_dir(&home);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0).kill_on_drop(true);
    let child = command.spawn()?;
    if let Some(local) = shared.pods().get_mut(text(pod, "/metadata/uid")) {
        local.process = child.id();
    }
    Ok(child)
}

async fn run_process(
    shared: &KubeletShared,
    uid: &str,
    mut child: Child,
    reporter: &mut Reporter,
    orders: &mut watch::Receiver<PodOrder>,
) {
    let process = child.id();
    // The start is reported before the end, also if the process ends first.
    let end = async {
        let ended = wait(&mut child, process, orders).await;
        // What the process has started must not outlive the pod.
        signal_group(process, Signal::KILL);
        if let Some(local) = shared.pods().get_mut(uid) {
            local.process = None;
        }
        ended
    };
    let ((), (status, order)) = tokio::join!(reporter.running(), end);
    let code = exit_code(status);
    match order {
        PodOrder::Vanish => {}
        PodOrder::Evict { message } => reporter.evicted(code, &message).await,
        PodOrder::Kill { reason } => reporter.terminated(code, reason).await,
        PodOrder::Run | PodOrder::Terminate { .. } => {
            reporter.terminated(code, if code == 0 { "Completed" } else { "Error" }).await;
        }
    }
}

/// Waits until the process ends by itself, or ends it when it is ordered to.
async fn wait(
    child: &mut Child,
    process: Option<u32>,
    orders: &mut watch::Receiver<PodOrder>,
) -> (Option<ExitStatus>, PodOrder) {
    let is_order = |order: &PodOrder| *order != PodOrder::Run;
    let order = tokio::select! {
        status = child.wait() => return (status.ok(), PodOrder::Run),
        order = orders.wait_for(is_order) => order.map_or(PodOrder::Vanish, |order| order.clone()),
    };
    (end(child, process, &order).await, order)
}

async fn end(child: &mut Child, process: Option<u32>, order: &PodOrder) -> Option<ExitStatus> {
    if let PodOrder::Terminate { grace_s } = order {
        // Only the first process gets the signal, as in a container.
        process.and_then(pid).into_iter().for_each(|pid| send(pid, Signal::TERM));
        if let Ok(status) = tokio::time::timeout(Duration::from_secs(*grace_s), child.wait()).await {
            return status.ok();
        }
    }
    signal_group(process, Signal::KILL);
    child.wait().await.ok()
}

fn signal_group(process: Option<u32>, signal: Signal) {
    if let Some(group) = process.and_then(pid) {
        let _ = kill_process_group(group, signal);
    }
}

/// The code as a container reports it: 137 for a process that was killed.
fn exit_code(status: Option<ExitStatus>) -> i32 {
    let killed = SIGNAL_CODE_BASE + Signal::KILL.as_raw();
    status.map_or(killed, |status| {
        status.code().unwrap_or_else(|| status.signal().map_or(killed, |signal| SIGNAL_CODE_BASE + signal))
    })
}
