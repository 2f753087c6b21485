//! `ostler agents`: made from a file, shown, found, and changed after a preview of the effects.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::fixtures::process::stdout_of;
use crate::fixtures::test_home::{Engine, TestHome, both_engines};

/// Writes a manifest whose only tool accepts these paths.
fn manifest(home: &TestHome, name: &str, paths: Value) -> PathBuf {
    let file = home.path(name);
    let schema = json!({"type": "object", "properties": {"path": {"enum": paths}}, "additionalProperties": false});
    let manifest = json!({
        "schema_version": "1.0",
        "agent_version": "1.0.0",
        "tools": [{
            "name": "read_file",
            "description_i18n_key": "agent.cap.read_file.description",
            "input_schema": schema,
            "permission_scope": "filesystem:read",
        }],
        "permission_scopes": [{
            "id": "filesystem:read",
            "label_i18n_key": "agent.scope.filesystem_read.label",
            "sensitivity": "medium",
        }],
    });
    std::fs::write(&file, manifest.to_string()).unwrap();
    file
}

#[both_engines]
fn an_agent_is_made_shown_compared_and_changed(engine: Engine) {
    let home = TestHome::new(engine);
    let server = home.serve();
    let ostler = |args: &[&str]| home.cli(Some(&server), args);
    let (old, new) = (manifest(&home, "old.json", json!(["a"])), manifest(&home, "new.json", json!(["b"])));
    let (old, new) = (old.to_str().unwrap(), new.to_str().unwrap());
    let made = stdout_of(ostler(&["agents", "create", "reader", "--manifest", old, "--profile", "scripted"]));
    let agent = made.trim();
    assert!(agent.starts_with("agt_"), "{made}");
    let shown = stdout_of(ostler(&["agents", "show", agent]));
    for part in ["reader", "profile scripted", "manifest version 1", "filesystem:read  medium", "read_file"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let diff = ["agents", "diff", agent, "--manifest", new];
    let preview = stdout_of(ostler(&diff));
    assert!(
        preview.contains("breaking  enum-value-removed  /tools/0/input_schema/properties/path/enum  - \"a\""),
        "{preview}"
    );
    assert!(preview.ends_with("breaking: people will be asked again about filesystem:read\n"), "{preview}");
    let preview: Value = serde_json::from_str(&stdout_of(ostler(&[&diff[..], &["-o", "json"]].concat()))).unwrap();
    assert_eq!((&preview["breaking"], &preview["capability_manifest_version"]), (&json!(true), &json!(2)));
    let same = stdout_of(ostler(&["agents", "diff", agent, "--manifest", old]));
    assert_eq!(same, "no change\n");
    let updated = stdout_of(ostler(&["agents", "update", "reader", "--manifest", new, "--profile", "scripted"]));
    let breaking = "breaking: people are asked again about 1 scope, filesystem:read";
    assert_eq!(updated, format!("{agent} manifest version 2, {breaking}\n"));
    let beginning = &agent[..agent.len() - 1];
    let updated = stdout_of(ostler(&["agents", "update", beginning, "--manifest", new]));
    assert_eq!(updated, format!("{agent} manifest version 2, unchanged\n"));
    assert_eq!(stdout_of(ostler(&["agents", "show", "reader"])), stdout_of(ostler(&["agents", "show", beginning])));
    let nothing = ostler(&["agents", "update", agent]);
    let expected = String::from_utf8_lossy(&nothing.stderr).into_owned();
    assert!(nothing.status.code() == Some(2) && expected.contains("`--manifest FILE`"), "{expected}");
    let other = stdout_of(ostler(&["agents", "create", "other"]));
    let twin = String::from_utf8(ostler(&["agents", "create", "other"]).stderr).unwrap();
    let ids = format!("{}; commands need the id of each", other.trim());
    assert_eq!(twin, format!("note: another agent has the name other: {ids}\n"));
    let listed = stdout_of(ostler(&["agents", "list", "--name", "read", "-o", "json"]));
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["id"]), (1, &json!(agent)));
    assert_eq!(listed[0]["capability_manifest_hash"], preview["capability_manifest_hash"]);
}

