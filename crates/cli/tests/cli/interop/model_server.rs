//! A self-hosted model server behind a real server, as the README describes it.

use ostler_stand_ins::{chat, chat_with_key};
use serde_json::{Value, json};

use crate::fixtures::{
    http::Http,
    test_home::{Engine, TestHome, both_engines},
};

const KEY: &str = "planted-key-of-a-model-2c91";

fn config(base_url: &str) -> String {
    format!("[ostler]\nagent = \"model\"\nbase_url = \"{base_url}\"\nmodel = \"small\"\n")
}

#[both_engines]
fn a_model_server_needs_only_a_config(engine: Engine) {
    let (home, provider) = (TestHome::new(engine), chat());
    let server = home.serve();
    std::fs::write(home.path("model.toml"), config(&provider.base_url())).unwrap();
    let run = |arguments: &[&str]| {
        let output = home.cli(Some(&server), arguments);
        let printed = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(printed).unwrap())
    };
    let (code, printed) = run(&["profiles", "config", "model", "--file", "model.toml"]);
    assert_eq!(code, Some(0), "{printed}");
    let (code, printed) = run(&["run", "--profile", "model", "--session", "talk", "my name is Ada"]);
    assert!(code == Some(0) && printed.contains("You said: my name is Ada"), "{printed}");
    // The session's next run has the messages of the former one.
    let (code, printed) = run(&["run", "--profile", "model", "--session", "talk", "[[recall]]"]);
    assert!(code == Some(0) && printed.contains("user=my name is Ada"), "{printed}");
}

#[both_engines]
fn a_turn_is_stopped_at_its_cost_budget(engine: Engine) {
    let (home, provider) = (TestHome::new(engine), chat());
    let server = home.serve();
    let prices = "[ostler.prices.small]\ninput = 1000\noutput = 2000\n";
    std::fs::write(home.path("model.toml"), config(&provider.base_url()) + prices).unwrap();
    let run = |arguments: &[&str]| home.cli(Some(&server), arguments);
    assert!(run(&["profiles", "config", "model", "--file", "model.toml"]).status.success());
    // Ten input and five output tokens cost two cents.
    let within = run(&["run", "--profile", "model", "--max-cost", "0.03", "-o", "json", "hello"]);
    assert!(within.status.success(), "{within:?}");
    let result: Value = serde_json::from_slice(&within.stdout).unwrap();
    assert_eq!(result["usage"]["costUsd"], 0.02);
    let beyond = run(&["run", "--profile", "model", "--max-cost", "0.03", "-o", "json", "[[loop]]"]);
    let result: Value = serde_json::from_slice(&beyond.stdout).unwrap();
    assert_eq!((&result["failureKind"], &result["usage"]["costUsd"]), (&json!("budget-exceeded"), &json!(0.04)));
    assert!(result["blocker"].as_str().unwrap().contains("maxCostUsd"), "{result}");
}

#[test]
fn a_providers_key_is_sent_only_to_the_provider() {
    let (home, provider) = (TestHome::new(Engine::Sqlite), chat_with_key(KEY));
    let server = home.serve();
    let mut http = Http::new(&server);
    let auth = json!({"OPENAI_API_KEY": KEY}).to_string();
    let credential = json!({"files": {"auth.json": auth, "config.toml": config(&provider.base_url())}}).to_string();
    http.send("PUT", "/api/v1/provider-profiles/model/credential", &[], &credential).unwrap().good();
    let output = home.cli(Some(&server), &["run", "--profile", "model", "--session", "talk", "hello"]);
    assert!(output.status.success(), "{output:?}");
    let trace = http.get("/api/v1/sessions/talk/trace").body;
    assert!(trace.contains("You said: hello"), "{trace}");
    let reported = [trace, home.log(), home.everything_stored(), format!("{output:?}")].concat();
    assert!(!reported.contains(KEY), "the key was printed");
}
