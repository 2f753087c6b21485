//! Connections to MCP servers, with a server that is slow, huge, wrong or gone.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use ostler_protocol::mcp::{
    budget::BudgetMode,
    config::McpServer,
    states::ConnectionState,
    tools::{McpTool, TOOLS_MAX},
};
use ostler_server::{
    app::App,
    mcp::{AddRefused, ConnectionView, Lease, Mcp, McpNotice, McpProblem, Refused, RegisteredServer},
};
use ostler_testkit::mcp_server::{HttpMcpServer, python, write_script};
use serde_json::{Map, Value, json};

use crate::harness::{Engine, Setup, TestServer, both_engines, eventually, one_engine};

/// What the configuration of a test's servers refers to, and no reply may have.
pub(crate) const SECRET: &str = "pl4nted-mcp-secret-93ab";

/// A server of the configuration that behaves like this.
pub(crate) fn stdio(directory: &Path, arguments: &[&str]) -> McpServer {
    let script = write_script(directory).to_str().unwrap().to_owned();
    let args: Vec<_> = std::iter::once(script).chain(arguments.iter().map(|text| (*text).to_owned())).collect();
    let config = json!({"command": python(), "args": args, "env": {"SECRET": SECRET}, "timeout_ms": 20_000});
    serde_json::from_value(config).unwrap()
}

/// Configures servers by their names and behaviours.
pub(crate) fn configure_servers(setup: &mut Setup, servers: &[(&str, &str)]) {
    let directory = setup.config.server.data_dir.as_ref().unwrap().parent().unwrap().to_owned();
    let servers = servers.iter().map(|(name, behaviour)| ((*name).to_owned(), stdio(&directory, &[*behaviour])));
    setup.config.mcp.servers = servers.collect::<BTreeMap<_, _>>();
}

/// Counts its starts, and ends by itself after it has listed its tools.
const ENDS_AFTER_LISTING: &str = r#"
def lines(source):
    open("starts", "a").write("x")
    for line in source:
        yield line
        if '"tools/list"' in line:
            return
"#;

/// Lists its tools once, and never replies to a second request for them.
const LISTS_ONCE: &str = r#"
def lines(source):
    listings = 0
    for line in source:
        listings += '"tools/list"' in line
        if '"tools/list"' in line and listings > 1:
            open("second-listing", "w").close()
            continue
        yield line
"#;

/// Writes to its home until it is killed, and replies to nothing.
const WRITES_TO_HOME: &str = r#"
import os, time
home = os.environ["HOME"]
while True:
    os.makedirs(home, exist_ok=True)
    open(os.path.join(home, str(time.time_ns())), "w").close()
    time.sleep(0.001)
"#;

/// A server that reads its standard input through a Python function `lines(source)`. It works in the workspace.
fn filtered(setup: &Setup, lines: &str, behaviour: &str) -> McpServer {
    let directory = setup.config.server.data_dir.as_ref().unwrap().parent().unwrap();
    let run = "sys.argv = sys.argv[1:]\nsys.stdin = lines(sys.stdin)\nrunpy.run_path(sys.argv[0])";
    let code = format!("import runpy, sys\n{lines}\n{run}");
    let mut server = stdio(directory, &[behaviour]);
    server.args.insert(0, code);
    server.args.insert(0, "-c".to_owned());
    server
}

/// A server of ours with its state at hand.
struct Bench {
    server: TestServer,
    app: App,
}

impl Bench {
    async fn start(engine: Engine, choose: impl FnOnce(&mut Setup)) -> Self {
        let (server, app) = TestServer::with_app(engine, |setup| {
            setup.bind_workspace();
            choose(setup);
        })
        .await;
        Self { server, app }
    }

    fn mcp(&self) -> &Mcp {
        Mcp::of(&self.app)
    }

    async fn known(&self, name: &str) -> RegisteredServer {
        self.mcp().server(&self.app, name).await.unwrap().unwrap()
    }

    async fn lease(&self, name: &str) -> Result<Lease, Refused> {
        self.mcp().lease(&self.app, &self.known(name).await, "").await
    }

    /// A lease of a connection that is made.
    async fn connected(&self, name: &str) -> (Lease, ConnectionView) {
        let lease = self.lease(name).await.unwrap();
        let view = lease.ready().await.unwrap_or_else(|problem| panic!("{name}: {problem}"));
        (lease, view)
    }

    fn state(&self, name: &str) -> Option<ConnectionState> {
        Some(self.mcp().connections(name).last()?.view.state)
    }

    fn workspace(&self) -> &Path {
        self.server.config.server.workspace.as_deref().unwrap()
    }

