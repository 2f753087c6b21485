//! A model server of one's own, behind a real server: what the README promises about it.

use ostler_stand_ins::{chat, chat_with_key};
use serde_json::{Value, json};

use crate::{
    home::{Engine, Home, both_engines},
    http::Http,
};

const KEY: &str = "planted-key-of-a-model-2c91";

fn config(base_url: &str) -> String {
    format!("[ostler]\nagent = \"model\"\nbase_url = \"{base_url}\"\nmodel = \"small\"\n")
}

#[both_engines]
fn a_model_server_needs_a_config_and_nothing_else(engine: Engine) {
    let (home, provider) = (Home::new(engine), chat());
    let server = home.serve();
    std::fs::write(home.path("model.toml"), config(&provider.base_url())).unwrap();
    let run = |arguments: &[&str]| {
        let output = home.cli(Some(&server), arguments);
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    };
    let (code, said) = run(&["profiles", "config", "model", "--file", "model.toml"]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = run(&["run", "--profile", "model", "--session", "talk", "my name is Ada"]);
    assert!(code == Some(0) && said.contains("You said: my name is Ada"), "{said}");
    // The session's next run knows what was said in the one before.
    let (code, said) = run(&["run", "--profile", "model", "--session", "talk", "[[recall]]"]);
    assert!(code == Some(0) && said.contains("user=my name is Ada"), "{said}");
}

#[both_engines]
fn a_turn_may_cost_so_much_and_no_more(engine: Engine) {
    let (home, provider) = (Home::new(engine), chat());
    let server = home.serve();
    let prices = "[ostler.prices.small]\ninput = 1000\noutput = 2000\n";
    std::fs::write(home.path("model.toml"), config(&provider.base_url()) + prices).unwrap();
    let run = |arguments: &[&str]| home.cli(Some(&server), arguments);
    assert!(run(&["profiles", "config", "model", "--file", "model.toml"]).status.success());
    // Ten tokens in and five out: two cents.
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
fn a_providers_key_reaches_the_provider_and_nobody_else() {
    let (home, provider) = (Home::new(Engine::Sqlite), chat_with_key(KEY));
    let server = home.serve();
    let mut http = Http::new(&server);
    let auth = json!({"OPENAI_API_KEY": KEY}).to_string();
    let credential = json!({"files": {"auth.json": auth, "config.toml": config(&provider.base_url())}}).to_string();
    http.send("PUT", "/api/v1/provider-profiles/model/credential", &[], &credential).unwrap().good();
    let output = home.cli(Some(&server), &["run", "--profile", "model", "--session", "talk", "hello"]);
    assert!(output.status.success(), "{output:?}");
    let trace = http.get("/api/v1/sessions/talk/trace").body;
    assert!(trace.contains("You said: hello"), "{trace}");
    let told = [trace, home.log(), home.everything_stored(), format!("{output:?}")].concat();
    assert!(!told.contains(KEY), "the key was told");
}
