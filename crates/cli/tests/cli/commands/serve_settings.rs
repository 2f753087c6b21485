//! The settings of `ostler serve` for editors and SDKs: each one as a flag, as a key of the configuration file and as a variable,
//! with its effect; and the settings with which a server does not start.

use std::fs::File;

use serde_json::json;

use crate::fixtures::{
    http::Http,
    process::Server,
    test_home::{Engine, TestHome},
};

const PAGE: &str = "http://page.example";

/// The tags that are advertised only while their setting is on.
const CONDITIONAL: [&str; 10] = [
    "allow_origin",
    "mcp_pool_restart",
    "mcp_workspace_pool",
    "prompt_absolute_deadline",
    "rate_limit",
    "require_auth",
    "session_shell_command",
    "workspace_reload",
    "workspace_settings",
    "writer_idle_timeout",
];
/// Those of a server that is bound to a workspace and has no other setting.
const BY_DEFAULT: [&str; 4] = ["mcp_pool_restart", "mcp_workspace_pool", "workspace_reload", "workspace_settings"];

/// A directory with a workspace in it.
fn home_with_workspace() -> (TestHome, String) {
    let home = TestHome::new(Engine::Sqlite);
    let workspace = home.path("workspace");
    std::fs::create_dir(&workspace).unwrap();
    let workspace = workspace.display().to_string();
    (home, workspace)
}

/// The conditional tags that the server advertises, sorted.
fn conditional_tags(server: &Server) -> Vec<String> {
    let capabilities = Http::new(server).get("/capabilities").good();
    let tags = capabilities["features"].as_array().unwrap().iter().map(|tag| tag.as_str().unwrap());
    let mut tags: Vec<_> = tags.filter(|tag| CONDITIONAL.contains(tag)).map(str::to_owned).collect();
    tags.sort();
    tags
}

/// Checks that a server has all settings on that [`every_setting_is_a_flag`] lists, and that they have their effect.
#[track_caller]
fn assert_all_on(server: &Server) {
    assert_eq!(conditional_tags(server), CONDITIONAL);
    let (mut http, mut anonymous) = (Http::new(server), Http::with_token(&server.address, None));
    for path in ["/health", "/capabilities"] {
        assert_eq!(anonymous.get(path).status, 401, "require_auth: {path}");
    }
    let shared = http.send("GET", "/health", &[&format!("origin: {PAGE}")], "").unwrap();
    assert!(shared.head.to_lowercase().contains(&format!("access-control-allow-origin: {PAGE}\r\n")), "{shared:?}");
    let denied = http.send("GET", "/health", &["origin: http://other.example"], "").unwrap();
    assert_eq!(denied.status, 403, "{denied:?}");
    let counted = http.get("/workspace/mcp");
    assert!(counted.head.to_lowercase().contains("x-ratelimit-limit: 7\r\n"), "rate_limit: {counted:?}");
    let mcp = counted.good();
    assert_eq!((&mcp["clientBudget"], &mcp["budgetMode"]), (&json!(3), &json!("enforce")), "{mcp}");
    // The shell of a session is enabled, so a request is rejected only for its command.
    let opened = http.post("/session", &json!({})).good();
    let [session, client] = ["sessionId", "clientId"].map(|name| opened[name].as_str().unwrap().to_owned());
    let (path, own) = (format!("/session/{session}/shell"), format!("x-qwen-client-id: {client}"));
    let shell = http.send("POST", &path, &[&own], &json!({"command": " "}).to_string()).unwrap();
    assert_eq!((shell.status, shell.json()["code"].as_str()), (400, Some("invalid_shell_command")));
}

#[test]
fn without_settings_nothing_that_needs_one_is_on() {
    let (mut home, workspace) = home_with_workspace();
    let server = home.serve();
    assert!(conditional_tags(&server).is_empty());
    server.stop();
    home.flags = vec!["--workspace".into(), workspace];
    let server = home.serve();
    assert_eq!(conditional_tags(&server), BY_DEFAULT);
    let mut anonymous = Http::with_token(&server.address, None);
    assert_eq!(anonymous.get("/health").status, 200);
    assert_eq!(anonymous.send("GET", "/health", &[&format!("origin: {PAGE}")], "").unwrap().status, 403);
    let uncounted = Http::new(&server).get("/workspace/mcp");
    assert!(!uncounted.head.to_lowercase().contains("x-ratelimit-limit"), "{uncounted:?}");
    let mcp = uncounted.good();
    assert_eq!((mcp.get("clientBudget").filter(|budget| !budget.is_null()), &mcp["budgetMode"]), (None, &json!("off")));
    server.stop();
}

