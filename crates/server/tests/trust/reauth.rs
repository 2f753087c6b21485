//! An agent changes so that people must be asked again: who is notified, at once and later, over WebSockets and by webhook.

use ostler_protocol::trust::relations::REAUTH_REQUIRED;
use ostler_trust::config::WebhooksSection;
use serde_json::{Value, json};
use sqlx::{Connection, Executor, PgConnection};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::{
    harness::{Caller, Engine, HookReceiver, Setup, Socket, TestServer, both_engines, eventually, id},
    metrics::value,
    trust::{
        relations::manifest,
        sockets::{HUMAN, is_open, user},
    },
};

fn first() -> Value {
    manifest(&[("notes:read", "low")])
}

/// Asks for more than the first.
fn second() -> Value {
    manifest(&[("notes:read", "low"), ("notes:write", "high")])
}

/// The same as before, except for a change that breaks nothing.
fn unbroken(mut manifest: Value) -> Value {
    manifest["agent_version"] = json!("1.0.1");
    manifest
}

struct Scene {
    server: TestServer,
    agent_id: String,
}

impl Scene {
    async fn set(engine: Engine) -> Self {
        Self::of(
            TestServer::with(engine, |setup: &mut Setup| {
                setup.config.change(|webhooks: &mut WebhooksSection| webhooks.allow_loopback = true)
            })
            .await,
        )
        .await
    }

    async fn of(server: TestServer) -> Self {
        let made = server.post("/agents", &json!({"name": "helper", "capability_manifest": first()})).await;
        let agent_id = id(&made.with_status(201), "id");
        Self { server, agent_id }
    }

    async fn publish(&self, manifest: &Value) -> Value {
        let path = format!("/agents/{}", self.agent_id);
        self.server.patch(&path, &json!({"capability_manifest": manifest})).await.with_status(200)
    }

    async fn grant(&self, who: &Caller) -> String {
        let body = json!({"agent_id": self.agent_id, "granted_scopes": ["notes:read"]});
        id(&who.post("/h2a/relations", &body).await.with_status(201), "id")
    }

    async fn answer(&self, who: &Caller, relation_id: &str, published: &Value) {
        let body = json!({"granted_scopes": ["notes:read", "notes:write"],
            "manifest_hash": published["capability_manifest_hash"]});
        who.patch(&format!("/h2a/relations/{relation_id}"), &body).await.with_status(200);
    }

    async fn agent(&self) -> Caller {
        let path = format!("/agents/{}/tokens", self.agent_id);
        let made = self.server.post(&path, &json!({"name": "its own"})).await.with_status(201);
        self.server.with_token(Some(&id(&made, "token")))
    }
}

async fn connect(server: &TestServer, who: &Caller) -> Socket {
    let (socket, answer) = Socket::introduce(server, HUMAN, who).await;
    assert_eq!(answer["type"], "auth.ok");
    socket
}

#[both_engines]
async fn connected_users_get_a_request_at_once_and_on_every_connect_until_they_answer(engine: Engine) {
    let scene = Scene::set(engine).await;
    let ((_, ada), (_, bob)) = (user(&scene.server, "ada").await, user(&scene.server, "bob").await);
    let relation_id = scene.grant(&ada).await;
    let mut adas = [connect(&scene.server, &ada).await, connect(&scene.server, &ada).await];
    let mut bobs = connect(&scene.server, &bob).await;
    let published = scene.publish(&second()).await;
    let expected = json!({
        "type": REAUTH_REQUIRED, "agent_id": scene.agent_id, "relation_id": relation_id,
        "new_manifest_version": 2, "new_manifest_hash": published["capability_manifest_hash"],
        "scopes_requiring_reauth": ["notes:write"], "suspended_scopes": [], "unanswered_scopes": ["notes:write"]});
    for socket in &mut adas {
        assert_eq!(socket.hear().await, expected);
    }
    for _ in 0..2 {
        assert_eq!(connect(&scene.server, &ada).await.hear().await, expected, "it is told until it is answered");
    }
    scene.answer(&ada, &relation_id, &published).await;
    is_open(&mut connect(&scene.server, &ada).await).await;
    // Users without a relation with the agent received nothing.
    is_open(&mut bobs).await;
}

