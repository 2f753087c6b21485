//! WebSockets of people and agents: who is let in, for how long, and what ends a connection.

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::harness::{Caller, Engine, Socket, TestServer, both_engines, eventually, id};

pub(crate) const HUMAN: &str = "/ws/human";
const REFUSED: u16 = 4001;

pub(crate) async fn user(server: &TestServer, name: &str) -> (String, Caller) {
    let made = server.post("/api/v1/users", &json!({"name": name, "timezone": "UTC"})).await.with_status(201);
    (id(&made, "userId"), token(server, name, 3_600_000).await)
}

async fn token(server: &TestServer, name: &str, life_ms: i64) -> Caller {
    let made = server.post(&format!("/api/v1/users/{name}/token"), &json!({"expiresInMs": life_ms})).await;
    server.with_token(Some(&id(&made.with_status(201), "token")))
}

pub(crate) async fn new_agent(owner: &Caller) -> String {
    id(&owner.post("/agents", &json!({"name": "told"})).await.with_status(201), "id")
}

fn renewal(caller: &Caller) -> Value {
    json!({"type": "auth.renew", "access_token": caller.token().unwrap()})
}

/// It still answers.
pub(crate) async fn is_open(socket: &mut Socket) {
    socket.say(&json!({"type": "whatever"})).await;
    assert_eq!(socket.hear().await["code"], "unknown_frame");
}

#[both_engines]
async fn a_socket_opens_for_an_authenticated_caller(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (user_id, ada) = user(&server, "ada").await;
    let (mut socket, answer) = Socket::introduce(&server, HUMAN, &ada).await;
    assert_eq!(answer, json!({"type": "auth.ok", "user_id": user_id}));
    is_open(&mut socket).await;
    let (_local, answer) = Socket::introduce(&server, HUMAN, &server).await;
    assert_eq!(answer, json!({"type": "auth.ok", "user_id": "local"}));
    let page = server.send(server.request("GET", "/metrics")).await.text;
    assert!(page.contains("\nostler_sockets 2\n"), "{page}");
}

#[both_engines]
async fn a_socket_that_stays_silent_is_closed_at_the_deadline(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.limits.socket_auth_ms = 50).await;
    let mut socket = Socket::open(&server, HUMAN, &[]).await.unwrap();
    let told = socket.hear().await;
    assert_eq!((&told["type"], &told["reason"]), (&json!("auth.error"), &json!("timeout")));
    assert_eq!(socket.closed().await, REFUSED);
}

#[both_engines]
async fn a_first_frame_that_is_no_auth_ends_the_connection(engine: Engine) {
    let server = TestServer::start(engine).await;
    let first_frames = [json!({"type": "auth"}), json!({"type": "message.new"}), json!([]), renewal(&server)];
    for frame in first_frames {
        let mut socket = Socket::open(&server, HUMAN, &[]).await.unwrap();
        socket.say(&frame).await;
        assert_eq!(socket.hear().await["reason"], "malformed", "{frame}");
        assert_eq!(socket.closed().await, REFUSED);
    }
    let mut socket = Socket::open(&server, HUMAN, &[]).await.unwrap();
    socket.send(Message::binary(vec![1, 2, 3])).await;
    assert_eq!(socket.closed().await, 1003);
}

#[both_engines]
async fn a_bad_token_and_a_wrong_caller_are_refused_with_the_reason(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.token("platform", "client", &["hwlab"])).await;
    let stranger = server.with_token(Some("ost_svc_nobody_0123456789abcdef0123456789abcdef"));
    for (caller, reason) in [(&stranger, "invalid_token"), (server.caller("platform"), "wrong_caller")] {
        let (mut socket, told) = Socket::introduce(&server, HUMAN, caller).await;
        assert_eq!((&told["type"], &told["reason"]), (&json!("auth.error"), &json!(reason)));
        assert_eq!(told["i18n_key"], format!("ws.auth.{reason}"));
        assert!(!told["message"].as_str().unwrap().is_empty());
        assert_eq!(socket.closed().await, REFUSED);
    }
}

