//! A server with a real agent to run and a stand-in for its model provider.

use std::time::{Duration, Instant};

use ostler_stand_ins::{Endpoint, chat_with_key, responses};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{
    home::{Engine, Home},
    http::Http,
    process::Server,
    runner::run_request,
};

pub const KEY: &str = "sk-planted-provider-key-4711";
/// A turn of a real agent on a busy machine; some take a minute to start.
const PATIENCE: Duration = Duration::from_secs(150);

/// An agent that stays at the inn: its profile, its provider, and the profile's config for it.
pub struct Guest {
    pub profile: &'static str,
    provider: fn() -> Endpoint,
    config: fn(base_url: &str) -> String,
}

pub const CODEX: Guest = Guest {
    profile: "codex",
    provider: responses,
    config: |base_url| {
        format!(
            "model = \"stand-in\"\nmodel_provider = \"stand-in\"\n[model_providers.stand-in]\nname = \"stand-in\"\n\
             base_url = \"{base_url}\"\nwire_api = \"responses\"\nrequires_openai_auth = true\nrequest_max_retries = 1\n\
             stream_max_retries = 1\n[features]\nplugins = false\napps = false\n"
        )
    },
};

/// Left to itself it asks nobody: what it asks, it asks because the run's policy says so.
pub const QWEN: Guest = Guest {
    profile: "qwen",
    provider: || chat_with_key(KEY),
    config: |base_url| {
        let auth = json!({"selectedType": "openai", "apiKey": "${OPENAI_API_KEY}", "baseUrl": base_url});
        let settings = json!({"security": {"auth": auth}, "model": {"name": "stand-in"}, "tools": {"approvalMode": "yolo"},
            "privacy": {"usageStatisticsEnabled": false}, "general": {"enableAutoUpdate": false}});
        let (node, qwen) = (found("OSTLER_TEST_NODE"), found("OSTLER_TEST_QWEN"));
        format!(
            "[ostler]\nagent = \"acp\"\ncommand = [\"{node}\", \"{qwen}\", \"--acp\"]\nkeep = [\".qwen/projects\"]\n\
             [ostler.files]\n\".qwen/settings.json\" = '{settings}'\n"
        )
    },
};

pub struct Inn {
    guest: &'static Guest,
    pub provider: Endpoint,
    pub http: Http,
    pub server: Server,
    pub home: Home,
}

/// Where a real program is. `cargo xtask test` says so.
fn found(variable: &str) -> String {
    let hint = "run `cargo xtask test`, which brings the agents along";
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: {hint}"))
}

impl Inn {
    pub fn open(guest: &'static Guest, launcher: &str) -> Self {
        Self::open_on(Engine::Sqlite, guest, launcher, &[])
    }

