//! `ostler profiles`: keys are read from stdin, each backend has its own home, and no part of a key appears anywhere else. A
//! self-test with a real Codex and a stand-in for its provider.

use std::{
    io::Write,
    path::Path,
    process::{Output, Stdio},
};

use ostler_stand_ins::{Endpoint, responses};
use serde_json::{Value, json};

use crate::fixtures::{
    http::Http,
    process::{Server, contains, eventually, files, processes_containing},
    pty::Terminal,
    runner::run_request,
    test_home::{Engine, TestHome, both_engines, mode},
};

/// Part of every key; the keys have no recognizable format.
const MARK: &str = "pr0file-key";
/// Printed beside the keys: proves that the searched place contains the output at all.
const WITNESS: &str = "harmless-witness";

/// An environment with the real Codex; on Postgres the runners are separate processes.
fn home(engine: Engine) -> TestHome {
    let mut home = TestHome::on_disk(engine);
    let codex = std::env::var("OSTLER_TEST_CODEX").expect("OSTLER_TEST_CODEX is not set: run `cargo xtask test`");
    let folder = Path::new(&codex).parent().unwrap().to_str().unwrap().to_owned();
    home.set("PATH", &format!("{folder}:/usr/local/bin:/usr/bin:/bin"));
    home.set("OSTLER_LOG", "debug");
    if engine == Engine::Postgres {
        home.set("OSTLER_RUNNER__LAUNCHER", "process");
    }
    home
}

fn config(provider: &Endpoint) -> String {
    format!(
        "model = \"stand-in\"\nmodel_provider = \"stand-in\"\n[model_providers.stand-in]\nname = \"stand-in\"\n\
         base_url = \"{}\"\nwire_api = \"responses\"\nrequires_openai_auth = true\nrequest_max_retries = 0\n\
         stream_max_retries = 0\n[features]\nplugins = false\napps = false\n",
        provider.base_url()
    )
}

