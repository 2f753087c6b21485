//! A server with a cluster. The test plays the kubelet and the runners. This file alone knows how the cluster is made.

use ostler_protocol::kernel::runner_jobs::Launcher;
use ostler_testkit::kube::{KubeApi, NAMESPACE};
use serde_json::{Value, json};

use crate::harness::{Engine, Setup, TestServer, eventually, id};

pub struct TestCluster {
    pub api: KubeApi,
}

impl TestCluster {
    pub fn start() -> Self {
        Self { api: KubeApi::start().unwrap() }
    }

    /// The settings of a server whose runners are Jobs of this cluster.
    pub fn choose(&self, setup: &mut Setup) {
        setup.config.runner.launcher = Launcher::Kubernetes;
        setup.config.runner.slots = 64;
        let section = &mut setup.config.kubernetes;
        section.kubeconfig = Some(self.api.kubeconfig());
        section.image = Some("ostler:test".into());
        section.server_url = Some("http://ostler.example:4747".into());
        (section.request_timeout_ms, section.resync_ms) = (5_000, 100);
    }

    pub async fn server(&self, engine: Engine) -> TestServer {
        TestServer::with(engine, |setup| self.choose(setup)).await
    }

    pub fn job(&self, name: &str) -> Option<Value> {
        self.api.object("jobs", NAMESPACE, name)
    }

    pub fn job_names(&self) -> Vec<String> {
        self.api.objects("jobs").iter().map(|job| id(&job["metadata"], "name")).collect()
    }

    /// Waits for the Job of this name.
    pub async fn created(&self, name: &str) -> Value {
        eventually("the Job exists", async || self.job(name)).await
    }

    /// Waits for the pod of a Job, and returns its name.
    pub async fn pod_of(&self, job_name: &str) -> String {
        eventually("the pod exists", async || {
            let pods = self.api.objects("pods");
            let pod = pods.iter().find(|pod| pod["metadata"]["ownerReferences"][0]["name"] == job_name)?;
            Some(id(&pod["metadata"], "name"))
        })
        .await
    }

    /// Reports the state of the runner's container, as a kubelet does.
    pub fn report(&self, pod: &str, phase: &str, state: &Value) {
        let container = json!({"name": "runner", "image": "ostler:test", "imageID": "", "ready": false, "restartCount": 0,
            "state": state});
        let status = json!({"phase": phase, "startTime": "2026-01-01T00:00:00Z", "containerStatuses": [container]});
        assert!(self.api.patch("pods", NAMESPACE, pod, &json!({"status": status})));
    }

    pub fn delete_job(&self, name: &str) {
        assert!(self.api.remove("jobs", NAMESPACE, name));
    }
}

/// A run with a command that waits.
pub async fn waiting_run(server: &TestServer) -> (String, String) {
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    (run_id, command_id)
}

/// A run with a turn that waits, and the job that was ordered for it: run, command and job.
pub async fn ordered_job(server: &TestServer) -> (String, String, Value) {
    let (run_id, command_id) = waiting_run(server).await;
    let job = server.create_job(&run_id, &json!({"commandId": command_id})).await.with_status(201);
    (run_id, command_id, job)
}

/// Waits until the server shows the job as this test wants to see it.
pub async fn job_shows(server: &TestServer, job: &Value, what: &str, is_shown: impl Fn(&Value) -> bool) -> Value {
    eventually(what, async || Some(server.get(&id(&job["poll"], "job")).await.ok()).filter(&is_shown)).await
}