    /// How often a server that [`ENDS_AFTER_LISTING`] was started.
    fn starts(&self) -> usize {
        std::fs::read(self.workspace().join("starts")).unwrap_or_default().len()
    }

    async fn until(&self, name: &str, state: ConnectionState) {
        eventually(&format!("{name} is {state:?}"), async || (self.state(name) == Some(state)).then_some(())).await;
    }
}

fn names(tools: &[McpTool]) -> Vec<&str> {
    tools.iter().map(|tool| tool.server_tool_name.as_str()).collect()
}

async fn text(lease: &Lease, tool: &str, arguments: Value) -> Result<Value, McpProblem> {
    let arguments: Map<_, _> = arguments.as_object().cloned().unwrap_or_default();
    let view = lease.ready().await?;
    let result = lease.call(&view, tool, arguments).await?;
    Ok(serde_json::from_str(&result.content[0].as_text().unwrap().text).unwrap())
}

fn processes_of(script: &Path) -> usize {
    let script = script.to_str().unwrap().to_owned();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let commands = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
    commands.filter(|command| command.contains(&script)).count()
}

#[one_engine]
async fn a_server_starts_on_first_use_and_its_tools_can_be_called(engine: Engine) {
    let bench = Bench::start(engine, |setup| configure_servers(setup, &[("good", "good")])).await;
    assert_eq!(bench.state("good"), None, "nothing is started before it is used");
    let (lease, view) = bench.connected("good").await;
    assert_eq!(names(&view.tools), ["echo", "env"]);
    assert_eq!(view.tools[0].name, "mcp__good__echo");
    assert_eq!(text(&lease, "echo", json!({"a": 1})).await.unwrap(), json!({"a": 1}));
    let place = text(&lease, "env", json!({})).await.unwrap();
    let workspace = bench.server.config.server.workspace.clone().unwrap().canonicalize().unwrap();
    assert_eq!(place["cwd"].as_str().map(PathBuf::from), Some(workspace));
    let variables = place["variables"].as_array().unwrap();
    assert!(variables.contains(&json!("SECRET")));
    assert!(!variables.iter().any(|name| name.as_str().unwrap().starts_with("OSTLER_")), "{variables:?}");
    let home = PathBuf::from(place["home"].as_str().unwrap());
    assert!(home.is_dir());
    let (second, _) = bench.connected("good").await;
    assert_eq!(bench.mcp().connections("good").len(), 1, "users share a connection");
    drop((lease, second));
    bench.mcp().disconnect("good");
    bench.until("good", ConnectionState::Disconnected).await;
    eventually("the home is deleted", async || (!home.exists()).then_some(())).await;
}

#[one_engine]
async fn a_server_that_is_hostile_fails_alone(engine: Engine) {
    let bench = Bench::start(engine, |setup| {
        configure_servers(
            setup,
            &[("garbage", "garbage"), ("good", "good"), ("huge", "huge"), ("lying", "lying"), ("silent", "silent")],
        );
        setup.config.mcp.servers.get_mut("silent").unwrap().timeout_ms = 300;
        let absent = McpServer { command: Some("/nowhere/server".into()), ..McpServer::default() };
        setup.config.mcp.servers.insert("absent".into(), absent);
        let mut unset = McpServer { command: Some("true".into()), ..McpServer::default() };
        unset.env.insert("A".into(), serde_json::from_value(json!({"env": "OSTLER_TEST_UNSET"})).unwrap());
        setup.config.mcp.servers.insert("unset".into(), unset);
        setup
            .config
            .mcp
            .servers
            .insert("ends".into(), McpServer { command: Some("true".into()), ..McpServer::default() });
    })
    .await;
    let silent = bench.lease("silent").await.unwrap();
    let problem = async |name: &str| bench.lease(name).await.unwrap().ready().await.unwrap_err();
    assert_eq!(problem("absent").await, McpProblem::Missing);
    assert_eq!(problem("unset").await, McpProblem::ValueMissing("A".into()));
    assert_eq!(problem("ends").await, McpProblem::Protocol);
    let (_good, _) = bench.connected("good").await;
    let (_garbage, view) = bench.connected("garbage").await;
    assert_eq!(view.tools.len(), 2);
    let (_huge, view) = bench.connected("huge").await;
    assert_eq!(view.tools.len(), TOOLS_MAX);
    assert!(view.tools[2].invalid_reason.is_some() && view.tools[2].schema.is_none());
    let (_lying, view) = bench.connected("lying").await;
    assert_eq!(names(&view.tools), ["echo", "env", "text", "odd", "", "leak", "echo"]);
    let invalid: Vec<_> = view.tools.iter().filter(|tool| tool.invalid_reason.is_some()).collect();
    assert_eq!(invalid.len(), 4);
    assert!(!format!("{:?}", view.tools).contains(SECRET), "a server's texts are redacted");
    assert_eq!(silent.ready().await.unwrap_err(), McpProblem::TimedOut);
    bench.until("silent", ConnectionState::Failed).await;
}

