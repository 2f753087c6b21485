//! An identity of the mesh: its key, its certificate, and the calls by which it registers, logs in and connects. Frames
//! are plain JSON, so that tests see the wire and not our types.

use ostler_crypto::keys::{Curve, PrivateKey};
use ostler_server::clock::fill;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{Socket, TestServer, id};

pub(crate) struct Identity {
    pub aid: String,
    pub key: PrivateKey,
    /// PEM.
    pub cert: String,
}

/// The result of a login.
#[derive(Clone, Debug)]
pub(crate) struct Tokens {
    pub access: String,
    pub refresh: String,
    pub answer: Value,
}

/// The first half of a login.
pub(crate) struct Begun {
    pub request_id: String,
    pub nonce: String,
    pub answer: Value,
}

/// A connection to the gateway, with its challenge read.
pub(crate) struct Wire {
    pub socket: Socket,
    pub nonce: String,
    /// What came between the answers.
    pub pushed: Vec<Value>,
    calls: u64,
}

impl Wire {
    pub(crate) async fn open(server: &TestServer) -> Self {
        Self::over(Socket::open(server, "/aun", &[]).await.unwrap()).await
    }

    pub(crate) async fn over(mut socket: Socket) -> Self {
        let challenge = socket.hear().await;
        assert_eq!((&challenge["method"], &challenge["id"]), (&json!("challenge"), &Value::Null), "{challenge}");
        Self { socket, nonce: id(&challenge["params"], "nonce"), pushed: vec![], calls: 0 }
    }

    /// The whole response. Frames that are pushed before it are put aside.
    pub(crate) async fn ask(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let call = format!("rpc-{}", self.calls);
        self.socket.say(&json!({"jsonrpc": "2.0", "id": call, "method": method, "params": params})).await;
        loop {
            let answer = self.socket.hear().await;
            if answer["id"] == call.as_str() {
                assert_eq!(answer["jsonrpc"], "2.0");
                return answer;
            }
            assert!(answer["id"].is_null() && answer["method"].is_string(), "{answer}");
            self.pushed.push(answer);
        }
    }

    #[track_caller]
    pub(crate) fn call(&mut self, method: &str, params: Value) -> impl Future<Output = Value> {
        let method = method.to_owned();
        async move {
            let answer = self.ask(&method, params).await;
            assert!(answer["result"].is_object(), "{method}: {answer}");
            answer["result"].clone()
        }
    }

    /// The code and the message of the refusal.
    pub(crate) async fn refused(&mut self, method: &str, params: Value) -> (i64, String) {
        let answer = self.ask(method, params).await;
        let error = &answer["error"];
        let code = error["code"].as_i64().unwrap_or_else(|| panic!("{method}: {answer}"));
        (code, id(error, "message"))
    }
}

/// A connection that answers pings and sends nothing else. It closes when it is dropped.
pub(crate) struct Staying(JoinHandle<()>);

impl Wire {
    pub(crate) fn stay(mut self) -> Staying {
        Staying(tokio::spawn(async move { while self.socket.is_open().await {} }))
    }
}

impl Drop for Staying {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// One call on a fresh connection, as the published client makes them: the whole answer.
pub(crate) async fn fresh(server: &TestServer, method: &str, params: Value) -> Value {
    Wire::open(server).await.ask(method, params).await
}

impl Identity {
    /// A client with a key and no name yet.
    pub(crate) fn stranger(name: &str) -> Self {
        let key = PrivateKey::generate(Curve::P256, &mut fill);
        Self { aid: format!("{name}.localhost.test"), key, cert: String::new() }
    }

    pub(crate) async fn register(server: &TestServer, name: &str) -> Self {
        let mut identity = Self::stranger(name);
        let answer = fresh(server, "auth.create_aid", identity.registration()).await;
        identity.cert = id(&answer["result"], "cert");
        identity
    }

    pub(crate) fn registration(&self) -> Value {
        json!({"aid": self.aid, "public_key": self.key.public_key().to_base64(), "curve": "P-256"})
    }

    pub(crate) async fn begin(&self, server: &TestServer) -> Begun {
        let params = json!({"aid": self.aid, "cert": self.cert, "client_nonce": "Y2xpZW50"});
        let answer = fresh(server, "auth.aid_login1", params).await["result"].clone();
        Begun { request_id: id(&answer, "request_id"), nonce: id(&answer, "nonce"), answer }
    }

    /// The second half's parameters, with the client's time as it is transmitted.
    pub(crate) fn proof(&self, begun: &Begun, client_time: &str) -> Value {
        let signature = self.key.sign_base64(format!("{}:{client_time}", begun.nonce).as_bytes());
        json!({"aid": self.aid, "request_id": begun.request_id, "nonce": begun.nonce, "client_time": client_time,
            "signature": signature})
    }

    pub(crate) async fn login(&self, server: &TestServer) -> Tokens {
        let begun = self.begin(server).await;
        let answer = fresh(server, "auth.aid_login2", self.proof(&begun, "1794700691.7287993")).await["result"].clone();
        Tokens { access: id(&answer, "access_token"), refresh: id(&answer, "refresh_token"), answer }
    }

    /// As [`Identity::connect`], for a device that was connected a moment ago and whose server may not have noticed that
    /// it left.
    pub(crate) async fn connect_again(&self, server: &TestServer, device: &str) -> Wire {
        let tokens = self.login(server).await;
        super::eventually("its place is free", async || {
            let mut wire = Wire::open(server).await;
            let params = introduction(&wire, &tokens, device, "", "fanout");
            (wire.ask("auth.connect", params).await["result"]["status"] == "ok").then_some(wire)
        })
        .await
    }

    /// Logs in and connects as a device; an empty one is a legacy connection.
    pub(crate) async fn connect(&self, server: &TestServer, device: &str) -> Wire {
        let tokens = self.login(server).await;
        let mut wire = Wire::open(server).await;
        let params = introduction(&wire, &tokens, device, "", "fanout");
        assert_eq!(wire.call("auth.connect", params).await["status"], "ok");
        wire
    }
}

/// The parameters of `auth.connect` as the published client sends them.
pub(crate) fn introduction(wire: &Wire, tokens: &Tokens, device: &str, slot: &str, mode: &str) -> Value {
    json!({
        "nonce": wire.nonce, "auth": {"method": "kite_token", "token": tokens.access},
        "protocol": {"min": "1.0", "max": "1.0"}, "device": {"id": device, "type": "sdk"}, "client": {"slot_id": slot},
        "delivery_mode": {"mode": mode, "routing": "", "affinity_ttl_ms": 0},
        "capabilities": {"e2ee": true, "group_e2ee": true},
    })
}
