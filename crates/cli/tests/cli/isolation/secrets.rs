//! Planted secrets: every kind of input is sent with secrets in it, and then they are searched for everywhere: in responses,
//! events, results, errors, health, the log, the output of the command line, and the bytes of the store.

use serde_json::{Value, json};

use crate::fixtures::{
    http::Http,
    process::{Server, eventually},
    runner::run_request,
    test_home::{Engine, TestHome, both_engines},
};

/// Part of every planted secret, and of nothing else.
const MARK: &str = "pl4nted";
/// Placed beside the secrets: proves that the searched place contains the input at all.
const WITNESS: &str = "harmless-witness";
const DATABASE_PASSWORD: &str = "pl4nted-database-password";
const KEY: &str = "sk-pl4nted0123456789";
/// It has no recognizable format; the server recognizes it because it stores it.
const PROFILE_KEY: &str = "pl4nted-\"of\"-a-profile";

#[both_engines]
fn planted_secrets_are_found_nowhere(engine: Engine) {
    let mut home = TestHome::on_disk(engine);
    home.set("OSTLER_LOG", "debug");
    if engine == Engine::Postgres {
        // The test database trusts every client, so any password works.
        let url = home.database_url().replacen('@', &format!(":{DATABASE_PASSWORD}@"), 1);
        home.set("DATABASE_URL", &url);
    }
    let server = home.serve();
    let mut caller = Caller { http: Http::new(&server), secret: everything(&server), responses: vec![] };
    if engine == Engine::Postgres {
        // It has no recognizable format; the server recognizes its own password.
        caller.secret["theirs"] = format!("it is {DATABASE_PASSWORD}").into();
    }
    keep_a_profile(&mut caller);
    let agent_run = ask_the_agent(&mut caller);
    let runner_run = play_the_runner(&mut caller);
    say_it_wrong(&mut caller, &runner_run);
    use_a_wrong_token(&mut caller, &server);
    read_everything(&mut caller, &[&agent_run, &runner_run]);
    use_the_command_line(&mut caller, &home, &server, &agent_run);
    let mut responses = caller.responses;
    responses.push(("the store while it is open".into(), home.everything_stored()));
    let token = server.token.clone();
    server.stop();
    responses.push(("the store".into(), home.everything_stored()));
    responses.push(("the log".into(), home.log()));
    for (place, text) in &responses {
        for secret in [MARK, &token, "ost_run_"] {
            let found = text.to_ascii_lowercase().find(secret);
            assert!(found.is_none(), "{secret} in {place}: {}", around(text, found.unwrap_or(0)));
        }
    }
    let holding = |word: &str| responses.iter().filter(|(_, text)| text.contains(word)).count();
    assert!(holding(WITNESS) > 10 && holding("[redacted]") > 10, "what was planted did arrive");
    assert!(responses.iter().filter(|(place, _)| place.starts_with("the ")).all(|(_, text)| !text.is_empty()));
    home.assert_verified();
}

/// The context of a leak, for the error message.
fn around(text: &str, at: usize) -> String {
    let bytes = &text.as_bytes()[at.saturating_sub(200)..(at + 100).min(text.len())];
    String::from_utf8_lossy(bytes).into_owned()
}

/// An object with every kind of secret in every kind of place.
fn everything(server: &Server) -> Value {
    json!({
        "witness": WITNESS,
        "text": format!("use {KEY}, ghp_pl4nted0123456789 or Bearer pl4nted.0123456789; {WITNESS}"),
        "password": "a\"pl4nted", "apiKey": "pl4nted", "access_token": "pl4nted", "clientSecret": "pl4nted",
        "privateKey": "pl4nted", "token": "pl4nted-0123456789", "secret": ["pl4nted"],
        "headers": {"Authorization": "Basic cGw0bnRlZA==pl4nted", "X-Api-Key": "pl4nted"},
        "url": "https://user:p@pl4nted@example.org/x", "remote": "https://pl4nted0123456789@example.org/x",
        "pem": "-----BEGIN PRIVATE KEY-----\npl4nted\n-----END PRIVATE KEY-----",
        "cut": "-----BEGIN OPENSSH PRIVATE KEY-----\npl4nted",
        "shell": "OPENAI_API_KEY=pl4nted curl -H 'X-Api-Key: pl4nted-01234567'",
        "aws": "AKIAPL4NTED012345678", "jwt": "eyJpl4nted012.eyJpl4nted012.pl4nted012",
        "nested": "{\"password\": \"a\\\"pl4nted\"}", "quoted": "it said {\"password\": \"pl4nted\"} to me",
        "ours": format!("{} {KEY}", server.token),
        KEY: "as a name",
    })
}