#[both_engines]
async fn a_token_is_renewed_without_reconnecting_and_one_that_has_ended_ends_the_connection(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.limits.socket_readmit_ms = 10).await;
    let (user_id, _) = user(&server, "ada").await;
    let short = token(&server, "ada", 60_000).await;
    let (mut renewing, _) = Socket::introduce(&server, HUMAN, &short).await;
    let (mut idle, _) = Socket::introduce(&server, HUMAN, &short).await;
    server.clock.advance_ms(30_000);
    renewing.say(&renewal(&token(&server, "ada", 3_600_000).await)).await;
    assert_eq!(renewing.hear().await, json!({"type": "auth.ok", "user_id": user_id}));
    // Clocks may differ by 30 s.
    server.clock.advance_ms(60_000);
    assert_eq!(idle.hear().await["reason"], "invalid_token");
    assert_eq!(idle.closed().await, REFUSED);
    is_open(&mut renewing).await;
}

#[both_engines]
async fn a_token_is_renewed_so_often_and_no_more(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (_, ada) = user(&server, "ada").await;
    let (mut socket, _) = Socket::introduce(&server, HUMAN, &ada).await;
    for _ in 0..10 {
        socket.say(&renewal(&ada)).await;
        assert_eq!(socket.hear().await["type"], "auth.ok");
    }
    socket.say(&renewal(&ada)).await;
    assert_eq!(socket.hear().await["code"], "too_many_renewals");
    is_open(&mut socket).await;
}

#[both_engines]
async fn a_removed_user_is_cut_off(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.limits.socket_readmit_ms = 10).await;
    let (_, ada) = user(&server, "ada").await;
    let (mut socket, _) = Socket::introduce(&server, HUMAN, &ada).await;
    server.send(server.request("DELETE", "/api/v1/users/ada")).await.with_status(200);
    assert_eq!(socket.hear().await["type"], "auth.error");
    assert_eq!(socket.closed().await, REFUSED);
}

#[both_engines]
async fn a_connection_cannot_change_its_user(engine: Engine) {
    let server = TestServer::start(engine).await;
    let ((_, ada), (_, bob)) = (user(&server, "ada").await, user(&server, "bob").await);
    let (mut socket, _) = Socket::introduce(&server, HUMAN, &ada).await;
    socket.say(&renewal(&bob)).await;
    assert_eq!(socket.hear().await["reason"], "wrong_caller");
    assert_eq!(socket.closed().await, REFUSED);
}

#[both_engines]
async fn foreign_pages_and_foreign_names_do_not_get_a_socket(engine: Engine) {
    let allow = |setup: &mut crate::harness::Setup| {
        setup.config.server.allow_origins = vec!["https://console.example".into()];
    };
    let server = TestServer::with(engine, allow).await;
    for wrong in [("origin", "https://evil.example"), ("origin", "null"), ("host", "evil.example")] {
        assert_eq!(Socket::open(&server, HUMAN, &[wrong]).await.err(), Some(403), "{wrong:?}");
    }
    assert!(Socket::open(&server, HUMAN, &[("origin", "https://console.example")]).await.is_ok());
}

#[both_engines]
async fn a_caller_has_so_many_sockets_and_no_more(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.limits.sockets_per_caller_max = 2).await;
    let ((_, ada), (_, bob)) = (user(&server, "ada").await, user(&server, "bob").await);
    let (first, _) = Socket::introduce(&server, HUMAN, &ada).await;
    let (_second, _) = Socket::introduce(&server, HUMAN, &ada).await;
    let (mut third, told) = Socket::introduce(&server, HUMAN, &ada).await;
    assert_eq!(told["reason"], "too_many_connections");
    assert_eq!(third.closed().await, REFUSED);
    assert_eq!(Socket::introduce(&server, HUMAN, &bob).await.1["type"], "auth.ok", "others have their own");
    drop(first);
    eventually("the place is free again", async || {
        let (_, told) = Socket::introduce(&server, HUMAN, &ada).await;
        (told["type"] == "auth.ok").then_some(())
    })
    .await;
}

#[both_engines]
async fn a_frame_that_is_too_long_ends_the_connection(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (mut socket, _) = Socket::introduce(&server, HUMAN, &server).await;
    let longest = format!("{}{{}}", " ".repeat(64 * 1024 - 2));
    socket.send(Message::text(longest.clone())).await;
    assert_eq!(socket.hear().await["code"], "unknown_frame");
    socket.send(Message::text(format!(" {longest}"))).await;
    assert_eq!(socket.closed().await, 1009);
    let mut stranger = Socket::open(&server, HUMAN, &[]).await.unwrap();
    stranger.send(Message::text(format!(" {longest}"))).await;
    assert_eq!(stranger.closed().await, 1009);
}

