//! `ostler apply`: profiles and agents become what a file describes, all problems are found before the first change, and objects
//! of other owners stay unchanged.

use std::{
    io::Write,
    process::{Output, Stdio},
};

use serde_json::{Value, json};

use crate::fixtures::{
    http::Http,
    process::{Server, stdout_of},
    snapshot::{assert_snapshot, piped},
    test_home::{Engine, TestHome, both_engines},
};

/// Part of every key; it must be nowhere but in the secrets.
const KEY: &str = "pl4nted-key-0123456789";
const FILE: &str = "[profiles.model]\nconfig_file = \"conf/model.toml\"\ncredential_env = \"MODEL_KEY\"\n\
    [agents.reader]\nmanifest_file = \"reader.json\"\nprofile = \"model\"\n";

fn write(home: &TestHome, name: &str, text: &str) -> String {
    let path = home.path(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn model(port: u16) -> String {
    format!(
        "# A model server.\n[ostler]\nagent = \"model\"\nbase_url = \"http://127.0.0.1:{port}/v1\"\nmodel = \"m\"\n"
    )
}

/// A manifest whose only tool accepts these paths.
fn manifest(paths: Value) -> String {
    let schema = json!({"type": "object", "properties": {"path": {"enum": paths}}, "additionalProperties": false});
    let tool = json!({"name": "read_file", "description_i18n_key": "reader.read_file", "input_schema": schema,
        "permission_scope": "filesystem:read"});
    let scope = json!({"id": "filesystem:read", "label_i18n_key": "reader.filesystem_read", "sensitivity": "medium"});
    json!({"schema_version": "1.0", "agent_version": "1.0.0", "tools": [tool], "permission_scopes": [scope]})
        .to_string()
}

/// A home with the file `etc/ostler.toml` and everything that it names.
fn home(engine: Engine) -> (TestHome, String) {
    let mut home = TestHome::new(engine);
    home.set("MODEL_KEY", KEY);
    let file = write(&home, "etc/ostler.toml", FILE);
    write(&home, "etc/conf/model.toml", &model(1));
    write(&home, "etc/reader.json", &manifest(json!(["a"])));
    (home, file)
}

fn objects(output: Output) -> Vec<Value> {
    serde_json::from_str(&stdout_of(output)).unwrap()
}

#[both_engines]
fn a_file_is_applied_and_applying_it_again_changes_nothing(engine: Engine) {
    let (home, file) = home(engine);
    let server = home.serve();
    let apply = |more: &[&str]| home.cli(Some(&server), &[&["apply", "-f", &file], more].concat());
    let dry = apply(&["--dry-run"]);
    assert_eq!(
        stdout_of(dry.clone()),
        "profile model would be created (config, credential)\nagent reader would be created (manifest, profile)\n"
    );
    assert_eq!(String::from_utf8(dry.stderr).unwrap(), "dry run; nothing was changed\n");
    assert_eq!(stdout_of(home.cli(Some(&server), &["agents", "list", "-o", "json"])).trim(), "[]");
    assert_eq!(stdout_of(apply(&[])), "profile model created\nagent reader created\n");
    let shown = |what: &[&str]| -> Value {
        serde_json::from_str(&stdout_of(home.cli(Some(&server), &[what, &["-o", "json"]].concat()))).unwrap()
    };
    let (profile, agent) = (shown(&["profiles", "show", "model"]), shown(&["agents", "show", "reader"]));
    assert_eq!((&profile["configured"], &agent["backend_profile"]), (&json!(true), &json!("model")));
    assert_eq!(stdout_of(home.cli(Some(&server), &["profiles", "config", "model"])), model(1), "comments stay");
    assert_eq!(stdout_of(apply(&[])), "profile model unchanged\nagent reader unchanged\n");
    let again = objects(apply(&["-o", "json"]));
    assert_eq!(
        again[0],
        json!({"kind": "profile", "name": "model", "outcome": "unchanged", "changes": [], "dryRun": false})
    );
    assert_eq!((&again[1]["id"], &again[1]["outcome"]), (&agent["id"], &json!("unchanged")));
    let (same_profile, same_agent) = (shown(&["profiles", "show", "model"]), shown(&["agents", "show", "reader"]));
    assert_eq!(same_profile["resourceVersion"], profile["resourceVersion"]);
    assert_eq!(same_agent["capability_manifest_version"], 1);
    assert!(!home.log().contains(KEY) && !home.everything_stored().contains(KEY));
}

#[both_engines]
fn only_what_differs_is_changed(engine: Engine) {
    let (mut home, file) = home(engine);
    let server = home.serve();
    let apply = |home: &TestHome, more: &[&str]| home.cli(Some(&server), &[&["apply", "-f", &file], more].concat());
    stdout_of(apply(&home, &[]));
    // Another order of the same manifest is the same manifest.
    let reordered: Value = serde_json::from_str(&manifest(json!(["a"]))).unwrap();
    write(&home, "etc/reader.json", &serde_json::to_string_pretty(&reordered).unwrap());
    assert_eq!(stdout_of(apply(&home, &[])), "profile model unchanged\nagent reader unchanged\n");
    write(&home, "etc/reader.json", &manifest(json!(["b"])));
    let breaking = "breaking: people are asked again about 1 scope, filesystem:read";
    assert_eq!(
        stdout_of(apply(&home, &["--dry-run"])),
        format!("profile model unchanged\nagent reader would get a new version 2, {breaking}\n")
    );
    assert_eq!(
        stdout_of(apply(&home, &[])),
        format!("profile model unchanged\nagent reader new version 2, {breaking}\n")
    );
    // Another key, and then another server with the same key: both are sent, so that the key is not lost.
    home.set("MODEL_KEY", "pl4nted-other-key-0123456789");
    let changed = objects(apply(&home, &["-o", "json"]));
    assert_eq!((&changed[0]["outcome"], &changed[0]["changes"]), (&json!("configured"), &json!(["credential"])));
    write(&home, "etc/conf/model.toml", &model(2));
    let changed = apply(&home, &["-o", "json"]);
    assert!(changed.stderr.is_empty(), "{changed:?}");
    let changed = objects(changed);
    assert_eq!((&changed[0]["changes"], &changed[0]["credentialRemoved"]), (&json!(["config"]), &Value::Null));
    assert_eq!(stdout_of(apply(&home, &[])), "profile model unchanged\nagent reader unchanged\n");
    // A file that does not give the key again removes it, and the output reports that.
    write(&home, "etc/conf/model.toml", &model(3));
    let without =
        FILE.replace("credential_env = \"MODEL_KEY\"\n", "").replace("profile = \"model\"", "profile = \"scripted\"");
    write(&home, "etc/ostler.toml", &without);
    let dry = stdout_of(apply(&home, &["--dry-run"]));
    assert!(dry.starts_with("profile model would be configured (config), and lose its credential"), "{dry}");
    let removed = apply(&home, &[]);
    assert_eq!(stdout_of(removed.clone()), "profile model configured, credential removed\nagent reader configured\n");
    assert!(String::from_utf8(removed.stderr).unwrap().contains("profiles set model\n"));
}

#[test]
fn a_config_and_a_manifest_may_be_part_of_the_file() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    let text = "[profiles.fast]\ntenant = \"hwlab\"\n\
        config.ostler = { agent = \"model\", base_url = \"https://models.example/v1\", model = \"small\" }\n\
        [agents.\"My notes\".manifest]\nschema_version = \"1.0\"\nagent_version = \"1.0.0\"\n\
        [[agents.\"My notes\".manifest.tools]]\nname = \"read_file\"\ndescription_i18n_key = \"notes.read_file\"\n\
        description_fallback = \"Reads a file\"\npermission_scope = \"filesystem:read\"\ntimeout_ms = 5000\n\
        input_schema = { type = \"object\", additionalProperties = false }\n\
        [[agents.\"My notes\".manifest.permission_scopes]]\nid = \"filesystem:read\"\nlabel_i18n_key = \"notes.read\"\n\
        sensitivity = \"medium\"\n";
    let apply = || {
        let mut command = home.command(&["apply", "-f", "-"]);
        let mut child = command.env("OSTLER_SERVER", server.url()).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        stdout_of(child.wait_with_output().unwrap())
    };
    assert_eq!(apply(), "profile fast of hwlab created\nagent My notes created\n");
    assert_eq!(apply(), "profile fast of hwlab unchanged\nagent My notes unchanged\n");
    let agent = stdout_of(
        home.cli(Some(&server), &["agents", "show", "My notes", "--jq", ".capability_manifest.tools[0].timeout_ms"]),
    );
    assert_eq!(agent, "5000\n");
    // The operator has no profile of this name.
    let config = ["profiles", "config", "fast", "--tenant", "hwlab", "--jq", ".config"];
    assert!(stdout_of(home.cli(Some(&server), &config)).contains("base_url = \"https://models.example/v1\""));
}

#[test]
fn every_problem_is_reported_before_anything_is_changed() {
    let mut home = TestHome::new(Engine::Sqlite);
    home.set("EMPTY", " ");
    let server = home.serve();
    let mut reader: Value = serde_json::from_str(&manifest(json!(["a"]))).unwrap();
    reader["tools"][0]["name"] = json!("Read");
    reader["agent_version"] = json!(1);
    write(&home, "bad.json", &reader.to_string());
    write(&home, "bad.model.toml", "[ostler]\nagnet = \"model\"\nbase_url = \"ftp://pl4nted\"\n");
    write(&home, "good.toml", &model(1));
    let file = write(
        &home,
        "bad.toml",
        "[profiles.good]\nconfig_file = \"good.toml\"\n\
        [profiles.model]\nconfg_file = \"model.toml\"\nconfig_file = \"bad.model.toml\"\ncredential_env = \"EMPTY\"\n\
        [profiles.inline.config.ostler]\nagent = \"model\"\nmodle = \"m\"\n\
        [profiles.leaky]\napi_key = \"sk-pl4nted\"\n[profiles.leaky.config.model_providers.x]\n\
        experimental_bearer_token = \"pl4nted-0123456789\"\n\
        [profiles.Upper]\nconfig_file = \"none.toml\"\n[profiles.scripted]\nconfig = {}\n[profiles.nothing]\n\
        [agents.reader]\nmanifest_file = \"bad.json\"\nprofile = \"Not a slug\"\n\
        [agents.both]\nmanifest = {}\nmanifest_file = \"bad.json\"\n\
        [agents.inline.manifest]\nschema_version = \"1.0\"\nagent_version = \"1.0.0\"\npermission_scopes = []\n\
        [[agents.inline.manifest.tools]]\nname = \"Read\"\n",
    );
    let refused = home.cli(Some(&server), &["apply", "-f", &file]);
    assert_snapshot("error_apply", &home, &piped(&refused));
    assert!(!piped(&refused).contains("pl4nted"));
    let listed = stdout_of(home.cli(Some(&server), &["profiles", "list", "-o", "name"]));
    assert!(!listed.contains("good"), "nothing was changed: {listed}");
    // The same problems without a server.
    let mut offline = home.command(&["apply", "-f", &file]);
    let offline = offline.env("OSTLER_SERVER", "http://127.0.0.1:1").output().unwrap();
    assert_eq!(piped(&offline), piped(&refused));
    for (args, message) in [
        (vec!["apply", "-f", "missing.toml"], "cannot read missing.toml: No such file"),
        (vec!["apply", "-f", "-", "-f", "-"], "stdin can be applied only once"),
        (vec!["apply", "-f", "."], "is a directory; name its files"),
        (vec!["apply"], "--file <FILE>"),
    ] {
        let refused = home.cli(Some(&server), &args);
        let text = piped(&refused);
        assert!(refused.status.code() == Some(2) && text.contains(message), "{args:?}: {text}");
    }
    let (one, other) = (write(&home, "one.toml", "[agents.a]\n"), write(&home, "two.toml", "\n[agents.a]\n"));
    let twice = piped(&home.cli(Some(&server), &["apply", "-f", &one, "-f", &other]));
    assert!(twice.contains("two.toml, line 2: agents.a is also in another file"), "{twice}");
    let same = piped(&home.cli(Some(&server), &["apply", "-f", &one, "-f", &one]));
    assert!(same.contains("one.toml is given twice") && !same.contains("another file"), "{same}");
    let large = write(&home, "large.toml", "[agents.a.manifest]\ntimeout_ms = 99999999999999999999\n");
    let large = piped(&home.cli(Some(&server), &["apply", "-f", &large]));
    assert!(large.starts_with("exit code 2\n") && large.contains("large.toml, line 2: this is not TOML"), "{large}");
}

#[test]
fn a_profile_is_described_once_whether_its_tenant_is_named_or_not() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    let create = ["tokens", "create", "keys", "--role", "provide", "--tenant", "hwlab"];
    let token = stdout_of(home.cli(Some(&server), &create));
    let config = "config.ostler = { agent = \"model\", base_url = \"https://models.example/v1\", model = \"m\" }\n";
    let named = write(&home, "named.toml", &format!("[profiles.fast]\ntenant = \"hwlab\"\n{config}"));
    let unnamed = write(&home, "unnamed.toml", &format!("[profiles.fast]\n{config}"));
    let mut apply = home.command(&["apply", "-f", &named, "-f", &unnamed]);
    let refused = apply.env("OSTLER_SERVER", server.url()).env("OSTLER_TOKEN", token.trim()).output().unwrap();
    let text = piped(&refused);
    assert!(text.contains("unnamed.toml, line 1: profiles.fast is also in another file"), "{text}");
    assert!(refused.status.code() == Some(2) && text.contains("hint: nothing was changed"), "{text}");
}

