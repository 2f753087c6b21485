//! Logs of pods: of those that write more than a response can have, and of those that write secrets.

use std::path::Path;

use ostler_protocol::limits::LOG_BYTES_MAX;
use ostler_testkit::kube::kubelet::Kubelet;
use serde_json::{Value, json};

use super::cluster::{TestCluster, job_shows, waiting_run};
use crate::harness::{Engine, TestServer, eventually, id, run};

const LINES: usize = 6_000;

/// Writes numbered lines, all in one second as the node of the test kit shows them, and waits to be killed.
fn script() -> String {
    let filler = "x".repeat(100);
    format!("i=0\nwhile [ $i -lt {LINES} ]; do echo \"$i {filler}\"; i=$((i+1)); done\nexec sleep 60\n")
}

/// Orders a job with these variables, whose pod runs a shell script instead of a runner. Returns the path of its log, and its node.
async fn start_shell(cluster: &TestCluster, server: &TestServer, variables: &Value, script: &str) -> (String, Kubelet) {
    let (run_id, command_id) = waiting_run(server).await;
    let order = json!({"commandId": command_id, "transientEnv": variables});
    let job = server.create_job(&run_id, &order).await.with_status(201);
    let pod = cluster.pod_of(&id(&job, "jobName")).await;
    let pods = cluster.objects("pods");
    let uid = id(&pods[0]["metadata"], "uid");
    // The image is a shell, whose argument `runner` is a file in the directory that it starts in.
    let home = cluster.api().directory().join("pods").join(uid).join("home");
    std::fs::create_dir_all(&home).unwrap();
    std::fs::write(home.join("runner"), script).unwrap();
    let images = [("ostler:test", Path::new("/bin/sh"))];
    let kubeconfig = cluster.api().kubelet_kubeconfig();
    let node = Kubelet::start(&kubeconfig, cluster.api().directory(), "node-a", &images).unwrap();
    let shown = job_shows(server, &job, "its pod", |job| job["podName"] == pod.as_str()).await;
    (id(&shown, "logPath"), node)
}

/// A runner redacts what it writes, but an image of the caller's may write anything.
#[test]
fn the_log_of_a_pod_is_redacted_by_the_server() {
    const VALUE: &str = "pl4nted-token-0123456789";
    const RUN_TOKEN: &str = "ost_run_0123456789abcdef0123456789abcdef";
    run(async {
        let cluster = TestCluster::start();
        let server = cluster.server(Engine::Sqlite).await;
        let script =
            format!("echo first {VALUE}; sleep 0.1; echo second {RUN_TOKEN} {VALUE}; echo end; exec sleep 60\n");
        let (path, _node) = start_shell(&cluster, &server, &json!({"GH_TOKEN": VALUE}), &script).await;
        let log = eventually("everything is written", async || {
            let log = server.get(&path).await.ok();
            log["text"].as_str()?.ends_with("end\n").then_some(log)
        })
        .await;
        assert!(id(&log, "text").starts_with("first [redacted]\nsecond "), "{log}");
        let later = server.get(&format!("{path}?after=2030-01-01T00:00:00.000000000Z")).await.ok();
        let tail = server.get(&format!("{path}?tailLines=2")).await.ok();
        for part in [log, later, tail] {
            let text = id(&part, "text");
            assert!(text.ends_with("end\n") && !text.contains("pl4nted") && !text.contains("0123456789"), "{text}");
        }
    });
}

#[test]
fn a_log_with_many_lines_in_one_second_is_read_to_its_end() {
    run(async {
        let cluster = TestCluster::start();
        let server = cluster.server(Engine::Sqlite).await;
        let (path, _node) = start_shell(&cluster, &server, &json!({}), &script()).await;
        let last = format!("{} ", LINES - 1);
        eventually("everything is written", async || {
            let end = server.get(&format!("{path}?tailLines=1")).await.ok();
            end["text"].as_str()?.starts_with(&last).then_some(())
        })
        .await;

        // The tail that fits, with the newest line.
        let tail = server.get(&format!("{path}?tailLines=5000")).await.ok();
        let text = id(&tail, "text");
        assert!(text.lines().next_back().unwrap().starts_with(&last) && text.len() <= LOG_BYTES_MAX);
        assert_eq!(tail["truncated"], true);

        let (mut after, mut numbers) = ("2030-01-01T00:00:00.000000000Z".to_owned(), vec![]);
        loop {
            let log = server.get(&format!("{path}?after={after}")).await.ok();
            let text = id(&log, "text");
            assert!(text.len() <= LOG_BYTES_MAX, "{} bytes", text.len());
            if text.is_empty() {
                break;
            }
            numbers.extend(text.lines().map(|line| line.split(' ').next().unwrap().parse::<usize>().unwrap()));
            after = id(&log, "nextAfter");
        }
        assert!(numbers.iter().copied().eq(1..LINES), "{} lines", numbers.len());
    });
}
