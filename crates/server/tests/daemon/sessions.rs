//! Sessions: opened, shared, closed, loaded, renamed and listed.

use std::path::Path;

use ostler_daemon::config::DaemonSection;
use ostler_protocol::FailureKind::TenantPolicyDenied;
use serde_json::{Value, json};

use super::{CLIENT, configure, refused, segment, states};
use crate::harness::{Engine, TestServer, both_engines, id, one_engine, run_body};

#[both_engines]
async fn clients_share_one_session_and_each_has_an_id(engine: Engine) {
    let server = TestServer::start(engine).await;
    let first = server.open().await;
    assert_eq!((&first["attached"], &first["workspaceCwd"]), (&json!(false), &json!("")));
    assert!(first["createdAt"].is_string() && first.get("hasActivePrompt").is_none(), "{first}");
    let second = server.open().await;
    assert_eq!((&second["attached"], &second["hasActivePrompt"]), (&json!(true), &json!(false)));
    assert_eq!(second["sessionId"], first["sessionId"]);
    assert!(id(&second, "clientId").starts_with("client_"));
    assert_ne!(second["clientId"], first["clientId"]);
    assert_ne!(server.open_own().await, id(&first, "sessionId"), "a thread is never shared");
}

#[both_engines]
async fn a_client_that_attaches_again_keeps_its_id_and_a_foreign_one_is_replaced(engine: Engine) {
    let server = TestServer::start(engine).await;
    let first = id(&server.open().await, "clientId");
    let again = server.as_client(&first, "POST", "/session", &json!({})).await.with_status(200);
    assert_eq!(again["clientId"], first.as_str());
    let foreign = server.as_client("client_other", "POST", "/session", &json!({})).await.with_status(200);
    assert_ne!(foreign["clientId"], "client_other");
    let malformed = server.as_client("a b", "POST", "/session", &json!({})).await;
    refused(malformed, 400, "invalid_client_id");
}

