//! A fixture for one Codex backend: a home, a storage, a workspace and a provider, with the runner's side controlled by the
//! test.

use std::{
    path::{Path, PathBuf},
    process::Command as System,
};

use ostler_protocol::{
    ids::AttemptId,
    kernel::{commands::Command, events::AppendEvent, policy::Budgets, provider_profiles::AgentConfig},
};
use ostler_stand_ins::{Endpoint, responses};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::super::CodexBackend;
use crate::{
    backend::{
        interface::Backend,
        turn::{Turn, TurnResult},
    },
    budgets::{Meter, StopReason},
    environment::{BackendEnvironment, RetryPolicy},
    turn_sink::{self, RunnerSide},
};

const TURN: &str = "cmd_0198c0ffee000000000000000000000a";
pub(super) const STEER: &str = "cmd_0198c0ffee000000000000000000000b";
/// A test that waits longer than this hangs.
const WAIT_MAX: std::time::Duration = std::time::Duration::from_secs(60);

pub(super) struct CodexFixture {
    pub(super) scratch: TempDir,
    pub(super) provider: Endpoint,
    pub(super) environment: BackendEnvironment,
    pub(super) codex: CodexBackend,
    pub(super) budgets: Budgets,
    pub(super) policy: Value,
    pub(super) thread_id: Option<String>,
    pub(super) is_repeat: bool,
    pub(super) images: Vec<String>,
    turns: u32,
}

pub(super) struct PlayedTurn {
    pub(super) events: Vec<(String, Value)>,
    pub(super) result: TurnResult,
    pub(super) stop: Option<StopReason>,
}

impl PlayedTurn {
    pub(super) fn all(&self, event_type: &str) -> Vec<&Value> {
        self.events.iter().filter(|(kind, _)| kind == event_type).map(|(_, payload)| payload).collect()
    }

    pub(super) fn phases(&self) -> Vec<&str> {
        self.all("backend_status").iter().filter_map(|payload| payload["phase"].as_str()).collect()
    }

    pub(super) fn failure_kind(&self) -> Option<ostler_protocol::FailureKind> {
        self.result.as_ref().ok().and_then(|end| end.failure_kind)
    }
}

pub(super) fn selected<'a>(
    events: &'a [(String, Value)],
    event_type: &str,
    field: &str,
    value: &str,
) -> Vec<&'a Value> {
    let fits = |(kind, payload): &&(String, Value)| kind == event_type && payload[field] == value;
    events.iter().filter(fits).map(|(_, payload)| payload).collect()
}

/// The real program. `cargo xtask test` sets its path.
pub(super) fn program() -> PathBuf {
    std::env::var_os("OSTLER_TEST_CODEX")
        .expect("OSTLER_TEST_CODEX is not set: run `cargo xtask test`, which installs a Codex")
        .into()
}

pub(super) fn config(base_url: &str) -> String {
    format!(
        "model = \"stand-in\"\nmodel_provider = \"stand-in\"\n[model_providers.stand-in]\nname = \"stand-in\"\n\
         base_url = \"{base_url}\"\nwire_api = \"responses\"\nrequires_openai_auth = true\nrequest_max_retries = 1\n\
         stream_max_retries = 1\n[features]\nplugins = false\napps = false\n"
    )
}

impl CodexFixture {
    pub(super) fn new() -> Self {
        let provider = responses();
        let scratch = tempfile::Builder::new().prefix("ostler-codex-").tempdir().unwrap();
        let folder = |name: &str| {
            let path = scratch.path().canonicalize().unwrap().join(name);
            std::fs::create_dir(&path).unwrap();
            Some(path)
        };
        let environment = BackendEnvironment {
            program: Some(program()),
            workspace: folder("workspace"),
            home: folder("home"),
            storage: folder("storage"),
            retry_policy: RetryPolicy { unreachable_ms: 3_000, later_ms: 20 },
            ..BackendEnvironment::bare(AgentConfig::Codex)
        };
        let mut fixture = Self {
            scratch,
            codex: CodexBackend::new(environment.clone()),
            environment,
            budgets: Budgets::default(),
            policy: json!({"sandbox": "danger-full-access", "approval": "never"}),
            thread_id: None,
            is_repeat: false,
            images: vec![],
            turns: 0,
            provider,
        };
        fixture.write_home(&config(&fixture.provider.base_url()));
        fixture
    }

