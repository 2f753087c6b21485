//! The scenarios of the published SDK with every backend: one server for each policy of votes, and all scenarios on the first one.
//! What does not hold for a backend is listed in `backends.mjs`.

use ostler_stand_ins::Endpoint;
use serde_json::json;

use super::drive;
use crate::fixtures::{
    backend_server::{BackendServer, KEY, MODEL, QWEN, TestBackend},
    process::Server,
    test_home::{Engine, TestHome},
};

const POLICIES: [&str; 4] = ["first-responder", "designated", "consensus", "local-only"];

/// Scenarios that are played at once, and in each row one after the other in the same session. Those that change files of the
/// workspace are in one row, because one of them looks at the changes of its turns.
const SCENARIOS: [&[&str]; 2] = [
    &["foundation", "cancel", "permissions", "votes", "reconnect", "reads", "mcp", "evictions"],
    &["sessions", "history", "files", "workspace", "asides"],
];

/// A server with one of the backends, and the provider of its model if it has one.
struct PolicyServer {
    server: Server,
    home: TestHome,
    _provider: Option<Endpoint>,
}

impl PolicyServer {
    /// Starts it, bound to the workspace. Without a backend: the scripted one.
    fn start(backend: Option<&'static TestBackend>, workspace: &str, policy: &str) -> Self {
        let variables = [
            ("OSTLER_SERVER__WORKSPACE", workspace),
            ("OSTLER_DAEMON__PROFILE", backend.map_or("scripted", |backend| backend.profile)),
            ("OSTLER_DAEMON__SESSION_SHELL", "true"),
            ("OSTLER_POLICY__PERMISSION_STRATEGY", policy),
            // Several agents start at once.
            ("OSTLER_AGENTS__PROVIDER_UNREACHABLE_MS", "60000"),
        ];
        if let Some(backend) = backend {
            let opened = BackendServer::open_on(Engine::Sqlite, backend, "resident", &variables);
            let BackendServer { provider, server, home, .. } = opened;
            return Self { server, home, _provider: Some(provider) };
        }
        let mut home = TestHome::on_disk(Engine::Sqlite);
        for (name, value) in variables {
            home.set(name, value);
        }
        Self { server: home.serve(), home, _provider: None }
    }

    /// Stops it; checks that its store verifies and does not contain the provider's key.
    fn close(self) {
        let Self { server, home, .. } = self;
        server.stop();
        assert!(!home.everything_stored().contains(KEY) && !home.log().contains(KEY));
        home.assert_verified();
    }
}

/// Plays the scenarios with a backend, on servers of these policies.
fn play_all(name: &str, backend: Option<&'static TestBackend>, policies: &[&str]) {
    let workspace = tempfile::tempdir().unwrap();
    let path = workspace.path().canonicalize().unwrap();
    let start = |policy: &&str| PolicyServer::start(backend, path.to_str().unwrap(), policy);
    let mut servers: Vec<PolicyServer> = policies.iter().map(start).collect();
    let named: Vec<(&str, &Server)> =
        policies.iter().zip(&servers).map(|(policy, server)| (*policy, &server.server)).collect();
    let play = json!({"backend": name, "lists": SCENARIOS, "last": ["shutdown"], "share": true});
    drive(&servers[0].home, &named, &path, play);
    // The last scenario has sent it SIGTERM.
    servers[0].server.is_stopping = true;
    servers.into_iter().for_each(PolicyServer::close);
}

#[test]
fn every_scenario_holds_with_the_scripted_backend() {
    play_all("scripted", None, &POLICIES);
}

#[test]
fn every_scenario_holds_with_a_model() {
    // It asks for no permission, under any policy.
    play_all("model", Some(&MODEL), &POLICIES[..1]);
}

mod qwen {
    use super::{POLICIES, QWEN, play_all};

    #[test]
    fn every_scenario_holds_with_a_coding_agent() {
        play_all("qwen", Some(&QWEN), &POLICIES);
    }
}
