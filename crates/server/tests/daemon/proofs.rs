//! Proofs of the tags for sessions, clients and prompts.

use serde_json::{Value, json};

use super::{refused, segment};
use crate::harness::{TestServer, id};

/// Whether the behaviour behind a tag is there.
pub(crate) async fn sessions(server: &TestServer, tag: &str) -> bool {
    match tag {
        "session_list" => return lists_sessions(server).await,
        "prompt_absolute_deadline" => return has_deadlines(server).await,
        "session_create" => {
            let first = id(&server.open().await, "sessionId");
            assert_eq!(server.open().await["sessionId"], first.as_str());
        }
        "session_scope_override" => {
            let own = server.open_own().await;
            assert_ne!(server.open().await["sessionId"], own.as_str());
            close(server, &own).await;
            refused(server.post("/session", &json!({"sessionScope": "x"})).await, 400, "invalid_session_scope");
        }
        "session_load" => restores(server, "load").await,
        "session_resume" | "unstable_session_resume" => restores(server, "resume").await,
        "session_prompt" | "non_blocking_prompt" => {
            let session_id = server.open_own().await;
            assert!(server.prompt(&session_id, "hi").await["promptId"].is_string());
            close(server, &session_id).await;
        }
        "session_cancel" => {
            let session_id = server.open_own().await;
            server.prompt(&session_id, "one").await;
            server.prompt(&session_id, "two").await;
            server.post(&format!("/session/{session_id}/cancel"), &json!({})).await.with_status(204);
            let states: Vec<_> = server.commands_of(&session_id).await.into_iter().map(|(_, state)| state).collect();
            assert_eq!(states, ["cancelled", "pending"]);
            close(server, &session_id).await;
        }
        "session_close" => {
            let session_id = server.open_own().await;
            close(server, &session_id).await;
            refused(server.remove(&format!("/session/{session_id}")).await, 404, "session_not_found");
        }
        "session_metadata" => {
            let path = format!("/session/{}/metadata", id(&server.open().await, "sessionId"));
            let named = server.patch(&path, &json!({"displayName": "Plan"})).await.with_status(200);
            assert_eq!(named["displayName"], "Plan");
        }
        "client_identity" => {
            let client_id = id(&server.open().await, "clientId");
            let again = server.as_client(&client_id, "POST", "/session", &json!({})).await.with_status(200);
            assert_eq!(again["clientId"], client_id.as_str());
        }
        "client_heartbeat" => {
            let opened = server.open().await;
            let path = format!("/session/{}/heartbeat", id(&opened, "sessionId"));
            let beat = server.as_client(&id(&opened, "clientId"), "POST", &path, &Value::Null).await.with_status(200);
            assert!(beat["lastSeenAt"].is_i64());
        }
        other => panic!("{other} is a tag without a proof: give it one here"),
    }
    true
}

async fn close(server: &TestServer, session_id: &str) {
    server.remove(&format!("/session/{session_id}")).await.with_status(204);
}

async fn restores(server: &TestServer, verb: &str) {
    let session_id = server.open_own().await;
    close(server, &session_id).await;
    let restored = server.post(&format!("/session/{session_id}/{verb}"), &json!({})).await.with_status(200);
    assert!(restored["state"]["models"].is_object());
    close(server, &session_id).await;
}

async fn lists_sessions(server: &TestServer) -> bool {
    let session_id = id(&server.open().await, "sessionId");
    let Some(workspace) = &server.config.server.workspace else { return false };
    let page = server.get(&format!("/workspace/{}/sessions", segment(workspace))).await.with_status(200);
    let mut listed = page["sessions"].as_array().unwrap().iter();
    listed.any(|listed| listed["sessionId"] == session_id.as_str())
}

/// Whether a prompt that waits for a runner is cancelled when the server's time for it is over.
async fn has_deadlines(server: &TestServer) -> bool {
    let session_id = server.open_own().await;
    let body = json!({"prompt": [{"type": "text", "text": "the proof of a deadline"}], "deadlineMs": 1_000});
    server.post(&format!("/session/{session_id}/prompt"), &body).await.with_status(202);
    let deadlines = "SELECT COALESCE(CAST(deadline_at AS TEXT), '') FROM commands
        WHERE CAST(payload AS TEXT) LIKE '%the proof of a deadline%'";
    let stored = server.store(deadlines).await;
    close(server, &session_id).await;
    stored.last().is_some_and(|deadline| !deadline.is_empty())
}

/// Whether the behaviour behind a tag about a session's history is there.
pub(crate) async fn history(server: &TestServer, tag: &str) -> bool {
    let opened = server.post("/session", &json!({"sessionScope": "thread"})).await.with_status(200);
    let (session_id, client_id) = (id(&opened, "sessionId"), id(&opened, "clientId"));
    let path = |verb: &str| format!("/session/{session_id}/{verb}");
    let is_there = match tag {
        "session_rewind" => {
            server.prompt(&session_id, "one").await;
            server.post(&path("cancel"), &json!({})).await.with_status(204);
            let listed = server.get(&path("rewind/snapshots")).await.with_status(200);
            let body = json!({"promptId": listed["snapshots"][0]["promptId"]});
            assert_eq!(server.post(&path("rewind"), &body).await.with_status(200)["targetTurnIndex"], 0);
            true
        }
        "session_branch" => {
            let branched = server.post(&path("branch"), &json!({})).await.with_status(201);
            assert_eq!(branched["forkedFrom"]["sessionId"], session_id.as_str());
            close(server, &id(&branched, "sessionId")).await;
            true
        }
        "session_shell_command" => {
            let body = json!({"command": "echo proof"});
            let answer = server.as_client(&client_id, "POST", &path("shell"), &body).await;
            answer.status == 200 && answer.body["output"] == "proof\n"
        }
        other => panic!("{other} is not a tag about history"),
    };
    close(server, &session_id).await;
    is_there
}
