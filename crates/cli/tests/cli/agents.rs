//! Agents on the command line: made from a file, shown, found, and changed after a look at what the change would break.

use std::{path::PathBuf, process::Output};

use serde_json::{Value, json};

use crate::home::{Engine, Home, both_engines};

/// Writes a manifest whose one tool takes these paths.
fn manifest(home: &Home, name: &str, paths: Value) -> PathBuf {
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

#[track_caller]
pub fn printed(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[both_engines]
fn an_agent_is_made_shown_compared_and_changed(engine: Engine) {
    let home = Home::new(engine);
    let server = home.serve();
    let ostler = |args: &[&str]| home.cli(Some(&server), args);
    let (old, new) = (manifest(&home, "old.json", json!(["a"])), manifest(&home, "new.json", json!(["b"])));
    let (old, new) = (old.to_str().unwrap(), new.to_str().unwrap());
    let made = printed(ostler(&["agents", "create", "reader", "--manifest", old, "--profile", "scripted"]));
    let agent = made.trim();
    assert!(agent.starts_with("agt_"), "{made}");
    let shown = printed(ostler(&["agents", "show", agent]));
    for part in ["reader", "runs on scripted", "manifest version 1", "filesystem:read  medium", "read_file"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let diff = ["agents", "diff", agent, "--manifest", new];
    let foretold = printed(ostler(&diff));
    assert!(
        foretold.contains("breaking  enum-value-removed  /tools/0/input_schema/properties/path/enum  - \"a\""),
        "{foretold}"
    );
    assert!(foretold.ends_with("breaking: people will be asked again about filesystem:read\n"), "{foretold}");
    let foretold: Value = serde_json::from_str(&printed(ostler(&[&diff[..], &["-o", "json"]].concat()))).unwrap();
    assert_eq!((&foretold["breaking"], &foretold["capability_manifest_version"]), (&json!(true), &json!(2)));
    let same = printed(ostler(&["agents", "diff", agent, "--manifest", old]));
    assert_eq!(same, "no change\n");
    let updated = printed(ostler(&["agents", "update", "reader", "--manifest", new, "--profile", "scripted"]));
    let breaking = "breaking: people are asked again about 1 scope, filesystem:read";
    assert_eq!(updated, format!("{agent} manifest version 2, {breaking}\n"));
    let beginning = &agent[..agent.len() - 1];
    let updated = printed(ostler(&["agents", "update", beginning, "--manifest", new]));
    assert_eq!(updated, format!("{agent} manifest version 2, unchanged\n"));
    assert_eq!(printed(ostler(&["agents", "show", "reader"])), printed(ostler(&["agents", "show", beginning])));
    let nothing = ostler(&["agents", "update", agent]);
    let said = String::from_utf8_lossy(&nothing.stderr).into_owned();
    assert!(nothing.status.code() == Some(2) && said.contains("`--manifest FILE`"), "{said}");
    printed(ostler(&["agents", "create", "other"]));
    let listed = printed(ostler(&["agents", "list", "--name", "read", "-o", "json"]));
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["id"]), (1, &json!(agent)));
    assert_eq!(listed[0]["capability_manifest_hash"], foretold["capability_manifest_hash"]);
}

#[both_engines]
fn what_is_wrong_with_a_manifest_is_told(engine: Engine) {
    let home = Home::new(engine);
    let server = home.serve();
    let refused = |args: &[&str], said: &str| {
        let output = home.cli(Some(&server), args);
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && output.stdout.is_empty() && words.contains(said), "{said}: {output:?}");
    };
    let file = home.path("twice.json");
    let file = file.to_str().unwrap();
    // A lenient reader would take the last of them.
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
    assert_eq!(printed(home.cli(Some(&server), &["agents", "list", "-o", "json"])).trim(), "[]");
}