#[test]
fn a_manifest_is_started_checked_and_submitted() {
    let home = TestHome::new(Engine::Sqlite);
    let offline = |args: &[&str]| home.cli(None, args);
    let file = home.path("reader.manifest.json");
    let file = file.to_str().unwrap();
    assert!(offline(&["agents", "init", "reader", "--file", file]).status.success());
    // The guide shows what is written.
    let page = include_str!("../../../../../../docs/agents.md");
    let shown = page.split("```json\n").nth(1).unwrap().split("```").next().unwrap();
    let written: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(written, serde_json::from_str::<Value>(shown).unwrap());
    let again = offline(&["agents", "init", "reader", "--file", file]);
    assert_eq!(again.status.code(), Some(5), "{again:?}");
    let checked = stdout_of(offline(&["agents", "check", "--strict", file]));
    assert_eq!(checked, format!("{file}: ok, 1 tool, 1 scope\n"));
    let server = home.serve();
    assert!(home.cli(Some(&server), &["agents", "create", "reader", "--manifest", file]).status.success());
    // The same problems with and without a server.
    let bad = home.path("bad.json");
    let bad = bad.to_str().unwrap();
    let mut manifest = written.clone();
    manifest["tools"][0]["name"] = json!("Read");
    manifest["permission_scopes"][0].as_object_mut().unwrap().remove("sensitivity");
    std::fs::write(bad, manifest.to_string()).unwrap();
    let checked = offline(&["agents", "check", bad, file]);
    assert_eq!(checked.status.code(), Some(1), "{checked:?}");
    let printed = String::from_utf8(checked.stdout).unwrap();
    let (name, level) =
        ("/tools/0/name: must match ^[a-z][a-z0-9_]{1,31}$", "/permission_scopes/0/sensitivity: is missing");
    assert_eq!(printed, format!("{bad}: {level}\n{bad}: {name}\n{bad}: 2 problems\n{file}: ok, 1 tool, 1 scope\n"));
    let refused = home.cli(Some(&server), &["agents", "create", "reader", "--manifest", bad]);
    let printed = String::from_utf8(refused.stderr).unwrap();
    assert!(
        printed.starts_with(&format!(
            "error: capability_manifest{level}\n       capability_manifest{name}\n  kind: schema-invalid\n"
        )),
        "{printed}"
    );
    assert_eq!(offline(&["agents", "check", "missing.json"]).status.code(), Some(2));
    let json = offline(&["agents", "check", bad, "-o", "jsonl"]);
    let report: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&report["valid"], &report["problems"][1]["pointer"]), (&json!(false), &json!("/tools/0/name")));
}

#[both_engines]
fn errors_in_a_manifest_are_reported(engine: Engine) {
    let home = TestHome::new(engine);
    let server = home.serve();
    let refused = |args: &[&str], expected: &str| {
        let output = home.cli(Some(&server), args);
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && output.stdout.is_empty() && words.contains(expected),
            "{expected}: {output:?}"
        );
    };
    let file = home.path("twice.json");
    let file = file.to_str().unwrap();
    // A lenient parser would use the last of them.
    std::fs::write(file, r#"{"schema_version": "1.0", "schema_version": "1.0"}"#).unwrap();
    refused(&["agents", "create", "reader", "--manifest", file], "schema_version");
    std::fs::write(file, "{").unwrap();
    refused(&["agents", "create", "reader", "--manifest", file], "twice.json");
    refused(&["agents", "create", "reader", "--manifest", "missing.json"], "missing.json");
    let unknown = format!("agt_{:032x}", 0);
    for args in [["agents", "show", unknown.as_str()], ["agents", "show", "nobody"], ["webhooks", "show", "agt_77"]] {
        refused(&args, "error: no such agent");
        refused(&args, "ostler agents list");
    }
    assert_eq!(stdout_of(home.cli(Some(&server), &["agents", "list", "-o", "json"])).trim(), "[]");
}
