//! The ACP backend, against the pure kernel and agents acted by a shell: real pipes, real signals, and every way to break
//! the protocol.

mod edits;
mod gateway;
mod hostile;
mod modes;
mod stopping;

use std::{path::Path, sync::Arc};

use ostler_protocol::{
    FailureKind, Rule,
    ids::CommandId,
    kernel::{
        commands::{Command, CommandState, CommandType},
        events::EventType,
        provider_profiles::AgentConfig,
        runs::TerminalStatus,
    },
};
use ostler_runner::{BackendEnvironment, RetryPolicy, RunnerOrder, RunnerOutcome, run};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::kernel::{Kernel, of_type};

/// Shell functions of every acted agent. Our calls are numbered: initialize is 1, the session is 2, the prompts follow.
const FUNCTIONS: &str = r#"
say() { printf '%s\n' "$1"; }
reply() { say '{"jsonrpc":"2.0","id":'"$1"',"result":'"$2"'}'; }
refuse() { say '{"jsonrpc":"2.0","id":'"$1"',"error":{"code":'"$2"',"message":"'"$3"'"}}'; }
tell() { say '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","update":'"$1"'}}'; }
text() { tell '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"'"$1"'"}}'; }
ask() { say '{"jsonrpc":"2.0","id":'"$1"',"method":"'"$2"'","params":'"$3"'}'; }
hello() { read -r l; reply 1 '{"protocolVersion":1,"agentInfo":{"name":"played"},"agentCapabilities":{"loadSession":true}}'; }
begin() { hello; read -r l; reply 2 '{"sessionId":"s1"}'; }
listen() { while read -r l; do :; done; }
"#;

/// The directories of an agent, and the script that acts it.
struct Fixture {
    kernel: Arc<Kernel>,
    script: String,
    home: TempDir,
    workspace: TempDir,
    storage: TempDir,
    retry_policy: RetryPolicy,
    idle_timeout_ms: u64,
    /// With which the agent calls the server's tools.
    tool_token: Option<&'static str>,
}

impl Fixture {
    fn new(script: &str) -> Self {
        Self::with(script, json!({}))
    }

    fn with(script: &str, policy: Value) -> Self {
        let mut all = json!({"sandbox": "workspace-write"});
        all.as_object_mut().unwrap().extend(policy.as_object().unwrap().clone());
        let [home, workspace, storage] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
        Self {
            kernel: Kernel::new(all),
            script: script.to_owned(),
            home,
            workspace,
            storage,
            retry_policy: RetryPolicy::default(),
            idle_timeout_ms: 0,
            tool_token: None,
        }
    }

    fn submit(&self, prompt: &str) -> CommandId {
        self.kernel.submit(CommandType::Turn, json!({"prompt": prompt}))
    }

    fn start(&self) -> JoinHandle<RunnerOutcome> {
        tokio::spawn(run(self.order(self.shell()), self.kernel.client()))
    }

    fn start_program(&self, command: Vec<String>) -> JoinHandle<RunnerOutcome> {
        tokio::spawn(run(self.order(command), self.kernel.client()))
    }

    /// The command that acts the script.
    fn shell(&self) -> Vec<String> {
        vec!["/bin/sh".to_owned(), "-c".to_owned(), format!("{FUNCTIONS}{}", self.script)]
    }

    fn order(&self, command: Vec<String>) -> RunnerOrder {
        let environment = BackendEnvironment {
            home: Some(self.home.path().to_owned()),
            workspace: Some(self.workspace.path().to_owned()),
            storage: Some(self.storage.path().to_owned()),
            retry_policy: self.retry_policy,
            tool_token: self.tool_token.map(|token| token.to_owned().into()),
            ..BackendEnvironment::bare(AgentConfig::Acp { command, keep: vec!["kept".into()], extensions: None })
        };
        let order = RunnerOrder::resident(self.kernel.run_id(), "runner-a".into(), "scripted".into(), environment);
        RunnerOrder { idle_timeout_ms: self.idle_timeout_ms, ..order }
    }

