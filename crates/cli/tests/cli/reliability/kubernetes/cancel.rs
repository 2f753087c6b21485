//! Cancelling a run or a command whose runner is a pod.

use std::path::Path;

use serde_json::{Value, json};

use super::{ClusterServer, IMAGE, PROGRAM, has_said, result, text};
use crate::fixtures::{
    http::Http,
    process::eventually,
    test_home::{Engine, one_engine},
};

/// Paths of a cancel: of the run, and of the command.
fn paths(run_id: &str, command_id: &str) -> [String; 2] {
    [format!("/api/v1/runs/{run_id}/cancel"), format!("/api/v1/commands/{command_id}/cancel")]
}

/// Waits until the launcher has recorded the end of the job, and checks that it started its runner once.
fn has_ended_once(setup: &ClusterServer, http: &mut Http, job: &Value) {
    let path = text(&job["poll"]["job"]);
    eventually("the job ends", || {
        let phase = http.get(&path).good()["phase"].clone();
        (phase != "running" && phase != "pending").then_some(())
    });
    assert_eq!(setup.cluster.object("jobs", &format!("{}-2", text(&job["jobName"]))), None);
}

#[one_engine]
fn a_turn_that_is_cancelled_is_stopped_by_its_pod(engine: Engine) {
    let setup = ClusterServer::launch(engine);
    let mut http = Http::new(setup.server());
    let prompt = json!({"script": [{"say": "first"}, {"wait": 60_000}, {"say": "done"}]}).to_string();
    for number in 0..2 {
        let (run_id, command_id, job) = setup.start_run(&mut http, &prompt);
        setup.running_pod(&text(&job["jobName"]));
        has_said(&mut http, &run_id, "first");
        http.post(&paths(&run_id, &command_id)[number], &json!({})).good();
        assert_eq!(result(&mut http, &run_id, &command_id)["terminalStatus"], "cancelled");
        has_ended_once(&setup, &mut http, &job);
        let events = http.events(&run_id);
        assert!(events.iter().all(|event| event["payload"]["text"] != "done"), "{events:#?}");
    }
}

#[one_engine]
fn a_pod_that_starts_after_a_cancel_does_nothing(engine: Engine) {
    let mut setup = ClusterServer::launch(engine);
    let mut http = Http::new(setup.server());
    // Pods are still assigned to the node, and wait.
    setup.node.power_off();
    let mut cancelled = vec![];
    for number in 0..2 {
        let (run_id, command_id, job) = setup.start_run(&mut http, "hello");
        let name = text(&job["jobName"]);
        eventually("the pod exists", || {
            let pods = setup.cluster.objects("pods");
            pods.iter().any(|pod| text(&pod["metadata"]["name"]).starts_with(&name)).then_some(())
        });
        http.post(&paths(&run_id, &command_id)[number], &json!({})).good();
        assert_eq!(result(&mut http, &run_id, &command_id)["terminalStatus"], "cancelled");
        cancelled.push((run_id, job));
    }
    setup.node = setup.cluster.start_node(&[(IMAGE, Path::new(PROGRAM))]).unwrap();
    for (run_id, job) in &cancelled {
        has_ended_once(&setup, &mut http, job);
        let events = http.events(run_id);
        assert!(events.iter().all(|event| event["type"] != "assistant_message"), "{events:#?}");
    }
}
