//! `auth.connect`: with the connection's own nonce, a good token and a version that both speak; and where an identity's
//! connections may exist beside each other.

use serde_json::{Value, json};

use crate::harness::{Engine, Identity, Setup, TestServer, Tokens, Wire, both_engines, eventually, introduction};

async fn refused(wire: &mut Wire, params: Value) -> (i64, String) {
    wire.refused("auth.connect", params).await
}

#[both_engines]
async fn an_introduction_needs_its_nonce_a_token_and_a_version(engine: Engine) {
    let server = TestServer::start(engine).await;
    let tokens = Identity::register(&server, "alice").await.login(&server).await;
    let (mut wire, other) = (Wire::open(&server).await, Wire::open(&server).await);
    let good = introduction(&wire, &tokens, "dev-1", "", "fanout");
    let with = |change: fn(&mut Value)| {
        let mut params = good.clone();
        change(&mut params);
        params
    };
    assert_eq!(refused(&mut wire, introduction(&other, &tokens, "dev-1", "", "fanout")).await.0, 4010);
    assert_eq!(refused(&mut wire, with(|params| params["auth"]["token"] = json!("x"))).await.0, 4001);
    let (code, message) = refused(&mut wire, with(|params| params["auth"] = Value::Null)).await;
    assert!(code == 4000 && message.starts_with("params.auth: "), "{message}");
    assert_eq!(refused(&mut wire, with(|params| params["device"]["id"] = json!("a/b"))).await.0, 4000);
    let answer =
        wire.ask("auth.connect", with(|params| params["protocol"] = json!({"min": "2.0", "max": "3.0"}))).await;
    assert_eq!(answer["error"]["code"], -32000);
    let data = &answer["error"]["data"];
    assert_eq!(data["server_range"], json!({"min": "1.0", "max": "1.0"}));
    assert_eq!((&data["kind"], &data["retry"]), (&json!("schema-invalid"), &json!(false)));
    assert!(data["trace_id"].as_str().unwrap().starts_with("trc_"), "{data}");
    // A refresh token opens no connection.
    let refresh = Tokens { access: tokens.refresh.clone(), ..tokens.clone() };
    let params = introduction(&wire, &refresh, "dev-1", "", "fanout");
    assert_eq!(refused(&mut wire, params).await.0, 4001);
    let answer = wire.call("auth.connect", good).await;
    assert_eq!((&answer["status"], &answer["authenticated"]), (&json!("ok"), &json!(true)));
    assert_eq!(answer["identity"]["aid"], "alice.localhost.test");
    assert_eq!(answer["connection"]["device_id"], "dev-1");
}

/// The connection, or the code and the message of the refusal.
async fn connect(
    server: &TestServer,
    tokens: &Tokens,
    device: &str,
    slot: &str,
    mode: &str,
) -> Result<Wire, (Value, Value)> {
    let mut wire = Wire::open(server).await;
    let params = introduction(&wire, tokens, device, slot, mode);
    let answer = wire.ask("auth.connect", params).await;
    let error = (answer["error"]["code"].clone(), answer["error"]["message"].clone());
    if answer["result"].is_object() { Ok(wire) } else { Err(error) }
}

/// The published client comes back after these, when the other has gone.
fn clash(name: &str) -> Option<(Value, Value)> {
    Some((json!(5009), json!(name)))
}

/// A connection that is alive answers, however long it takes: a busy machine costs no connection its slot.
fn patiently(setup: &mut Setup) {
    setup.config.limits.socket_probe_ms = 15_000;
}