    /// Runs one turn to its end.
    async fn turn(&self) -> Command {
        let command_id = self.submit("do it");
        self.start().await.unwrap();
        self.kernel.command(command_id)
    }

    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.workspace.path().join(name)).unwrap_or_default()
    }
}

fn end(command: &Command) -> (TerminalStatus, Option<FailureKind>) {
    let terminal = command.terminal.as_ref().expect("the command has ended");
    (terminal.status, terminal.failure_kind)
}

fn messages(kernel: &Kernel) -> Vec<(String, bool)> {
    let messages = of_type(kernel, EventType::AssistantMessage);
    messages.iter().map(|m| (m["text"].as_str().unwrap().to_owned(), m["final"] == true)).collect()
}

fn phases(kernel: &Kernel, phase: &str) -> Vec<Value> {
    of_type(kernel, EventType::BackendStatus).into_iter().filter(|status| status["phase"] == phase).collect()
}

#[tokio::test]
async fn updates_become_events_and_two_turns_need_one_process() {
    let fixture = Fixture::new(
        r#"begin
        read -r l
        tell '{"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"hm"}}'
        text 'Look'; text 'ing.'
        tell '{"sessionUpdate":"plan","entries":[{"content":"look","status":"pending"}]}'
        tell '{"sessionUpdate":"unknown_kind","what":[1]}'
        tell '{"sessionUpdate":"tool_call","toolCallId":"c","title":"Shell","kind":"execute","status":"pending","rawInput":{}}'
        tell '{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"in_progress","rawInput":{"command":"ls"}}'
        tell '{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"completed","content":[{"type":"content","content":{"type":"text","text":"a.txt"}}],"rawOutput":{"exitCode":7}}'
        text 'Done.'
        tell '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":""},"_meta":{"usage":{"inputTokens":10,"outputTokens":5,"totalTokens":15}}}'
        reply 3 '{"stopReason":"end_turn"}'
        reply 3 '{"stopReason":"refusal"}'
        read -r l; text 'Again.'; reply 4 '{"stopReason":"end_turn"}'; listen"#,
    );
    let (first, second) = (fixture.submit("one"), fixture.submit("two"));
    fixture.start().await.unwrap();
    let kernel = &fixture.kernel;
    assert_eq!(end(&kernel.command(first)), (TerminalStatus::Completed, None));
    assert_eq!(end(&kernel.command(second)), (TerminalStatus::Completed, None));
    let expected = [("Looking.".into(), false), ("Done.".into(), true), ("Again.".into(), true)];
    assert_eq!(messages(kernel), expected);
    assert_eq!(of_type(kernel, EventType::Reasoning)[0]["text"], "hm");
    assert_eq!(of_type(kernel, EventType::Activity)[0]["content"]["entries"][0]["content"], "look");
    let calls = of_type(kernel, EventType::ToolCall);
    let statuses: Vec<_> =
        calls.iter().map(|call| (call["status"].as_str().unwrap(), call["command"].as_str().unwrap())).collect();
    assert_eq!(statuses, [("started", "ls"), ("completed", "ls")]);
    assert_eq!(calls[1]["exitCode"], 7);
    assert_eq!(of_type(kernel, EventType::CommandOutput)[0]["text"], "a.txt");
    let usage = json!({"model": "played", "inputTokens": 10, "outputTokens": 5, "totalTokens": 15});
    assert_eq!(of_type(kernel, EventType::Usage), [usage]);
    assert_eq!(phases(kernel, "initialize:completed").len(), 1);
    assert_eq!(of_type(kernel, EventType::Session)[0]["threadId"], "s1");
}

