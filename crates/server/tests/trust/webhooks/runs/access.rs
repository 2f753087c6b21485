//! Whom runs are reported to: owners who may read the run, now and not only when the report was made.

use super::*;

#[both_engines]
async fn an_owner_receives_nothing_of_runs_that_they_may_not_read(engine: Engine) {
    let (server, hook) = (server(engine).await, HookReceiver::start([]).await);
    let (ada, bob) = (user_of(&server, "ada", &["hwlab"]).await, user_of(&server, "bob", &["hwlab"]).await);
    let agent = new_agent(&ada).await;
    id(&ada.call("PUT", &path(&agent, ""), &json!({"url": hook.url()})).await.with_status(200), "secret");
    // Of another tenant.
    let (foreign, command_id) = working(&server, &server, &agent, "unidesk").await;
    foreign.ask(&command_id, PERMISSION, DIGEST).await;
    foreign.end(&command_id, "completed").await;
    // In another user's thread of the same tenant.
    let private = ended_in_thread(&server, &bob, &agent, "hwlab").await;
    for run_id in [&foreign.run_id, &private] {
        ada.get(&format!("/api/v1/runs/{run_id}")).await.refused(NotFound);
        read_to_the_end(&server, run_id).await;
    }
    let readable = worked(&server, &ada, &agent, "hwlab").await;
    hook.received(1).await;
    assert_eq!(id(&bodies(&hook)[0]["payload"], "run_id"), readable);
    assert_eq!(server.store(ALL).await, ["run.ended"]);
}

/// A retry that waits is not sent, and what was delivered is not shown.
#[both_engines]
async fn a_run_that_the_owner_may_no_longer_read_is_neither_sent_nor_shown(engine: Engine) {
    for lost in [r#"UPDATE users SET tenants = '["elsewhere"]'"#, "UPDATE sessions SET erased_at = 1"] {
        let (server, hook) = (server(engine).await, HookReceiver::start([failing()]).await);
        let ada = user_of(&server, "ada", &["hwlab"]).await;
        let agent = new_agent(&ada).await;
        ada.call("PUT", &path(&agent, ""), &json!({"url": hook.url()})).await.with_status(200);
        let run_id = worked(&server, &ada, &agent, "hwlab").await;
        let waits = "SELECT delivery_id FROM webhook_deliveries WHERE attempts = 1 AND owner IS NULL";
        let delivery_id = eventually("an attempt fails", async || server.store(waits).await.pop()).await;
        let path = path(&agent, &format!("/deliveries/{delivery_id}"));
        assert_eq!(ada.get(&path).await.ok()["body"]["payload"]["run_id"], run_id.as_str());
        server.store(lost).await;
        pass(&server, 1);
        let shown = eventually("the delivery is dead", async || {
            Some(ada.get(&path).await.ok()).filter(|shown| shown["status"] == "dead")
        })
        .await;
        assert_eq!(shown["last_error"], "the run was erased, or the agent's owner may no longer read it");
        assert_eq!((&shown["body"]["type"], &shown["body"]["payload"]), (&json!("run.ended"), &Value::Null));
        let listed = ada.get(&super::path(&agent, "/deliveries")).await.ok();
        assert_eq!(listed["deliveries"], json!([shown]));
        ada.send(ada.request("POST", &format!("{path}/replay"))).await.refused(NotFound);
        assert_eq!(hook.requests().len(), 1, "{lost}");
    }
}

/// A session is marked before its runs are deleted.
#[both_engines]
async fn deliveries_about_a_session_that_is_marked_as_erased_are_deleted(engine: Engine) {
    let choose = |setup: &mut Setup| {
        quick(setup);
        setup.config.sessions.gc_interval_ms = 50;
    };
    let (server, hook) = (TestServer::with(engine, choose).await, HookReceiver::start([]).await);
    let (agent, _) = hooked(&server, &hook.url()).await;
    worked(&server, &server, &agent, "hwlab").await;
    hook.received(1).await;
    server.store("UPDATE sessions SET erased_at = 1").await;
    eventually("no delivery is left", async || server.store(ALL).await.is_empty().then_some(())).await;
    assert_eq!(server.store("SELECT run_id FROM runs").await.len(), 1);
}

#[both_engines]
async fn deliveries_about_an_erased_thread_are_deleted(engine: Engine) {
    let choose = |setup: &mut Setup| {
        quick(setup);
        setup.config.sessions.gc_interval_ms = 50;
    };
    let (server, hook) = (TestServer::with(engine, choose).await, HookReceiver::start([]).await);
    let ada = user_of(&server, "ada", &["local"]).await;
    let agent = new_agent(&ada).await;
    ada.call("PUT", &path(&agent, ""), &json!({"url": hook.url()})).await.with_status(200);
    ended_in_thread(&server, &ada, &agent, "local").await;
    let kept = worked(&server, &ada, &agent, "local").await;
    hook.received(2).await;
    ada.send(ada.request("DELETE", &format!("/api/v1/agent/sessions/{THREAD}"))).await.with_status(204);
    let about = "SELECT run_id FROM webhook_deliveries UNION ALL SELECT run_id FROM webhook_runs";
    eventually("only the other run is left", async || {
        (server.store(about).await == [kept.clone(), kept.clone()]).then_some(())
    })
    .await;
}