/// An agent that another user owns.
fn agent_of_ada(home: &TestHome, server: &Server) -> Value {
    let cli = |args: &[&str]| stdout_of(home.cli(Some(server), args));
    cli(&["users", "add", "ada", "--timezone", "UTC", "--tenant", "local"]);
    let token = cli(&["users", "token", "ada"]);
    let mut create = home.command(&["agents", "create", "reader", "-o", "json"]);
    let made = create.env("OSTLER_SERVER", server.url()).env("OSTLER_TOKEN", token.trim()).output().unwrap();
    serde_json::from_str(&stdout_of(made)).unwrap()
}

#[both_engines]
fn an_agent_of_another_owner_is_not_changed(engine: Engine) {
    let (home, file) = home(engine);
    let server = home.serve();
    let theirs = agent_of_ada(&home, &server);
    assert!(stdout_of(home.cli(Some(&server), &["apply", "-f", &file])).ends_with("agent reader created\n"));
    let shown = Http::new(&server).get(&format!("/agents/{}", theirs["id"].as_str().unwrap())).good();
    assert_eq!(shown["capability_manifest_version"], 0);
    // Two of one's own cannot be distinguished.
    stdout_of(home.cli(Some(&server), &["agents", "create", "reader"]));
    let refused = home.cli(Some(&server), &["apply", "-f", &file]);
    let text = piped(&refused);
    assert!(
        refused.status.code() == Some(5) && text.contains("line 4: agents.reader: 2 agents of yours have this name"),
        "{text}"
    );
}

