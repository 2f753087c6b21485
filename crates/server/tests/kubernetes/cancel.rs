//! Cancelling what a Job was created for, by run and by command, and deleting a Job, which cancels nothing.

use ostler_testkit::kube::KubeFault;
use serde_json::{Value, json};

use super::cluster::{TestCluster, job_shows, ordered_job};
use crate::harness::{Engine, TestServer, both_engines, eventually, id};

/// Longer than a server waits with a pod that has not started although there is nothing for it to do.
const SETTLED_MS: i64 = 11_000;

#[derive(Clone, Copy, Debug)]
enum Cancel {
    Run,
    Command,
}

impl Cancel {
    const BOTH: [Self; 2] = [Self::Run, Self::Command];

    async fn send(self, server: &TestServer, run_id: &str, command_id: &str) {
        match self {
            Self::Run => server.cancel_run(run_id).await,
            Self::Command => server.cancel_command(command_id).await,
        };
    }
}

fn has_ended(job: &Value) -> bool {
    job["phase"] != "running" && job["phase"] != "pending"
}

#[both_engines]
async fn a_cancel_before_the_job_exists_leaves_no_job(engine: Engine) {
    const MANY: u32 = 1_000;
    for cancel in Cancel::BOTH {
        let cluster = TestCluster::start();
        let server = cluster.server(engine).await;
        cluster.api().inject(KubeFault::InternalError, "create", "jobs", MANY);
        let (run_id, command_id, job) = ordered_job(&server).await;
        eventually("the start has failed", async || (cluster.api().faults_waiting() < MANY).then_some(())).await;
        cancel.send(&server, &run_id, &command_id).await;
        assert_eq!(server.command(&run_id, &command_id).await["state"], "cancelled", "{cancel:?}");
        cluster.api().heal();
        server.clock.advance_ms(SETTLED_MS);
        job_shows(&server, &job, "its end", has_ended).await;
        assert_eq!(cluster.job_names(), [""; 0], "{cancel:?}");
    }
}

#[both_engines]
async fn a_cancel_while_the_pod_has_not_started_ends_the_command_at_once_and_deletes_the_job(engine: Engine) {
    let cluster = TestCluster::any();
    let server = cluster.server(engine).await;
    for cancel in Cancel::BOTH {
        let (run_id, command_id, job) = ordered_job(&server).await;
        let name = id(&job, "jobName");
        let pod = cluster.pod_of(&name).await;
        job_shows(&server, &job, "its pod", |job| job["podName"] == pod.as_str()).await;
        cancel.send(&server, &run_id, &command_id).await;
        assert_eq!(server.command(&run_id, &command_id).await["state"], "cancelled", "{cancel:?}");
        let is_run_cancelled = server.run(&run_id).await["status"] == "cancelled";
        assert_eq!(is_run_cancelled, matches!(cancel, Cancel::Run));
        server.clock.advance_ms(SETTLED_MS);
        job_shows(&server, &job, "its end", has_ended).await;
        eventually("the Job is deleted", async || cluster.job(&name).is_none().then_some(())).await;
        assert_eq!(cluster.job(&format!("{name}-2")), None, "{cancel:?}");
    }
}

#[both_engines]
async fn a_cancel_while_the_pod_runs_reaches_its_runner_and_starts_no_other_one(engine: Engine) {
    let cluster = TestCluster::any();
    let server = cluster.server(engine).await;
    for cancel in Cancel::BOTH {
        let (run_id, command_id, job) = ordered_job(&server).await;
        let name = id(&job, "jobName");
        let pod = cluster.pod_of(&name).await;
        cluster.report(&pod, "Running", &json!({"running": {}}));
        job_shows(&server, &job, "that it runs", |job| job["observed"]["phase"] == "running").await;
        let runner = server.claim(&run_id, &id(&job, "runnerId")).await;
        runner.ack(&command_id).await;
        cancel.send(&server, &run_id, &command_id).await;
        assert_eq!(runner.poll("").await["cancelRequested"], json!([command_id]), "{cancel:?}");
        // The runner ends its turn by itself. Its Job is not deleted for that.
        assert_eq!(server.command(&run_id, &command_id).await["state"], "acked");
        assert!(cluster.job(&name).is_some());
        runner.end(&command_id, "cancelled").await;
        if let Cancel::Command = cancel {
            runner.release().await;
        }
        cluster.report(&pod, "Succeeded", &json!({"terminated": {"exitCode": 0}}));
        job_shows(&server, &job, "its end", has_ended).await;
        let result = server.result(&run_id, &command_id).await;
        assert_eq!(result["terminalStatus"], "cancelled", "{cancel:?}");
        assert_eq!(server.run(&run_id).await["status"] == "cancelled", matches!(cancel, Cancel::Run));
        assert_eq!(cluster.job(&format!("{name}-2")), None, "{cancel:?}");
    }
}

#[both_engines]
async fn a_cancelled_run_whose_pod_is_killed_gets_no_other_job(engine: Engine) {
    let cluster = TestCluster::any();
    let server = cluster.server(engine).await;
    let (run_id, command_id, job) = ordered_job(&server).await;
    let name = id(&job, "jobName");
    let pod = cluster.pod_of(&name).await;
    cluster.report(&pod, "Running", &json!({"running": {}}));
    let runner = server.claim(&run_id, &id(&job, "runnerId")).await;
    runner.ack(&command_id).await;
    server.cancel_run(&run_id).await;
    cluster.report(&pod, "Failed", &json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}));
    let result = server.ended(&run_id, &command_id).await;
    assert_eq!((&result["terminalStatus"], &result["runStatus"]), (&json!("cancelled"), &json!("cancelled")));
    job_shows(&server, &job, "its end", has_ended).await;
    assert_eq!(cluster.job(&format!("{name}-2")), None);
}

#[both_engines]
async fn a_deleted_job_is_taken_over_and_cancels_nothing(engine: Engine) {
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    let (run_id, command_id, job) = ordered_job(&server).await;
    let name = id(&job, "jobName");
    let pod = cluster.pod_of(&name).await;
    cluster.report(&pod, "Running", &json!({"running": {}}));
    job_shows(&server, &job, "that it runs", |job| job["observed"]["phase"] == "running").await;
    let runner = server.claim(&run_id, &id(&job, "runnerId")).await;
    runner.ack(&command_id).await;
    cluster.delete_job(&name);
    server.clock.advance_ms(60_001);
    cluster.created(&format!("{name}-2")).await;
    let command = server.command(&run_id, &command_id).await;
    assert_eq!((&command["cancelRequestedAt"], &command["terminal"]), (&Value::Null, &Value::Null), "{command}");
    let next = server.claim(&run_id, &id(&job, "runnerId")).await;
    next.ack(&command_id).await;
    next.end(&command_id, "completed").await;
    let result = server.result(&run_id, &command_id).await;
    assert_eq!(result["terminalStatus"], "completed");
    assert_ne!(result["runStatus"], "cancelled");
}