#[both_engines]
async fn concurrent_requests_open_one_session(engine: Engine) {
    let server = TestServer::start(engine).await;
    let opened = futures_util::future::join_all((0..8).map(|_| server.open())).await;
    let new = opened.iter().filter(|opened| opened["attached"] == false).count();
    assert_eq!(new, 1, "{opened:?}");
    assert!(opened.iter().all(|other| other["sessionId"] == opened[0]["sessionId"]), "{opened:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_of_one_postgres_open_one_session() {
    let server = TestServer::start(Engine::Postgres).await;
    let other = server.start_another(|_| ()).await;
    let requests = (0..8).map(|at| if at % 2 == 0 { server.open() } else { other.open() });
    let requests: Vec<std::pin::Pin<Box<dyn Future<Output = Value>>>> =
        requests.map(|request| Box::pin(request) as _).collect();
    let opened = futures_util::future::join_all(requests).await;
    assert_eq!(opened.iter().filter(|opened| opened["attached"] == false).count(), 1, "{opened:?}");
    assert!(opened.iter().all(|other| other["sessionId"] == opened[0]["sessionId"]), "{opened:?}");
}

#[both_engines]
async fn a_session_is_opened_in_the_workspace_of_the_server_only(engine: Engine) {
    let mut workspace = None;
    let server = TestServer::with(engine, |setup| workspace = Some(setup.bind_workspace())).await;
    let workspace = workspace.unwrap();
    let cwd = workspace.to_str().unwrap();
    let opened = server.post("/session", &json!({"cwd": format!("{cwd}/../workspace")})).await.with_status(200);
    assert_eq!(opened["workspaceCwd"], cwd);
    let elsewhere = server.post("/session", &json!({"cwd": "/"})).await;
    let failure = refused(elsewhere, 400, "workspace_mismatch");
    assert_eq!((&failure["boundWorkspace"], &failure["requestedWorkspace"]), (&json!(cwd), &json!("/")));
    for bad in ["", "src", &format!("/{}", "x".repeat(4_096))] {
        refused(server.post("/session", &json!({"cwd": bad})).await, 400, "invalid_cwd");
    }
    refused(server.post("/session", &json!({"sessionScope": "mine"})).await, 400, "invalid_session_scope");
    assert_eq!(server.post("/session", &json!({"cwd": 7})).await.status, 400);
    assert_eq!(server.send(server.request("POST", "/session")).await.status, 200, "without a body");
}

#[both_engines]
async fn a_server_without_a_workspace_refuses_one(engine: Engine) {
    let server = TestServer::start(engine).await;
    let failure = refused(server.post("/session", &json!({"cwd": "/"})).await, 400, "workspace_mismatch");
    assert_eq!(failure["boundWorkspace"], "");
    refused(server.get(&format!("/workspace/{}/sessions", segment(Path::new("/tmp")))).await, 409, "no_workspace");
}

#[both_engines]
async fn an_unknown_model_does_not_fail_the_request_and_followers_are_notified(engine: Engine) {
    let server = TestServer::start(engine).await;
    let opened = server.post("/session", &json!({"modelServiceId": "gpt-0"})).await.with_status(200);
    let session_id = id(&opened, "sessionId");
    let noted = server.recorded_notes(&session_id).await;
    let (frame, note) = &noted[0];
    assert_eq!(frame, "daemon.model_switch_failed");
    assert_eq!((&note["data"]["requestedModelId"], &note["clientId"]), (&json!("gpt-0"), &opened["clientId"]));
    server.post("/session", &json!({"modelServiceId": "scripted"})).await.with_status(200);
    assert_eq!(server.recorded_notes(&session_id).await.len(), 1, "it is the current one already");
}

#[both_engines]
async fn only_so_many_sessions_are_open_and_closing_one_makes_room(engine: Engine) {
    let limit = |section: &mut DaemonSection| section.sessions_max = 2;
    let server = TestServer::with(engine, |setup| configure(setup, limit)).await;
    let (first, second) = (server.open_own().await, server.open_own().await);
    let thread = json!({"sessionScope": "thread"});
    let full = server.post("/session", &thread).await;
    assert_eq!(full.headers["retry-after"], "5");
    assert_eq!(refused(full, 503, "session_limit_exceeded")["limit"], 2);
    let unknown = server.post("/session/ses_0/load", &json!({})).await;
    refused(unknown, 503, "session_limit_exceeded");
    server.post(&format!("/session/{first}/load"), &json!({})).await.with_status(200);
    assert_eq!(server.remove(&format!("/session/{first}")).await.status, 204);
    server.open_own().await;
    refused(server.post(&format!("/session/{first}/load"), &json!({})).await, 503, "session_limit_exceeded");
    // A session that another dialect closes for good is not open.
    let close = json!({"action": "close"});
    server.post(&format!("/api/v1/sessions/{second}/control"), &close).await.with_status(200);
    server.open_own().await;
    refused(server.try_prompt(&second, "hi").await, 404, "session_not_found");
}

#[both_engines]
async fn a_closed_session_is_gone_until_it_is_loaded_again(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let opened = server.open().await;
    let (session_id, client_id) = (id(&opened, "sessionId"), id(&opened, "clientId"));
    server.prompt(&session_id, "hi").await;
    states(&server, &session_id, &["completed"]).await;
    let path = format!("/session/{session_id}");
    assert_eq!(server.as_client(&client_id, "DELETE", &path, &Value::Null).await.status, 204);
    let (frame, note) = server.recorded_notes(&session_id).await.pop().unwrap();
    assert_eq!(frame, "daemon.session_closed");
    let data = json!({"sessionId": session_id, "reason": "client_close", "closedBy": client_id});
    assert_eq!(note, json!({"data": data, "clientId": client_id}));
    refused(server.remove(&path).await, 404, "session_not_found");
    let failure = refused(server.try_prompt(&session_id, "hi").await, 404, "session_not_found");
    assert_eq!(failure["sessionId"], session_id.as_str());
    let last = server.logged(&session_id).await.last().unwrap()["sessionSeq"].as_i64().unwrap();
    let loaded = server.post(&format!("{path}/load"), &json!({})).await.with_status(200);
    assert_eq!((&loaded["attached"], &loaded["sessionId"]), (&json!(false), &json!(session_id)));
    assert_ne!(loaded["clientId"], client_id.as_str(), "the former clients are unregistered");
    assert_eq!(loaded["lastEventId"], 0, "the history follows");
    let models = &loaded["state"]["models"];
    assert_eq!(models["currentModelId"], "scripted");
    assert!(
        models["availableModels"].as_array().unwrap().contains(&json!({"modelId": "scripted", "name": "scripted"}))
    );
    let resumed = server.post(&format!("{path}/resume"), &json!({})).await.with_status(200);
    assert_eq!((&resumed["attached"], &resumed["hasActivePrompt"]), (&json!(true), &json!(false)));
    assert!(resumed["lastEventId"].as_i64().unwrap() >= 2 * last, "{resumed}");
    server.prompt(&session_id, "again").await;
    states(&server, &session_id, &["completed", "completed"]).await;
    assert_eq!(server.open().await["sessionId"], session_id.as_str(), "clients share it again");
}

#[both_engines]
async fn a_session_that_was_closed_and_replaced_is_loaded_beside_the_new_one(engine: Engine) {
    let server = TestServer::start(engine).await;
    let first = id(&server.open().await, "sessionId");
    server.remove(&format!("/session/{first}")).await.with_status(204);
    let second = id(&server.open().await, "sessionId");
    assert_ne!(first, second);
    server.post(&format!("/session/{first}/load"), &json!({})).await.with_status(200);
    assert_eq!(server.open().await["sessionId"], second.as_str());
    server.prompt(&first, "hi").await;
}

#[both_engines]
async fn closing_a_session_cancels_what_runs_and_what_waits(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let session_id = server.open_own().await;
    server.prompt(&session_id, r#"{"script": [{"wait": 60000}]}"#).await;
    server.prompt(&session_id, "later").await;
    server.remove(&format!("/session/{session_id}")).await.with_status(204);
    states(&server, &session_id, &["cancelled", "cancelled"]).await;
    let types: Vec<_> = server.logged(&session_id).await.iter().map(|event| id(event, "type")).collect();
    assert_eq!(types.last().unwrap(), "session", "followers see the ends first: {types:?}");
}

#[both_engines]
async fn the_shared_session_is_replaced_once_it_is_closed_for_good(engine: Engine) {
    let server = TestServer::start(engine).await;
    let first = id(&server.open().await, "sessionId");
    let close = json!({"action": "close"});
    server.post(&format!("/api/v1/sessions/{first}/control"), &close).await.with_status(200);
    let second = server.open().await;
    assert_eq!(second["attached"], false);
    assert_ne!(second["sessionId"], first.as_str());
    refused(server.post(&format!("/session/{first}/load"), &json!({})).await, 404, "session_not_found");
}

#[both_engines]
async fn callers_of_another_tenant_or_user_see_nothing(engine: Engine) {
    let mut workspace = None;
    let server = TestServer::with(engine, |setup| {
        workspace = Some(setup.bind_workspace());
        setup.token("stranger", "client", &["hwlab"]);
        setup.token("platform", "client", &["local"]);
    })
    .await;
    let opened = server.open().await;
    let session_id = id(&opened, "sessionId");
    let (stranger, platform) = (server.caller("stranger"), server.caller("platform"));
    assert_eq!(stranger.post("/session", &json!({})).await.status, 403);
    for path in ["load", "resume", "cancel", "heartbeat"] {
        refused(stranger.post(&format!("/session/{session_id}/{path}"), &json!({})).await, 404, "session_not_found");
    }
    refused(stranger.try_prompt(&session_id, "hi").await, 404, "session_not_found");
    refused(stranger.remove(&format!("/session/{session_id}")).await, 404, "session_not_found");
    let list = format!("/workspace/{}/sessions", segment(&workspace.unwrap()));
    assert_eq!(stranger.get(&list).await.ok(), json!({"sessions": []}));
    assert_eq!(server.get(&list).await.ok()["sessions"].as_array().unwrap().len(), 1);
    // A service of the tenant sees the operator's session, and may not write into it.
    assert_eq!(platform.get(&list).await.ok()["sessions"].as_array().unwrap().len(), 1);
    assert_eq!(platform.try_prompt(&session_id, "hi").await.status, 403);
    assert_ne!(platform.open().await["sessionId"], session_id.as_str());
}

#[both_engines]
async fn sessions_of_the_workspace_are_listed_newest_first_a_page_at_a_time(engine: Engine) {
    let mut workspace = None;
    let server = TestServer::with(engine, |setup| workspace = Some(setup.bind_workspace())).await;
    let workspace = workspace.unwrap();
    let mut all = vec![];
    for _ in 0..3 {
        all.insert(0, server.open_own().await);
        server.clock.advance_ms(1);
    }
    server.remove(&format!("/session/{}", all[1])).await.with_status(204);
    server.patch(&format!("/session/{}/metadata", all[2]), &json!({"displayName": "Old"})).await.with_status(200);
    let list = format!("/workspace/{}/sessions", segment(&workspace));
    let page = server.get(&list).await.ok();
    let listed: Vec<_> = page["sessions"].as_array().unwrap().iter().map(|row| id(row, "sessionId")).collect();
    assert_eq!(listed, all);
    assert!(page.get("nextCursor").is_none());
    assert_eq!((&page["sessions"][2]["displayName"], &page["sessions"][2]["clientCount"]), (&json!("Old"), &json!(1)));
    assert_eq!(page["sessions"][1]["clientCount"], 0, "it is closed");
    assert_eq!(page["sessions"][0]["workspaceCwd"], workspace.to_str().unwrap());
    let first = server.get(&format!("{list}?size=2")).await.ok();
    assert_eq!(first["sessions"].as_array().unwrap().len(), 2);
    let cursor = id(&first, "nextCursor");
    let second = server.get(&format!("{list}?size=2&cursor={cursor}")).await.ok();
    assert_eq!(id(&second["sessions"][0], "sessionId"), all[2]);
    refused(server.get(&format!("{list}?cursor=00")).await, 400, "invalid_cursor");
    let limited = server.get(&format!("{list}?limit=2")).await.ok();
    assert_eq!(limited["sessions"], first["sessions"], "limit is another name of size");
    for query in ["size=101", "size=0", "limit=101", "limit=0", "size=2&limit=2"] {
        refused(server.get(&format!("{list}?{query}")).await, 400, "page_limit");
    }
    refused(server.get("/workspace/src/sessions").await, 400, "invalid_cwd");
    refused(server.get(&format!("/workspace/{}/sessions", segment(Path::new("/")))).await, 400, "workspace_mismatch");
}

#[both_engines]
async fn a_name_is_cut_cleared_and_stripped_of_control_characters(engine: Engine) {
    let server = TestServer::start(engine).await;
    let session_id = server.open_own().await;
    let path = format!("/session/{session_id}/metadata");
    let rename = async |name: &str| server.patch(&path, &json!({"displayName": name})).await;
    let named = rename(&"é".repeat(300)).await.with_status(200);
    assert_eq!(named["displayName"].as_str().unwrap().chars().count(), 256);
    refused(rename("a\u{7}b").await, 400, "invalid_metadata");
    assert_eq!(server.patch(&path, &json!({})).await.ok(), named, "nothing changes");
    assert_eq!(rename("").await.ok(), json!({"sessionId": session_id, "displayName": null}));
    let renamed = |event: &&Value| event["payload"]["change"] == "renamed";
    assert_eq!(server.logged(&session_id).await.iter().filter(renamed).count(), 2);
}

#[both_engines]
async fn a_heartbeat_is_of_a_registered_client(engine: Engine) {
    let server = TestServer::start(engine).await;
    let opened = server.open().await;
    let (session_id, client_id) = (id(&opened, "sessionId"), id(&opened, "clientId"));
    let path = format!("/session/{session_id}/heartbeat");
    let beat = server.as_client(&client_id, "POST", &path, &Value::Null).await.with_status(200);
    assert_eq!((&beat["sessionId"], &beat["clientId"]), (&json!(session_id), &json!(client_id)));
    server.clock.advance_ms(7);
    let anonymous = server.send(server.request("POST", &path)).await.with_status(200);
    assert_eq!(anonymous["lastSeenAt"].as_i64(), beat["lastSeenAt"].as_i64().map(|at| at + 7));
    assert!(anonymous.get("clientId").is_none());
    let foreign = server.as_client("client_other", "POST", &path, &Value::Null).await;
    refused(foreign, 400, "invalid_client_id");
    let of_other_session = id(&server.post("/session", &json!({"sessionScope": "thread"})).await.ok(), "clientId");
    let request = server.request("POST", &path).header(CLIENT, of_other_session);
    refused(server.send(request).await, 400, "invalid_client_id");
}

#[both_engines]
async fn of_too_many_clients_those_not_seen_for_longest_make_room(engine: Engine) {
    let server = TestServer::start(engine).await;
    let opened = server.open().await;
    let (session_id, first) = (id(&opened, "sessionId"), id(&opened, "clientId"));
    server.clock.advance_ms(1);
    let second = id(&server.open().await, "clientId");
    server.clock.advance_ms(1);
    let path = format!("/session/{session_id}/heartbeat");
    server.as_client(&first, "POST", &path, &Value::Null).await.with_status(200);
    server.clock.advance_ms(1);
    let insert = "INSERT INTO daemon_clients (client_id, session_id, principal, registered_at, last_seen_at) SELECT 'client_' || o.n, c.session_id, c.principal, c.registered_at,
        c.last_seen_at + 10000 + o.n FROM daemon_clients c, (SELECT a.n * 16 + b.n AS n FROM
        (SELECT 0 AS n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6
         UNION SELECT 7 UNION SELECT 8 UNION SELECT 9 UNION SELECT 10 UNION SELECT 11 UNION SELECT 12 UNION SELECT 13
         UNION SELECT 14 UNION SELECT 15) a, (SELECT 0 AS n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4
         UNION SELECT 5 UNION SELECT 6 UNION SELECT 7 UNION SELECT 8 UNION SELECT 9 UNION SELECT 10 UNION SELECT 11
         UNION SELECT 12 UNION SELECT 13 UNION SELECT 14 UNION SELECT 15) b) o WHERE o.n < 198 AND c.client_id = ";
    server.store(&format!("{insert}'{first}' RETURNING client_id")).await;
    server.clock.advance_ms(60_000);
    server.open().await;
    refused(server.as_client(&second, "POST", &path, &Value::Null).await, 400, "invalid_client_id");
    server.as_client(&first, "POST", &path, &Value::Null).await.with_status(200);
}

/// The workspace's files are for callers of the daemon's tenant. A run in the workspace would read and write them, too.
#[one_engine]
async fn runs_of_another_tenant_cannot_work_in_the_workspace(engine: Engine) {
    let mut bound = None;
    let server = TestServer::with(engine, |setup| bound = Some(setup.bind_workspace())).await;
    let path = bound.unwrap().canonicalize().unwrap();
    let create = async |tenant: &str| {
        let mut body = run_body();
        body["tenantId"] = json!(tenant);
        body["workspaceRef"] = json!({"kind": "local", "path": path});
        server.post("/api/v1/runs", &body).await
    };
    create("hwlab").await.refused_by(TenantPolicyDenied, "workspace-root");
    create("local").await.with_status(201);
}