#[test]
fn every_setting_is_a_flag() {
    let (mut home, workspace) = home_with_workspace();
    let flags = format!(
        "--require-auth --allow-origin {PAGE} --rate-limit --prompt-deadline-ms 60000 --writer-idle-timeout-ms 20000 \
         --enable-session-shell --mcp-client-budget 3 --mcp-budget-mode enforce --event-ring-size 100 --max-sessions 1 \
         --max-connections 50 --permission-response-timeout-ms 60000 --workspace {workspace}"
    );
    home.flags = flags.split_whitespace().map(str::to_owned).collect();
    // The rates have no flags.
    home.set("OSTLER_DAEMON__RATE_READS_MAX", "7");
    let server = home.serve();
    assert_all_on(&server);
    let another = Http::new(&server).post("/session", &json!({"sessionScope": "thread"}));
    assert_eq!(another.status, 503, "--max-sessions: {another:?}");
    assert_eq!(another.json()["code"], "session_limit_exceeded");
    server.stop();
}

#[test]
fn every_setting_is_a_key_of_the_configuration_file() {
    let (mut home, workspace) = home_with_workspace();
    let file = home.path("ostler.toml");
    let text = format!(
        "[server]\nworkspace = {workspace:?}\nrequire_auth = true\nallow_origins = [{PAGE:?}]\n\
         [rate_limit]\non = true\n\
         [daemon]\nprompt_deadline_ms = 60000\nwriter_idle_timeout_ms = 20000\nsession_shell = true\nrate_reads_max = 7\n\
         settings = true\nreload = true\n\
         [mcp]\nno_pool = false\nclient_budget = 3\nbudget_mode = \"enforce\"\n"
    );
    std::fs::write(&file, text).unwrap();
    home.flags = vec!["--config".into(), file.display().to_string()];
    let server = home.serve();
    assert_all_on(&server);
    server.stop();
}

#[test]
fn every_setting_is_a_variable_of_ours_or_of_the_published_daemon() {
    let (mut home, workspace) = home_with_workspace();
    for (name, value) in [
        ("OSTLER_SERVER__WORKSPACE", workspace.as_str()),
        ("OSTLER_SERVER__REQUIRE_AUTH", "true"),
        ("OSTLER_SERVER__ALLOW_ORIGINS", PAGE),
        ("OSTLER_DAEMON__SESSION_SHELL", "true"),
        ("QWEN_SERVE_RATE_LIMIT", "1"),
        ("QWEN_SERVE_RATE_LIMIT_READ", "7"),
        ("QWEN_SERVE_PROMPT_DEADLINE_MS", "60000"),
        ("QWEN_SERVE_WRITER_IDLE_TIMEOUT_MS", "20000"),
        ("QWEN_SERVE_MCP_CLIENT_BUDGET", "3"),
        ("QWEN_SERVE_MCP_BUDGET_MODE", "enforce"),
    ] {
        home.set(name, value);
    }
    let server = home.serve();
    assert_all_on(&server);
    server.stop();
}

#[test]
fn what_is_on_by_default_is_switched_off_by_variables() {
    let (mut home, workspace) = home_with_workspace();
    home.flags = vec!["--workspace".into(), workspace];
    home.set("QWEN_SERVE_NO_MCP_POOL", "1");
    home.set("OSTLER_DAEMON__SETTINGS", "false");
    home.set("OSTLER_DAEMON__RELOAD", "false");
    let server = home.serve();
    assert!(conditional_tags(&server).is_empty());
    server.stop();
}

