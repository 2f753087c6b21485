//! Which calls need permission, and what it is given for.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::{Notebook, Work, statuses};
use crate::harness::{Engine, TestServer, both_engines, eventually, one_engine};

async fn pending_request(server: &TestServer, work: &Work) -> Value {
    eventually("permission is asked for", async || {
        server.permissions(work.run_id()).await.into_iter().find(|request| request["status"] == "pending")
    })
    .await
}

fn on_request(run: &mut Value) {
    run["executionPolicy"] = json!({"approval": "on-request"});
}

#[both_engines]
async fn a_call_that_changes_something_waits_for_permission_for_exactly_this_call(engine: Engine) {
    let notebook = Notebook::new();
    let server = TestServer::with(engine, |setup| notebook.install(setup)).await;
    let work = Work::begin(&server, on_request).await;
    assert_eq!(work.call(&server, "time_now", "{}").await["status"], "completed", "it changes nothing");
    let (called, request) = tokio::join!(work.call(&server, "write_note", r#"{"text": "x"}"#), async {
        let request = pending_request(&server, &work).await;
        assert_eq!(request["command"], r#"write_note {"text":"x"}"#);
        assert_eq!((notebook.written(), request["toolCallId"].as_str()), (0, Some("call_1")));
        let digest = request["digest"].as_str().unwrap();
        server
            .answer(&request, "allow", &digest.replace(['0', '1'], "2"))
            .await
            .refused_by(ostler_protocol::FailureKind::StateConflict, "permission-digest");
        server.answer(&request, "allow", digest).await.with_status(200)
    });
    assert_eq!((&called["status"], notebook.written()), (&json!("completed"), 1));
    let recorded = work.recorded(&server).await;
    assert_eq!(recorded[2]["digest"], request["digest"], "what was allowed is what was executed");
    assert_eq!(statuses(&recorded), ["started", "completed", "started", "completed"]);
}

#[both_engines]
async fn a_call_that_was_denied_is_not_executed(engine: Engine) {
    let notebook = Notebook::new();
    let server = TestServer::with(engine, |setup| notebook.install(setup)).await;
    let work = Work::begin(&server, on_request).await;
    let (called, ()) = tokio::join!(work.call(&server, "write_note", r#"{"text": "x"}"#), async {
        let request = pending_request(&server, &work).await;
        server.answer(&request, "deny", request["digest"].as_str().unwrap()).await.with_status(200);
    });
    assert_eq!((&called["status"], &called["content"]), (&json!("declined"), &json!("permission was denied")));
    assert_eq!((notebook.written(), statuses(&work.recorded(&server).await)), (0, vec!["started", "declined"]));
    // A person must not agree to something that cannot be shown.
    let hidden = work.call(&server, "write_note", "{\"text\": \"a\u{202e}b\"}").await;
    assert_eq!((&hidden["status"], notebook.written()), (&json!("declined"), 0));
}

#[one_engine]
async fn a_cancelled_command_needs_no_permission_any_more(engine: Engine) {
    let notebook = Notebook::new();
    let server = TestServer::with(engine, |setup| notebook.install(setup)).await;
    let work = Work::begin(&server, on_request).await;
    let (called, ()) = tokio::join!(work.call(&server, "write_note", r#"{"text": "x"}"#), async {
        pending_request(&server, &work).await;
        server.cancel_command(&work.command_id).await;
    });
    assert_eq!((&called["status"], notebook.written()), (&json!("declined"), 0));
}

#[one_engine]
async fn a_run_that_may_only_read_changes_nothing(engine: Engine) {
    let notebook = Notebook::new();
    let server = TestServer::with(engine, |setup| {
        notebook.install(setup);
        setup.config.tools.http_request.hosts = vec!["api.example".into()];
    })
    .await;
    let reads =
        Work::begin(&server, |run| run["executionPolicy"] = json!({"sandbox": "read-only", "network": "disabled"}))
            .await;
    let called = reads.call(&server, "write_note", r#"{"text": "x"}"#).await;
    assert_eq!(called["content"], "write_note changes something, and the run may only read");
    let request = r#"{"method": "GET", "url": "https://api.example/"}"#;
    let called = reads.call(&server, "http_request", request).await;
    assert_eq!(called["status"], "declined");
    assert!(called["content"].as_str().unwrap().contains("uses the network"), "{called}");
    assert_eq!(reads.call(&server, "time_now", "{}").await["status"], "completed");
    assert_eq!(notebook.written(), 0);
}

mod postgres {
    #[test]
    fn two_servers_that_got_the_same_call_ask_once_and_execute_it_once() {
        crate::harness::run(super::two_servers_that_got_the_same_call_ask_once_and_execute_it_once());
    }

    #[test]
    fn a_call_that_a_person_has_answered_is_not_checked_again() {
        crate::harness::run(super::a_call_that_a_person_has_answered_is_not_checked_again());
    }
}

async fn two_servers_that_got_the_same_call_ask_once_and_execute_it_once() {
    let notebook = Notebook::new();
    let first = TestServer::with(Engine::Postgres, |setup| notebook.install(setup)).await;
    let second = first.start_another(|_| ()).await;
    let work = Work::begin(&first, on_request).await;
    let body = work.body("call_a", "write_note", r#"{"text": "x"}"#);
    let mut repeated = body.clone();
    repeated["repeated"] = json!(true);
    let (called, ()) = tokio::join!(work.send(&first, &body), async {
        let request = pending_request(&first, &work).await;
        let mut at_once = repeated.clone();
        at_once["waitMs"] = json!(0);
        assert_eq!(work.send(&second, &at_once).await.with_status(200)["status"], "running");
        first.answer(&request, "allow", request["digest"].as_str().unwrap()).await.with_status(200);
    });
    assert_eq!(called.with_status(200)["status"], "completed");
    assert_eq!(work.send(&second, &repeated).await.with_status(200)["content"], "written: x");
    assert_eq!((notebook.written(), first.permissions(work.run_id()).await.len()), (1, 1));
    assert_eq!(statuses(&work.recorded(&first).await), ["started", "completed"]);
}

async fn a_call_that_a_person_has_answered_is_not_checked_again() {
    let notebook = Notebook::new();
    let first = TestServer::with(Engine::Postgres, |setup| notebook.install(setup)).await;
    let second = first.start_another(|_| ()).await;
    let work = Work::begin(&first, on_request).await;
    let body = work.body("call_a", "write_note", r#"{"text": "x"}"#);
    let (called, ()) = tokio::join!(work.send(&first, &body), async {
        let request = pending_request(&first, &work).await;
        notebook.is_full.store(true, Ordering::SeqCst);
        let mut repeated = body.clone();
        (repeated["repeated"], repeated["waitMs"]) = (json!(true), json!(300));
        let waiting = work.send(&second, &repeated).await.with_status(200);
        assert_eq!(waiting["status"], "running", "it waits for the answer of the person: {waiting}");
        first.answer(&request, "allow", request["digest"].as_str().unwrap()).await.with_status(200);
    });
    assert_eq!(called.with_status(200)["status"], "completed");
    let other = work.call(&first, "write_note", r#"{"text": "y"}"#).await;
    assert_eq!((&other["status"], notebook.written()), (&json!("failed"), 1), "nobody is asked about it: {other}");
    assert_eq!(first.permissions(work.run_id()).await.len(), 1);
}
