//! Companions that a shell acts: each misbehaves in one way, and none delays or harms a request but its own.

use std::path::Path;

use ostler_protocol::redaction::Redactor;
use tempfile::TempDir;

use super::*;
use crate::backend::acp::verbs::run_verb;

/// Replies to each call in order: `initialize` is 1, `session/new` is 2.
const FUNCTIONS: &str = r#"
say() { printf '%s\n' "$1"; }
reply() { say '{"jsonrpc":"2.0","id":'"$1"',"result":'"$2"'}'; }
begin() { read -r l; reply 1 '{"protocolVersion":1}'; read -r l; reply 2 '{"sessionId":"s1"}'; }
listen() { while read -r l; do :; done; }
"#;
const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(20);

struct Scene {
    home: TempDir,
    workspace: TempDir,
}

impl Scene {
    fn new() -> Self {
        let [home, workspace] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
        Self { home, workspace }
    }

    fn environment(&self, script: &str) -> BackendEnvironment {
        let command = vec!["/bin/sh".to_owned(), "-c".to_owned(), format!("{FUNCTIONS}{script}")];
        BackendEnvironment {
            home: Some(self.home.path().to_owned()),
            workspace: Some(self.workspace.path().to_owned()),
            ..BackendEnvironment::bare(AgentConfig::Acp { command, keep: vec![], extensions: None })
        }
    }

    async fn start(&self, script: &str) -> Result<Companion, CompanionError> {
        Companion::start(&self.environment(script), Sandbox::ReadOnly).await
    }

    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.workspace.path().join(name)).unwrap_or_default()
    }
}

fn text(reply: Result<RawJson, CompanionError>) -> String {
    reply.unwrap().as_str().to_owned()
}

#[tokio::test]
async fn requests_are_answered_out_of_order_and_each_gets_its_own_reply() {
    let scene = Scene::new();
    let script = "begin; read -r a; read -r b; reply 4 '\"second\"'; reply 3 '\"first\"'; listen";
    let companion = scene.start(script).await.unwrap();
    assert_eq!((companion.session_id(), companion.is_running()), ("s1", true));
    let (first, second) = tokio::join!(companion.ask("a", json!({}), LONG), companion.ask("b", json!({}), LONG));
    let mut replies = [text(first), text(second)];
    replies.sort();
    assert_eq!(replies, ["\"first\"", "\"second\""]);
    companion.close().await;
}

#[tokio::test]
async fn a_companion_that_does_not_answer_costs_only_the_request_that_waits() {
    let scene = Scene::new();
    let script = "begin; read -r l; read -r l; reply 4 '1'; reply 3 '0'; read -r l; reply 5 '2'; listen";
    let companion = scene.start(script).await.unwrap();
    assert_eq!(companion.ask("silent", json!({}), SHORT).await, Err(CompanionError::TimedOut));
    assert_eq!(text(companion.ask("next", json!({}), LONG).await), "1");
    assert_eq!(text(companion.ask("last", json!({}), LONG).await), "2", "a late reply is skipped");
    companion.close().await;
}

#[tokio::test]
async fn a_huge_reply_fails_its_request_and_a_line_without_end_fails_them_all() {
    let scene = Scene::new();
    let huge = "begin; read -r l; printf '{\"jsonrpc\":\"2.0\",\"id\":3,\"result\":\"'; head -c 5000000 /dev/zero | tr '\\0' x;
        printf '\"}\\n'; read -r l; reply 4 '1'; listen";
    let companion = scene.start(huge).await.unwrap();
    assert_eq!(companion.ask("huge", json!({}), LONG).await, Err(CompanionError::TooLarge));
    assert_eq!(text(companion.ask("next", json!({}), LONG).await), "1");
    companion.close().await;
    let endless = "begin; read -r l; head -c 20000000 /dev/zero | tr '\\0' x; echo; listen";
    let companion = scene.start(endless).await.unwrap();
    assert_eq!(companion.ask("endless", json!({}), LONG).await, Err(CompanionError::Gone));
    assert!(!companion.is_running());
}

#[tokio::test]
async fn a_companion_that_dies_fails_what_waits_and_what_follows() {
    let scene = Scene::new();
    let companion = scene.start("begin; read -r l; exit 3").await.unwrap();
    assert_eq!(companion.ask("last", json!({}), LONG).await, Err(CompanionError::Gone));
    assert_eq!(companion.ask("after", json!({}), LONG).await, Err(CompanionError::Gone));
    assert!(!companion.is_running());
    companion.close().await;
}