/// What a server prints that does not start with these flags and variables.
#[track_caller]
fn refusal(home: &TestHome, flags: &[&str], variables: &[(&str, &str)]) -> String {
    let log = home.path("refusal.log");
    let mut command = home.command(&["serve"]);
    if !flags.contains(&"--listen") {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    command.args(flags).envs(variables.iter().copied()).stderr(File::create(&log).unwrap());
    let Err(status) = Server::start(command) else { panic!("it started with {flags:?} {variables:?}") };
    assert!(!status.success(), "{flags:?} {variables:?}");
    std::fs::read_to_string(log).unwrap()
}

#[test]
fn a_server_that_every_client_could_use_without_a_token_does_not_start() {
    let home = TestHome::new(Engine::Sqlite);
    let refused_flags: &[(&[&str], &str)] = &[
        (&["--listen", "0.0.0.0:0", "--open-loopback"], "open-loopback is for loopback addresses"),
        (&["--require-auth", "--open-loopback"], "cannot be used with"),
        (&["--allow-origin", "*"], "add --require-auth, or name the origins"),
        (&["--allow-origin", "*"], "`*` is allowed together with `--require-auth`"),
        (&["--allow-origin", "*", "--open-loopback"], "add --require-auth, or name the origins"),
        (&["--allow-origin", "https://user:secret@console.example"], "is no origin"),
        (&["--allow-origin", "https://console.example/"], "is no origin"),
        (&["--allow-origin", "https://console.example:443"], "is no origin"),
        (&["--allow-origin", "null"], "is no origin"),
    ];
    for (flags, expected) in refused_flags {
        let printed = refusal(&home, flags, &[]);
        assert!(printed.contains(expected), "{flags:?}: {printed}");
    }
    let refused_variables: &[(&[(&str, &str)], &str)] = &[
        (&[("OSTLER_SERVER__OPEN_LOOPBACK", "true"), ("OSTLER_SERVER__REQUIRE_AUTH", "true")], "set one"),
        (&[("OSTLER_SERVER__ALLOW_ORIGINS", "*")], "add --require-auth, or name the origins"),
        (&[("QWEN_SERVER_TOKEN", "short")], "QWEN_SERVER_TOKEN must be a token of 16 to"),
    ];
    for (variables, expected) in refused_variables {
        let printed = refusal(&home, &[], variables);
        assert!(printed.contains(expected), "{variables:?}: {printed}");
    }
}

/// A server makes its token at the first start, so it never listens without one. Without a usable one it does not start.
#[test]
fn a_server_that_others_can_reach_has_a_token_and_requires_it() {
    let home = TestHome::new(Engine::Sqlite);
    let mut command = home.command(&["serve", "--listen", "0.0.0.0:0"]);
    command.stderr(File::create(home.path("server.log")).unwrap());
    let server = Server::start(command).unwrap_or_else(|status| panic!("{status}: {}", home.log()));
    let port = server.address.rsplit_once(':').unwrap().1;
    let mut anonymous = Http::with_token(&format!("127.0.0.1:{port}"), None);
    let refused = anonymous.post("/session", &json!({}));
    assert_eq!((refused.status, refused.json()), (401, json!({"error": "Unauthorized"})));
    server.stop();
    std::fs::write(home.data_dir.join("token"), "").unwrap();
    let printed = refusal(&home, &["--listen", "0.0.0.0:0"], &[]);
    assert!(printed.contains("does not hold a secret"), "{printed}");
}

#[test]
fn a_setting_of_editors_that_cannot_work_stops_the_start() {
    let home = TestHome::new(Engine::Sqlite);
    let file = home.path("file");
    std::fs::write(&file, "").unwrap();
    let (file, absent) = (file.display().to_string(), home.path("absent").display().to_string());
    let refused_flags: &[(&[&str], &str)] = &[
        (&["--mcp-budget-mode", "enforce"], "mcp.budget_mode enforce needs a budget"),
        (&["--mcp-budget-mode", "sometimes"], "mcp.budget_mode"),
        (&["--mcp-client-budget", "0"], "mcp.client_budget must be 1 to"),
        (&["--workspace", &absent], "No such file or directory"),
        (&["--workspace", &file], "not a directory"),
        (&["--prompt-deadline-ms", "0"], "daemon.prompt_deadline_ms must be 1 to"),
        (&["--writer-idle-timeout-ms", "soon"], "daemon.writer_idle_timeout_ms: must be a whole number"),
        (&["--permission-response-timeout-ms", "0"], "daemon.permission_timeout_ms must be 1 to"),
        (&["--event-ring-size", "0"], "daemon.replay_frames_max must be 1 to"),
        (&["--max-sessions", "0"], "daemon.sessions_max must be 1 to"),
        (&["--max-connections", "0"], "limits.connections_max must be 1 to"),
        (&["--listen", "127.0.0.1:4170:4170"], "\"127.0.0.1:4170:4170\" has two ports"),
    ];
    for (flags, expected) in refused_flags {
        let printed = refusal(&home, flags, &[]);
        assert!(printed.contains(expected), "{flags:?}: {printed}");
    }
    for (name, value, expected) in [
        ("OSTLER_SERVER__WORKSPACE", "relative", "not an absolute path"),
        ("OSTLER_POLICY__PERMISSION_STRATEGY", "everyone", "OSTLER_POLICY__PERMISSION_STRATEGY: "),
        ("OSTLER_POLICY__CONSENSUS_QUORUM", "0", "policy.consensus_quorum must be 1 to"),
        ("QWEN_SERVE_PROMPT_DEADLINE_MS", "0", "QWEN_SERVE_PROMPT_DEADLINE_MS: daemon.prompt_deadline_ms"),
    ] {
        let printed = refusal(&home, &[], &[(name, value)]);
        assert!(printed.contains(expected), "{name}: {printed}");
    }
}
