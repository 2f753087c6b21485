//! Servers of one store that are bound to different workspaces.

use serde_json::json;

use super::{scene::attached, states};
use crate::harness::{Engine, TestServer};

mod postgres {
    #[test]
    fn a_prompt_is_only_worked_on_by_a_server_of_its_workspace() {
        crate::harness::run(super::a_prompt_is_only_worked_on_by_a_server_of_its_workspace());
    }
}

mod sqlite {
    #[test]
    fn a_job_of_another_workspace_does_not_wait_for_a_server_that_cannot_exist() {
        crate::harness::run(super::a_job_of_another_workspace_does_not_wait_for_a_server_that_cannot_exist());
    }
}

async fn a_job_of_another_workspace_does_not_wait_for_a_server_that_cannot_exist() {
    let mut server = TestServer::with(Engine::Sqlite, |setup| drop(setup.bind_workspace())).await;
    let session = attached(&server).await;
    session.prompt("here").await;
    assert_eq!(server.store("SELECT placement FROM runner_jobs WHERE placement IS NOT NULL").await, [""; 0]);
    // As a store that was moved has it.
    server.store("UPDATE runner_jobs SET placement = '/elsewhere' RETURNING runner_job_id").await;
    server.config.runner.slots = 4;
    server.restart().await;
    states(&server, &session.id, &["completed"]).await;
}

async fn a_prompt_is_only_worked_on_by_a_server_of_its_workspace() {
    let server = TestServer::with(Engine::Postgres, |setup| drop(setup.bind_workspace())).await;
    let session = attached(&server).await;
    session.prompt("here").await;
    let elsewhere = tempfile::tempdir().unwrap();
    let other = server
        .start_another(|config| {
            config.server.workspace = Some(elsewhere.path().into());
            config.runner.slots = 4;
        })
        .await;
    // The oldest job comes first, so that the other server has passed over it.
    attached(&other).await.prompt_to_end("there").await;
    states(&server, &session.id, &["pending"]).await;
    // Each server reports what the prompt waits for as seen from its own workspace.
    let path = format!("/api/v1/sessions/{}", session.id);
    let bound = server.config.server.workspace.as_ref().unwrap().canonicalize().unwrap();
    let (here, there) = (server.get(&path).await.ok(), other.get(&path).await.ok());
    assert_eq!(
        (&here["liveness"]["phase"], &here["liveness"]["otherWorkspace"]),
        (&json!("waiting-runner"), &json!(null))
    );
    assert_eq!(there["liveness"]["otherWorkspace"], bound.to_str().unwrap());
    assert!(
        there["supervisor"]["summary"].as_str().unwrap().contains("waiting for a server of the workspace"),
        "{there}"
    );
    let run_id = there["activeRunId"].as_str().unwrap();
    let result = other.get(&format!("/api/v1/runs/{run_id}/result")).await.ok();
    assert_eq!(result["liveness"]["otherWorkspace"], bound.to_str().unwrap());
    let _same = server.start_another(|config| config.runner.slots = 4).await;
    states(&server, &session.id, &["completed"]).await;
}