#[tokio::test]
async fn usage_in_the_replies_to_all_prompts_of_a_turn_is_counted() {
    let fixture = Fixture::new(
        r#"begin
        read -r l; text 'One and one.'; until [ -e steered ]; do sleep 0.05; done; sleep 1
        reply 3 '{"stopReason":"end_turn","usage":{"inputTokens":10,"outputTokens":5,"totalTokens":15}}'
        read -r l; text 'Two.'
        reply 4 '{"stopReason":"end_turn","usage":{"inputTokens":20,"outputTokens":5,"totalTokens":1025,"cachedReadTokens":1000}}'
        listen"#,
    );
    let command_id = fixture.submit("one");
    let runner = fixture.start();
    fixture.kernel.until(|kernel| !of_type(kernel, EventType::AssistantDelta).is_empty()).await;
    let steer = fixture.kernel.submit(CommandType::Steer, json!({"prompt": "two"}));
    fixture.kernel.until(|kernel| kernel.command(steer).state != CommandState::Pending).await;
    std::fs::write(fixture.workspace.path().join("steered"), "").unwrap();
    runner.await.unwrap();
    assert_eq!(end(&fixture.kernel.command(command_id)).0, TerminalStatus::Completed);
    assert_eq!(messages(&fixture.kernel).len(), 2, "the steer was sent as a prompt");
    let used = of_type(&fixture.kernel, EventType::Usage);
    let input: Vec<_> = used.iter().map(|used| used["inputTokens"].as_i64().unwrap()).collect();
    assert_eq!(input, [10, 1_020], "cached tokens are input tokens too");
}

const ASKS: &str = r#"begin
    read -r l
    tell '{"sessionUpdate":"tool_call","toolCallId":"c","title":"Shell: rm x","kind":"execute","status":"pending","rawInput":{"command":"rm x"}}'
    ask 100 session/request_permission '{"sessionId":"s1","toolCall":{"toolCallId":"c","title":"Shell: rm x","rawInput":{"command":"rm x"}},"options":[{"optionId":"forever","name":"Always","kind":"allow_always"},{"optionId":"once","name":"Allow","kind":"allow_once"},{"optionId":"no","name":"No","kind":"reject_once"}]}'
    read -r l; say "$l" >reply
    case "$l" in *once*) s=completed ;; *) s=failed ;; esac
    tell '{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"'$s'"}'
    text 'Well.'; reply 3 '{"stopReason":"end_turn"}'; listen"#;

#[tokio::test]
async fn a_permission_is_requested_for_one_call_and_replied_with_the_agents_option() {
    for (choice, outcome, status) in [("once", "once", "completed"), ("no", "no", "declined")] {
        // Our first call after the session sets the mode, if the agent has modes. This one has none.
        let fixture = Fixture::with(ASKS, json!({"approval": "untrusted"}));
        let command_id = fixture.submit("do it");
        let runner = fixture.start();
        fixture.kernel.until(|kernel| !kernel.permissions().is_empty()).await;
        let request = fixture.kernel.permissions().remove(0);
        let offered = (request.command.as_deref(), request.options.len());
        assert_eq!(offered, (Some("rm x"), 2), "no option is for longer than one call");
        fixture.kernel.answer_permission(request.permission_id, choice, &request.digest);
        runner.await.unwrap();
        assert_eq!(end(&fixture.kernel.command(command_id)).0, TerminalStatus::Completed);
        let reply: Value = serde_json::from_str(&fixture.file("reply")).unwrap();
        assert_eq!(reply["result"]["outcome"], json!({"outcome": "selected", "optionId": outcome}));
        let calls = of_type(&fixture.kernel, EventType::ToolCall);
        assert_eq!(calls.last().unwrap()["status"], status);
        assert_eq!(request.tool_call_id.as_deref(), calls[0]["toolCallId"].as_str());
    }
}

#[tokio::test]
async fn an_agent_that_sends_nothing_after_its_prompt_is_given_up() {
    let script =
        r#"begin; read -r l; tell '{"sessionUpdate":"available_commands_update","availableCommands":[]}'; listen"#;
    let mut fixture = Fixture::new(script);
    fixture.retry_policy.unreachable_ms = 200;
    let command = fixture.turn().await;
    assert_eq!(end(&command), (TerminalStatus::Failed, Some(FailureKind::ProviderUnavailable)));
    assert!(command.terminal.unwrap().message.unwrap().contains("sent nothing for 200 ms"));
}

