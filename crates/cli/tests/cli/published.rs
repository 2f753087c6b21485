//! The published client of the mesh, `aun-core` 0.2.10, unmodified, through the death of its server: it comes back by itself
//! and finds what was sent while it was away.

use std::{
    io::{BufRead, BufReader, Write},
    process::{ChildStdin, ChildStdout, Command, Stdio},
};

use serde_json::{Value, json};

use crate::{
    home::{Engine, Home, both_engines},
    process::{Guarded, Server},
};

const BOBBY: &str = "bobby.localhost.test";
const CAROL: &str = "carol.localhost.test";

struct Published {
    _process: Guarded,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Published {
    fn start() -> Self {
        let python = std::env::var("OSTLER_TEST_PYTHON");
        let mut command = Command::new(python.expect("`cargo xtask test` installs the client and names its Python"));
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../server/tests/mesh/client.py"));
        let mut process = Guarded(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        let (stdin, stdout) = (process.0.stdin.take().unwrap(), process.0.stdout.take().unwrap());
        Self { _process: process, stdin, stdout: BufReader::new(stdout) }
    }

    fn ask(&mut self, mut asked: Value) -> Value {
        asked["who"] = json!("bobby");
        writeln!(self.stdin, "{asked}").unwrap();
        let mut line = String::new();
        assert!(self.stdout.read_line(&mut line).unwrap() > 0, "the client lives");
        serde_json::from_str(&line).unwrap()
    }

    #[track_caller]
    fn ok(&mut self, asked: Value) -> Value {
        let answer = self.ask(asked.clone());
        assert!(answer.get("ok").is_some(), "{asked}: {answer}");
        answer["ok"].clone()
    }

    /// The next event that this is said of.
    fn event(&mut self, is_meant: impl Fn(&Value) -> bool) -> Value {
        loop {
            // It says when it has heard nothing for a while.
            let told = self.ask(json!({"do": "event"}));
            assert!(told["class"] == "TimeoutError" || told.get("ok").is_some(), "{told}");
            assert_ne!(told["ok"]["event"], "message.undecryptable", "{told}");
            if is_meant(&told["ok"]) {
                return told["ok"]["data"].clone();
            }
        }
    }

    fn received(&mut self) -> Value {
        self.event(|told| told["event"] == "message.received")["payload"]["text"].clone()
    }
}

/// A name of our own; it knows its server by the address it joined at.
fn join(home: &Home, server: &Server, name: &str) {
    let joined = home.cli(Some(server), &["mesh", "join", name]);
    assert!(joined.status.success(), "{joined:?}");
}

fn send(home: &Home, server: &Server, from: &str, text: &str) {
    let sent = home.cli(Some(server), &["mesh", "send", BOBBY, text, "--as", from]);
    assert!(sent.status.success(), "{sent:?}");
}

#[both_engines]
fn it_comes_back_after_the_servers_death_and_misses_nothing(engine: Engine) {
    let home = Home::new(engine);
    let server = home.serve();
    let address = server.address.clone();
    let mut bobby = Published::start();
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
    // A sealed message needs the prekey that the client leaves after it has connected.
    crate::process::eventually("it has left a prekey", || {
        let shown = home.cli(Some(&server), &["mesh", "whois", BOBBY, "--as", CAROL]);
        String::from_utf8_lossy(&shown.stdout).contains("1 device").then_some(())
    });
    send(&home, &server, CAROL, "before");
    assert_eq!(bobby.received(), "before");

    server.kill();
    bobby.event(|told| told["data"]["state"] == "reconnecting");
    // Nobody is where the client looks, and yet there is a server for others meanwhile.
    let meanwhile = home.serve();
    join(&home, &meanwhile, "daisy");
    send(&home, &meanwhile, "daisy.localhost.test", "meanwhile");
    meanwhile.stop();
    let server = home.serve_at(&address);
    bobby.event(|told| told["data"]["state"] == "connected");
    send(&home, &server, CAROL, "after");
    // The push shows it that it has missed one, which it fetches; which of the two it passes on first is its business.
    let mut found = [bobby.received(), bobby.received()].map(|text| text.as_str().unwrap().to_owned());
    found.sort_unstable();
    assert_eq!(found, ["after", "meanwhile"]);
    let called = bobby.ok(json!({"do": "call", "method": "meta.status"}));
    assert_eq!(called["aid"], BOBBY);
}
