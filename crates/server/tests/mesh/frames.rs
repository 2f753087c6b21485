//! What comes over the wire and is no call gets the answer that JSON-RPC prescribes, and a call gets no further than its
//! connection may go.

use ostler_mesh::config::MeshSection;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::harness::{Engine, Identity, Socket, TestServer, Wire, introduction, one_engine};

#[one_engine]
async fn the_server_speaks_first(engine: Engine) {
    let server = TestServer::start(engine).await;
    let mut socket = Socket::open(&server, "/aun", &[]).await.unwrap();
    let challenge = socket.hear().await;
    assert_eq!((&challenge["jsonrpc"], &challenge["method"]), (&json!("2.0"), &json!("challenge")));
    let params = &challenge["params"];
    assert!(params["nonce"].as_str().unwrap().len() >= 32, "{challenge}");
    assert_eq!(params["protocol"], json!({"min": "1.0", "max": "1.0"}));
    assert!(params["server_time"].as_i64().unwrap() > 1_700_000_000_000, "milliseconds: {challenge}");
    let other = Wire::open(&server).await;
    assert_ne!(params["nonce"], other.nonce.as_str());
}

#[one_engine]
async fn invalid_calls_have_the_errors_of_json_rpc(engine: Engine) {
    let server = TestServer::start(engine).await;
    let mut wire = Wire::open(&server).await;
    for (text, code, id) in [
        ("{", -32700, Value::Null),
        ("[]", -32600, Value::Null),
        (r#"{"jsonrpc":"2.0","id":7}"#, -32600, json!(7)),
        (r#"{"id":"a","method":"meta.ping"}"#, -32600, json!("a")),
        (r#"{"jsonrpc":"2.0","id":1,"method":"search.query"}"#, -32601, json!(1)),
        (r#"{"jsonrpc":"2.0","id":2,"method":"auth.aid_login1","params":{"aid":"x"}}"#, -32602, json!(2)),
        (r#"{"jsonrpc":"2.0","id":3,"method":"auth.aid_login1","params":[1]}"#, -32602, json!(3)),
    ] {
        wire.socket.send(Message::text(text)).await;
        let answer = wire.socket.hear().await;
        assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(code), &id), "{text}: {answer}");
    }
    // Nothing is said to a notification: the next answer is to the next call.
    wire.socket.send(Message::text(r#"{"jsonrpc":"2.0","method":"meta.ping"}"#)).await;
    let (code, _) = wire.refused("nobody.knows", json!({})).await;
    assert_eq!(code, -32601);
    wire.socket.send(Message::binary(vec![1, 2, 3])).await;
    assert_eq!(wire.socket.closed().await, 1003);
}

#[one_engine]
async fn calls_of_a_session_wait_for_the_introduction(engine: Engine) {
    let server = TestServer::start(engine).await;
    let mut wire = Wire::open(&server).await;
    for method in ["meta.ping", "message.send", "auth.download_cert"] {
        assert_eq!(wire.refused(method, json!({})).await.0, -32001, "{method}");
    }
    let identity = Identity::register(&server, "alice").await;
    let mut wire = identity.connect(&server, "dev-1").await;
    let pong = wire.call("meta.ping", json!({})).await;
    assert_eq!(pong["pong"], true);
    let status = wire.call("meta.status", json!({})).await;
    assert_eq!(
        (&status["mode"], &status["aid"], &status["protocol_version"]),
        (&json!("gateway"), &json!(identity.aid), &json!("1.0"))
    );
    let roots = wire.call("meta.trust_roots", json!({})).await;
    assert_eq!(roots["root_cas"][0]["status"], "active");
    assert!(roots["authority_signature"].is_string());
    let own = wire.call("auth.download_cert", json!({})).await;
    assert_eq!(own["cert"], identity.cert.as_str());
}

#[one_engine]
async fn what_is_too_large_or_too_often_is_refused(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.change(|mesh: &mut MeshSection| mesh.registrations_per_hour_max = 2)
    })
    .await;
    let mut wire = Wire::open(&server).await;
    let (code, message) = wire.refused("auth.aid_login2", json!({"nonce": "x".repeat(8 * 1024)})).await;
    assert_eq!(code, -32602, "{message}");
    for name in ["alice", "bobby"] {
        Identity::register(&server, name).await;
    }
    let (code, _) = wire.refused("auth.create_aid", Identity::stranger("carol").registration()).await;
    assert_eq!(code, -32029);
    server.clock.advance_ms(1_800_001);
    Identity::register(&server, "carol").await;
    // A frame that is longer than any call closes the connection, an identity's as well as a stranger's.
    let frame = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{{"a":"{}"}}}}"#, "x".repeat(2_200_000));
    wire.socket.send(Message::text(frame.clone())).await;
    assert_eq!(wire.socket.closed().await, 1009);
    server.clock.advance_ms(3_600_001);
    let david = Identity::register(&server, "david").await;
    let mut connected = david.connect(&server, "").await;
    connected.socket.send(Message::text(frame)).await;
    assert_eq!(connected.socket.closed().await, 1009);
    let mut connected = david.connect(&server, "").await;
    // Some that are no calls are answered; too many are not listened to.
    let mut wire = Wire::open(&server).await;
    for _ in 0..601 {
        wire.socket.send(Message::text("hello")).await;
    }
    assert_eq!(wire.socket.hear().await["error"]["code"], -32700);
    assert_eq!(wire.socket.closed().await, 1008);
    // An identity is counted apart: the first call of the published client is one that this server does not know.
    let (code, _) = connected.refused("group.list_my", json!({})).await;
    assert_eq!(code, -32601);
}

#[one_engine]
async fn an_oversized_frame_closes_the_connection_with_its_code(engine: Engine) {
    let server = TestServer::start(engine).await;
    let mut session = Identity::register(&server, "alice").await.connect(&server, "dev-1").await;
    for wire in [&mut session, &mut Wire::open(&server).await] {
        wire.socket.pour(Message::text("x".repeat(4 * 1024 * 1024 + 1))).await;
        assert_eq!(wire.socket.closed().await, 1009);
    }
}

#[one_engine]
async fn connections_are_limited(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.limits.sockets_max = 2).await;
    let open = async || Socket::open(&server, "/aun", &[]).await;
    let (first, second) = (open().await.unwrap(), open().await.unwrap());
    assert_eq!(open().await.err(), Some(503));
    drop(first);
    let mut third = open().await;
    while third.is_err() {
        tokio::task::yield_now().await;
        third = open().await;
    }
    drop(second);
}

