//! The real Codex in a pod, under a filter that denies namespaces as a container runtime does.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use ostler_runner::guard::{TOOL_LANDLOCK_LEVEL_MIN, landlock_level};
use ostler_stand_ins::responses;
use serde_json::{Value, json};

use super::{ClusterServer, result};
use crate::fixtures::{
    backend_server::{CODEX, KEY},
    http::Http,
    runner::run_request,
    test_home::Engine,
};

const FILTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/reliability/no_namespaces.py");

/// An image with Codex whose program runs under the filter.
fn image(directory: &Path) -> PathBuf {
    let codex = std::env::var("OSTLER_TEST_CODEX")
        .expect("OSTLER_TEST_CODEX is not set: run `cargo xtask test`, which installs a Codex");
    let programs = directory.join("programs");
    std::fs::create_dir(&programs).unwrap();
    std::os::unix::fs::symlink(codex, programs.join("codex")).unwrap();
    let script = format!(
        "#!/bin/sh\nPATH='{}':$PATH exec python3 '{FILTER}' '{}' \"$@\"\n",
        programs.display(),
        env!("CARGO_BIN_EXE_ostler")
    );
    let image = directory.join("image");
    std::fs::write(&image, script).unwrap();
    std::fs::set_permissions(&image, PermissionsExt::from_mode(0o755)).unwrap();
    image
}

/// A run of one command of a tool: the lines that the command printed, sorted, and all events.
fn run_tool(cluster: &ClusterServer, http: &mut Http, sandbox: &str, command: &str) -> (Vec<String>, Vec<Value>) {
    let secret = json!({"name": "agentrun-v01-provider-codex", "keys": ["auth.json", "config.toml"]});
    let scope = json!({"providerCredentials": [{"profile": "codex", "secretRef": secret}]});
    let mut request = run_request();
    request["backendProfile"] = "codex".into();
    request["executionPolicy"] =
        json!({"sandbox": sandbox, "approval": "never", "network": "disabled", "secretScope": scope});
    let (run_id, command_id, _) = cluster.start(http, &request, &format!("[[tool:{command}]]"));
    let ended = result(http, &run_id, &command_id);
    let events = http.events(&run_id);
    assert_eq!(ended["status"], "completed", "{ended}\n{events:#?}");
    let output = events.iter().filter(|event| event["type"] == "command_output");
    let output: String = output.filter_map(|event| event["payload"]["text"].as_str()).collect();
    let mut lines: Vec<_> = output.lines().map(str::to_owned).collect();
    lines.sort();
    (lines, events)
}

#[test]
fn tools_of_codex_are_confined_in_a_pod_without_namespaces() {
    assert!(landlock_level() >= TOOL_LANDLOCK_LEVEL_MIN, "this test needs Landlock");
    let (directory, provider) = (tempfile::tempdir().unwrap(), responses());
    let cluster = ClusterServer::launch_image(Engine::Sqlite, &image(directory.path()));
    let mut http = Http::new(cluster.server());
    let (auth, config) = (json!({"OPENAI_API_KEY": KEY}).to_string(), (CODEX.config)(&provider.base_url()));
    let files = json!({"files": {"auth.json": auth, "config.toml": config}}).to_string();
    http.send("PUT", "/api/v1/provider-profiles/codex/credential", &[], &files).unwrap().good();
    let address = provider.base_url();
    let port = address.trim_end_matches("/v1").rsplit(':').next().unwrap();
    let tries = [
        ("namespace", "unshare --user true".to_owned()),
        ("write-workspace", "echo x > new".to_owned()),
        ("write-temporary", "echo x > \"$TMPDIR/new\"".to_owned()),
        ("write-home", "echo x > \"$HOME/new\"".to_owned()),
        ("write-outside", format!("echo x > {}", directory.path().join("new").display())),
        ("read-key", "cat \"$HOME/auth.json\"".to_owned()),
        ("read-storage", "cat \"$HOME\"/sessions/*/*/*/*".to_owned()),
        ("connect", format!("bash -c 'echo > /dev/tcp/127.0.0.1/{port}'")),
    ];
    let lines: Vec<_> =
        tries.iter().map(|(name, attempt)| format!("({attempt}) >/dev/null 2>&1 && echo {name}")).collect();
    let command = format!("{}; echo end", lines.join("; "));
    let (could, events) = run_tool(&cluster, &mut http, "workspace-write", &command);
    assert_eq!(could, ["end", "write-temporary", "write-workspace"]);
    let mounted: Vec<_> =
        events.iter().filter(|event| event["payload"]["phase"] == "codex-rollout-storage-mounted").collect();
    let [mounted] = mounted[..] else { panic!("{mounted:#?}") };
    assert!(mounted["commandId"].is_string() && mounted["payload"]["pvcName"].is_string(), "{mounted}");
    let (could, _) = run_tool(&cluster, &mut http, "read-only", &command);
    assert_eq!(could, ["end"]);
    let seen = provider.seen();
    let bearer = format!("Bearer {KEY}");
    assert!(!seen.is_empty() && seen.iter().all(|seen| seen.authorization.as_deref() == Some(bearer.as_str())));
}
