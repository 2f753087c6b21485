//! Jobs and their pods, as the controllers treat them. The tests play the kubelet: pods are bound to no node.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use ostler_testkit::kube::kubelet::client;
use ostler_testkit::kube::{KubeApi, NAMESPACE};
use serde_json::{Value, json};

use crate::{World, eventually, from};

fn job(name: &str, spec: Value) -> Job {
    let template = json!({"metadata": {"labels": {"app": "a"}}, "spec": {
        "restartPolicy": "Never", "nodeSelector": {"ostler.dev/none": "true"},
        "containers": [{"name": "main", "image": "example.test/image:1"}]
    }});
    let mut job = json!({"metadata": {"name": name}, "spec": spec});
    job["spec"]["template"] = template;
    from(job)
}

async fn pod_of(pods: &Api<Pod>, job: &str) -> Pod {
    let of_job = ListParams::default().labels(&format!("job-name={job}"));
    eventually(async || pods.list(&of_job).await.unwrap().items.into_iter().next()).await
}

async fn report(pods: &Api<Pod>, pod: &Pod, phase: &str, exit_code: i32) {
    let state = json!({"terminated": {"exitCode": exit_code, "reason": "Error"}});
    let container = json!({
        "name": "main", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state
    });
    let status = json!({"status": {"phase": phase, "containerStatuses": [container]}});
    let name = pod.metadata.name.as_deref().unwrap();
    pods.patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await.unwrap();
}

/// The reason of the condition with which a job ends.
async fn end_of(jobs: &Api<Job>, name: &str) -> (String, Job) {
    eventually(async || {
        let job = jobs.get(name).await.unwrap();
        let conditions = job.status.clone().unwrap_or_default().conditions.unwrap_or_default();
        let end = conditions.into_iter().find(|one| ["Complete", "Failed"].contains(&one.type_.as_str()))?;
        Some((end.reason.unwrap_or_default(), job))
    })
    .await
}

#[tokio::test]
async fn a_job_has_one_pod_of_its_own_and_completes_with_it() {
    let world = World::start().await;
    let (jobs, pods) = (world.api::<Job>(), world.api::<Pod>());
    let created = jobs.create(&PostParams::default(), &job("j", json!({"backoffLimit": 0}))).await.unwrap();
    let pod = pod_of(&pods, "j").await;
    let owner = &pod.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((&owner.uid, owner.controller), (created.metadata.uid.as_ref().unwrap(), Some(true)));
    assert_eq!(pod.metadata.labels.as_ref().unwrap()["app"], "a");
    assert!(pod.metadata.name.as_ref().unwrap().starts_with("j-"));
    eventually(async || (jobs.get("j").await.unwrap().status?.active? == 1).then_some(())).await;
    report(&pods, &pod, "Succeeded", 0).await;
    let (reason, job) = end_of(&jobs, "j").await;
    let status = job.status.unwrap();
    assert_eq!((reason.as_str(), status.succeeded, status.active), ("CompletionsReached", Some(1), None));
    assert!(status.completion_time.is_some() && status.start_time.is_some());
}

#[tokio::test]
async fn a_job_without_retries_fails_with_its_pod() {
    let world = World::start().await;
    let (jobs, pods) = (world.api::<Job>(), world.api::<Pod>());
    jobs.create(&PostParams::default(), &job("j", json!({"backoffLimit": 0}))).await.unwrap();
    report(&pods, &pod_of(&pods, "j").await, "Failed", 3).await;
    let (reason, job) = end_of(&jobs, "j").await;
    assert_eq!((reason.as_str(), job.status.unwrap().failed), ("BackoffLimitExceeded", Some(1)));
}

#[tokio::test]
async fn a_pod_that_is_deleted_counts_as_failed() {
    let world = World::start().await;
    let (jobs, pods) = (world.api::<Job>(), world.api::<Pod>());
    jobs.create(&PostParams::default(), &job("j", json!({"backoffLimit": 0}))).await.unwrap();
    let pod = pod_of(&pods, "j").await;
    pods.delete(pod.metadata.name.as_deref().unwrap(), &DeleteParams::default()).await.unwrap();
    let (reason, job) = end_of(&jobs, "j").await;
    assert_eq!((reason.as_str(), job.status.unwrap().failed), ("BackoffLimitExceeded", Some(1)));
}

#[tokio::test]
async fn a_job_past_its_deadline_fails_and_its_pod_is_deleted() {
    let world = World::start().await;
    let (jobs, pods) = (world.api::<Job>(), world.api::<Pod>());
    jobs.create(&PostParams::default(), &job("j", json!({"activeDeadlineSeconds": 1}))).await.unwrap();
    let (reason, _) = end_of(&jobs, "j").await;
    assert_eq!(reason, "DeadlineExceeded");
    eventually(async || pods.list(&ListParams::default()).await.unwrap().items.is_empty().then_some(())).await;
}

#[tokio::test]
async fn a_deleted_job_takes_its_pod_and_its_secret_along() {
    let world = World::start().await;
    let (jobs, pods, secrets) = (world.api::<Job>(), world.api::<Pod>(), world.api::<Secret>());
    for params in [DeleteParams::background(), DeleteParams::foreground()] {
        let created = jobs.create(&PostParams::default(), &job("j", json!({}))).await.unwrap();
        let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": created.metadata.uid});
        let secret: Secret = from(json!({"metadata": {"name": "token", "ownerReferences": [owner]}}));
        secrets.create(&PostParams::default(), &secret).await.unwrap();
        pod_of(&pods, "j").await;
        jobs.delete("j", &params).await.unwrap();
        eventually(async || {
            let left = pods.list(&ListParams::default()).await.unwrap().items.len()
                + usize::from(secrets.get_opt("token").await.unwrap().is_some())
                + usize::from(jobs.get_opt("j").await.unwrap().is_some());
            (left == 0).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn an_orphaned_pod_outlives_its_job() {
    let world = World::start().await;
    let (jobs, pods) = (world.api::<Job>(), world.api::<Pod>());
    jobs.create(&PostParams::default(), &job("j", json!({}))).await.unwrap();
    let pod = pod_of(&pods, "j").await;
    jobs.delete("j", &DeleteParams::orphan()).await.unwrap();
    eventually(async || jobs.get_opt("j").await.unwrap().is_none().then_some(())).await;
    let left = pods.get(pod.metadata.name.as_deref().unwrap()).await.unwrap();
    assert_eq!(left.metadata.owner_references.unwrap_or_default(), []);
}

#[tokio::test]
async fn a_finished_job_disappears_after_its_time_to_live() {
    let api = KubeApi::start().unwrap();
    let client = client(&api.kubeconfig()).await.unwrap();
    let jobs: Api<Job> = Api::namespaced(client.clone(), NAMESPACE);
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    jobs.create(&PostParams::default(), &job("j", json!({"ttlSecondsAfterFinished": 3600}))).await.unwrap();
    report(&pods, &pod_of(&pods, "j").await, "Succeeded", 0).await;
    end_of(&jobs, "j").await;
    api.advance(Duration::from_secs(3500));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(jobs.get_opt("j").await.unwrap().is_some(), "its time has not passed");
    api.advance(Duration::from_secs(101));
    eventually(async || jobs.get_opt("j").await.unwrap().is_none().then_some(())).await;
    assert!(pods.list(&ListParams::default()).await.unwrap().items.is_empty());
}