#[both_engines]
async fn connections_clash_by_their_names(engine: Engine) {
    let server = TestServer::with(engine, patiently).await;
    let tokens = Identity::register(&server, "alice").await.login(&server).await;
    let connect = async |device: &str, slot: &str, mode: &str| connect(&server, &tokens, device, slot, mode).await;
    assert_eq!(connect("", "a", "fanout").await.err(), Some((json!(4009), json!("slot_requires_device_id"))));
    let _whole = connect("dev-1", "", "fanout").await.unwrap().stay();
    assert_eq!(connect("dev-1", "", "fanout").await.err(), clash("device_singleton_conflict"));
    let _slot = connect("dev-2", "a", "fanout").await.unwrap().stay();
    assert_eq!(connect("dev-2", "a", "fanout").await.err(), clash("slot_conflict"));
    let _beside = connect("dev-2", "b", "fanout").await.unwrap().stay();
    assert_eq!(connect("dev-3", "", "queue").await.err(), clash("delivery_mode_conflict"));
    // Legacy connections stand for no device, and beside each other.
    let _legacy = [connect("", "", "fanout").await.unwrap(), connect("", "", "fanout").await.unwrap()];
    // Another identity's are its own.
    let bobby = Identity::register(&server, "bobby").await;
    let _other = bobby.connect(&server, "dev-1").await;
}

#[both_engines]
async fn connections_clash_across_servers(engine: Engine) {
    if engine == Engine::Sqlite {
        // One process has one store.
        return;
    }
    let mut here = TestServer::with(engine, patiently).await;
    let there = here.of_one_mesh().await;
    let tokens = Identity::register(&here, "alice").await.login(&here).await;
    let connect = async |server: &TestServer, device: &str, slot: &str, mode: &str| {
        connect(server, &tokens, device, slot, mode).await
    };
    let whole = connect(&here, "dev-1", "", "fanout").await.unwrap().stay();
    let _slot = connect(&here, "dev-2", "a", "fanout").await.unwrap().stay();
    // Each server is there for the other as soon as it listens.
    eventually("they know of each other", async || {
        (connect(&there, "dev-1", "", "fanout").await.err() == clash("device_singleton_conflict")).then_some(())
    })
    .await;
    assert_eq!(connect(&there, "dev-1", "a", "fanout").await.err(), clash("device_singleton_conflict"));
    assert_eq!(connect(&there, "dev-2", "a", "fanout").await.err(), clash("slot_conflict"));
    assert_eq!(connect(&there, "dev-3", "", "queue").await.err(), clash("delivery_mode_conflict"));
    let _beside = connect(&there, "dev-2", "b", "fanout").await.unwrap().stay();
    let _legacy = connect(&there, "", "", "fanout").await.unwrap();
    assert_eq!(connect(&here, "dev-2", "b", "fanout").await.err(), clash("slot_conflict"));
    // A connection that closes gives its slot back there, too.
    drop(whole);
    let moved =
        eventually("the place is free", async || connect(&there, "dev-1", "", "fanout").await.ok()).await.stay();
    assert_eq!(connect(&here, "dev-1", "", "fanout").await.err(), clash("device_singleton_conflict"));
    // A server whose presence rows are gone, as when Postgres crashed, stores them again, also if the first try fails.
    for fails_first in [false, true] {
        here.store("DELETE FROM mesh_presence RETURNING aid").await;
        if fails_first {
            here.store("ALTER TABLE mesh_presence RENAME TO mesh_presence_gone").await;
        }
        let own = "database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        let end = "SELECT CAST(pg_terminate_backend(pid) AS TEXT) FROM pg_locks WHERE locktype = 'advisory' AND";
        here.store(&format!("{end} {own}")).await;
        if fails_first {
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            here.store("ALTER TABLE mesh_presence_gone RENAME TO mesh_presence").await;
        }
        eventually("it is known again", async || {
            (connect(&here, "dev-1", "", "fanout").await.err() == clash("device_singleton_conflict")).then_some(())
        })
        .await;
    }
    // The place of a connection that is gone is free.
    here.restart().await;
    let _other = eventually("the place is free", async || connect(&there, "dev-2", "a", "fanout").await.ok()).await;
    drop(moved);
}

