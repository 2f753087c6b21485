//! Agents that break every rule of their protocol: their turns end with a clear failure, none of their processes is left
//! when the server has stopped, and the work of others goes on.

use std::path::Path;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::{BOTH, Disk, Probe};
use crate::{
    api::text,
    clock::{now, since},
    load::{SETTLE_WITHIN, run_request},
    report::Fault,
    round::{Round, Setup},
};

/// The budget of a turn. An agent that sends nothing is ended by it.
const TIMEOUT_MS: u64 = 2_500;
const GONE_WITHIN: Duration = Duration::from_secs(15);
const AGENTS_PER_ROUND: usize = 4;

/// Shell scripts, because they need nothing that a test machine lacks.
const AGENTS: [(&str, &str); 10] = [
    ("garbage", "head -c 200000 /dev/urandom; sleep 600"),
    ("endless-line", "head -c 80000000 /dev/zero | tr '\\0' 'x'; sleep 600"),
    ("endless-output", "yes '{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{}}'"),
    ("deep-json", "head -c 400000 /dev/zero | tr '\\0' '['; echo; sleep 600"),
    ("silent", "exec sleep 600"),
    ("gone", "exit 3"),
    ("closes-its-output", "exec 1>&-; exec sleep 600"),
    ("ignores-signals", "trap '' TERM INT HUP; while :; do sleep 1; done"),
    ("forks", "n=0; while [ $n -lt 40 ]; do sleep 600 & n=$((n+1)); done; (trap '' TERM; sleep 600) & wait"),
    ("asks-for-ever", ASKS),
];

/// Marks every process that an agent starts, in its command line or its environment.
const MARKED: &str = "export OSTLER_HOSTILE=\"$0\"; ";

/// Answers what it must, then asks for a permission with every breath.
const ASKS: &str = r#"
while read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\("[^"]*"\|[0-9]*\).*/\1/p')
  case "$line" in
    *'"initialize"'*) echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":{\"protocolVersion\":1,\"agentCapabilities\":{},\"authMethods\":[]}}" ;;
    *'"session/new"'*) echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":{\"sessionId\":\"s\"}}" ;;
    *'"session/prompt"'*) n=0; while [ $n -lt 3000 ]; do n=$((n+1))
      echo "{\"jsonrpc\":\"2.0\",\"id\":\"ask-$n\",\"method\":\"session/request_permission\",\"params\":{\"sessionId\":\"s\",\"toolCall\":{\"toolCallId\":\"t$n\",\"title\":\"rm\"},\"options\":[{\"optionId\":\"y\",\"name\":\"Yes\",\"kind\":\"allow_once\"}]}}"
    done; sleep 600 ;;
  esac
done
"#;

pub(crate) const PROBE: Probe = Probe {
    name: "hostile-agents",
    about: "ACP agents that print garbage or lines without end, say nothing, fork, ignore signals, or ask for ever",
    engines: BOTH,
    rounds: 1,
    disk: Disk::Shared,
    fault: Some(Fault::HostileAgent),
    setup: |random, _| Setup {
        environment: vec![
            ("OSTLER_RUNNER__LAUNCHER", if random.chance(50) { "process" } else { "resident" }.into()),
            ("OSTLER_AGENTS__PROVIDER_UNREACHABLE_MS", "2000".into()),
            ("OSTLER_SERVER__DRAIN_MS", "200".into()),
        ],
        ..Setup::default()
    },
    disturb: host,
};

fn host(round: &mut Round) -> Result<(), String> {
    let mut agents: Vec<_> = AGENTS.to_vec();
    round.random.shuffle(&mut agents);
    let runtime = round.resources.runtime.handle().clone();
    let mark = format!("ostler-hostile-{}-{}", std::process::id(), round.random.draw());
    let mut turns = vec![];
    for (name, script) in agents.into_iter().take(AGENTS_PER_ROUND) {
        let started = runtime.block_on(start(round, name, script, &mark));
        turns.push((name, started.map_err(|why| format!("{name}: {why}"))?));
        round.count(Fault::HostileAgent);
        round.tally.hidden_runs += 1;
    }
    round.wait_for_progress()?;
    for (name, (run_id, command_id)) in turns {
        runtime.block_on(ended(round, &run_id, &command_id)).map_err(|why| format!("{name}: {why}"))?;
    }
    // Their runners keep them for another turn; the server's end is theirs.
    if let Some(server) = round.servers[0].take() {
        server.stop()?;
    }
    gone(&mark)?;
    round.start_server(0)?;
    round.wait_for_progress()
}

async fn start(round: &Round<'_>, name: &str, script: &str, mark: &str) -> Result<(String, String), String> {
    let command = [&json!("/bin/sh"), &json!("-c"), &json!(format!("{MARKED}{script}")), &json!(mark)]
        .map(Value::to_string)
        .join(", ");
    let files = json!({"auth.json": "{\"OPENAI_API_KEY\":\"not-a-key-of-anybody\"}",
        "config.toml": format!("[ostler]\nagent = \"acp\"\ncommand = [{command}]\n")});
    let path = format!("/api/v1/provider-profiles/{name}/credential");
    round.api.insist("PUT", &path, Some(&json!({"files": files})), SETTLE_WITHIN).await?;
    let secret = json!({"name": format!("agentrun-v01-provider-{name}"), "keys": ["auth.json", "config.toml"]});
    let mut body = run_request();
    body["backendProfile"] = json!(name);
    body["idempotencyKey"] = json!(format!("hostile-{name}"));
    body["executionPolicy"] = json!({"timeoutMs": TIMEOUT_MS,
        "secretScope": {"providerCredentials": [{"profile": name, "secretRef": secret}]}});
    body["command"] = json!({"type": "turn", "payload": {"prompt": "hello"}});
    let run = round.api.insist("POST", "/api/v1/runs", Some(&body), SETTLE_WITHIN).await?;
    Ok((text(&run, "/runId")?, text(&run, "/command/commandId")?))
}

/// Waits for the end of the turn, which must not be a good one.
async fn ended(round: &Round<'_>, run_id: &str, command_id: &str) -> Result<(), String> {
    let (path, started) = (format!("/api/v1/runs/{run_id}/commands/{command_id}/result"), now());
    loop {
        let result = round.api.insist("GET", &path, None, SETTLE_WITHIN).await?;
        match result["terminalStatus"].as_str() {
            Some("completed") => return Err("its turn completed".into()),
            Some(_) if result["failureKind"].is_string() => return Ok(()),
            Some(status) => return Err(format!("its turn ended {status} without a failure kind")),
            None if since(started) > SETTLE_WITHIN => {
                return Err(format!("its turn did not end within {SETTLE_WITHIN:?}"));
            }
            None => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Waits until no process has the mark.
fn gone(mark: &str) -> Result<(), String> {
    let started = now();
    loop {
        let left = marked(mark);
        if left.is_empty() {
            return Ok(());
        }
        if since(started) > GONE_WITHIN {
            return Err(format!("processes of agents outlived the server by {GONE_WITHIN:?}: {left:?}"));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn marked(mark: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let read = |path: &Path, name: &str| {
        let bytes = std::fs::read(path.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\0', " ")
    };
    let of_ours = |path: &Path| ["cmdline", "environ"].iter().any(|name| read(path, name).contains(mark));
    let paths = entries.map(|entry| entry.path()).filter(|path| of_ours(path));
    paths.map(|path| format!("{}: {}", path.display(), read(&path, "cmdline"))).collect()
}
