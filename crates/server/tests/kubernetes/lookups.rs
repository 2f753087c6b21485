//! Runs whose branch or tag has to be looked up at the repository's host before their Job can be created.

use std::net::TcpListener;

use serde_json::{Value, json};

use super::cluster::{TestCluster, ordered_job};
use crate::harness::{Engine, TestServer, both_engines, id, of_program};

/// More than a server starts at once.
const STUCK_RUNS: usize = 40;

#[both_engines]
async fn a_git_host_that_never_responds_does_not_delay_the_jobs_of_other_runs(engine: Engine) {
    let cluster = TestCluster::start();
    // Connections are accepted by the system, and nothing is ever sent.
    let host = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/a.git", host.local_addr().unwrap());
    let server = TestServer::with(engine, |setup| {
        cluster.choose(setup);
        setup.config.workspaces.git_protocols = vec!["http".into()];
        setup.config.outgoing.allow = vec!["127.0.0.1".into()];
    })
    .await;
    server.equip().await;
    let stuck = |body: &mut Value| {
        of_program(body);
        body["workspaceRef"] = json!({"kind": "git", "repoUrl": url, "ref": "main"});
    };
    for _ in 0..STUCK_RUNS {
        server.start_with("hi", stuck).await;
    }
    let (_, _, job) = ordered_job(&server).await;
    cluster.created(&id(&job, "jobName")).await;
}
