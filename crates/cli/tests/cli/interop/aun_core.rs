//! The published client of the mesh, `aun-core` 0.2.10, unmodified, across the death of its server: it reconnects by itself
//! and receives what was sent in the meantime.

use std::{
    io::{BufRead, BufReader, Write},
    process::{ChildStdin, ChildStdout, Command, Stdio},
};

use serde_json::{Value, json};

use crate::fixtures::{
    process::{Guarded, Server},
    test_home::{Engine, TestHome, both_engines},
};

const BOBBY: &str = "bobby.localhost.test";
const CAROL: &str = "carol.localhost.test";

struct AunClient {
    _process: Guarded,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl AunClient {
    fn start() -> Self {
        let python = std::env::var("OSTLER_TEST_PYTHON");
        let mut command = Command::new(python.expect("`cargo xtask test` installs the client and names its Python"));
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../server/tests/mesh/client.py"));
        let mut process = Guarded(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        let (stdin, stdout) = (process.0.stdin.take().unwrap(), process.0.stdout.take().unwrap());
        Self { _process: process, stdin, stdout: BufReader::new(stdout) }
    }

    fn ask(&mut self, mut request: Value) -> Value {
        request["who"] = json!("bobby");
        writeln!(self.stdin, "{request}").unwrap();
        let mut line = String::new();
        assert!(self.stdout.read_line(&mut line).unwrap() > 0, "the client lives");
        serde_json::from_str(&line).unwrap()
    }

    #[track_caller]
    fn ok(&mut self, request: Value) -> Value {
        let answer = self.ask(request.clone());
        assert!(answer.get("ok").is_some(), "{request}: {answer}");
        answer["ok"].clone()
    }

    /// The next event that matches.
    fn event(&mut self, matches: impl Fn(&Value) -> bool) -> Value {
        loop {
            // The client reports when it has received nothing for a while.
            let event = self.ask(json!({"do": "event"}));
            assert!(event["class"] == "TimeoutError" || event.get("ok").is_some(), "{event}");
            assert_ne!(event["ok"]["event"], "message.undecryptable", "{event}");
            if matches(&event["ok"]) {
                return event["ok"]["data"].clone();
            }
        }
    }

    fn received(&mut self) -> Value {
        self.event(|event| event["event"] == "message.received")["payload"]["text"].clone()
    }
}

/// A name of `ostler mesh`; it stores the address of its server.
fn join(home: &TestHome, server: &Server, name: &str) {
    let joined = home.cli(Some(server), &["mesh", "join", name]);
    assert!(joined.status.success(), "{joined:?}");
}

fn send(home: &TestHome, server: &Server, from: &str, text: &str) {
    let sent = home.cli(Some(server), &["mesh", "send", BOBBY, text, "--as", from]);
    assert!(sent.status.success(), "{sent:?}");
}

#[both_engines]
fn the_client_reconnects_after_the_servers_death_and_misses_nothing(engine: Engine) {
    let home = TestHome::new(engine);
    let server = home.serve();
    let address = server.address.clone();
    let mut bobby = AunClient::start();
    let root = home.data_dir.join("pki/root.crt");
    let config = json!({"aun_path": home.path("bobby"), "root_ca_path": root, "seed_password": "x"});
    let events = ["message.received", "message.undecryptable", "connection.state"];
    let gateway = format!("ws://{address}/aun");
    bobby.ok(json!({"do": "new", "config": config, "gateway": gateway, "events": events}));
    for verb in ["create", "login"] {
        bobby.ok(json!({"do": verb, "aid": BOBBY}));
    }
    let retry = json!({"initial_delay": 1, "max_delay": 1});
    bobby.ok(json!({"do": "connect", "options": {"auto_reconnect": true, "retry": retry}}));
    join(&home, &server, "carol");
    // An encrypted message needs the prekey that the client publishes after it has connected.
    crate::fixtures::process::eventually("it has left a prekey", || {
        let shown = home.cli(Some(&server), &["mesh", "whois", BOBBY, "--as", CAROL]);
        String::from_utf8_lossy(&shown.stdout).contains("1 device").then_some(())
    });
    send(&home, &server, CAROL, "before");
    assert_eq!(bobby.received(), "before");

    server.kill();
    bobby.event(|event| event["data"]["state"] == "reconnecting");
    // Nothing listens at the client's address, but another server is up in the meantime.
    let meanwhile = home.serve();
    join(&home, &meanwhile, "daisy");
    send(&home, &meanwhile, "daisy.localhost.test", "meanwhile");
    meanwhile.stop();
    let server = home.serve_at(&address);
    bobby.event(|event| event["data"]["state"] == "connected");
    send(&home, &server, CAROL, "after");
    // The push reveals a missed message, which the client fetches; their order is up to the client.
    let mut found = [bobby.received(), bobby.received()].map(|text| text.as_str().unwrap().to_owned());
    found.sort_unstable();
    assert_eq!(found, ["after", "meanwhile"]);
    let called = bobby.ok(json!({"do": "call", "method": "meta.status"}));
    assert_eq!(called["aid"], BOBBY);
}