#[tokio::test]
async fn a_missing_program_is_named() {
    let fixture = Fixture::new("");
    let command_id = fixture.submit("do it");
    fixture.start_program(vec!["no-such-agent".into()]).await.unwrap();
    let terminal = fixture.kernel.command(command_id).terminal.unwrap();
    assert_eq!((terminal.failure_kind, terminal.rule), (Some(FailureKind::InfraFailed), Some(Rule::ProfileProgram)));
    assert!(terminal.message.as_ref().unwrap().contains("\"no-such-agent\" is not installed"), "{terminal:?}");
}

/// The command in the permission request for a call with this description. `None` if it is declined without a request.
async fn requested_command(call: Value) -> (Fixture, Option<String>) {
    let script = ASKS
        .replace(r#""title":"Shell: rm x","rawInput":{"command":"rm x"}},"#, &format!("{},", &call.to_string()[1..]));
    let script = script
        .replace(r#","title":"Shell: rm x","kind":"execute","status":"pending","rawInput":{"command":"rm x"}"#, "");
    let fixture = Fixture::with(&script, json!({"approval": "untrusted"}));
    let command_id = fixture.submit("do it");
    let runner = fixture.start();
    let is_done = |kernel: &Kernel| !kernel.permissions().is_empty() || !kernel.command(command_id).is_unfinished();
    fixture.kernel.until(is_done).await;
    let request = fixture.kernel.permissions().pop();
    if let Some(request) = &request {
        fixture.kernel.answer_permission(request.permission_id, "no", &request.digest);
    }
    runner.await.unwrap();
    (fixture, request.and_then(|request| request.command))
}

#[tokio::test]
async fn a_permission_request_shows_the_whole_call() {
    let long = format!("echo {}; touch HIDDEN", "a".repeat(4_000));
    let (_, command) =
        requested_command(json!({"title": long, "rawInput": {"command": long, "is_background": false}})).await;
    assert_eq!(command, Some(format!("{long}\nis_background: false")));
    let input = json!({"file_path": "/w/good.txt", "content": "one\\ntwo"});
    let (_, command) = requested_command(json!({"title": "Writing to good.txt", "rawInput": input})).await;
    assert_eq!(command.as_deref(), Some("content: one\\ntwo\nfile_path: /w/good.txt"));
    let diff = json!([{"type": "diff", "path": "good.txt", "oldText": "one", "newText": "two"}]);
    let (_, command) = requested_command(json!({"title": "Writing to good.txt", "content": diff})).await;
    assert_eq!(command.as_deref(), Some("good.txt\n-one\n+two"));
}

#[tokio::test]
async fn a_call_too_long_to_display_is_declined_and_reported() {
    let long = format!("echo {}", "a".repeat(70_000));
    let (fixture, command) = requested_command(json!({"title": "Shell", "rawInput": {"command": long}})).await;
    assert_eq!(command, None);
    let [declined] = &phases(&fixture.kernel, "approval:declined")[..] else { panic!("it is reported once") };
    assert!(declined["reason"].as_str().unwrap().contains("too long"), "{declined}");
    assert!(fixture.file("reply").contains(r#""optionId":"no""#), "{}", fixture.file("reply"));
}

#[tokio::test]
async fn a_run_that_never_asks_declines_and_reports_it() {
    let fixture = Fixture::new(ASKS);
    assert_eq!(end(&fixture.turn().await).0, TerminalStatus::Completed);
    assert!(fixture.kernel.permissions().is_empty());
    let [declined] = &phases(&fixture.kernel, "approval:declined")[..] else { panic!("it is reported once") };
    assert_eq!(
        (&declined["command"], &declined["reason"]),
        (&json!("rm x"), &json!("the run's policy is never to ask"))
    );
    assert_eq!(declined["rule"], "permission-never");
    assert_eq!(declined["toolCallId"], of_type(&fixture.kernel, EventType::ToolCall)[0]["toolCallId"]);
    assert!(fixture.file("reply").contains(r#""optionId":"no""#), "{}", fixture.file("reply"));
}

/// Makes the agent send these requests, and returns the replies it got.
async fn replies_to(requests: &[(&str, Value)], policy: Value) -> (Fixture, Vec<Value>) {
    let calls: String = requests
        .iter()
        .enumerate()
        .map(|(number, (method, params))| {
            format!("ask {} {method} '{params}'; read -r l; say \"$l\" >>\"$log\"\n", 100 + number)
        })
        .collect();
    let script =
        format!("log=$HOME/replies; begin; read -r l\n{calls}reply 3 '{{\"stopReason\":\"end_turn\"}}'; listen");
    let fixture = Fixture::with(&script, policy);
    std::fs::write(fixture.workspace.path().join("there"), "one\ntwo\n").unwrap();
    assert_eq!(end(&fixture.turn().await).0, TerminalStatus::Completed);
    let log = std::fs::read_to_string(fixture.home.path().join("replies")).unwrap();
    let replies = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (fixture, replies)
}

fn in_session(mut params: Value) -> Value {
    params["sessionId"] = "s1".into();
    params
}

#[tokio::test]
async fn files_and_terminals_are_served_inside_the_workspace_only() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "secret").unwrap();
    let requests = [
        ("fs/read_text_file", in_session(json!({"path": "there", "line": 2}))),
        ("fs/read_text_file", in_session(json!({"path": secret.path()}))),
        ("fs/read_text_file", in_session(json!({"path": "../there"}))),
        ("fs/write_text_file", in_session(json!({"path": "made/here", "content": "new"}))),
        ("fs/write_text_file", in_session(json!({"path": secret.path(), "content": "new"}))),
        ("terminal/create", in_session(json!({"command": "sh", "args": ["-c", "pwd; echo $HOME; exit 3"]}))),
        ("terminal/wait_for_exit", in_session(json!({"terminalId": "terminal-1"}))),
        ("terminal/output", in_session(json!({"terminalId": "terminal-1"}))),
        ("terminal/release", in_session(json!({"terminalId": "terminal-1"}))),
        ("terminal/output", in_session(json!({"terminalId": "terminal-1"}))),
        ("terminal/create", in_session(json!({"command": "ls", "cwd": "/"}))),
        ("craft/unknown", in_session(json!({}))),
        ("fs/read_text_file", json!([1])),
    ];
    let (fixture, replies) = replies_to(&requests, json!({})).await;
    assert_eq!(replies[0]["result"]["content"], "two\n");
    let refused: Vec<_> = (0..replies.len()).filter(|at| replies[*at]["error"].is_object()).collect();
    assert_eq!(refused, [1, 2, 4, 9, 10, 11, 12], "{replies:?}");
    assert_eq!(fixture.file("made/here"), "new");
    assert_eq!(std::fs::read_to_string(secret.path()).unwrap(), "secret");
    assert_eq!(replies[6]["result"], json!({"exitCode": 3, "signal": null}));
    let output = replies[7]["result"]["output"].as_str().unwrap();
    let here = fixture.workspace.path().canonicalize().unwrap();
    assert!(output.lines().all(|line| Path::new(line).canonicalize().is_ok_and(|path| path == here)), "{output}");
    assert_eq!(replies[11]["error"]["code"], -32601);
}

#[tokio::test]
async fn a_read_only_run_writes_nothing_and_runs_nothing() {
    let requests = [
        ("fs/read_text_file", in_session(json!({"path": "there"}))),
        ("fs/write_text_file", in_session(json!({"path": "there", "content": "new"}))),
        ("terminal/create", in_session(json!({"command": "touch", "args": ["made"]}))),
    ];
    let (fixture, replies) = replies_to(&requests, json!({"sandbox": "read-only"})).await;
    assert_eq!(replies[0]["result"]["content"], "one\ntwo\n");
    assert!(replies[1]["error"].is_object() && replies[2]["error"].is_object());
    assert_eq!((fixture.file("there").as_str(), fixture.file("made").as_str()), ("one\ntwo\n", ""));
}

#[tokio::test]
async fn every_misbehaviour_of_an_agent_ends_the_turn_with_a_reason() {
    use FailureKind::*;
    use TerminalStatus::{Blocked, Cancelled as Gone, Failed};
    let cases = [
        ("exit 1", Failed, BackendFailed),
        ("echo hello; echo '[]'; read -r l", Failed, BackendFailed),
        ("read -r l; reply 1 '{\"protocolVersion\":9}'; listen", Failed, BackendFailed),
        ("hello; read -r l; refuse 2 -32000 'Authentication required'; listen", Blocked, SecretUnavailable),
        ("hello; read -r l; reply 2 '{}'; listen", Failed, BackendFailed),
        ("hello; read -r l; refuse 2 -32603 'no'; listen", Failed, BackendFailed),
        ("begin; read -r l; text half; exit 0", Failed, BackendFailed),
        ("begin; read -r l; reply 3 '[]'; listen", Failed, BackendFailed),
        ("begin; read -r l; reply 3 '{\"stopReason\":\"whim\"}'; listen", Failed, BackendFailed),
        ("begin; read -r l; reply 3 '{\"stopReason\":\"refusal\"}'; listen", Failed, BackendFailed),
        ("begin; read -r l; reply 3 '{\"stopReason\":\"max_turn_requests\"}'; listen", Blocked, BudgetExceeded),
        ("begin; read -r l; reply 3 '{\"stopReason\":\"cancelled\"}'; listen", Gone, Cancelled),
        ("begin; read -r l; refuse 3 -32603 '401 wrong key'; listen", Failed, ProviderAuthFailed),
        ("begin; read -r l; refuse 3 -32603 '429 too many'; listen", Blocked, ProviderUnavailable),
        ("begin; read -r l; refuse 3 -32603 'Connection error.'; listen", Failed, ProviderUnavailable),
        ("begin; read -r l; while :; do echo nonsense; done", Failed, BackendFailed),
        (
            "begin; read -r l; x=xxxxxxxxxxxxxxxx; for i in 1 2 3 4 5 6 7 8 9 10 11 12; do x=$x$x; done; while :; do text $x; done",
            Failed,
            BackendFailed,
        ),
    ];
    for (script, status, kind) in cases {
        let command = Fixture::new(script).turn().await;
        assert_eq!(end(&command), (status, Some(kind)), "{script}: {:?}", command.terminal);
        let lacks_login = command.terminal.as_ref().unwrap().rule == Some(Rule::ProfileKey);
        assert_eq!(lacks_login, kind == SecretUnavailable, "{script}: {:?}", command.terminal);
    }
}

/// Stores its requests in its home, and can load its session.
const RESUMES: &str = r#"hello
    read -r l; say "$l" >>"$HOME/kept/requests"
    case "$l" in
      *session/load*) tell '{"sessionUpdate":"user_message_chunk","content":{"type":"text","text":"old"}}'; text 'old news'; LOADED ;;
      *) reply 2 '{"sessionId":"s1"}' ;;
    esac
    read -r l; say "$l" >>"$HOME/kept/requests"; text 'New.'; reply 3 '{"stopReason":"end_turn"}'; listen"#;

#[tokio::test]
async fn a_second_runner_resumes_the_session_and_does_not_report_its_history() {
    let fixture = Fixture::new(&RESUMES.replace("LOADED", "reply 2 '{}'"));
    assert_eq!(end(&fixture.turn().await).0, TerminalStatus::Completed);
    assert_eq!(end(&fixture.turn().await).0, TerminalStatus::Completed);
    assert_eq!(messages(&fixture.kernel), [("New.".into(), true), ("New.".into(), true)]);
    let requests = std::fs::read_to_string(fixture.storage.path().join("kept/requests")).unwrap();
    let requests: Vec<Value> = requests.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&requests[0]["method"], &requests[2]["method"]), (&json!("session/new"), &json!("session/load")));
    assert_eq!(requests[2]["params"]["sessionId"], "s1");
}

