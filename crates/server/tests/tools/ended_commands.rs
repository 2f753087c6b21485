//! Calls that are open when their command ends.

use serde_json::json;

use super::{Notebook, Work, statuses};
use crate::{
    harness::{Engine, TestServer, both_engines, eventually, one_engine},
    mcp::stdio,
};

#[both_engines]
async fn an_open_call_ends_with_its_command_and_later_turns_get_that(engine: Engine) {
    let notebook = Notebook::new();
    let server = TestServer::with(engine, |setup| notebook.install(setup)).await;
    let work = Work::begin(&server, |_| ()).await;
    let mut body = work.body("call_a", "slow_write", r#"{"text": "x"}"#);
    body["waitMs"] = json!(0);
    work.send(&server, &body).await.with_status(200);
    eventually("it is executed", async || (notebook.written() == 1).then_some(())).await;
    server.cancel_command(&work.command_id).await;
    work.runner.end(&work.command_id, "cancelled").await;
    let recorded = work.recorded(&server).await;
    assert_eq!(statuses(&recorded), ["started", "outcome-unknown"]);
    assert_eq!(recorded[1]["name"], "slow_write");
    let result = server.result(work.run_id(), &work.command_id).await;
    assert_eq!(result["toolCallSummary"]["items"][0]["status"], "outcome-unknown", "{result}");
    body["waitMs"] = json!(20_000);
    let called = work.send(&server, &body).await.with_status(200);
    assert_eq!(called["status"], "outcome-unknown", "the call was given up");
    let next = server.turn(work.run_id(), "and now?").await;
    let path = format!("/api/v1/runs/{}/commands/{next}/conversation", work.run_id());
    let conversation = server.get(&path).await.with_status(200);
    let call = &conversation["calls"][0];
    assert_eq!(call["name"], "slow_write", "{conversation}");
    assert!(call["result"].as_str().unwrap().contains("not known"), "{conversation}");
}

#[one_engine]
async fn a_request_to_an_mcp_server_is_cancelled_when_its_command_ends(engine: Engine) {
    let mut notes = None;
    let server = TestServer::with(engine, |setup| {
        let workspace = setup.bind_workspace();
        let (directory, path) = (workspace.parent().unwrap().to_owned(), workspace.join("notes"));
        let hangs = stdio(&directory, &["hangs", path.to_str().unwrap()]);
        setup.config.mcp.servers.insert("hangs".into(), hangs);
        notes = Some((workspace, path));
    })
    .await;
    let (workspace, notes) = notes.unwrap();
    let work = Work::begin(&server, |run| {
        run["tenantId"] = json!("local");
        run["workspaceRef"] = json!({"kind": "local", "path": workspace});
    })
    .await;
    let lines = || std::fs::read_to_string(&notes).unwrap_or_default();
    let mut body = work.body("call_a", "mcp__hangs__hang", "{}");
    body["waitMs"] = json!(0);
    work.send(&server, &body).await.with_status(200);
    eventually("the server was called", async || lines().contains("tools/call").then_some(())).await;
    work.runner.end(&work.command_id, "failed").await;
    eventually("the request was cancelled", async || lines().contains("notifications/cancelled").then_some(())).await;
    assert_eq!(statuses(&work.recorded(&server).await), ["started", "outcome-unknown"]);
}