#[one_engine]
async fn a_server_that_dies_in_a_call_is_started_again(engine: Engine) {
    let mut script = PathBuf::new();
    let bench = Bench::start(engine, |setup| {
        configure_servers(setup, &[("dies", "dies")]);
        setup.config.mcp.reconnect_ms = 10;
        script = setup.config.mcp.servers["dies"].args[0].clone().into();
    })
    .await;
    let (lease, _) = bench.connected("dies").await;
    assert_eq!(text(&lease, "die", json!({})).await.unwrap_err(), McpProblem::Lost);
    let echoed = eventually("it is connected again", async || text(&lease, "echo", json!({"b": 2})).await.ok()).await;
    assert_eq!(echoed, json!({"b": 2}));
    assert_eq!(processes_of(&script), 1);
    bench.mcp().disconnect("dies");
    bench.until("dies", ConnectionState::Disconnected).await;
    eventually("the process ends", async || (processes_of(&script) == 0).then_some(())).await;
}

#[one_engine]
async fn a_server_that_ends_by_itself_is_started_again_a_few_times_only(engine: Engine) {
    let bench = Bench::start(engine, |setup| {
        let server = filtered(setup, ENDS_AFTER_LISTING, "good");
        setup.config.mcp.servers.insert("ends".into(), server);
        setup.config.mcp.reconnect_ms = 10;
    })
    .await;
    let _lease = bench.lease("ends").await.unwrap();
    bench.until("ends", ConnectionState::Failed).await;
    assert_eq!(bench.starts(), 4, "once, and three times again");
}

#[one_engine]
async fn a_server_that_ends_by_itself_is_not_started_again_without_users(engine: Engine) {
    let bench = Bench::start(engine, |setup| {
        let server = filtered(setup, ENDS_AFTER_LISTING, "good");
        setup.config.mcp.servers.insert("ends".into(), server);
        (setup.config.mcp.drain_ms, setup.config.mcp.reconnect_ms) = (50, 200);
    })
    .await;
    let servers = bench.mcp().servers(&bench.app).await.unwrap();
    bench.mcp().connect_all(&bench.app, &servers, "").await;
    bench.until("ends", ConnectionState::Disconnected).await;
    assert_eq!(bench.starts(), 1);
}

#[one_engine]
async fn a_server_is_stopped_while_it_lists_its_tools_again(engine: Engine) {
    let bench = Bench::start(engine, |setup| {
        let mut server = filtered(setup, LISTS_ONCE, "changes");
        server.timeout_ms = 600_000;
        setup.config.mcp.servers.insert("changes".into(), server);
    })
    .await;
    let (lease, _) = bench.connected("changes").await;
    text(&lease, "change", json!({})).await.unwrap();
    let listing = bench.workspace().join("second-listing");
    eventually("the tools are listed again", async || listing.exists().then_some(())).await;
    bench.mcp().disconnect("changes");
    eventually("the connection ends", async || (bench.mcp().budget().reserved == 0).then_some(())).await;
}

#[one_engine]
async fn the_home_of_a_server_that_does_not_connect_is_deleted_after_its_end(engine: Engine) {
    let bench = Bench::start(engine, |setup| {
        let args = vec!["-c".into(), WRITES_TO_HOME.into()];
        let server = McpServer { command: Some(python()), args, timeout_ms: 500, ..McpServer::default() };
        setup.config.mcp.servers.insert("writes".into(), server);
    })
    .await;
    let _lease = bench.lease("writes").await.unwrap();
    bench.until("writes", ConnectionState::Failed).await;
    let homes = bench.server.config.server.data_dir.as_ref().unwrap().join("mcp-homes");
    assert_eq!(std::fs::read_dir(homes).unwrap().count(), 0);
}