struct Caller {
    http: Http,
    secret: Value,
    /// Every response, with its source.
    responses: Vec<(String, String)>,
}

impl Caller {
    /// The planted object with additional fields.
    fn with(&self, fields: Value) -> Value {
        let mut body = self.secret.clone();
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    }

    fn call(&mut self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let header = format!("x-secret: {KEY}");
        let headers = [header.as_str(), "cookie: session=pl4nted", "x-api-key: pl4nted-0123456789"];
        let answer = self.http.send(method, path, &headers, body).unwrap();
        self.responses
            .push((format!("{method} {}", path.replace(MARK, "…")), format!("{}{}", answer.head, answer.body)));
        (answer.status, serde_json::from_str(&answer.body).unwrap_or_default())
    }

    fn good(&mut self, method: &str, path: &str, body: &Value) -> Value {
        let (status, answer) = self.call(method, path, &body.to_string());
        assert!((200..300).contains(&status), "{method} {path}: {answer}");
        answer
    }

    fn run_request(&self) -> Value {
        let mut body = run_request();
        body["workspaceRef"] = self.with(json!({"kind": "none"}));
        body["traceSink"] = self.secret.clone();
        body["businessIntents"] = json!([self.secret]);
        let reference = json!({"name": "agentrun-v01-tool-github", "keys": ["ghp_pl4nted0123456789"]});
        let credential = json!({"tool": "github", "secretRef": reference});
        body["executionPolicy"] = json!({"secretScope": {"toolCredentials": [credential]}});
        body["unknown"] = self.secret.clone();
        body
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value}")).to_owned()
}

/// A provider profile's credential, also in an invalid form. The config can be read back, so nothing is planted there.
fn keep_a_profile(caller: &mut Caller) {
    let path = "/api/v1/provider-profiles/mine";
    let auth = json!({"OPENAI_API_KEY": PROFILE_KEY, "tokens": {"refresh_token": "pl4nted-0123456789"}}).to_string();
    let whole = json!({"files": {"auth.json": auth, "config.toml": ""}});
    caller.good("PUT", &format!("{path}/credential"), &whole);
    caller.secret["kept"] = format!("it is {PROFILE_KEY}, {WITNESS}").into();
    caller.good("POST", &format!("{path}/validate"), &json!({}));
    let cut = whole.to_string();
    for body in [
        cut[..cut.len() - 2].to_owned(),
        json!({"apiKey": [PROFILE_KEY]}).to_string(),
        json!({"apiKey": PROFILE_KEY.repeat(1_000)}).to_string(),
        json!({"apiKey": "pl4nted in two words"}).to_string(),
        json!({"files": {"auth.json": PROFILE_KEY}}).to_string(),
        json!({"files": {"auth.json": "{}", PROFILE_KEY: ""}}).to_string(),
        json!({"files": {"auth.json": "{}", "config.toml": PROFILE_KEY}}).to_string(),
        json!({"files": {"auth.json": "{}", "config.toml": "[ostler]\nagent = \"pl4nted\""}}).to_string(),
        json!({"apiKey": "pl4nted-0123456789", "resourceVersion": "another"}).to_string(),
    ] {
        let (status, answer) = caller.call("PUT", &format!("{path}/credential"), &body);
        assert!((400..500).contains(&status) && answer["traceId"].is_string(), "{status} {answer}");
    }
    for path in ["/api/v1/provider-profiles", path, &format!("{path}/config")] {
        let (status, answer) = caller.call("GET", path, "");
        assert_eq!(status, 200, "{path}: {answer}");
    }
}

/// A run of the scripted backend, which repeats its input.
fn ask_the_agent(caller: &mut Caller) -> String {
    let script = json!({"script": [{"say": format!("I was given {KEY}; {WITNESS}"), "pieces": 40, "everyMs": 25},
        {"tool": {"name": "shell", "command": format!("login --token={KEY}"), "output": "PASSWORD=pl4nted"}},
        {"custom": caller.secret}, {"error": {"kind": "backend-failed", "message": format!("no {KEY}")}},
        {"ask": {"title": format!("use {KEY}?"), "command": KEY, "waitMs": 100}},
        {"fail": {"kind": "backend-failed", "message": format!("refused {KEY}")}}]});
    let mut body = caller.run_request();
    body["command"] = json!({"type": "turn", "payload": caller.with(json!({"prompt": script.to_string()}))});
    let run_id = text(&caller.good("POST", "/api/v1/runs", &body)["runId"]);
    let result = format!("/api/v1/runs/{run_id}/result");
    eventually("the turn ends", || (!caller.http.get(&result).good()["terminalStatus"].is_null()).then_some(()));
    run_id
}

