//! Calls that reach two servers of one Postgres.

use std::sync::atomic::AtomicUsize;

use serde_json::json;

use super::{Notebook, Work, statuses};
use crate::harness::{Database, Engine, ManualRunner, PausableProxy, TestServer, eventually, id};

mod postgres {
    #[test]
    fn a_call_through_one_server_is_executed_once_while_the_other_runs_the_job() {
        crate::harness::run(super::a_call_through_one_server_is_executed_once_while_the_other_runs_the_job());
    }

    #[test]
    fn a_call_that_two_servers_get_at_the_same_moment_is_executed_once() {
        crate::harness::run(super::a_call_that_two_servers_get_at_the_same_moment_is_executed_once());
    }

    #[test]
    fn a_call_of_a_server_that_died_is_unknown_once_its_deadline_and_the_grace_are_over() {
        crate::harness::run(super::a_call_of_a_server_that_died_is_unknown_once_its_deadline_and_the_grace_are_over());
    }
}

/// The work of a runner that a server has started, with which the test makes calls.
async fn work_of_job(server: &TestServer, run_id: &str, command_id: String) -> Work {
    let run = server.run(run_id).await;
    let jobs = server.get(&format!("/api/v1/runs/{run_id}/runner-jobs")).await.ok();
    let runner_id = id(&jobs["runnerJobs"][0], "runnerId");
    let runner = ManualRunner::new(server.with_token(server.token()), run_id, &runner_id, &run);
    Work { runner, command_id, calls: AtomicUsize::new(0) }
}

async fn a_call_through_one_server_is_executed_once_while_the_other_runs_the_job() {
    let notebook = Notebook::new();
    let first = TestServer::with(Engine::Postgres, |setup| notebook.install(setup)).await;
    let second = first.start_another(|config| config.runner.slots = 1).await;
    let (run_id, command_id) = second.start(r#"{"script": [{"say": "here"}, {"wait": 3600000}]}"#).await;
    eventually("the runner works on the turn", async || {
        (!second.events_of(&run_id, "assistant_message").await.is_empty()).then_some(())
    })
    .await;
    let work = work_of_job(&first, &run_id, command_id).await;
    let mut body = work.body("call_a", "slow_write", r#"{"text": "x"}"#);
    let mut repeated = body.clone();
    repeated["repeated"] = json!(true);
    (body["waitMs"], repeated["waitMs"]) = (json!(0), json!(0));
    assert_eq!(work.send(&first, &body).await.with_status(200)["status"], "running");
    eventually("the call is executed", async || (notebook.written() == 1).then_some(())).await;
    let waiting = work.send(&second, &repeated).await.with_status(200);
    assert_eq!(waiting["status"], "running", "the second server waits for the first: {waiting}");
    notebook.release.notify_one();
    for (server, body) in [(&first, &mut body), (&second, &mut repeated)] {
        body["waitMs"] = json!(20_000);
        let called = work.send(server, body).await.with_status(200);
        assert_eq!((&called["status"], &called["content"]), (&json!("completed"), &json!("written")), "{called}");
    }
    assert_eq!(notebook.written(), 1);
    assert_eq!(statuses(&work.recorded(&second).await), ["started", "completed"]);
    first.cancel_command(&work.command_id).await;
    let ended = second.ended(&run_id, &work.command_id).await;
    assert_eq!(ended["toolCallSummary"]["count"], 1, "{ended}");
}

async fn a_call_that_two_servers_get_at_the_same_moment_is_executed_once() {
    const CALLS: usize = 5;
    let notebook = Notebook::new();
    let first = TestServer::with(Engine::Postgres, |setup| notebook.install(setup)).await;
    let second = first.start_another(|_| ()).await;
    let work = Work::begin(&first, |_| ()).await;
    for number in 0..CALLS {
        let arguments = json!({"text": number.to_string()}).to_string();
        let body = work.body(&format!("call_{number}"), "write_note", &arguments);
        let (one, other) = tokio::join!(work.send(&first, &body), work.send(&second, &body));
        let expected = format!("written: {number}");
        for called in [one.with_status(200), other.with_status(200)] {
            assert_eq!((&called["status"], &called["content"]), (&json!("completed"), &json!(expected)), "{called}");
        }
        assert_eq!(notebook.written(), number + 1);
    }
    assert_eq!(statuses(&work.recorded(&first).await), ["started", "completed"].repeat(CALLS));
}

/// The deadline of `slow_write`, and how much longer a call of another server may take to be recorded.
const DEADLINE_AND_GRACE_MS: i64 = 20_000 + 10_000;
/// How often a server that waits reads the store, and a time in which it does so several times.
const RECHECK_MS: u64 = 20;
const SEVERAL_RECHECKS_MS: u64 = 150;

/// To the other server and the store, a server that was killed is one from which nothing comes any more.
async fn a_call_of_a_server_that_died_is_unknown_once_its_deadline_and_the_grace_are_over() {
    let (notebook, database) = (Notebook::new(), Database::migrated());
    let mut proxied = ostler_server::Config::default();
    proxied.store.database_url = Some(database.url().into());
    let proxy = PausableProxy::between(&mut proxied).await;
    let first = TestServer::with(Engine::Postgres, |setup| {
        notebook.install(setup);
        setup.config.store.database_url = proxied.store.database_url;
    })
    .await;
    let second = first
        .start_another(|config| {
            config.store.database_url = Some(database.url().into());
            config.limits.recheck_ms = RECHECK_MS;
        })
        .await;
    let work = Work::begin(&second, |_| ()).await;
    let mut body = work.body("call_a", "slow_write", r#"{"text": "x"}"#);
    body["waitMs"] = json!(0);
    assert_eq!(work.send(&first, &body).await.with_status(200)["status"], "running");
    eventually("the call is executed", async || (notebook.written() == 1).then_some(())).await;
    proxy.pause();

    body["repeated"] = json!(true);
    body["waitMs"] = json!(SEVERAL_RECHECKS_MS);
    for advance_ms in [0, DEADLINE_AND_GRACE_MS] {
        second.clock.advance_ms(advance_ms);
        let waiting = work.send(&second, &body).await.with_status(200);
        assert_eq!(waiting["status"], "running", "the other server may still record its end: {waiting}");
    }
    assert_eq!(statuses(&work.recorded(&second).await), ["started"]);
    second.clock.advance_ms(1);
    body["waitMs"] = json!(20_000);
    let (one, other) = tokio::join!(work.send(&second, &body), work.send(&second, &body));
    for called in [one, other, work.send(&second, &body).await] {
        assert_eq!(called.with_status(200)["status"], "outcome-unknown");
    }
    assert_eq!(statuses(&work.recorded(&second).await), ["started", "outcome-unknown"]);
    assert_eq!(notebook.written(), 1, "the call may have had its effect");
}
