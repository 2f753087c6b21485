//! A server with a Codex to run and a provider for it.

use std::time::{Duration, Instant};

use ostler_stand_ins::{Endpoint, responses};
use serde_json::{Value, json};

use crate::{
    home::{Engine, Home},
    http::Http,
    process::Server,
};

pub const KEY: &str = "sk-planted-provider-key-4711";
/// A turn of a real agent on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Inn {
    pub provider: Endpoint,
    pub http: Http,
    pub server: Server,
    pub home: Home,
}

/// The real program. `cargo xtask test` says where it is.
fn program() -> String {
    std::env::var("OSTLER_TEST_CODEX")
        .expect("OSTLER_TEST_CODEX is not set: run `cargo xtask test`, which brings a Codex along")
}

impl Inn {
    pub fn open(launcher: &str) -> Self {
        Self::open_on(Engine::Sqlite, launcher, &[])
    }

    pub fn open_on(engine: Engine, launcher: &str, more: &[(&str, &str)]) -> Self {
        let mut home = Home::new(engine);
        for (name, value) in [
            ("OSTLER_AGENTS__CODEX", program().as_str()),
            ("OSTLER_AGENTS__PROVIDER_LATER_MS", "20"),
            ("OSTLER_AGENTS__PROVIDER_UNREACHABLE_MS", "3000"),
            ("OSTLER_RUNNER__LAUNCHER", launcher),
            ("OSTLER_RUNNER__LEASE_MS", "3000"),
            ("OSTLER_RUNNER__JOB_SILENCE_MS", "600"),
            ("OSTLER_RUNNER__SWEEP_INTERVAL_MS", "50"),
            // The tools need a shell that finds its programs.
            ("PATH", &std::env::var("PATH").unwrap()),
            ("OSTLER_POLICY__CEILING__SANDBOX", "danger-full-access"),
        ]
        .iter()
        .chain(more)
        {
            home.set(name, value);
        }
        let server = home.serve();
        let http = Http::new(&server);
        let mut inn = Self { provider: responses(), http, server, home };
        let base_url = inn.provider.base_url();
        inn.furnish(&base_url);
        inn
    }

    /// Points the profile at a provider.
    pub fn furnish(&mut self, base_url: &str) {
        let config = format!(
            "model = \"stand-in\"\nmodel_provider = \"stand-in\"\n[model_providers.stand-in]\nname = \"stand-in\"\n\
             base_url = \"{base_url}\"\nwire_api = \"responses\"\nrequires_openai_auth = true\nrequest_max_retries = 1\n\
             stream_max_retries = 1\n[features]\nplugins = false\napps = false\n"
        );
        let files = json!({"auth.json": json!({"OPENAI_API_KEY": KEY}).to_string(), "config.toml": config});
        let body = json!({"files": files}).to_string();
        let put = self.http.send("PUT", "/api/v1/provider-profiles/codex/credential", &[], &body).unwrap();
        put.good();
    }

    /// A run with its first turn. Answers run and command.
    pub fn submit(&mut self, prompt: &str) -> (String, String) {
        self.submit_with(prompt, json!({}), json!({}))
    }

    pub fn submit_with(&mut self, prompt: &str, policy: Value, more: Value) -> (String, String) {
        let scope = json!({"providerCredentials": [{"profile": "codex", "secretRef":
            {"name": "agentrun-v01-provider-codex", "keys": ["auth.json", "config.toml"]}}]});
        let mut body = json!({"tenantId": "local", "projectId": "local/default", "workspaceRef": {"kind": "none"},
            "providerId": "local", "backendProfile": "codex", "traceSink": null,
            "executionPolicy": {"sandbox": "danger-full-access", "approval": "never", "secretScope": scope},
            "command": {"type": "turn", "payload": {"prompt": prompt}}});
        extend(&mut body["executionPolicy"], policy);
        extend(&mut body, more);
        let run = self.http.post("/api/v1/runs", &body).good();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (text(&run["runId"]), text(&run["command"]["commandId"]))
    }

    /// Another command of the same run.
    pub fn command(&mut self, run_id: &str, kind: &str, prompt: &str) -> String {
        let body = json!({"type": kind, "payload": {"prompt": prompt}});
        let command = self.http.post(&format!("/api/v1/runs/{run_id}/commands"), &body).good();
        command["commandId"].as_str().unwrap().to_owned()
    }

    /// How a command ended.
    pub fn ended(&mut self, run_id: &str, command_id: &str) -> Value {
        let path = format!("/api/v1/runs/{run_id}/commands/{command_id}/result");
        self.wait("the command ends", run_id, |http, _| {
            Some(http.get(&path).good()).filter(|result| !result["terminalStatus"].is_null())
        })
    }

    pub fn events(&mut self, run_id: &str) -> Vec<Value> {
        self.http.events(run_id)
    }

    /// Waits for an event of a run.
    pub fn event(&mut self, run_id: &str, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        self.wait(what, run_id, |_, events| events.iter().find(|event| fits(event)).cloned())
    }

    fn wait<T>(&mut self, what: &str, run_id: &str, mut ask: impl FnMut(&mut Http, &[Value]) -> Option<T>) -> T {
        let until = Instant::now() + PATIENCE;
        loop {
            let events = self.http.events(run_id);
            if let Some(answer) = ask(&mut self.http, &events) {
                return answer;
            }
            assert!(
                Instant::now() < until,
                "not within {PATIENCE:?}: {what}; the log holds {events:#?}\n{}",
                self.home.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until no process has this on its command line.
    pub fn gone(&self, text: &str) {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = processes(text);
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < until, "left behind: {left:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Stops it in peace; what it stored proves itself, and the provider's key is nowhere in it.
    pub fn close(self) {
        let Self { home, server, .. } = self;
        server.stop();
        assert!(!home.everything_stored().contains(KEY) && !home.log().contains(KEY));
        home.assert_verified();
    }
}

fn extend(object: &mut Value, more: Value) {
    object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
}

/// Processes with this text among their arguments: id and arguments.
pub fn processes(text: &str) -> Vec<(i32, String)> {
    let ids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let arguments = |id: i32| {
        let bytes = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        (id, String::from_utf8_lossy(&bytes).replace('\0', " "))
    };
    ids.map(arguments).filter(|(_, arguments)| arguments.contains(text)).collect()
}

pub fn is_phase(event: &Value, phase: &str) -> bool {
    event["type"] == "backend_status" && event["payload"]["phase"] == phase
}

pub fn is_tool(event: &Value, status: &str) -> bool {
    event["type"] == "tool_call" && event["payload"]["status"] == status
}