#[one_engine]
async fn tools_are_listed_again_when_the_server_reports_a_change(engine: Engine) {
    let bench =
        Bench::start(engine, |setup| configure_servers(setup, &[("asks", "asks"), ("changes", "changes")])).await;
    let (lease, _) = bench.connected("changes").await;
    text(&lease, "change", json!({})).await.unwrap();
    eventually("the new tool is listed", async || {
        let view = bench.mcp().connections("changes").pop()?.view;
        names(&view.tools).contains(&"new-0").then_some(())
    })
    .await;
    let (lease, _) = bench.connected("asks").await;
    assert_eq!(text(&lease, "echo", json!({"c": 3})).await.unwrap(), json!({"c": 3}), "its own requests are refused");
}

#[one_engine]
async fn a_server_that_always_reports_changes_is_listed_with_pauses(engine: Engine) {
    let bench = Bench::start(engine, |setup| {
        let directory = setup.config.server.data_dir.as_ref().unwrap().parent().unwrap().to_owned();
        let lists = setup.config.server.workspace.as_ref().unwrap().join("lists");
        let server = stdio(&directory, &["floods", lists.to_str().unwrap()]);
        setup.config.mcp.servers.insert("floods".into(), server);
    })
    .await;
    let (lease, first) = bench.connected("floods").await;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let lists = std::fs::read_to_string(bench.workspace().join("lists")).unwrap().lines().count();
    assert!((2..=4).contains(&lists), "one at first, one at once, then with pauses of 1 s and 2 s: {lists}");
    assert_ne!(lease.ready().await.unwrap().tools, first.tools, "changes are listed");
}

#[one_engine]
async fn tools_of_a_server_are_offered_as_long_as_their_schemas_are_not_too_large_together(engine: Engine) {
    let bench = Bench::start(engine, |setup| configure_servers(setup, &[("patterns", "patterns")])).await;
    let (_lease, view) = bench.connected("patterns").await;
    let offered = view.tools.iter().filter(|tool| tool.invalid_reason.is_none()).count();
    assert_eq!((view.tools.len(), offered), (TOOLS_MAX, 512 / 32), "each has 32 patterns");
    let reason = view.tools[100].invalid_reason.as_deref().unwrap();
    assert!(reason.contains("too large together"), "{reason}");
}

#[one_engine]
async fn idle_connections_are_closed_and_made_again(engine: Engine) {
    let bench = Bench::start(engine, |setup| {
        configure_servers(setup, &[("good", "good")]);
        (setup.config.mcp.drain_ms, setup.config.mcp.idle_ms) = (50, 400);
    })
    .await;
    let (lease, _) = bench.connected("good").await;
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert_eq!(bench.state("good"), Some(ConnectionState::Connected), "it has a user");
    bench.until("good", ConnectionState::Disconnected).await;
    let view = bench.mcp().connections("good").pop().unwrap().view;
    assert_eq!(view.tools.len(), 2, "what it listed stays known");
    drop(lease);
    drop(bench.connected("good").await);
    bench.until("good", ConnectionState::Disconnected).await;
    assert_eq!((bench.mcp().budget().live, bench.mcp().budget().reserved), (0, 0));
}

#[one_engine]
async fn servers_beyond_the_budget_are_refused_in_order_and_reported_once(engine: Engine) {
    let bench = Bench::start(engine, |setup| {
        configure_servers(setup, &[("a", "good"), ("b", "good"), ("c", "good"), ("d", "good")]);
        (setup.config.mcp.client_budget, setup.config.mcp.budget_mode) = (Some(2), Some(BudgetMode::Enforce));
    })
    .await;
    let mut notices = bench.mcp().notices();
    let servers = bench.mcp().servers(&bench.app).await.unwrap();
    bench.mcp().connect_all(&bench.app, &servers, "").await;
    let McpNotice::Warning(used) = notices.recv().await.unwrap() else { panic!("the warning comes first") };
    assert_eq!((used.reserved, used.slots_max), (2, Some(2)));
    let McpNotice::Refused { servers, budget } = notices.recv().await.unwrap() else { panic!("one refusal for all") };
    let refused: Vec<_> = servers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!((refused, budget.mode), (vec!["c", "d"], BudgetMode::Enforce));
    assert!(notices.try_recv().is_err());
    assert!(bench.mcp().is_refused("c") && !bench.mcp().is_refused("a"));
    let given: Vec<_> = bench.mcp().for_agents(&bench.app).await.unwrap().into_iter().map(|known| known.name).collect();
    assert_eq!(given, ["a", "b"]);
    bench.mcp().disconnect("a");
    let lease = eventually("the slot is free", async || bench.lease("c").await.ok()).await;
    lease.ready().await.unwrap();
    assert!(bench.lease("d").await.is_err());
}