#[both_engines]
async fn a_silent_change_makes_no_request(engine: Engine) {
    let scene = Scene::set(engine).await;
    let (_, ada) = user(&scene.server, "ada").await;
    scene.grant(&ada).await;
    let mut socket = connect(&scene.server, &ada).await;
    scene.publish(&unbroken(first())).await;
    is_open(&mut connect(&scene.server, &ada).await).await;
    scene.publish(&second()).await;
    assert_eq!(socket.hear().await["new_manifest_version"], 3, "the first that is told");
}

#[both_engines]
async fn a_user_who_was_away_gets_one_request_for_all_changes(engine: Engine) {
    let scene = Scene::set(engine).await;
    let (_, ada) = user(&scene.server, "ada").await;
    scene.grant(&ada).await;
    scene.publish(&second()).await;
    let last = scene.publish(&unbroken(second())).await;
    let mut socket = connect(&scene.server, &ada).await;
    let told = socket.hear().await;
    assert_eq!((&told["type"], &told["new_manifest_version"]), (&json!(REAUTH_REQUIRED), &json!(3)));
    assert_eq!(told["new_manifest_hash"], last["capability_manifest_hash"]);
    assert_eq!(told["scopes_requiring_reauth"], json!(["notes:write"]));
    // It may come twice, as it happened and on connecting; nothing else comes.
    let mut again = connect(&scene.server, &ada).await;
    again.say(&json!({"type": "whatever"})).await;
    assert_eq!(again.hear().await, told);
    loop {
        let next = again.hear().await;
        if next["code"] == "unknown_frame" {
            break;
        }
        assert_eq!(next, told);
    }
}

#[both_engines]
async fn the_agent_is_notified_until_all_users_have_answered(engine: Engine) {
    let scene = Scene::set(engine).await;
    let (_, ada) = user(&scene.server, "ada").await;
    let relation_id = scene.grant(&ada).await;
    let agent = scene.agent().await;
    let (mut socket, answer) = Socket::introduce(&scene.server, "/ws/agent", &agent).await;
    assert_eq!(answer, json!({"type": "auth.ok", "agent_id": scene.agent_id}));
    let published = scene.publish(&second()).await;
    let expected = json!({
        "type": REAUTH_REQUIRED, "agent_id": scene.agent_id, "new_manifest_version": 2,
        "new_manifest_hash": published["capability_manifest_hash"], "scopes_requiring_reauth": ["notes:write"]});
    assert_eq!(socket.hear().await, expected);
    let (mut again, _) = Socket::introduce(&scene.server, "/ws/agent", &agent).await;
    assert_eq!(again.hear().await, expected);
    scene.answer(&ada, &relation_id, &published).await;
    is_open(&mut Socket::introduce(&scene.server, "/ws/agent", &agent).await.0).await;
}

#[both_engines]
async fn the_agent_is_notified_whatever_versions_people_consented_to(engine: Engine) {
    let scene = Scene::set(engine).await;
    let (_, ada) = user(&scene.server, "ada").await;
    scene.grant(&ada).await;
    for number in 2..=150 {
        let mut next = second();
        next["agent_version"] = json!(format!("1.0.{number}"));
        scene.publish(&next).await;
    }
    // Others consented to a version each, and have nothing to answer to.
    let others = "WITH RECURSIVE n (i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < 149)
        INSERT INTO relations (relation_id, agent_id, agent_name, agent_owner_id, user_id, created_at, consented_version,
            consented_hash, answers, revision, updated_at, revoked_at)
        SELECT relation_id || n.i, agent_id, agent_name, agent_owner_id, user_id || n.i, created_at, n.i,
            consented_hash, answers, revision, updated_at, revoked_at FROM relations, n";
    scene.server.store(others).await;
    let (mut socket, _) = Socket::introduce(&scene.server, "/ws/agent", &scene.agent().await).await;
    socket.say(&json!({"type": "whatever"})).await;
    let told = socket.hear().await;
    let expected = (&json!(REAUTH_REQUIRED), &json!(150));
    assert_eq!((&told["type"], &told["new_manifest_version"]), expected, "it comes before the answer to anything else");
    assert_eq!(told["scopes_requiring_reauth"], json!(["notes:write"]));
}