    pub(super) fn home(&self) -> PathBuf {
        self.environment.home.clone().unwrap()
    }

    /// Hides a directory from the backend's tools, except its own directories in there.
    pub(super) fn hide(&mut self, directory: &Path) {
        self.environment.hidden = vec![directory.to_owned()];
        self.codex = CodexBackend::new(self.environment.clone());
    }

    pub(super) fn write_home(&mut self, config: &str) {
        std::fs::write(self.home().join("config.toml"), config).unwrap();
        std::fs::write(self.home().join("auth.json"), r#"{"OPENAI_API_KEY": "planted-provider-key-1"}"#).unwrap();
    }

    /// Another runner takes over. Only the session's storage is left of this one.
    pub(super) fn take_over(&mut self) {
        let home = self.scratch.path().canonicalize().unwrap().join(format!("home-{}", self.turns));
        std::fs::create_dir(&home).unwrap();
        self.environment.home = Some(home);
        self.write_home(&config(&self.provider.base_url()));
        self.codex = CodexBackend::new(self.environment.clone());
    }

    pub(super) async fn play(&mut self, prompt: &str) -> PlayedTurn {
        self.play_with(prompt, |_, _, _| {}).await
    }

    /// Plays a turn. `act` receives each event as it arrives.
    pub(super) async fn play_with(&mut self, prompt: &str, act: impl FnMut(&RunnerSide, &str, &Value)) -> PlayedTurn {
        let played = tokio::time::timeout(WAIT_MAX, self.act_out(prompt, act)).await;
        played.unwrap_or_else(|_| panic!("the turn {prompt:?} has no end"))
    }

    /// Plays a turn until a tool has started, and drops it, as if its runner had been killed.
    pub(super) async fn abandon(&mut self, prompt: &str) {
        let started = tokio::sync::Notify::new();
        let turn = self.play_with(prompt, |_, event_type, _| {
            if event_type == "tool_call" {
                started.notify_one();
            }
        });
        tokio::select! {
            _ = turn => panic!("the turn {prompt:?} ended"),
            () = started.notified() => {}
        }
    }

    /// Starts a turn that continues until the returned task is aborted.
    pub(super) async fn hold(&mut self) -> JoinHandle<()> {
        self.turns += 1;
        let turn = self.turn("[[hold]] on");
        let (sink, side) = turn_sink::open(
            &turn,
            i64::from(self.turns),
            Meter::new(self.budgets.clone(), self.environment.prices.clone()),
            self.environment.text_cutter(),
        );
        let mut codex = std::mem::replace(&mut self.codex, CodexBackend::new(self.environment.clone()));
        let held = tokio::spawn(async move { drop(codex.turn(&turn, sink).await) });
        let first_delta = async {
            while !side.next_batch().await.iter().any(|event| event.event_type == "assistant_delta") {
                side.mark_sent();
            }
        };
        tokio::time::timeout(WAIT_MAX, first_delta).await.expect("the turn begins");
        held
    }

    async fn act_out(&mut self, prompt: &str, mut act: impl FnMut(&RunnerSide, &str, &Value)) -> PlayedTurn {
        self.turns += 1;
        let turn = self.turn(prompt);
        let (sink, side) = turn_sink::open(
            &turn,
            i64::from(self.turns),
            Meter::new(self.budgets.clone(), self.environment.prices.clone()),
            self.environment.text_cutter(),
        );
        let mut events = vec![];
        let mut take = |batch: Vec<AppendEvent>| {
            for AppendEvent { event_type, payload, .. } in batch {
                let payload = payload.to_value();
                act(&side, &event_type, &payload);
                events.push((event_type, payload));
            }
            side.mark_sent();
        };
        let mut work = self.codex.turn(&turn, sink);
        let result = loop {
            tokio::select! {
                result = &mut work => break result,
                batch = side.next_batch() => take(batch),
            }
        };
        drop(work);
        take(side.take_batch());
        let stop = side.stop_reason();
        let reported =
            events.iter().filter(|(kind, _)| kind == "session").find_map(|(_, fact)| fact["threadId"].as_str());
        self.thread_id = reported.map(str::to_owned).or(self.thread_id.take());
        PlayedTurn { events, result, stop }
    }

    fn turn(&self, prompt: &str) -> Turn {
        let mut policy = json!({"timeoutMs": 60_000, "network": "enabled", "secretScope": {}});
        policy.as_object_mut().unwrap().extend(self.policy.as_object().unwrap().clone());
        let run = json!({"runId": "run_00000000000000000000000000000001", "sessionId": "s", "tenantId": "local",
            "projectId": "p", "workspaceRef": {"kind": "none"}, "providerId": "x", "backendProfile": "codex",
            "executionPolicy": policy, "traceSink": null, "status": "claimed", "terminal": null,
            "cancelRequestedAt": null, "lastSeq": 1, "commandCount": 1, "unfinishedCommands": 1, "leaseEpoch": 1,
            "attemptId": null, "createdAt": "2026-01-01T00:00:00Z", "updatedAt": "2026-01-01T00:00:00Z"});
        Turn {
            run: std::sync::Arc::new(serde_json::from_str(&run.to_string()).unwrap()),
            command: command(TURN, "turn", prompt),
            prompt: prompt.to_owned(),
            thread_id: self.thread_id.clone(),
            attempt_id: attempt_id(),
            is_repeat: self.is_repeat,
            conversation: vec![],
            unsent: 0,
            truncated: false,
            images: self.images.clone(),
            images_unseen: 0,
            past_calls: vec![],
        }
    }

    /// Waits until the remaining processes satisfy the condition.
    pub(super) async fn until(&self, what: &str, is_so: impl Fn(&[String]) -> bool) {
        let until = tokio::time::Instant::now() + WAIT_MAX;
        while !is_so(&self.remaining_processes()) {
            assert!(tokio::time::Instant::now() < until, "never: {what}: {:#?}", self.remaining_processes());
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    /// Command lines of the processes that were started for this fixture and still run.
    pub(super) fn remaining_processes(&self) -> Vec<String> {
        let directory = self.scratch.path().canonicalize().unwrap();
        let output = System::new("ps").args(["axeww", "-o", "pid=,stat=,args="]).output().unwrap();
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        let ours = |line: &&str| line.contains(directory.to_str().unwrap()) && !line.contains(" ps axeww");
        lines.lines().filter(ours).map(|line| line.chars().take(200).collect()).collect()
    }
}

/// An id that is unique across test processes, because a backend's processes are recognised by it.
fn attempt_id() -> AttemptId {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("att_{:016x}{:016x}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)).parse().unwrap()
}

pub(super) fn command(id: &str, kind: &str, prompt: &str) -> Command {
    let command = json!({"commandId": id, "runId": "run_00000000000000000000000000000001", "seq": 1, "type": kind,
        "payload": {"prompt": prompt}, "payloadHash": "", "idempotencyKey": null, "state": "acked",
        "targetCommandId": null, "cancelRequestedAt": null, "ackedAt": null, "attemptId": null, "terminal": null,
        "createdAt": "2026-01-01T00:00:00Z", "updatedAt": "2026-01-01T00:00:00Z"});
    serde_json::from_str(&command.to_string()).unwrap()
}