#[one_engine]
async fn an_addition_beyond_the_budget_is_refused_as_any_other_connection(engine: Engine) {
    let bench = Bench::start(engine, |setup| {
        configure_servers(setup, &[("a", "good"), ("b", "good")]);
        (setup.config.mcp.client_budget, setup.config.mcp.budget_mode) = (Some(1), Some(BudgetMode::Enforce));
    })
    .await;
    let _a = bench.connected("a").await;
    assert!(!bench.mcp().is_refused("b"));
    let server = bench.known("b").await.server;
    for name in ["b", "unknown"] {
        let refused = bench.mcp().add(&bench.app, name, server.clone()).await;
        assert!(matches!(refused, Err(AddRefused::Budget)), "{name}");
    }
    assert!(bench.mcp().is_refused("b"), "its status has the reason");
    assert!(!bench.mcp().is_refused("unknown"), "names of callers are not remembered");
}

#[one_engine]
async fn servers_are_reached_over_http_with_their_headers(engine: Engine) {
    let directory = tempfile::tempdir().unwrap();
    let remote = HttpMcpServer::start(directory.path(), Some(SECRET));
    let bench = Bench::start(engine, |setup| {
        let server = |headers: Value| serde_json::from_value(json!({"url": remote.url, "headers": headers})).unwrap();
        setup.config.mcp.servers.insert("http".into(), server(json!({"Authorization": SECRET})));
        setup.config.mcp.servers.insert("closed".into(), server(json!({})));
    })
    .await;
    let (lease, view) = bench.connected("http").await;
    assert_eq!(names(&view.tools), ["echo", "env"]);
    assert_eq!(text(&lease, "echo", json!({"d": 4})).await.unwrap(), json!({"d": 4}));
    let closed = bench.lease("closed").await.unwrap().ready().await.unwrap_err();
    assert!([McpProblem::LoginRequired, McpProblem::Protocol].contains(&closed), "{closed}");
}

#[one_engine]
async fn a_reply_over_http_that_is_too_large_ends_its_call_only(engine: Engine) {
    const BYTES_MAX: usize = 4 * 1024 * 1024;
    let directory = tempfile::tempdir().unwrap();
    let remote = HttpMcpServer::start(directory.path(), None);
    let bench = Bench::start(engine, |setup| {
        let server = |headers: Value| serde_json::from_value(json!({"url": remote.url, "headers": headers})).unwrap();
        setup.config.mcp.servers.insert("length".into(), server(json!({})));
        setup.config.mcp.servers.insert("chunks".into(), server(json!({"X-Reply": "chunks"})));
        setup.config.mcp.servers.insert("events".into(), server(json!({"X-Reply": "events"})));
    })
    .await;
    for name in ["length", "chunks", "events"] {
        let (lease, _) = bench.connected(name).await;
        let large = async |bytes: usize| text(&lease, "large", json!({"bytes": bytes})).await;
        assert_eq!(large(BYTES_MAX / 2).await.unwrap().as_str().map(str::len), Some(BYTES_MAX / 2), "{name}");
        if name != "events" {
            assert_eq!(large(BYTES_MAX + 1).await.unwrap_err(), McpProblem::TooLarge, "{name}");
        }
        let echoed = eventually("it replies again", async || text(&lease, "echo", json!({"e": 5})).await.ok()).await;
        assert_eq!(echoed, json!({"e": 5}), "{name}");
    }
}

#[both_engines]
async fn switches_survive_a_restart(engine: Engine) {
    let bench = Bench::start(engine, |setup| {
        configure_servers(setup, &[("a", "good"), ("b", "good")]);
        setup.config.mcp.servers.get_mut("b").unwrap().enabled = false;
    })
    .await;
    let (a, b) = (bench.known("a").await, bench.known("b").await);
    assert_eq!((a.is_enabled, b.is_enabled), (true, false));
    assert!(bench.mcp().switch(&bench.app, &a, false).await.unwrap());
    assert!(bench.mcp().switch(&bench.app, &b, true).await.unwrap());
    assert!(ostler_server::mcp::switch_tool(&bench.app, "shell", false).await.unwrap());
    assert!(!ostler_server::mcp::switch_tool(&bench.app, "shell", false).await.unwrap(), "twice changes nothing");
    let Bench { mut server, app } = bench;
    drop(app);
    server.restart().await;
    let status = server.get("/workspace/mcp").await.with_status(200);
    let disabled: Vec<_> =
        status["servers"].as_array().unwrap().iter().map(|server| server["disabled"].clone()).collect();
    assert_eq!(disabled, [true, false]);
    let stored = server.store("SELECT name FROM workspace_switches WHERE noun = 'tool'").await;
    assert_eq!(stored, ["shell"]);
}
