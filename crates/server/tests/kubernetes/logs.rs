//! Logs of pods that write more than a response can have.

use std::path::Path;

use ostler_protocol::limits::LOG_BYTES_MAX;
use ostler_testkit::kube::kubelet::Kubelet;
use serde_json::json;

use super::cluster::{TestCluster, job_shows, waiting_run};
use crate::harness::{Engine, eventually, id, run};

const LINES: usize = 6_000;

/// Writes numbered lines, all in one second as the node of the test kit shows them, and waits to be killed.
fn script() -> String {
    let filler = "x".repeat(100);
    format!("i=0\nwhile [ $i -lt {LINES} ]; do echo \"$i {filler}\"; i=$((i+1)); done\nexec sleep 60\n")
}

#[test]
fn a_log_with_many_lines_in_one_second_is_read_to_its_end() {
    run(async {
        let cluster = TestCluster::start();
        let server = cluster.server(Engine::Sqlite).await;
        let (run_id, command_id) = waiting_run(&server).await;
        let job = server.create_job(&run_id, &json!({"commandId": command_id})).await.with_status(201);
        let pod = cluster.pod_of(&id(&job, "jobName")).await;
        let pods = cluster.objects("pods");
        let uid = id(&pods[0]["metadata"], "uid");
        // The image is a shell, whose argument `runner` is a file in the directory that it starts in.
        let home = cluster.api().directory().join("pods").join(uid).join("home");
        std::fs::create_dir_all(&home).unwrap();
        std::fs::write(home.join("runner"), script()).unwrap();
        let images = [("ostler:test", Path::new("/bin/sh"))];
        let kubeconfig = cluster.api().kubelet_kubeconfig();
        let _node = Kubelet::start(&kubeconfig, cluster.api().directory(), "node-a", &images).unwrap();
        let shown = job_shows(&server, &job, "its pod", |job| job["podName"] == pod.as_str()).await;
        let path = id(&shown, "logPath");
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