    pub fn open_on(engine: Engine, guest: &'static Guest, launcher: &str, more: &[(&str, &str)]) -> Self {
        let mut home = Home::on_disk(engine);
        for (name, value) in [
            ("OSTLER_AGENTS__CODEX", found("OSTLER_TEST_CODEX").as_str()),
            ("OSTLER_AGENTS__PROVIDER_LATER_MS", "20"),
            ("OSTLER_AGENTS__PROVIDER_UNREACHABLE_MS", "3000"),
            ("OSTLER_RUNNER__LAUNCHER", launcher),
            ("OSTLER_RUNNER__LEASE_MS", "3000"),
            ("OSTLER_RUNNER__JOB_SILENCE_MS", "3000"),
            ("OSTLER_RUNNER__SWEEP_INTERVAL_MS", "50"),
            // An agent that is kept for another turn is not waited for.
            ("OSTLER_SERVER__DRAIN_MS", "100"),
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
        let mut inn = Self { guest, provider: (guest.provider)(), http, server, home };
        let base_url = inn.provider.base_url();
        inn.furnish(&base_url);
        inn
    }

    /// Points the profile at a provider.
    pub fn furnish(&mut self, base_url: &str) {
        let (auth, config) = (json!({"OPENAI_API_KEY": KEY}).to_string(), (self.guest.config)(base_url));
        let body = json!({"files": {"auth.json": auth, "config.toml": config}}).to_string();
        let path = format!("/api/v1/provider-profiles/{}/credential", self.guest.profile);
        self.http.send("PUT", &path, &[], &body).unwrap().good();
    }

    /// A run with its first turn. Answers run and command.
    pub fn submit(&mut self, prompt: &str) -> (String, String) {
        self.submit_with(prompt, json!({}), json!({}))
    }

    pub fn submit_with(&mut self, prompt: &str, policy: Value, more: Value) -> (String, String) {
        let run = self.http.post("/api/v1/runs", &self.request(prompt, policy, more)).good();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (text(&run["runId"]), text(&run["command"]["commandId"]))
    }

    /// What asks for a run with its first turn.
    pub fn request(&self, prompt: &str, policy: Value, more: Value) -> Value {
        let profile = self.guest.profile;
        let secret = json!({"name": format!("agentrun-v01-provider-{profile}"), "keys": ["auth.json", "config.toml"]});
        let scope = json!({"providerCredentials": [{"profile": profile, "secretRef": secret}]});
        let mut body = run_request();
        body["backendProfile"] = profile.into();
        body["executionPolicy"] = json!({"sandbox": "danger-full-access", "approval": "never", "secretScope": scope});
        body["command"] = json!({"type": "turn", "payload": {"prompt": prompt}});
        extend(&mut body["executionPolicy"], policy);
        extend(&mut body, more);
        body
    }

    /// Another command of the same run.
    pub fn command(&mut self, run_id: &str, kind: &str, prompt: &str) -> String {
        let body = json!({"type": kind, "payload": {"prompt": prompt}});
        let command = self.http.post(&format!("/api/v1/runs/{run_id}/commands"), &body).good();
        command["commandId"].as_str().unwrap().to_owned()
    }

    pub fn cancel(&mut self, command_id: &str) {
        self.http.post(&format!("/api/v1/commands/{command_id}/cancel"), &json!({})).good();
    }

    /// Waits for the agent to ask about this, and answers with the option of this id, or of this kind.
    pub fn answer(&mut self, run_id: &str, command_id: &str, option: &str) {
        let asks = |event: &Value| event["type"] == "permission_request" && event["commandId"] == command_id;
        let asked = self.event(run_id, "the agent asks", asks)["payload"].clone();
        let options = asked["options"].as_array().unwrap();
        let is_it = |offer: &&Value| offer["optionId"] == option || offer["kind"] == option;
        let option_id =
            &options.iter().find(is_it).unwrap_or_else(|| panic!("{option} is not offered: {asked}"))["optionId"];
        let path = format!("/api/v1/runs/{run_id}/permissions/{}/answer", asked["permissionId"].as_str().unwrap());
        self.http.post(&path, &json!({"optionId": option_id, "digest": asked["digest"]})).good();
    }

    /// `kill -9` of the process that runs the agent for this server.
    pub fn kill_runner(&self) {
        let server = self.server.process.0.id();
        let (runner, _) = processes("runner --launched").into_iter().find(|(id, _)| parent(*id) == server).unwrap();
        kill_process(Pid::from_raw(runner).unwrap(), Signal::KILL).unwrap();
    }

    /// Kills the server, and starts another in its place.
    pub fn kill_server(self) -> Self {
        let Self { guest, provider, server, home, .. } = self;
        server.kill();
        let server = home.serve();
        Self { guest, provider, http: Http::new(&server), server, home }
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

    /// Waits until a process has this on its command line.
    pub fn runs(&self, text: &str) {
        self.until("it runs", || !processes(text).is_empty());
    }

    /// Waits until no process has this on its command line.
    pub fn gone(&self, text: &str) {
        self.until("nothing is left behind", || processes(text).is_empty());
    }

    fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < until, "not within {PATIENCE:?}: {what}\n{}", self.home.log());
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

fn parent(id: i32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    fields.split(' ').nth(1).and_then(|parent| parent.parse().ok()).unwrap_or_default()
}

pub fn is_phase(event: &Value, phase: &str) -> bool {
    event["type"] == "backend_status" && event["payload"]["phase"] == phase
}

pub fn is_tool(event: &Value, status: &str) -> bool {
    event["type"] == "tool_call" && event["payload"]["status"] == status
}