/// Runs a command with input on its stdin.
fn cli_with(home: &TestHome, server: &Server, args: &[&str], stdin: &str) -> Output {
    let mut command = home.command(args);
    let mut child = command.env("OSTLER_SERVER", server.url()).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[track_caller]
fn stdout_of(output: Output) -> String {
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(!text.contains(MARK), "{text}");
    text
}

#[both_engines]
fn a_profile_is_set_shown_validated_and_deleted(engine: Engine) {
    let home = home(engine);
    let provider = responses();
    let (server, key) = (home.serve(), format!("{MARK}-0123456789abcdef"));
    let ostler = |args: &[&str]| home.cli(Some(&server), args);
    let listed = stdout_of(ostler(&["profiles", "list"]));
    assert!(listed.contains("codex") && listed.contains("no profile is configured"), "{listed}");
    let file = home.path("codex.toml");
    std::fs::write(&file, config(&provider)).unwrap();
    let set = ["profiles", "set", "codex", "--config", file.to_str().unwrap()];
    stdout_of(cli_with(&home, &server, &set, &format!("{key}\n")));
    stdout_of(cli_with(&home, &server, &["profiles", "set", "codex"], &key));
    let shown: Value = serde_json::from_slice(&ostler(&["profiles", "show", "codex", "-o", "json"]).stdout).unwrap();
    assert_eq!((&shown["configured"], &shown["agent"]), (&json!(true), &json!("codex")));
    assert_eq!(String::from_utf8(ostler(&["profiles", "config", "codex"]).stdout).unwrap(), config(&provider));
    assert!(stdout_of(ostler(&["profiles", "validate", "codex"])).contains("codex passed"));
    assert_eq!(provider.seen()[0].authorization, Some(format!("Bearer {key}")));
    assert!(stdout_of(ostler(&["profiles", "list"])).contains("passed"));
    assert!(stdout_of(ostler(&["run", "--profile", "codex", "say hello"])).contains("You said: say hello"));
    let wrong = config(&provider).replace("model_provider = \"stand-in\"", "model_provider = \"nobody\"");
    let changed = stdout_of(cli_with(&home, &server, &["profiles", "config", "codex", "--file", "-"], &wrong));
    assert!(changed.contains("credential"), "another provider drops the credential: {changed}");
    let refused = ostler(&["profiles", "validate", "codex"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("secret-unavailable"), "{refused:?}");
    stdout_of(cli_with(&home, &server, &["profiles", "set", "codex"], &key));
    let failed = ostler(&["profiles", "validate", "codex"]);
    assert!(!failed.status.success() && String::from_utf8_lossy(&failed.stdout).contains("codex failed"), "{failed:?}");
    stdout_of(ostler(&["profiles", "delete", "codex", "--yes"]));
    let refused = ostler(&["run", "--profile", "codex", "say hello"]);
    assert_eq!(refused.status.code(), Some(12));
    assert!(String::from_utf8(refused.stderr).unwrap().contains("secret-unavailable"));
    assert!(!home.log().contains(MARK) && !home.everything_stored().contains(MARK));
}

#[test]
fn a_profile_can_have_a_model_catalog() {
    let home = TestHome::on_disk(Engine::Sqlite);
    let server = home.serve();
    let file = |name: &str, text: &str| {
        std::fs::write(home.path(name), text).unwrap();
        home.path(name).to_str().unwrap().to_owned()
    };
    let (key, config) = (file("key", "k-0123456789abcdef"), file("config.toml", "model = \"m\"\n"));
    let set = ["profiles", "set", "dsflash-go", "--key-file", &key, "--config", &config];
    assert!(
        stdout_of(home.cli(Some(&server), &set)).contains("--model-catalog FILE"),
        "the output names what is missing"
    );
    let catalog = file("catalog.json", "{\"models\": []}");
    stdout_of(home.cli(Some(&server), &[&set[..], &["--model-catalog", &catalog]].concat()));
    let shown = stdout_of(home.cli(Some(&server), &["profiles", "show", "dsflash-go", "-o", "json"]));
    assert_eq!(serde_json::from_str::<Value>(&shown).unwrap()["configured"], true, "{shown}");
    server.stop();
}

#[test]
fn a_typed_key_is_not_echoed_and_the_terminal_is_restored() {
    let home = home(Engine::Sqlite);
    let server = home.serve();
    for (keys, code) in [("\x7fwrong\x15KEY\r", 0), ("half of it\x03", 11)] {
        let terminal = Terminal::start(&home, &server, &["profiles", "set", "codex"], &[]);
        terminal.shows("key (not echoed)");
        assert!(!terminal.echoes());
        terminal.types(&keys.replace("KEY", &format!("{MARK}-typed-0123456789")));
        eventually("the terminal was restored", || terminal.echoes().then_some(()));
        let ended = terminal.ends();
        assert_eq!(ended.code, code, "{}", ended.screen);
        assert!(!ended.raw.contains(MARK) && !ended.raw.contains("half of it"), "{}", ended.raw);
    }
}

/// A profile with its own key and provider.
struct Side {
    profile: &'static str,
    key: String,
    provider: Endpoint,
    run_id: String,
}

/// Prints everything that a tool can read of its backend's credential, and 42 if its home has none. The message of `cat` itself may
/// arrive in pieces, with other output between them.
const LOOK: &str = "sleep 2; echo harmless-witness; cat $HOME/auth.json || echo no-key-$((6*7)); cat $HOME/../*/auth.json; \
                    env; cat /proc/$PPID/cmdline";

#[both_engines]
fn two_concurrent_profiles_share_nothing(engine: Engine) {
    let home = home(engine);
    let server = home.serve();
    let mut http = Http::new(&server);
    let mut sides = ["codex", "deepseek"].map(|profile| {
        let (provider, key) = (responses(), format!("{MARK}-{profile}-0123456789"));
        let auth = json!({"OPENAI_API_KEY": key}).to_string();
        let body = json!({"files": {"auth.json": auth, "config.toml": config(&provider)}});
        let path = format!("/api/v1/provider-profiles/{profile}/credential");
        let set = http.send("PUT", &path, &[], &body.to_string()).unwrap();
        assert!(set.good()["configured"] == true && !set.body.contains(MARK), "{set:?}");
        Side { profile, key, provider, run_id: String::new() }
    });
    for side in &mut sides {
        side.run_id = start(&mut http, side.profile, &format!("[[tool:{LOOK}]] {WITNESS}"));
    }
    let homes = eventually("both agents are at home", || {
        let homes = files(&home.data_dir.join("homes"), 1);
        (homes.len() == 2 && sides.iter().all(|side| !side.provider.seen().is_empty())).then_some(homes)
    });
    for path in &homes {
        assert_eq!((mode(path), mode(&path.join("auth.json"))), (0o700, 0o600));
        let auth = std::fs::read_to_string(path.join("auth.json")).unwrap();
        let config = std::fs::read_to_string(path.join("config.toml")).unwrap();
        let own = |side: &&Side| auth.contains(&side.key) && config.contains(&side.provider.base_url());
        assert_eq!(sides.iter().filter(own).count(), 1, "each home is of one profile");
    }
    assert_eq!(processes_containing(MARK), Vec::<String>::new(), "no key is in an argument or an environment");
    for side in &sides {
        let result = eventually("the turn ends", || {
            let result = http.get(&format!("/api/v1/runs/{}/result", side.run_id)).good();
            (!result["terminalStatus"].is_null()).then_some(result)
        });
        assert_eq!(result["terminalStatus"], "completed", "{result}");
        let printed = json!(http.events(&side.run_id)).to_string();
        assert!(printed.contains(WITNESS) && printed.contains("HOME="), "{printed}");
        assert!(printed.contains("no-key-42"), "a tool sees no home, not even its own: {printed}");
        assert!(!printed.contains(MARK), "{printed}");
        let keys: Vec<_> = side.provider.seen().into_iter().filter_map(|seen| seen.authorization).collect();
        assert!(keys.len() >= 2 && keys.iter().all(|key| *key == format!("Bearer {}", side.key)), "{keys:?}");
        http.post(&format!("/api/v1/runs/{}/cancel", side.run_id), &json!({})).good();
    }
    eventually("the homes are wiped", || files(&home.data_dir.join("homes"), 1).is_empty().then_some(()));
    for (place, text) in [
        ("the profiles", http.get("/api/v1/provider-profiles").body),
        ("the store", home.everything_stored()),
        ("the log", home.log()),
    ] {
        assert!(!text.is_empty() && !text.contains(MARK), "a key is in {place}");
    }
    server.stop();
    // The backend's own files about the conversation are not redacted.
    let rollouts = home.data_dir.join("sessions");
    for path in files(&home.data_dir, usize::MAX).into_iter().filter(|path| !path.starts_with(&rollouts)) {
        let bytes = std::fs::read(&path).unwrap_or_default();
        assert!(!contains(&bytes, MARK), "a key is in {}", path.display());
    }
}

fn start(http: &mut Http, profile: &str, prompt: &str) -> String {
    let secret = json!({"name": format!("agentrun-v01-provider-{profile}"), "keys": ["auth.json", "config.toml"]});
    let mut body = run_request();
    body["backendProfile"] = profile.into();
    body["executionPolicy"] =
        json!({"secretScope": {"providerCredentials": [{"profile": profile, "secretRef": secret}]}});
    body["command"] = json!({"type": "turn", "payload": {"prompt": prompt}});
    http.post("/api/v1/runs", &body).good()["runId"].as_str().unwrap().to_owned()
}
