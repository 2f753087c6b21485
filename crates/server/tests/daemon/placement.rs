//! Servers of one store that are bound to different workspaces.

use super::{scene::attached, states};
use crate::harness::{Engine, TestServer};

mod postgres {
    #[test]
    fn a_prompt_is_only_worked_on_by_a_server_of_its_workspace() {
        crate::harness::run(super::a_prompt_is_only_worked_on_by_a_server_of_its_workspace());
    }
}

async fn a_prompt_is_only_worked_on_by_a_server_of_its_workspace() {
    let server = TestServer::with(Engine::Postgres, |setup| drop(setup.bind_workspace())).await;
    let session = attached(&server).await;
    session.prompt("here").await;
    let elsewhere = tempfile::tempdir().unwrap();
    let other = server
        .beside(|config| {
            config.server.workspace = Some(elsewhere.path().into());
            config.runner.slots = 4;
        })
        .await;
    // The oldest job comes first, so that the other server has passed over it.
    attached(&other).await.prompt_to_end("there").await;
    states(&server, &session.id, &["pending"]).await;
    let _same = server.beside(|config| config.runner.slots = 4).await;
    states(&server, &session.id, &["completed"]).await;
}