#[tokio::test]
async fn requests_of_the_companion_are_refused() {
    let scene = Scene::new();
    let script = r#"begin; read -r l
        say '{"jsonrpc":"2.0","id":1,"method":"session/request_permission","params":{"options":[]}}'; read -r a
        say '{"jsonrpc":"2.0","id":2,"method":"fs/write_text_file","params":{"path":"x","content":"y"}}'; read -r b
        say '{"jsonrpc":"2.0","id":3,"method":"terminal/create","params":{"command":"ls"}}'; read -r c
        printf '%s\n%s\n%s\n' "$a" "$b" "$c" > replies; reply 3 '"done"'; listen"#;
    let companion = scene.start(script).await.unwrap();
    assert_eq!(text(companion.ask("go", json!({}), LONG).await), "\"done\"");
    let replies = scene.file("replies");
    let replies: Vec<&str> = replies.lines().collect();
    assert!(replies[0].contains("cancelled"), "{replies:?}");
    assert!(replies[1..].iter().all(|reply| reply.contains("-32601")), "{replies:?}");
    companion.close().await;
}

#[tokio::test]
async fn errors_of_the_companion_are_distinguished() {
    let scene = Scene::new();
    let script = r#"begin; read -r l; say '{"jsonrpc":"2.0","id":3,"error":{"code":-32601,"message":"no"}}'
        read -r l; say '{"jsonrpc":"2.0","id":4,"error":{"code":-32603,"message":"Internal","data":{"details":"why"}}}'; listen"#;
    let companion = scene.start(script).await.unwrap();
    assert_eq!(companion.ask("a", json!({}), LONG).await, Err(CompanionError::Unknown));
    let refused = CompanionError::Refused { code: -32603, message: "Internal why".into() };
    assert_eq!(companion.ask("b", json!({}), LONG).await, Err(refused));
    companion.close().await;
}

#[tokio::test]
async fn a_program_that_does_not_start_is_reported() {
    let scene = Scene::new();
    let failed =
        scene.start("read -r l; say '{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"protocolVersion\":9}}'; listen").await;
    assert!(matches!(failed.unwrap_err(), CompanionError::NotStarted { message, .. } if message.contains("version 9")));
    let failed = scene.start("exit 1").await.unwrap_err();
    assert!(matches!(failed, CompanionError::NotStarted { kind: FailureKind::BackendFailed, .. }), "{failed:?}");
    let scripted = BackendEnvironment::bare(AgentConfig::Scripted);
    let failed = Companion::start(&scripted, Sandbox::ReadOnly).await.unwrap_err();
    assert!(matches!(failed, CompanionError::NotStarted { kind: FailureKind::NotImplemented, .. }));
}

#[tokio::test]
async fn a_closed_companion_leaves_no_process() {
    let scene = Scene::new();
    let companion = scene.start("sleep 600 & echo $! > pid; begin; listen").await.unwrap();
    let pid = scene.file("pid").trim().to_owned();
    assert!(Path::new("/proc").join(&pid).exists());
    companion.close().await;
    let gone = async {
        while std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z")) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LONG, gone).await.expect("the process ends with its group");
}

#[tokio::test]
async fn a_verb_runs_with_its_arguments_in_place_of_the_protocol_and_within_its_time() {
    let scene = Scene::new();
    let redactor = Redactor::new(&[]);
    let mut environment = scene.environment("echo \"$0 $*\"; echo problem >&2; test \"$1\" != fail");
    if let AgentConfig::Acp { command, .. } = &mut environment.backend {
        command.extend(["--acp".to_owned()]);
    }
    let run = async |words: &[&str], limit| {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        run_verb(&environment, Sandbox::ReadOnly, &words, limit, &redactor).await
    };
    let done = run(&["extensions", "list"], LONG).await.unwrap();
    assert_eq!((done.succeeded, done.text.as_str()), (true, "extensions list\nproblem"));
    assert!(!run(&["x", "fail"], LONG).await.unwrap().succeeded);
    let slow = scene.environment("sleep 600");
    let late = run_verb(&slow, Sandbox::ReadOnly, &[], SHORT, &redactor).await;
    assert!(matches!(late, Err(CompanionError::TimedOut)));
}