/// As when the store failed at the moment a connection closed.
#[both_engines]
async fn a_stale_presence_row_does_not_block_a_connection(engine: Engine) {
    if engine == Engine::Sqlite {
        return;
    }
    let here = TestServer::with(engine, |setup| {
        setup.config.sessions.gc_interval_ms = 50;
        // A live connection has time to respond.
        setup.config.limits.socket_probe_ms = 15_000;
    })
    .await;
    let there = here.of_one_mesh().await;
    let tokens = Identity::register(&here, "alice").await.login(&here).await;
    let _live = connect(&here, &tokens, "desk", "", "fanout").await.unwrap().stay();
    let ghost = "INSERT INTO mesh_presence (server, number, aid, device_id, slot_id, mode)
        SELECT server, number + 1000, aid, 'phone', slot_id, mode FROM mesh_presence RETURNING aid";
    assert_eq!(here.store(ghost).await.len(), 1);
    eventually("the place is free", async || connect(&there, &tokens, "phone", "", "fanout").await.ok()).await;
    assert!(connect(&there, &tokens, "desk", "", "fanout").await.is_err(), "a live connection keeps its slot");
}

#[both_engines]
async fn a_connection_that_leaves_frees_its_place(engine: Engine) {
    let server = TestServer::start(engine).await;
    let tokens = Identity::register(&server, "alice").await.login(&server).await;
    let mut first = Wire::open(&server).await;
    let params = introduction(&first, &tokens, "dev-1", "", "fanout");
    first.call("auth.connect", params).await;
    drop(first);
    eventually("the place is free", async || {
        let mut wire = Wire::open(&server).await;
        let params = introduction(&wire, &tokens, "dev-1", "", "queue");
        (wire.ask("auth.connect", params).await["result"]["status"] == "ok").then_some(())
    })
    .await;
}

/// As when its network has gone: it takes what is sent to it, and answers nothing.
#[both_engines]
async fn a_client_that_returns_gets_the_place_of_a_dead_connection(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.limits.socket_probe_ms = 50).await;
    let tokens = Identity::register(&server, "alice").await.login(&server).await;
    for (device, slot) in [("dev-1", ""), ("dev-2", "a")] {
        let mut dead = connect(&server, &tokens, device, slot, "fanout").await.unwrap();
        let mut back = connect(&server, &tokens, device, slot, "fanout").await.unwrap();
        assert_eq!(dead.socket.closed().await, 4408);
        assert_eq!(back.call("meta.ping", json!({})).await["pong"], true);
    }
    // Only the very place is asked after: another slot of the device is as much in the way as before.
    let _dead = connect(&server, &tokens, "dev-3", "a", "fanout").await.unwrap();
    assert_eq!(connect(&server, &tokens, "dev-3", "", "fanout").await.err(), clash("device_singleton_conflict"));
}

#[both_engines]
async fn a_client_that_returns_at_another_server_gets_that_place_too(engine: Engine) {
    if engine == Engine::Sqlite {
        // One process has one store.
        return;
    }
    let here = TestServer::with(engine, |setup| setup.config.limits.socket_probe_ms = 50).await;
    let there = here.of_one_mesh().await;
    let tokens = Identity::register(&here, "alice").await.login(&here).await;
    let mut dead = connect(&here, &tokens, "dev-1", "", "fanout").await.unwrap();
    // One try gives the other server four seconds to answer.
    let back = eventually("the place is free", async || connect(&there, &tokens, "dev-1", "", "fanout").await.ok());
    let mut back = back.await;
    assert_eq!(dead.socket.closed().await, 4408);
    assert_eq!(back.call("meta.ping", json!({})).await["pong"], true);
}

#[both_engines]
async fn a_connection_introduces_itself_once(engine: Engine) {
    let server = TestServer::start(engine).await;
    let identity = Identity::register(&server, "alice").await;
    let tokens = identity.login(&server).await;
    let mut wire = identity.connect(&server, "dev-1").await;
    let params = introduction(&wire, &tokens, "dev-2", "", "fanout");
    assert_eq!(wire.refused("auth.connect", params).await.0, -32009);
}

#[both_engines]
async fn a_draining_server_lets_its_connections_go(engine: Engine) {
    let mut server = TestServer::start(engine).await;
    let identity = Identity::register(&server, "alice").await;
    let (mut session, mut fresh) = (identity.connect(&server, "dev-1").await, Wire::open(&server).await);
    server.restart().await;
    // Codes after which clients come back.
    assert_eq!((session.socket.closed().await, fresh.socket.closed().await), (1001, 1001));
    identity.connect(&server, "dev-1").await;
}