/// A run whose runner sends every kind of request.
fn play_the_runner(caller: &mut Caller) -> String {
    let request = caller.run_request();
    let run_id = text(&caller.good("POST", "/api/v1/runs", &request)["runId"]);
    let run = format!("/api/v1/runs/{run_id}");
    let turn = json!({"type": "turn", "payload": caller.with(json!({"prompt": format!("{KEY} {WITNESS}")}))});
    let command_id = text(&caller.good("POST", &format!("{run}/commands"), &turn)["commandId"]);
    let registration = json!({"runnerId": "runner-a", "runId": run_id, "backendProfile": "scripted",
        "placement": caller.with(json!({"kind": "host-process"})), "capabilities": [caller.secret]});
    caller.good("POST", "/api/v1/runners/register", &registration);
    let claim = caller.with(json!({"runnerId": "runner-a", "leaseMs": 60_000}));
    caller.good("POST", &format!("{run}/claim"), &claim);
    let holder = json!({"runnerId": "runner-a", "leaseEpoch": 1});
    let types = [
        "assistant_delta",
        "assistant_message",
        "reasoning",
        "tool_call",
        "command_output",
        "step",
        "state",
        "usage",
        "backend_status",
        "error",
        "session",
        "custom",
    ];
    let payload = caller.with(json!({"toolCallId": KEY, "name": KEY, "command": format!("curl -u me {KEY}"),
        "message": format!("failed with {KEY}"), "phase": KEY, "threadId": KEY, "text": KEY, "final": true}));
    let event = |event_type: &&str| json!({"type": event_type, "commandId": command_id, "payload": payload});
    let mut body = holder.clone();
    body["events"] = types.iter().map(event).collect();
    caller.good("POST", &format!("{run}/events"), &body);
    let option = json!({"optionId": KEY, "name": KEY, "kind": "allow_once"});
    let ask = caller.with(json!({"permissionId": format!("prm_{:032x}", 7), "title": format!("use {KEY}?"),
        "options": [option], "digest": "00".repeat(32)}));
    body["events"] = json!([{"type": "permission_request", "commandId": command_id, "payload": ask}]);
    caller.good("POST", &format!("{run}/events"), &body);
    let steer = json!({"type": "steer", "payload": caller.with(json!({"prompt": KEY}))});
    caller.good("POST", &format!("{run}/commands"), &steer);
    let reason = caller.with(json!({"reason": format!("{} {KEY} {WITNESS}", "x".repeat(488))}));
    caller.good("POST", &format!("/api/v1/commands/{command_id}/cancel"), &reason);
    let end = caller.with(json!({"runnerId": "runner-a", "leaseEpoch": 1, "status": "failed",
        "failureKind": "backend-failed", "message": format!("it said {KEY} {WITNESS}")}));
    caller.good("PATCH", &format!("/api/v1/commands/{command_id}/status"), &end);
    caller.good("POST", &format!("{run}/cancel"), &json!({"reason": format!("leaked {KEY} {WITNESS}")}));
    run_id
}

/// Rejected requests, each with a secret that must not be repeated.
fn say_it_wrong(caller: &mut Caller, run_id: &str) {
    let run = format!("/api/v1/runs/{run_id}");
    let whole = caller.secret.to_string();
    let mut widened = caller.run_request();
    widened["executionPolicy"] = json!({"sandbox": "pl4nted unlike any secret"});
    let mut scoped = caller.run_request();
    let credential = json!({"tool": "github", "secretRef": {"name": KEY, "keys": ["ghp_pl4nted0123456789"]}});
    scoped["executionPolicy"] = json!({"secretScope": {"toolCredentials": [credential]}});
    let mut foreign = caller.run_request();
    foreign["tenantId"] = KEY.into();
    let unknown_event = json!({"runnerId": "r", "leaseEpoch": 1, "events": [{"type": KEY, "payload": {}}]});
    let requests = [
        ("POST", "/api/v1/runs".into(), whole[..whole.len() - 1].to_owned()),
        ("POST", "/api/v1/runs".into(), whole),
        ("POST", "/api/v1/runs".into(), format!("[{KEY}]")),
        ("POST", "/api/v1/runs".into(), widened.to_string()),
        ("POST", "/api/v1/runs".into(), scoped.to_string()),
        ("POST", "/api/v1/runs".into(), foreign.to_string()),
        ("POST", format!("{run}/commands"), json!({"type": "pl4nted unlike any secret"}).to_string()),
        ("POST", format!("{run}/claim"), json!({"runnerId": "r", "leaseMs": "pl4nted unlike any"}).to_string()),
        ("POST", format!("{run}/events"), unknown_event.to_string()),
        ("GET", format!("{run}/events?afterSeq={KEY}&token={KEY}"), String::new()),
        ("GET", format!("/api/v1/runs?status={KEY}&cursor={KEY}"), String::new()),
        ("GET", format!("/api/v1/runs/{KEY}?token={KEY}"), String::new()),
        ("DELETE", format!("/{KEY}"), String::new()),
        ("PATCH", format!("/api/v1/commands/{KEY}/status"), json!({"status": KEY}).to_string()),
    ];
    for (method, path, body) in requests {
        let (status, answer) = caller.call(method, &path, &body);
        assert!((400..500).contains(&status) && answer["traceId"].is_string(), "{method} {path}: {status} {answer}");
    }
}