#[tokio::test]
async fn a_process_that_ended_between_two_turns_is_reported_and_replaced() {
    let mut fixture = Fixture::new(
        r#"if [ -e gone ]; then hello; read -r l; reply 2 '{}'; read -r l; text Two.; reply 3 '{"stopReason":"end_turn"}'; listen
        else begin; read -r l; text One.; : >gone; reply 3 '{"stopReason":"end_turn"}'; fi"#,
    );
    fixture.idle_timeout_ms = 3_000;
    let first = fixture.submit("one");
    let runner = fixture.start();
    fixture.kernel.until(|kernel| kernel.command(first).terminal.is_some()).await;
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    let second = fixture.submit("two");
    runner.await.unwrap();
    assert_eq!(end(&fixture.kernel.command(second)), (TerminalStatus::Completed, None));
    assert_eq!(phases(&fixture.kernel, "transport-disconnected").len(), 1);
    assert_eq!(phases(&fixture.kernel, "session/load:completed").len(), 1);
}

#[tokio::test]
async fn a_runner_without_a_process_does_not_keep_the_run_after_a_failed_turn() {
    let mut fixture = Fixture::new("begin; read -r l; exit 3");
    fixture.idle_timeout_ms = 600_000;
    let command_id = fixture.submit("one");
    let runner = fixture.start();
    tokio::time::timeout(std::time::Duration::from_secs(30), runner).await.unwrap().unwrap();
    assert_eq!(end(&fixture.kernel.command(command_id)).0, TerminalStatus::Failed);
}

