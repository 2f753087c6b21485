//! `examples/runner/runner.py`, set up as in docs/writing-a-runner.md: a runner of another language, on nothing but HTTP.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Command, Output, Stdio},
};

use serde_json::Value;

use crate::fixtures::{
    http::Http,
    process::{Guarded, Server, eventually},
    test_home::{Engine, TestHome, both_engines},
};

const LINES_MAX: usize = 60;

#[track_caller]
fn stdout_of(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

struct Example {
    home: TestHome,
    server: Server,
    token: String,
}

impl Example {
    fn set_up(engine: Engine) -> Self {
        let mut home = TestHome::on_disk(engine);
        home.set("OSTLER_RUNNER__EXTERNAL_PROFILES", "my-agent");
        let server = home.serve();
        let create = ["tokens", "create", "my-runner", "--role", "runner", "--tenant", "local"];
        let token = stdout_of(home.cli(Some(&server), &create));
        Self { home, server, token }
    }

    fn runner(&self, token: &str, pause_s: &str) -> Command {
        let python = std::env::var("OSTLER_TEST_PYTHON").expect("`cargo xtask test` names its Python");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/runner/runner.py");
        let mut command = Command::new(python);
        command.env_clear().arg(script).arg("my-agent");
        command.env("OSTLER_SERVER", self.server.url()).env("OSTLER_TOKEN", token);
        command.env("PAUSE_S", pause_s).env("LEASE_MS", "3000");
        command.stdin(Stdio::null());
        command
    }

    fn start_runner(&self, pause_s: &str) -> Guarded {
        let mut command = self.runner(&self.token, pause_s);
        Guarded(command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap())
    }

    fn run(&self, args: &[&str]) -> Output {
        self.home.cli(Some(&self.server), &[&["run", "--profile", "my-agent"], args].concat())
    }

    /// Starts a run without waiting for it. Returns its id.
    fn submit(&self, prompt: &str) -> String {
        let started: Value = serde_json::from_str(&stdout_of(self.run(&["--detach", "-o", "json", prompt]))).unwrap();
        started["runId"].as_str().unwrap().to_owned()
    }

    fn events(&self, run_id: &str, event_type: &str) -> Vec<Value> {
        let mut events = Http::new(&self.server).events(run_id);
        events.retain(|event| event["type"] == event_type);
        events
    }

    fn result(&self, run_id: &str) -> Value {
        Http::new(&self.server).get(&format!("/api/v1/runs/{run_id}/result")).good()
    }

    /// The result of the run's command, once it has ended.
    fn ended(&self, run_id: &str) -> Value {
        eventually("the turn ends", || Some(self.result(run_id)).filter(|result| !result["terminalStatus"].is_null()))
    }
}

#[both_engines]
fn the_example_runner_answers_every_turn(engine: Engine) {
    let source = include_str!("../../../../../examples/runner/runner.py");
    assert!(source.lines().count() <= LINES_MAX, "the example is read from beginning to end");
    let example = Example::set_up(engine);
    // Work that comes before its runner waits for it.
    let run_id = example.submit("say hello");
    let _runner = example.start_runner("0");
    assert_eq!(example.ended(&run_id)["reply"], "SAY HELLO ");
    // Two turns of one session, and the reply on stdout.
    for prompt in ["how are you", "and now"] {
        let reply = stdout_of(example.run(&["--session", "chat", prompt]));
        assert_eq!(reply, prompt.to_uppercase());
    }
}

#[test]
fn an_example_runner_with_a_wrong_token_prints_the_reason_and_ends() {
    let example = Example::set_up(Engine::Sqlite);
    let ended = example.runner("wrong", "0").output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert_eq!(String::from_utf8(ended.stderr).unwrap(), "the token is not valid\n");
}

#[both_engines]
fn a_killed_example_runner_is_replaced(engine: Engine) {
    let example = Example::set_up(engine);
    let mut first = example.start_runner("0.4");
    let run_id = example.submit("one two three four five six seven eight");
    eventually("the turn has begun", || (!example.events(&run_id, "assistant_delta").is_empty()).then_some(()));
    first.0.kill().unwrap();
    first.wait();
    assert!(example.result(&run_id)["terminalStatus"].is_null());
    let _second = example.start_runner("0");
    let result = example.ended(&run_id);
    assert_eq!(
        (&result["terminalStatus"], &result["reply"]),
        (&"completed".into(), &"ONE TWO THREE FOUR FIVE SIX SEVEN EIGHT ".into())
    );
    assert_eq!(example.events(&run_id, "assistant_message").len(), 1);
    let states: Vec<_> =
        example.events(&run_id, "lease").iter().map(|event| event["payload"]["state"].clone()).collect();
    assert_eq!(states[..3], ["claimed", "expired", "recovered"], "{states:?}");
}

#[both_engines]
fn a_cancelled_turn_stops_the_example_runner(engine: Engine) {
    let example = Example::set_up(engine);
    let _runner = example.start_runner("0.3");
    let run_id = example.submit(&"word ".repeat(200));
    eventually("the turn has begun", || (!example.events(&run_id, "assistant_delta").is_empty()).then_some(()));
    stdout_of(example.home.cli(Some(&example.server), &["cancel", "--yes", &run_id]));
    assert_eq!(example.ended(&run_id)["terminalStatus"], "cancelled");
}

#[both_engines]
fn a_trial_of_an_external_profile_waits_for_its_runner(engine: Engine) {
    let example = Example::set_up(engine);
    let mut command = example.home.command(&["profiles", "validate", "my-agent"]);
    let mut trial = Guarded(command.env("OSTLER_SERVER", example.server.url()).spawn().unwrap());
    let mut messages = BufReader::new(trial.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    let first = messages.next().unwrap();
    assert!(first.starts_with("testing my-agent with run_"), "{first}");
    assert_eq!(messages.next().as_deref(), Some("waiting for a runner that claims profile my-agent"));
    assert!(trial.0.try_wait().unwrap().is_none(), "it waits");
    let _runner = example.start_runner("0");
    assert!(trial.wait().success());
    let mut printed = String::new();
    trial.0.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    assert_eq!(printed, "my-agent passed\n");
}
