//! The published client `aun-core` 0.2.10, unmodified, against a whole server: it registers, logs in, connects, stays
//! logged in, and stops believing whom it should not. The subject is what it understands, so one engine is enough.

use std::{path::Path, process::Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use crate::harness::{Engine, PATIENCE, TestServer, both_engines, id, one_engine};

/// The client's process. It is killed when this is dropped.
pub(crate) struct Published {
    _child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
    home: TempDir,
}

impl Published {
    fn start(web_root: Option<&Path>) -> Self {
        let python = std::env::var("OSTLER_TEST_PYTHON");
        let python = python.expect("`cargo xtask test` installs the client and names its Python");
        let mut command = Command::new(python);
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mesh/client.py"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        command.envs(web_root.map(|file| ("SSL_CERT_FILE", file)));
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let stdout = BufReader::new(stdout).lines();
        Self { _child: child, stdin, stdout, home: TempDir::new().unwrap() }
    }

    /// What the client made of it, whole.
    pub(crate) async fn ask(&mut self, asked: Value) -> Value {
        self.stdin.write_all(format!("{asked}\n").as_bytes()).await.unwrap();
        let line = timeout(3 * PATIENCE, self.stdout.next_line()).await.expect("the client answers");
        serde_json::from_str(&line.unwrap().expect("the client lives")).unwrap()
    }

    #[track_caller]
    pub(crate) fn ok(&mut self, asked: Value) -> impl Future<Output = Value> {
        let said = asked.to_string();
        async move {
            let answer = self.ask(asked).await;
            assert!(answer.get("ok").is_some(), "{said}: {answer}");
            answer
        }
    }

    /// A client with a home, and so a device, of its own, that trusts this server's root.
    pub(crate) async fn add(&mut self, server: &TestServer, who: &str) {
        let root = server.config.server.data_dir.clone().unwrap().join("pki/root.crt");
        self.add_trusting(server, who, &root).await;
    }

    async fn add_trusting(&mut self, server: &TestServer, who: &str, root: &Path) {
        let gateway = format!("ws://{}/aun", server.address());
        let config = json!({"aun_path": self.home.path().join(who), "root_ca_path": root, "seed_password": "x",
            "discovery_port": server.address().port()});
        let messages = ["message.received", "message.ack", "message.recalled", "message.undecryptable"];
        let events = [&["token.refreshed", "connection.state"][..], &messages].concat();
        self.ok(json!({"do": "new", "who": who, "config": config, "gateway": gateway, "events": events})).await;
    }

    /// The same keys for another client, which becomes another device.
    pub(crate) fn copy_home(&self, from: &str, to: &str) {
        let (from, to) = (self.home.path().join(from), self.home.path().join(to));
        let copied = std::process::Command::new("cp").arg("-r").args([&from, &to]).status().unwrap();
        assert!(copied.success());
        std::fs::remove_file(to.join(".device_id")).unwrap();
    }

    /// Registers and logs in, without anything to warn of.
    pub(crate) async fn enter(&mut self, who: &str) -> String {
        let aid = format!("{who}.localhost.test");
        for verb in ["create", "login"] {
            let answer = self.ok(json!({"do": verb, "who": who, "aid": aid})).await;
            let mut warnings = answer["warnings"].as_array().unwrap().clone();
            // The client also looks for groups, in the background, which this server does not have.
            warnings.retain(|warning| !warning.as_str().is_some_and(|text| text.contains("\"group.")));
            assert!(warnings.is_empty(), "{verb}: {warnings:?}");
        }
        aid
    }
}

/// The client reads the machine's clock, so the server's must show the same time.
pub(crate) async fn start(engine: Engine) -> (TestServer, Published) {
    let server = TestServer::start(engine).await;
    server.clock.catch_up(0);
    (server, Published::start(None))
}

#[one_engine]
async fn it_registers_logs_in_and_connects_without_a_warning(engine: Engine) {
    let (server, mut published) = start(engine).await;
    published.add(&server, "alice").await;
    let aid = published.enter("alice").await;
    assert_eq!(published.ok(json!({"do": "connect", "who": "alice"})).await["ok"]["state"], "connected");
    let call = |method: &str| json!({"do": "call", "who": "alice", "method": method});
    assert_eq!(published.ok(call("meta.ping")).await["ok"]["pong"], true);
    assert_eq!(published.ok(call("meta.status")).await["ok"]["aid"], aid.as_str());
    assert!(published.ok(call("meta.trust_roots")).await["ok"]["authority_signature"].is_string());
    let own = published.ok(call("auth.download_cert")).await["ok"]["cert"].clone();
    assert_eq!(published.ok(json!({"do": "certificate", "who": "alice", "aid": aid})).await["ok"]["cert"], own);
    let unknown = published.ask(call("search.query")).await;
    assert_eq!((&unknown["class"], &unknown["code"]), (&json!("ValidationError"), &json!(-32601)));
    let text = format!(
        "---\naid: \"{aid}\"\nname: \"Alice\"\ntype: \"assistant\"\nversion: \"1.0.0\"\ndescription: \"一句话描述\"\n---\n# Alice\n"
    );
    assert_eq!(published.ok(json!({"do": "upload", "who": "alice", "text": text})).await["ok"]["ok"], true);
    assert_eq!(published.ok(json!({"do": "download", "who": "alice", "aid": aid})).await["ok"]["text"], text.as_str());
    // Registered again from nothing but its key, as after a lost answer: it finds that the name is its own.
    published.ok(json!({"do": "create", "who": "alice", "aid": aid})).await;
}

#[both_engines]
async fn it_stays_logged_in_by_fresh_tokens(engine: Engine) {
    let (server, mut published) = start(engine).await;
    published.add(&server, "alice").await;
    published.enter("alice").await;
    // It refreshes as soon as less than this is left of its token.
    published.ok(json!({"do": "connect", "who": "alice", "options": {"token_refresh_before": 3_599}})).await;
    for _ in 0..2 {
        loop {
            let told = published.ok(json!({"do": "event", "who": "alice"})).await;
            if told["ok"]["event"] == "token.refreshed" {
                break;
            }
        }
    }
    let refreshes = server.store("SELECT CAST(MAX(refreshes) AS TEXT) FROM mesh_logins").await;
    assert!(refreshes[0].parse::<u32>().unwrap() >= 2, "{refreshes:?}");
}

#[one_engine]
async fn it_takes_a_renewed_certificate(engine: Engine) {
    let server = TestServer::start(engine).await;
    server.clock.catch_up(200);
    let mut published = Published::start(None);
    published.add(&server, "alice").await;
    let aid = "alice.localhost.test";
    let first = published.ok(json!({"do": "create", "who": "alice", "aid": aid})).await["ok"]["cert_pem"].clone();
    server.clock.catch_up(0);
    let login = published.ok(json!({"do": "login", "who": "alice", "aid": aid})).await;
    assert_eq!(login["warnings"], json!([]));
    let kept = published.ok(json!({"do": "certificate", "who": "alice", "aid": aid})).await["ok"]["cert"].clone();
    assert_ne!(kept, first);
    assert_eq!(kept, server.with_token(None).get(&format!("/pki/cert/{aid}")).await.text.as_str());
    published.ok(json!({"do": "login", "who": "alice", "aid": aid})).await;
}

#[one_engine]
async fn it_believes_neither_a_revoked_peer_nor_another_root(engine: Engine) {
    let (server, mut published) = start(engine).await;
    for who in ["alice", "bobby", "carol"] {
        published.add(&server, who).await;
        published.enter(who).await;
    }
    let peer = |who: &str, aid: &str| json!({"do": "peer", "who": who, "aid": format!("{aid}.localhost.test")});
    let believed = published.ok(peer("alice", "bobby")).await;
    assert_eq!(believed["warnings"], json!([]));
    server.post("/api/v1/identities/carol.localhost.test/revoke", &json!({})).await.ok();
    let refused = published.ask(peer("bobby", "carol")).await;
    assert!(id(&refused, "error").contains("revoked"), "{refused}");
    let out = published.ask(json!({"do": "login", "who": "carol", "aid": "carol.localhost.test"})).await;
    assert!(id(&out, "error").contains("revoked"), "{out}");
    // A client that trusts another root does not log in here.
    let elsewhere = TestServer::start(engine).await;
    let root = elsewhere.config.server.data_dir.clone().unwrap().join("pki/root.crt");
    published.add_trusting(&server, "david", &root).await;
    let aid = "david.localhost.test";
    published.ok(json!({"do": "create", "who": "david", "aid": aid})).await;
    let refused = published.ask(json!({"do": "login", "who": "david", "aid": aid})).await;
    assert!(refused.get("error").is_some(), "{refused}");
}

#[one_engine]
async fn it_receives_the_kind_of_conflict(engine: Engine) {
    let (server, mut published) = start(engine).await;
    published.add(&server, "alice").await;
    published.enter("alice").await;
    published.ok(json!({"do": "connect", "who": "alice"})).await;
    // The same device once more: other clients with the same home.
    let root = server.config.server.data_dir.clone().unwrap().join("pki/root.crt");
    let config = json!({"aun_path": published.home.path().join("alice"), "root_ca_path": root, "seed_password": "x"});
    let gateway = format!("ws://{}/aun", server.address());
    for (who, auth, conflict) in [
        ("again", json!({}), "device_singleton_conflict"),
        ("queue", json!({"delivery_mode": "queue"}), "delivery_mode_conflict"),
    ] {
        published.ok(json!({"do": "new", "who": who, "config": config, "gateway": gateway})).await;
        published.ok(json!({"do": "login", "who": who, "aid": "alice.localhost.test"})).await;
        let refused = published.ask(json!({"do": "connect", "who": who, "auth": auth})).await;
        assert!(id(&refused, "error").contains(conflict), "{refused}");
    }
}

/// A certificate for the web, as an operator would get one.
fn web_certificate(directory: &Path) {
    let made = std::process::Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost.test", "-addext", "subjectAltName=DNS:localhost.test,DNS:*.localhost.test"])
        .args(["-keyout", "web.key", "-out", "web.crt"])
        .current_dir(directory)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

#[one_engine]
async fn it_finds_the_gateway_by_name_over_tls(engine: Engine) {
    let scratch = TempDir::new().unwrap();
    web_certificate(scratch.path());
    let (cert, key) = (scratch.path().join("web.crt"), scratch.path().join("web.key"));
    let server = TestServer::with(engine, |setup| {
        setup.config.server.tls_cert = Some(cert.clone());
        setup.config.server.tls_key = Some(key.clone());
    })
    .await;
    server.clock.catch_up(0);
    let mut published = Published::start(Some(&cert));
    let root = server.config.server.data_dir.clone().unwrap().join("pki/root.crt");
    let config = json!({"aun_path": published.home.path().join("alice"), "root_ca_path": root, "seed_password": "x",
        "discovery_port": server.address().port()});
    published.ok(json!({"do": "new", "who": "alice", "config": config})).await;
    let login = {
        published.enter("alice").await;
        published.ok(json!({"do": "login", "who": "alice", "aid": "alice.localhost.test"})).await
    };
    let port = server.address().port();
    assert_eq!(login["ok"]["gateway"], format!("wss://gateway.localhost.test:{port}/aun"));
    published.ok(json!({"do": "connect", "who": "alice"})).await;
    let ping = published.ok(json!({"do": "call", "who": "alice", "method": "meta.ping"})).await;
    assert_eq!(ping["ok"]["pong"], true);
}