#[tokio::test]
async fn an_interrupted_turn_is_never_silently_started_again() {
    let cut_off =
        r#"; [ -e "$HOME/kept/begun" ] || { say begun >"$HOME/kept/begun"; text 'On it.'; listen; }; text 'New.'"#;
    let fixture = Fixture::new(&RESUMES.replace("LOADED", "reply 2 '{}'").replace("; text 'New.'", cut_off));
    let command_id = fixture.submit("do it");
    let runner = fixture.start();
    fixture.kernel.until(|kernel| !of_type(kernel, EventType::AssistantDelta).is_empty()).await;
    runner.abort();
    fixture.start().await.unwrap();
    assert_eq!(end(&fixture.kernel.command(command_id)).0, TerminalStatus::Completed);
    let requests = std::fs::read_to_string(fixture.storage.path().join("kept/requests")).unwrap();
    let requests: Vec<Value> = requests.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(requests[2]["method"], "session/load", "the session was reported before anything was done in it");
    let prompts: Vec<_> = [1, 3].map(|at| requests[at]["params"]["prompt"][0]["text"].as_str().unwrap()).to_vec();
    assert_eq!(prompts[0], "do it");
    assert!(prompts[1].starts_with("Your work on this was cut off") && prompts[1].ends_with("do it"), "{}", prompts[1]);
}

#[tokio::test]
async fn an_agent_whose_network_cannot_be_disabled_rejects_such_a_run() {
    let fixture = Fixture::with("touch started; begin", json!({"network": "disabled"}));
    assert_eq!(end(&fixture.turn().await), (TerminalStatus::Failed, Some(FailureKind::TenantPolicyDenied)));
    assert!(!fixture.workspace.path().join("started").exists());
}

#[tokio::test]
async fn a_lost_session_is_never_replaced_by_a_new_one() {
    let fixture = Fixture::new(&RESUMES.replace("LOADED", "refuse 2 -32602 'no such session'"));
    assert_eq!(end(&fixture.turn().await).0, TerminalStatus::Completed);
    assert_eq!(end(&fixture.turn().await), (TerminalStatus::Failed, Some(FailureKind::ThreadResumeFailed)));
}