fn use_a_wrong_token(caller: &mut Caller, server: &Server) {
    for token in ["pl4nted-0123456789", &format!("ost_op_pl4nted{}", "0".repeat(57)), KEY] {
        let answer = Http::with_token(&server.address, Some(token)).get(&format!("/api/v1/runs?token={KEY}"));
        assert_eq!(answer.status, 401);
        caller.responses.push(("a wrong token".into(), format!("{}{}", answer.head, answer.body)));
    }
    let basic = Http::with_token(&server.address, None)
        .send("GET", "/api/v1/runs", &["authorization: Basic cGw0bnRlZA==pl4nted"], "")
        .unwrap();
    assert_eq!(basic.status, 401);
    caller.responses.push(("basic authorization".into(), basic.body));
}

fn read_everything(caller: &mut Caller, runs: &[&str]) {
    let mut paths: Vec<String> = ["/health", "/health/live", "/health/readiness", "/api/v1/runs", "/api/v1/backends"]
        .map(str::to_owned)
        .to_vec();
    for run in runs {
        let of_run = ["", "/events", "/result", "/commands", "/runner-jobs", "/permissions"];
        paths.extend(of_run.iter().map(|rest| format!("/api/v1/runs/{run}{rest}")));
    }
    for path in paths {
        let (status, answer) = caller.call("GET", &path, "");
        assert_eq!(status, 200, "{path}: {answer}");
    }
}

fn use_the_command_line(caller: &mut Caller, home: &TestHome, server: &Server, run_id: &str) {
    let prompt = format!("use {KEY}; {WITNESS}");
    let calls: [&[&str]; 8] = [
        &["run", &prompt],
        &["ps", "--all"],
        &["ps", "--all", "-o", "json"],
        &["result", run_id],
        &["result", run_id, "-o", "json"],
        &["trace", run_id],
        &["trace", run_id, "-o", "jsonl"],
        &["cancel", KEY],
    ];
    for args in calls {
        let output = home.cli(Some(server), args);
        let printed = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(!printed.is_empty(), "{args:?}");
        caller.responses.push((format!("ostler {}", args[0]), printed));
    }
}

#[test]
fn a_failed_start_does_not_print_the_password() {
    let file = |home: &TestHome, text: &str| {
        let path = home.path("ostler.toml");
        std::fs::write(&path, text).unwrap();
        vec!["--config".to_owned(), path.to_str().unwrap().to_owned()]
    };
    let absent = TestHome::on_disk(Engine::Postgres).database_url().replacen('@', ":pl4nted@", 1);
    for (url, toml) in [
        (absent.as_str(), ""),
        ("postgres://me:pl4nted@127.0.0.1:port/x", ""),
        ("postgres://me:pl4nted@[/x", ""),
        ("", "[store]\ndatabase_url = \"postgres://me:pl4nted@127.0.0.1/x\n"),
        ("", "[store]\ndatabase_url = [\"postgres://me:pl4nted@127.0.0.1/x\"]\n"),
        ("", "[store]\ndatabase_uri = \"postgres://me:pl4nted@127.0.0.1/x\"\n"),
    ] {
        let mut home = TestHome::on_disk(Engine::Sqlite);
        home.set("DATABASE_URL", url);
        home.flags = file(&home, toml);
        assert_ne!(home.try_serve().err().expect("it does not start").code(), Some(0));
        let log = home.log();
        assert!(!log.is_empty() && !log.contains(MARK), "{log}");
    }
}
