//! Legal holds win over every limit: those that were placed before a sweep, and those that are placed in the middle of one.

use ostler_protocol::FailureKind::*;
use serde_json::{Value, json};

use super::{DAY_MS, count, finished, hold, hourly, in_single_steps, payloads, release, sweep, sweep_all, verify};
use crate::{
    harness::{Engine, TestServer, both_engines, id},
    run_input::runs::THREAD,
};

#[both_engines]
async fn a_hold_on_a_tenant_or_a_session_keeps_everything_in_it(engine: Engine) {
    let server = hourly(engine).await;
    let (held, _) = finished(&server, "hwlab", 0).await;
    let (other, _) = finished(&server, "hwlab", 0).await;
    let (elsewhere, _) = finished(&server, "unidesk", 0).await;
    let session_id = id(&server.run(&held).await, "sessionId");
    server.clock.advance_ms(DAY_MS);
    let on_session = hold(&server, json!({"sessionId": session_id, "reason": "case 7"})).await;
    let on_tenant = hold(&server, json!({"tenantId": "unidesk", "reason": "case 8"})).await;
    let swept = sweep(&server, json!({})).await;
    assert!(count(&swept, "events", Some("hwlab"))["held"].as_i64().unwrap() > 0, "{swept}");
    assert_eq!(count(&swept, "events", Some("unidesk"))["items"], 0);
    assert_eq!(payloads(&server, &other).await, 0);
    for (kept, hold_id) in [(held, on_session), (elsewhere, on_tenant)] {
        assert!(payloads(&server, &kept).await > 0);
        let released = release(&server, &hold_id).await;
        assert_eq!((&released["releasedBy"], released["releasedAt"].is_string()), (&json!("operator"), true));
        sweep(&server, json!({})).await;
        assert_eq!(payloads(&server, &kept).await, 0);
    }
}

#[both_engines]
async fn a_hold_that_is_placed_in_the_middle_of_a_sweep_wins(engine: Engine) {
    let server = TestServer::with(engine, in_single_steps).await;
    let (run_id, command_id) = finished(&server, "hwlab", 100).await;
    server.clock.advance_ms(DAY_MS);
    // A request does a bounded number of steps.
    let swept = sweep(&server, json!({})).await;
    assert_eq!(swept["hasMore"], true);
    let left = payloads(&server, &run_id).await;
    assert!(left > 20 && left < 100, "{left}");
    let hold_id = hold(&server, json!({"tenantId": "hwlab", "reason": "case 7"})).await;
    let swept = sweep(&server, json!({})).await;
    assert_eq!((super::total(&swept).0, &swept["hasMore"]), (0, &json!(false)));
    assert_eq!(payloads(&server, &run_id).await, left);
    let report = verify(&server, engine).await;
    assert_eq!((report.broken, report.removed > 0), (vec![], true));
    // The reply is still there, although the run has lost payloads.
    assert_eq!(server.result(&run_id, &command_id).await["reply"], "planted-reply");
    release(&server, &hold_id).await;
    sweep_all(&server, json!({})).await;
    assert_eq!(payloads(&server, &run_id).await, 0);
    assert_eq!(verify(&server, engine).await.broken, vec![]);
}

#[both_engines]
async fn nothing_is_removed_after_the_response_to_a_hold(engine: Engine) {
    let server = TestServer::with(engine, in_single_steps).await;
    let (run_id, _) = finished(&server, "hwlab", 200).await;
    server.clock.advance_ms(DAY_MS);
    let sweeping = sweep_all(&server, json!({}));
    let holding = async {
        tokio::time::sleep(std::time::Duration::from_millis(30)).await;
        hold(&server, json!({"tenantId": "hwlab", "reason": "case 7"})).await;
        payloads(&server, &run_id).await
    };
    let (_, left) = tokio::join!(sweeping, holding);
    assert_eq!(payloads(&server, &run_id).await, left);
    assert_eq!(verify(&server, engine).await.broken, vec![]);
}

#[both_engines]
async fn what_is_held_cannot_be_deleted_by_its_users(engine: Engine) {
    let server = TestServer::start(engine).await;
    server.say("run-1", "planted").await.with_status(202);
    let stored = json!({"tenantId": "hwlab", "backendProfile": "scripted", "storageKind": "local"});
    let session_id = id(&server.post("/api/v1/sessions", &stored).await.with_status(201), "sessionId");
    let thread = hold(&server, json!({"sessionId": THREAD, "reason": "case 7"})).await;
    let storage = hold(&server, json!({"tenantId": "hwlab", "sessionId": session_id, "reason": "case 7"})).await;
    let erase = || server.request("DELETE", &format!("/api/v1/agent/sessions/{THREAD}"));
    let evict = || server.request("DELETE", &format!("/api/v1/sessions/{session_id}/storage"));
    server.send(erase()).await.refused(StateConflict);
    server.send(evict()).await.refused_by(StateConflict, "legal-hold");
    assert!(!server.events(&server.run_of_thread().await).await.is_empty());
    release(&server, &thread).await;
    release(&server, &storage).await;
    server.send(erase()).await.with_status(204);
    server.send(evict()).await.with_status(200);
}

#[both_engines]
async fn a_hold_is_recorded_and_its_request_checked(engine: Engine) {
    let server = TestServer::start(engine).await;
    let hold_id = hold(&server, json!({"tenantId": "hwlab", "reason": "case 7"})).await;
    let first = release(&server, &hold_id).await;
    server.clock.advance_ms(1_000);
    assert_eq!(release(&server, &hold_id).await, first, "the first release counts");
    let listed = server.get("/api/v1/retention/holds").await.ok()["holds"].clone();
    assert_eq!(listed, json!([first]));
    assert_eq!(
        (&first["placedBy"], &first["reason"], &first["sessionId"]),
        (&json!("operator"), &json!("case 7"), &Value::Null)
    );
    let place = async |body: Value| server.post("/api/v1/retention/holds", &body).await;
    for (body, rule) in [
        (json!({"reason": "case 7"}), "hold-target"),
        (json!({"tenantId": "hwlab", "identity": "a.b.example", "reason": "case 7"}), "hold-target"),
        (json!({"tenantId": "hwlab", "reason": ""}), "hold-reason"),
        (json!({"tenantId": "hwlab", "reason": "x".repeat(501)}), "hold-reason"),
        (json!({"tenantId": "hwlab", "reason": "a\nb"}), "hold-reason"),
        (json!({"tenantId": "hwlab"}), "body-shape"),
        (json!({"tenantId": "", "reason": "case 7"}), "name-shape"),
    ] {
        place(body).await.refused_by(SchemaInvalid, rule);
    }
    place(json!({"tenantId": "hwlap", "reason": "case 7"})).await.refused(TenantPolicyDenied);
    place(json!({"sessionId": "nobody", "reason": "case 7"})).await.refused(NotFound);
    let unknown = server.request("DELETE", &format!("/api/v1/retention/holds/hld_{:032x}", 0));
    server.send(unknown).await.refused(NotFound);
    assert_eq!(server.get("/api/v1/retention/holds").await.ok()["holds"].as_array().unwrap().len(), 1);
}
