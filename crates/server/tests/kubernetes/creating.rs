//! One order is one Job.

use ostler_testkit::kube::KubeFault;
use serde_json::json;

use super::cluster::{TestCluster, job_shows, ordered_job, waiting_run};
use crate::{
    harness::{Engine, TestServer, both_engines, eventually, id, one_engine},
    metrics::value,
};

#[both_engines]
async fn an_order_becomes_one_job_with_a_secret_that_it_owns(engine: Engine) {
    let cluster = TestCluster::any();
    let server = cluster.server(engine).await;
    // A run of the tenant `hwlab`: T5 of the published run manager.
    let (run_id, command_id, job) = ordered_job(&server).await;
    let name = id(&job, "jobName");
    assert!(name.starts_with("ostler-run-"), "{name}");
    assert_eq!(server.run(&run_id).await["tenantId"], "hwlab");
    assert_eq!((&job["runId"], &job["commandId"]), (&json!(run_id), &json!(command_id)));
    for field in ["runnerJobId", "attemptId", "runnerId", "logPath"] {
        assert!(job[field].as_str().is_some_and(|text| !text.is_empty()), "{field} in {job}");
    }
    for poll in ["job", "events", "result"] {
        server.get(&id(&job["poll"], poll)).await.with_status(200);
    }
    assert_eq!((&job["launcher"], &job["namespace"]), (&json!("kubernetes"), &json!(cluster.cluster.namespace())));
    assert_eq!(job["retention"]["ttlSecondsAfterFinished"], 3_600);
    assert_eq!(job["retention"]["preCreateCleanup"], json!({"finishedJobsMax": 100, "activeJobsMax": 500}));
    let created = cluster.created(&name).await;
    let labels = &created["metadata"]["labels"];
    assert_eq!((&labels["ostler.dev/job"], &labels["ostler.dev/run"]), (&job["runnerJobId"], &json!(run_id)));
    let secret = eventually("the Secret exists", async || cluster.object("secrets", &name)).await;
    assert_eq!(secret["metadata"]["ownerReferences"][0]["uid"], created["metadata"]["uid"]);
    // The token is in the Secret alone: neither the manifest nor the store has it.
    let manifest = created.to_string();
    assert!(manifest.contains("secretKeyRef") && !manifest.contains("ost_run_"), "{manifest}");
    let pod = cluster.pod_of(&name).await;
    let shown = job_shows(&server, &job, "its pod is shown", |job| job["podName"] == pod.as_str()).await;
    assert_eq!(shown["observed"]["jobName"], name.as_str());
    let log = server.get(&id(&shown, "logPath")).await.ok();
    assert_eq!((&log["text"], &log["finished"]), (&json!(""), &json!(false)));
    server.get(&format!("{}?tailLines=0", id(&shown, "logPath"))).await.with_status(400);
    server.get(&format!("{}?after=now", id(&shown, "logPath"))).await.with_status(400);
    if let Some(api) = cluster.cluster.own() {
        assert_eq!((api.count("create", "jobs"), api.count("create", "secrets")), (1, 1));
    }
}

#[both_engines]
async fn the_same_key_makes_no_second_job(engine: Engine) {
    let cluster = TestCluster::any();
    let server = cluster.server(engine).await;
    let (run_id, command_id) = waiting_run(&server).await;
    let body = json!({"commandId": command_id, "idempotencyKey": "k"});
    let first = server.create_job(&run_id, &body).await.with_status(201);
    cluster.created(&id(&first, "jobName")).await;
    let again = server.create_job(&run_id, &body).await.with_status(200);
    assert_eq!(again["jobName"], first["jobName"]);
    assert_eq!(cluster.job_names(), [id(&first, "jobName")]);
}

#[both_engines]
async fn a_command_that_was_cancelled_before_its_job_exists_gets_none(engine: Engine) {
    const MANY: u32 = 1_000;
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    cluster.api().inject(KubeFault::InternalError, "create", "jobs", MANY);
    let (_, command_id, job) = ordered_job(&server).await;
    eventually("the start has failed", async || (cluster.api().faults_waiting() < MANY).then_some(())).await;
    server.cancel_command(&command_id).await;
    cluster.api().heal();
    // A start that failed is repeated after 10 s.
    server.clock.advance_ms(11_000);
    let ended =
        job_shows(&server, &job, "the job has ended", |job| job["phase"] != "running" && job["phase"] != "pending");
    let ended = ended.await;
    assert_eq!(ended["observed"], json!({}));
    assert_eq!(cluster.job_names(), [""; 0]);
}

#[both_engines]
async fn no_room_is_refused_and_finished_jobs_make_room(engine: Engine) {
    let cluster = TestCluster::any();
    let server = TestServer::with(engine, |setup| {
        cluster.choose(setup);
        (setup.config.kubernetes.active_jobs_max, setup.config.kubernetes.finished_jobs_max) = (1, 1);
    })
    .await;
    let mut finished = vec![];
    for _ in 0..3 {
        let (run_id, command_id) = waiting_run(&server).await;
        let body = json!({"commandId": command_id, "idempotencyKey": "k"});
        let job = server.create_job(&run_id, &body).await.with_status(201);
        let name = id(&job, "jobName");
        let pod = {
            cluster.created(&name).await;
            cluster.pod_of(&name).await
        };
        let refused = {
            let (other, command_id) = waiting_run(&server).await;
            server.create_job(&other, &json!({"commandId": command_id})).await.with_status(409)
        };
        assert_eq!(
            (&refused["failureKind"], &refused["details"]["rule"]),
            (&json!("infra-failed"), &json!("cluster-room"))
        );
        server.create_job(&run_id, &body).await.with_status(200);
        let runner = server.claim(&run_id, &id(&job, "runnerId")).await;
        runner.end(&command_id, "completed").await;
        runner.release().await;
        cluster.report(&pod, "Succeeded", &json!({"terminated": {"exitCode": 0}}));
        job_shows(&server, &job, "the job has ended", |job| job["phase"] == "succeeded").await;
        eventually("the Job is complete", async || {
            let conditions = cluster.job(&name)?["status"]["conditions"].clone();
            conditions.as_array()?.iter().any(|condition| condition["type"] == "Complete").then_some(())
        })
        .await;
        finished.push(name);
    }
    eventually("the oldest was deleted", async || cluster.job(&finished[0]).is_none().then_some(())).await;
    assert!(cluster.job(&finished[2]).is_some());
}

#[one_engine]
async fn calls_of_the_api_server_and_known_objects_are_counted(engine: Engine) {
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    let (_, _, job) = ordered_job(&server).await;
    cluster.pod_of(&id(&job, "jobName")).await;
    for (verb, resource) in [("create", "jobs"), ("create", "secrets"), ("list", "jobs"), ("watch", "pods")] {
        let line = format!("ostler_cluster_calls_total{{verb=\"{verb}\",resource=\"{resource}\"}}");
        eventually("the server counts as many calls as the cluster", async || {
            let counted = value(&server, &line).await;
            (counted > 0.0 && counted == cluster.api().count(verb, resource) as f64).then_some(())
        })
        .await;
    }
    for (kind, count) in [("active-job", 1.0), ("finished-job", 0.0), ("pod", 1.0)] {
        let line = format!("ostler_cluster_objects{{kind=\"{kind}\"}}");
        eventually("the server knows the objects", async || (value(&server, &line).await == count).then_some(())).await;
    }
}