#[one_engine]
async fn silent_connections_are_limited(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.limits.sockets_fresh_max = 4).await;
    let tokens = Identity::register(&server, "alice").await.login(&server).await;
    // What it took to log in may not have left yet.
    let open = async || Socket::open(&server, "/aun", &[]).await.unwrap();
    let (mut first, second) = (open().await, open().await);
    // One that has introduced itself holds no place among them any more.
    let mut wire = Wire::over(second).await;
    let params = introduction(&wire, &tokens, "dev-1", "", "fanout");
    wire.call("auth.connect", params).await;
    // A new one is always let in; the oldest silent one makes room for it.
    let mut others = vec![];
    for _ in 0..4 {
        others.push(open().await);
    }
    assert_eq!(first.hear().await["method"], "challenge");
    assert_eq!(first.closed().await, 1013);
    assert_eq!(wire.call("meta.ping", json!({})).await["pong"], true, "a session is not closed for it");
    for other in others {
        Wire::over(other).await;
    }
}

#[one_engine]
async fn a_web_page_and_a_foreign_name_are_rejected(engine: Engine) {
    let server = TestServer::start(engine).await;
    let origin = [("origin", "https://evil.example")];
    assert_eq!(Socket::open(&server, "/aun", &origin).await.err(), Some(403));
    assert_eq!(Socket::open(&server, "/aun", &[("host", "evil.example")]).await.err(), Some(403));
    assert!(Socket::open(&server, "/aun", &[("host", "gateway.localhost.test:4747")]).await.is_ok());
    // Names of the mesh open the mesh's doors only.
    let elsewhere = server.request("GET", "/api/v1/runs").header("host", "gateway.localhost.test");
    assert_eq!(server.send(elsewhere).await.status, 403);
    let plain = server.with_token(None).get("/aun").await;
    assert_eq!(plain.status, 400, "{}", plain.text);
    let closed = TestServer::with(engine, |setup| setup.config.server.require_auth = true).await;
    assert_eq!(Socket::open(&closed, "/aun", &[]).await.err(), Some(401));
}