#[both_engines]
async fn an_agent_connects_by_its_own_token_and_only_as_itself(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (agent_id, other_id) = (new_agent(&server).await, new_agent(&server).await);
    let made = server.post(&format!("/agents/{agent_id}/tokens"), &json!({"name": "own"})).await.with_status(201);
    let agent = server.with_token(Some(&id(&made, "token")));
    let (_, ada) = user(&server, "ada").await;
    let auth = |caller: &Caller| json!({"type": "auth", "token": caller.token().unwrap()});
    let named = |name: &str| json!({"type": "auth", "token": agent.token().unwrap(), "agent_id": name});
    let own_path = format!("/ws/agent?agent_id={agent_id}");
    for (path, frame) in [("/ws/agent", auth(&agent)), (&own_path, auth(&agent)), (&own_path, named(&agent_id))] {
        let mut socket = Socket::open(&server, path, &[]).await.unwrap();
        socket.say(&frame).await;
        assert_eq!(socket.hear().await, json!({"type": "auth.ok", "agent_id": agent_id}), "{path}");
    }
    let other_path = format!("/ws/agent?agent_id={other_id}");
    for (path, frame) in [
        ("/ws/agent", auth(&ada)),
        ("/ws/agent", auth(&server)),
        (HUMAN, auth(&agent)),
        ("/ws/agent", named(&other_id)),
        ("/ws/agent", named("nobody")),
        (&other_path, auth(&agent)),
        (&other_path, named(&agent_id)),
    ] {
        let mut socket = Socket::open(&server, path, &[]).await.unwrap();
        socket.say(&frame).await;
        assert_eq!(socket.hear().await["reason"], "wrong_caller", "{path} {frame}");
        assert_eq!(socket.closed().await, REFUSED);
    }
}

#[both_engines]
async fn an_agents_token_is_renewed_by_another_one_and_a_revoked_one_ends_the_connection(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.limits.socket_readmit_ms = 10).await;
    let agent_id = new_agent(&server).await;
    let tokens = format!("/agents/{agent_id}/tokens");
    let old = server.post(&tokens, &json!({"name": "old"})).await.with_status(201);
    let new = server.post(&tokens, &json!({"name": "new"})).await.with_status(201);
    let [old_agent, new_agent] = [&old, &new].map(|made| server.with_token(Some(&id(made, "token"))));
    let (mut renewing, _) = Socket::introduce(&server, "/ws/agent", &old_agent).await;
    let (mut idle, _) = Socket::introduce(&server, "/ws/agent", &old_agent).await;
    renewing.say(&renewal(&new_agent)).await;
    assert_eq!(renewing.hear().await["type"], "auth.ok");
    server.send(server.request("DELETE", &format!("{tokens}/{}", id(&old, "token_id")))).await.with_status(200);
    assert_eq!(idle.hear().await["reason"], "invalid_token");
    assert_eq!(idle.closed().await, REFUSED);
    is_open(&mut renewing).await;
}

#[both_engines]
async fn the_server_asks_whether_the_other_end_is_there(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.limits.socket_ping_ms = 20).await;
    let (mut socket, _) = Socket::introduce(&server, HUMAN, &server).await;
    for _ in 0..3 {
        assert!(matches!(socket.next().await, Message::Ping(_)));
    }
}

#[both_engines]
async fn a_server_that_always_requires_a_token_takes_it_from_the_first_frame(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.server.require_auth = true).await;
    assert_eq!(Socket::introduce(&server, HUMAN, &server).await.1["type"], "auth.ok");
}

#[both_engines]
async fn a_server_that_stops_closes_its_sockets_as_going_away(engine: Engine) {
    let mut server = TestServer::start(engine).await;
    let (mut known, _) = Socket::introduce(&server, HUMAN, &server).await;
    let mut unknown = Socket::open(&server, HUMAN, &[]).await.unwrap();
    let (_, goodbyes) = tokio::join!(server.restart(), async { [known.closed().await, unknown.closed().await] });
    assert_eq!(goodbyes, [1001, 1001]);
}

#[both_engines]
async fn what_is_no_websocket_is_refused(engine: Engine) {
    let server = TestServer::start(engine).await;
    let refused = server.get(HUMAN).await.refused_by(ostler_protocol::FailureKind::SchemaInvalid, "websocket");
    assert!(refused.message.contains("WebSocket"), "{refused:?}");
}
