//! Provider profiles as people use them: keys come in through stdin, agents get homes of their own, and nothing of a key is
//! seen anywhere else. A self-test with a real Codex and a stand-in for its provider.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Output, Stdio},
};

use ostler_stand_ins::{Endpoint, responses};
use serde_json::{Value, json};

use crate::{
    home::{Engine, Home, both_engines, mode},
    http::Http,
    process::{Server, eventually},
    runner::run_request,
    terminal::Terminal,
};

/// Stands in every key, which has no shape that would give it away.
const MARK: &str = "pr0file-key";
/// Printed beside the keys: where it is not found, nobody has looked.
const WITNESS: &str = "harmless-witness";

/// A home whose servers find the real Codex; with Postgres their runners are processes of their own.
fn home(engine: Engine) -> Home {
    let mut home = Home::on_disk(engine);
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

/// Runs a verb with something on its stdin.
fn cli_with(home: &Home, server: &Server, args: &[&str], stdin: &str) -> Output {
    let mut command = home.command(args);
    let mut child = command.env("OSTLER_SERVER", server.url()).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[track_caller]
fn printed(output: Output) -> String {
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(!text.contains(MARK), "{text}");
    text
}

#[both_engines]
fn a_profile_is_set_shown_tried_and_deleted(engine: Engine) {
    let home = home(engine);
    let provider = responses();
    let (server, key) = (home.serve(), format!("{MARK}-0123456789abcdef"));
    let ostler = |args: &[&str]| home.cli(Some(&server), args);
    let listed = printed(ostler(&["profiles", "list"]));
    assert!(listed.contains("codex") && listed.contains("none is configured"), "{listed}");
    let file = home.path("codex.toml");
    std::fs::write(&file, config(&provider)).unwrap();
    let set = ["profiles", "set", "codex", "--config", file.to_str().unwrap()];
    printed(cli_with(&home, &server, &set, &format!("{key}\n")));
    printed(cli_with(&home, &server, &["profiles", "set", "codex"], &key));
    let shown: Value = serde_json::from_slice(&ostler(&["profiles", "show", "codex", "-o", "json"]).stdout).unwrap();
    assert_eq!((&shown["configured"], &shown["agent"]), (&json!(true), &json!("codex")));
    assert_eq!(String::from_utf8(ostler(&["profiles", "config", "codex"]).stdout).unwrap(), config(&provider));
    assert!(printed(ostler(&["profiles", "validate", "codex"])).contains("codex passed"));
    assert_eq!(provider.seen()[0].authorization, Some(format!("Bearer {key}")));
    assert!(printed(ostler(&["profiles", "list"])).contains("passed"));
    assert!(printed(ostler(&["run", "--profile", "codex", "say hello"])).contains("You said: say hello"));
    let wrong = config(&provider).replace("model_provider = \"stand-in\"", "model_provider = \"nobody\"");
    let changed = printed(cli_with(&home, &server, &["profiles", "config", "codex", "--file", "-"], &wrong));
    assert!(changed.contains("credential"), "another provider drops the credential: {changed}");
    let refused = ostler(&["profiles", "validate", "codex"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("secret-unavailable"), "{refused:?}");
    printed(cli_with(&home, &server, &["profiles", "set", "codex"], &key));
    let failed = ostler(&["profiles", "validate", "codex"]);
    assert!(!failed.status.success() && String::from_utf8_lossy(&failed.stdout).contains("codex failed"), "{failed:?}");
    printed(ostler(&["profiles", "delete", "codex", "--yes"]));
    let refused = ostler(&["run", "--profile", "codex", "say hello"]);
    assert_eq!(refused.status.code(), Some(12));
    assert!(String::from_utf8(refused.stderr).unwrap().contains("secret-unavailable"));
    assert!(!home.log().contains(MARK) && !home.everything_stored().contains(MARK));
}

#[test]
fn a_profile_that_needs_a_model_catalog_is_given_one() {
    let home = Home::on_disk(Engine::Sqlite);
    let server = home.serve();
    let file = |name: &str, text: &str| {
        std::fs::write(home.path(name), text).unwrap();
        home.path(name).to_str().unwrap().to_owned()
    };
    let (key, config) = (file("key", "k-0123456789abcdef"), file("config.toml", "model = \"m\"\n"));
    let set = ["profiles", "set", "dsflash-go", "--key-file", &key, "--config", &config];
    assert!(printed(home.cli(Some(&server), &set)).contains("model-catalog.json"), "it says what is missing");
    let catalog = file("catalog.json", "{\"models\": []}");
    printed(home.cli(Some(&server), &[&set[..], &["--model-catalog", &catalog]].concat()));
    let shown = printed(home.cli(Some(&server), &["profiles", "show", "dsflash-go", "-o", "json"]));
    assert_eq!(serde_json::from_str::<Value>(&shown).unwrap()["configured"], true, "{shown}");
    server.stop();
}

#[test]
fn a_key_that_is_typed_is_never_shown_and_leaves_the_terminal_as_it_was() {
    let home = home(Engine::Sqlite);
    let server = home.serve();
    for (keys, code) in [("\x7fwrong\x15KEY\r", 0), ("half of it\x03", 11)] {
        let terminal = Terminal::start(&home, &server, &["profiles", "set", "codex"], &[]);
        terminal.shows("key (it is not shown)");
        assert!(!terminal.echoes());
        terminal.types(&keys.replace("KEY", &format!("{MARK}-typed-0123456789")));
        eventually("the terminal is as it was", || terminal.echoes().then_some(()));
        let ended = terminal.ends();
        assert_eq!(ended.code, code, "{}", ended.screen);
        assert!(!ended.raw.contains(MARK) && !ended.raw.contains("half of it"), "{}", ended.raw);
    }
}

/// A profile with a key and a provider of its own.
struct Side {
    profile: &'static str,
    key: String,
    provider: Endpoint,
    run_id: String,
}

/// Prints everything that a tool can see of its agent's credential.
const LOOK: &str =
    "sleep 2; echo harmless-witness; cat $HOME/auth.json $HOME/../*/auth.json; env; cat /proc/$PPID/cmdline";

#[both_engines]
fn two_profiles_at_once_share_nothing(engine: Engine) {
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
    assert_eq!(processes_showing(MARK), Vec::<String>::new(), "no key is in an argument or an environment");
    for side in &sides {
        let result = eventually("the turn ends", || {
            let result = http.get(&format!("/api/v1/runs/{}/result", side.run_id)).good();
            (!result["terminalStatus"].is_null()).then_some(result)
        });
        assert_eq!(result["terminalStatus"], "completed", "{result}");
        let said = json!(http.events(&side.run_id)).to_string();
        assert!(said.contains(WITNESS) && said.contains("HOME="), "{said}");
        assert!(said.contains("auth.json: No such file"), "a tool sees no home, not even its own: {said}");
        assert!(!said.contains(MARK), "{said}");
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
    // The agent's own account of the conversation is its own: what it said there nobody redacts.
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

/// Everything in a directory, so deep.
pub fn files(directory: &Path, depth: usize) -> Vec<PathBuf> {
    let mut found = vec![];
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        found.push(entry.path());
        if depth > 1 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(files(&entry.path(), depth - 1));
        }
    }
    found
}

/// An optimised search: without optimisation, sliding over the files of a real agent takes twenty seconds.
pub fn contains(bytes: &[u8], text: &str) -> bool {
    memchr::memmem::find(bytes, text.as_bytes()).is_some()
}

/// Arguments and environments, of every process there is, that hold this text.
pub fn processes_showing(text: &str) -> Vec<String> {
    let shown = |path: PathBuf| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    let processes = files(Path::new("/proc"), 1).into_iter().filter(|path| path.join("environ").exists());
    let pages = processes.flat_map(|path| ["cmdline", "environ"].map(|page| shown(path.join(page))));
    pages.filter(|page| page.contains(text)).collect()
}