#[both_engines]
async fn the_agents_webhook_receives_every_break_and_nothing_else(engine: Engine) {
    let (scene, hook) = (Scene::set(engine).await, HookReceiver::start([]).await);
    let path = format!("/agents/{}/webhook", scene.agent_id);
    scene.server.call("PUT", &path, &json!({"url": hook.url()})).await.with_status(200);
    scene.publish(&unbroken(first())).await;
    let published = scene.publish(&second()).await;
    let listed = scene.server.get(&format!("{path}/deliveries")).await.ok();
    assert_eq!(listed["deliveries"].as_array().unwrap().len(), 1, "it was written with the manifest itself");
    let body: Value = serde_json::from_slice(&hook.received(1).await[0].body).unwrap();
    assert_eq!((&body["type"], &body["version"]), (&json!(REAUTH_REQUIRED), &json!("v1")));
    let payload = json!({"agent_id": scene.agent_id, "new_manifest_version": 3,
        "new_manifest_hash": published["capability_manifest_hash"], "scopes_requiring_reauth": ["notes:write"]});
    assert_eq!(body["payload"], payload);
}

#[both_engines]
async fn the_agents_side_receives_what_people_answer(engine: Engine) {
    let (scene, hook) = (Scene::set(engine).await, HookReceiver::start([]).await);
    let (user_id, ada) = user(&scene.server, "ada").await;
    let webhook = format!("/agents/{}/webhook", scene.agent_id);
    scene.server.call("PUT", &webhook, &json!({"url": hook.url()})).await.with_status(200);
    let (mut socket, _) = Socket::introduce(&scene.server, "/ws/agent", &scene.agent().await).await;
    let relation_id = scene.grant(&ada).await;
    let path = format!("/h2a/relations/{relation_id}");
    let hash = scene.server.get(&format!("/agents/{}", scene.agent_id)).await.ok()["capability_manifest_hash"].clone();
    ada.patch(&path, &json!({"granted_scopes": []})).await.with_status(200);
    let again = json!({"granted_scopes": ["notes:read"], "manifest_hash": hash});
    ada.patch(&path, &again).await.with_status(200);
    scene.publish(&manifest(&[])).await;
    // Nothing is taken back, and what is left is not declared any more.
    ada.patch(&path, &json!({"granted_scopes": ["notes:read"]})).await.with_status(200);
    ada.send(ada.request("DELETE", &path)).await.with_status(200);
    let told = |event_type: &str, granted: Value| {
        let payload = json!({"agent_id": scene.agent_id, "relation_id": relation_id, "user_id": user_id,
            "granted_scopes": granted, "manifest_version": 1, "manifest_hash": hash});
        (json!(event_type), payload)
    };
    let expected = [
        told("relation.established", json!(["notes:read"])),
        told("agent.capability_changed", json!([])),
        told("agent.capability_changed", json!(["notes:read"])),
        told("agent.capability_changed", json!([])),
        told("relation.revoked", json!([])),
    ];
    for (event_type, payload) in &expected {
        let frame = socket.hear().await;
        assert_eq!((&frame["type"], &frame["payload"]), (event_type, payload));
    }
    // To the receiver they come in any order.
    let received = hook.received(expected.len()).await;
    let mut bodies: Vec<Value> = received.iter().map(|one| serde_json::from_slice(&one.body).unwrap()).collect();
    for (event_type, payload) in &expected {
        let found = bodies.iter().position(|body| body["type"] == *event_type && body["payload"] == *payload);
        bodies.remove(found.unwrap_or_else(|| panic!("{event_type} {payload}")));
    }
}

#[both_engines]
async fn a_store_that_fails_for_a_while_only_delays_the_request(engine: Engine) {
    let scene = Scene::set(engine).await;
    let (_, ada) = user(&scene.server, "ada").await;
    scene.grant(&ada).await;
    let mut socket = connect(&scene.server, &ada).await;
    scene.server.store("ALTER TABLE relations RENAME COLUMN user_id TO elsewhere").await;
    scene.publish(&second()).await;
    let (mut other, _) = Socket::introduce(&scene.server, "/ws/human", &ada).await;
    assert_eq!(other.closed().await, 1011, "nobody's relations can be read");
    eventually("it was tried, and is tried again", async || {
        (value(&scene.server, "ostler_reauth_retries_total").await > 0.0).then_some(())
    })
    .await;
    scene.server.store("ALTER TABLE relations RENAME COLUMN elsewhere TO user_id").await;
    assert_eq!(socket.hear().await["new_manifest_version"], 2);
}