#[test]
fn a_token_without_the_rights_changes_nothing() {
    let (home, file) = home(Engine::Sqlite);
    let server = home.serve();
    let token = stdout_of(home.cli(Some(&server), &["tokens", "create", "ci", "--tenant", "local"]));
    let mut apply = home.command(&["apply", "-f", &file]);
    let refused = apply.env("OSTLER_SERVER", server.url()).env("OSTLER_TOKEN", token.trim()).output().unwrap();
    assert_snapshot("error_apply_rights", &home, &piped(&refused));
}

#[test]
fn what_was_applied_before_a_rejected_object_is_shown() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    write(&home, "model.toml", &model(1));
    // Tenants may not use addresses of this machine; only the server knows that.
    let text = "[profiles.a-good]\nconfig_file = \"model.toml\"\n[profiles.b-bad]\ntenant = \"hwlab\"\nconfig_file = \"model.toml\"\n\
        [profiles.c-later]\nconfig_file = \"model.toml\"\n";
    let file = write(&home, "ostler.toml", text);
    let stopped = home.cli(Some(&server), &["apply", "-f", &file]);
    assert_snapshot("error_apply_stopped", &home, &piped(&stopped));
    let again = home.cli(Some(&server), &["apply", "-f", &file, "-o", "json"]);
    let applied: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!((applied.as_array().unwrap().len(), &applied[0]["outcome"]), (1, &json!("unchanged")));
}

