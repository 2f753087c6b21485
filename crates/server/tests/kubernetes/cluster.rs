//! A server with a cluster. The test plays the kubelet and the runners. This file alone knows how the cluster is made.

use ostler_protocol::kernel::runner_jobs::Launcher;
use ostler_testkit::kube::{KubeApi, KubeCluster};
use serde_json::{Value, json};

use crate::harness::{Engine, Setup, TestServer, eventually, id};

pub(crate) struct TestCluster {
    pub cluster: KubeCluster,
}

impl TestCluster {
    /// The test kit's own cluster, for a test that counts calls or needs faults.
    pub(crate) fn start() -> Self {
        Self { cluster: KubeCluster::Own(KubeApi::start().unwrap()) }
    }

    /// The cluster that `OSTLER_TEST_KUBECONFIG` names, or the test kit's own.
    pub(crate) fn any() -> Self {
        Self { cluster: KubeCluster::start().unwrap() }
    }

    pub(crate) fn api(&self) -> &KubeApi {
        self.cluster.own().unwrap()
    }

    pub(crate) fn api_mut(&mut self) -> &mut KubeApi {
        let KubeCluster::Own(api) = &mut self.cluster else { unreachable!("a test with faults has its own cluster") };
        api
    }

    /// The settings of a server whose runners are Jobs of this cluster.
    pub(crate) fn choose(&self, setup: &mut Setup) {
        setup.config.runner.launcher = Launcher::Kubernetes;
        setup.config.runner.slots = 64;
        let section = &mut setup.config.kubernetes;
        section.kubeconfig = Some(self.cluster.server_kubeconfig());
        section.namespace = Some(self.cluster.namespace().into());
        section.image = Some("ostler:test".into());
        // Nodes of other tests must not start these pods.
        section.node_selector.insert("kubernetes.io/hostname".into(), self.cluster.node().into());
        section.server_url = Some("http://ostler.example:4747".into());
        (section.request_timeout_ms, section.resync_ms) = (5_000, 100);
    }

    pub(crate) async fn server(&self, engine: Engine) -> TestServer {
        TestServer::with(engine, |setup| self.choose(setup)).await
    }

    pub(crate) fn object(&self, resource: &str, name: &str) -> Option<Value> {
        self.cluster.object(resource, name)
    }

    pub(crate) fn objects(&self, resource: &str) -> Vec<Value> {
        self.cluster.objects(resource)
    }

    pub(crate) fn create(&self, resource: &str, object: Value) -> Result<Value, String> {
        self.cluster.create(resource, object)
    }

    pub(crate) fn patch(&self, resource: &str, name: &str, change: &Value) -> bool {
        self.cluster.patch(resource, name, change)
    }

    pub(crate) fn remove(&self, resource: &str, name: &str) -> bool {
        self.cluster.remove(resource, name)
    }

    pub(crate) fn job(&self, name: &str) -> Option<Value> {
        self.object("jobs", name)
    }

    pub(crate) fn job_names(&self) -> Vec<String> {
        self.objects("jobs").iter().map(|job| id(&job["metadata"], "name")).collect()
    }

    /// Waits for the Job of this name.
    pub(crate) async fn created(&self, name: &str) -> Value {
        eventually("the Job exists", async || self.job(name)).await
    }

    /// Waits for the pod of a Job, and returns its name.
    pub(crate) async fn pod_of(&self, job_name: &str) -> String {
        eventually("the pod exists", async || {
            let pods = self.objects("pods");
            let pod = pods.iter().find(|pod| pod["metadata"]["ownerReferences"][0]["name"] == job_name)?;
            Some(id(&pod["metadata"], "name"))
        })
        .await
    }

    /// Reports the state of the runner's container, as a kubelet does.
    pub(crate) fn report(&self, pod: &str, phase: &str, state: &Value) {
        let container = json!({"name": "runner", "image": "ostler:test", "imageID": "", "ready": false, "restartCount": 0,
            "state": state});
        let status = json!({"phase": phase, "startTime": "2026-01-01T00:00:00Z", "containerStatuses": [container]});
        assert!(self.patch("pods", pod, &json!({"status": status})));
    }

    pub(crate) fn delete_job(&self, name: &str) {
        assert!(self.remove("jobs", name));
    }
}

/// A run with a command that waits.
pub(crate) async fn waiting_run(server: &TestServer) -> (String, String) {
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    (run_id, command_id)
}

/// A run with a turn that waits, and the job that was ordered for it: run, command and job.
pub(crate) async fn ordered_job(server: &TestServer) -> (String, String, Value) {
    let (run_id, command_id) = waiting_run(server).await;
    let job = server.create_job(&run_id, &json!({"commandId": command_id})).await.with_status(201);
    (run_id, command_id, job)
}

/// Waits until the server shows the job as this test wants to see it.
pub(crate) async fn job_shows(
    server: &TestServer,
    job: &Value,
    what: &str,
    is_shown: impl Fn(&Value) -> bool,
) -> Value {
    eventually(what, async || Some(server.get(&id(&job["poll"], "job")).await.ok()).filter(&is_shown)).await
}