#[both_engines]
async fn a_connection_that_missed_every_wake_up_still_gets_the_request(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.limits.socket_reread_ms = 10).await;
    let scene = Scene::of(server).await;
    let (_, ada) = user(&scene.server, "ada").await;
    scene.grant(&ada).await;
    let made = scene.server.post("/agents", &json!({"name": "another", "capability_manifest": second()})).await;
    let another = id(&made.with_status(201), "id");
    let mut socket = connect(&scene.server, &ada).await;
    // A manifest is published without a wake-up.
    let sql = format!(
        "INSERT INTO manifests (agent_id, version, hash, manifest, declared_since, created_at)
         SELECT '{}', 2, hash, manifest, declared_since, created_at FROM manifests WHERE agent_id = '{another}'",
        scene.agent_id
    );
    scene.server.store(&sql).await;
    assert_eq!(socket.hear().await["new_manifest_version"], 2);
    is_open(&mut socket).await;
}

/// Only Postgres lets a test hold up a write that has begun.
#[test]
fn an_owner_who_disconnects_does_not_stop_the_requests() {
    crate::harness::run(async {
        let scene = Scene::set(Engine::Postgres).await;
        let (_, ada) = user(&scene.server, "ada").await;
        scene.grant(&ada).await;
        let mut socket = connect(&scene.server, &ada).await;
        let url = scene.server.config.store.database_url.clone().unwrap();
        let mut holder = PgConnection::connect(secrecy::ExposeSecret::expose_secret(&url)).await.unwrap();
        holder.execute("BEGIN; LOCK TABLE manifests IN EXCLUSIVE MODE").await.unwrap();
        let body = json!({"capability_manifest": second()}).to_string();
        let request = format!(
            "PATCH /agents/{} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            scene.agent_id,
            scene.server.token().unwrap(),
            body.len()
        );
        let mut owner = TcpStream::connect(scene.server.address()).await.unwrap();
        owner.write_all(request.as_bytes()).await.unwrap();
        let waiting = "SELECT 'waits' FROM pg_locks WHERE NOT granted AND relation = 'manifests'::regclass";
        eventually("the manifest is about to be written", async || scene.server.store(waiting).await.pop()).await;
        drop(owner);
        for _ in 0..20 {
            scene.server.get("/health").await.with_status(200);
        }
        holder.execute("COMMIT").await.unwrap();
        assert_eq!(socket.hear().await["new_manifest_version"], 2);
    });
}

/// Several servers need Postgres.
#[test]
fn users_connected_to_another_server_get_the_request_too() {
    crate::harness::run(async {
        let scene = Scene::set(Engine::Postgres).await;
        let there = scene.server.start_another(|_| ()).await;
        scene.grant(&scene.server).await;
        let mut socket = connect(&there, &there).await;
        let (mut agents, _) = Socket::introduce(&there, "/ws/agent", &scene.agent().await).await;
        let (_, ada) = user(&scene.server, "ada").await;
        scene.grant(&ada).await;
        assert_eq!(agents.hear().await["type"], "relation.established");
        scene.publish(&second()).await;
        assert_eq!(socket.hear().await["type"], REAUTH_REQUIRED);
    });
}

#[test]
fn of_a_hundred_changes_at_two_servers_each_connection_gets_the_last_one_once() {
    crate::harness::run(async {
        let scene = Scene::set(Engine::Postgres).await;
        let there = scene.server.start_another(|_| ()).await;
        let (_, ada) = user(&scene.server, "ada").await;
        scene.grant(&ada).await;
        let mut sockets = [connect(&scene.server, &ada).await, connect(&there, &ada).await];
        let changes = (0..100).map(|number| {
            let server = if number % 2 == 0 { &scene.server } else { &there };
            let mut manifest = second();
            manifest["permission_scopes"][1]["id"] = json!(format!("notes:write{number}"));
            let path = format!("/agents/{}", scene.agent_id);
            async move { server.patch(&path, &json!({"capability_manifest": manifest})).await.with_status(200) }
        });
        let published = futures_util::future::join_all(changes).await;
        let version = |value: &Value| value["capability_manifest_version"].as_i64().unwrap();
        let mut versions: Vec<_> = published.iter().map(version).collect();
        versions.sort_unstable();
        assert_eq!(versions, (2..=101).collect::<Vec<_>>());
        for socket in &mut sockets {
            let mut last = 1;
            while last < 101 {
                let told = socket.hear().await["new_manifest_version"].as_i64().unwrap();
                assert!(told > last, "{told} after {last}");
                last = told;
            }
            is_open(socket).await;
        }
    });
}