#[test]
fn a_filter_that_fails_hides_no_rejected_object() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    write(&home, "model.toml", &model(1));
    let bad = "[profiles.b-bad]\ntenant = \"hwlab\"\nconfig_file = \"model.toml\"\n";
    let bad = write(&home, "bad.toml", bad);
    // No object was applied, and the filter cannot handle the empty list.
    let stopped = piped(&home.cli(Some(&server), &["apply", "-f", &bad, "--jq", ".name"]));
    assert!(stopped.starts_with("exit code 3\n--- stdout\n--- stderr\nerror: profile b-bad of hwlab: "), "{stopped}");
    let good = write(&home, "good.toml", "[profiles.good]\nconfig_file = \"model.toml\"\n");
    let apply =
        |more: &[&str]| piped(&home.cli(Some(&server), &[&["apply", "-f", &good, "--jq", ".name"], more].concat()));
    let is_unfit = |text: &str| text.starts_with("exit code 2\n") && text.contains("error: --jq: cannot index");
    let dry = apply(&["--dry-run"]);
    assert!(is_unfit(&dry) && dry.contains("dry run; nothing was changed"), "{dry}");
    assert!(!stdout_of(home.cli(Some(&server), &["profiles", "list", "-o", "name"])).contains("good"));
    let applied = apply(&[]);
    assert!(is_unfit(&applied), "{applied}");
    assert!(stdout_of(home.cli(Some(&server), &["profiles", "list", "-o", "name"])).contains("good"));
}
