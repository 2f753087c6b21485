//! The ACP agent, against the pure kernel and agents played by a shell: real pipes, real signals, and every way to break
//! the protocol.

use std::{path::Path, sync::Arc};

use ostler_protocol::{
    FailureKind,
    commands::{Command, CommandState, CommandType},
    events::EventType,
    ids::CommandId,
    provider_profiles::AgentConfig,
    runs::TerminalStatus,
};
use ostler_runner::{Outfit, Patience, RunnerOrder, RunnerOutcome, run};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::kernel::{Kernel, of_type};

/// What every played agent can say. Our calls are numbered: initialize is 1, the session is 2, the prompts follow.
const WORDS: &str = r#"
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

/// A place for an agent to work in, and the one who plays it.
struct Stage {
    kernel: Arc<Kernel>,
    script: String,
    home: TempDir,
    workspace: TempDir,
    storage: TempDir,
    patience: Patience,
}

impl Stage {
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
            patience: Patience::default(),
        }
    }

    fn ask(&self, prompt: &str) -> CommandId {
        self.kernel.submit(CommandType::Turn, json!({"prompt": prompt}))
    }

    fn start(&self) -> JoinHandle<RunnerOutcome> {
        self.start_program(vec!["/bin/sh".to_owned(), "-c".to_owned(), format!("{WORDS}{}", self.script)])
    }

    fn start_program(&self, command: Vec<String>) -> JoinHandle<RunnerOutcome> {
        let outfit = Outfit {
            home: Some(self.home.path().to_owned()),
            workspace: Some(self.workspace.path().to_owned()),
            storage: Some(self.storage.path().to_owned()),
            patience: self.patience,
            ..Outfit::bare(AgentConfig::Acp { command, keep: vec!["kept".into()] })
        };
        let order = RunnerOrder::resident(self.kernel.run_id(), "runner-a".into(), "scripted".into(), outfit);
        tokio::spawn(run(RunnerOrder { idle_timeout_ms: 0, ..order }, self.kernel.client()))
    }

    /// Runs one turn to its end.
    async fn turn(&self) -> Command {
        let command_id = self.ask("do it");
        self.start().await.unwrap();
        self.kernel.command(command_id)
    }

    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.workspace.path().join(name)).unwrap_or_default()
    }
}

fn end(command: &Command) -> (TerminalStatus, Option<FailureKind>) {
    let terminal = command.terminal.as_ref().expect("it has ended");
    (terminal.status, terminal.failure_kind)
}

fn messages(kernel: &Kernel) -> Vec<(String, bool)> {
    let told = of_type(kernel, EventType::AssistantMessage);
    told.iter().map(|m| (m["text"].as_str().unwrap().to_owned(), m["final"] == true)).collect()
}

fn phases(kernel: &Kernel, phase: &str) -> Vec<Value> {
    of_type(kernel, EventType::BackendStatus).into_iter().filter(|told| told["phase"] == phase).collect()
}

#[tokio::test]
async fn what_an_agent_says_becomes_events_and_two_turns_need_one_process() {
    let stage = Stage::new(
        r#"begin
        read -r l
        tell '{"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"hm"}}'
        text 'Look'; text 'ing.'
        tell '{"sessionUpdate":"plan","entries":[{"content":"look","status":"pending"}]}'
        tell '{"sessionUpdate":"a_word_of_tomorrow","what":[1]}'
        tell '{"sessionUpdate":"tool_call","toolCallId":"c","title":"Shell","kind":"execute","status":"pending","rawInput":{}}'
        tell '{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"in_progress","rawInput":{"command":"ls"}}'
        tell '{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"completed","content":[{"type":"content","content":{"type":"text","text":"a.txt"}}],"rawOutput":{"exitCode":7}}'
        text 'Done.'
        tell '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":""},"_meta":{"usage":{"inputTokens":10,"outputTokens":5,"totalTokens":15}}}'
        reply 3 '{"stopReason":"end_turn"}'
        reply 3 '{"stopReason":"refusal"}'
        read -r l; text 'Again.'; reply 4 '{"stopReason":"end_turn"}'; listen"#,
    );
    let (first, second) = (stage.ask("one"), stage.ask("two"));
    stage.start().await.unwrap();
    let kernel = &stage.kernel;
    assert_eq!(end(&kernel.command(first)), (TerminalStatus::Completed, None));
    assert_eq!(end(&kernel.command(second)), (TerminalStatus::Completed, None));
    let said = [("Looking.".into(), false), ("Done.".into(), true), ("Again.".into(), true)];
    assert_eq!(messages(kernel), said);
    assert_eq!(of_type(kernel, EventType::Reasoning)[0]["text"], "hm");
    assert_eq!(of_type(kernel, EventType::Activity)[0]["content"]["entries"][0]["content"], "look");
    let calls = of_type(kernel, EventType::ToolCall);
    let told: Vec<_> =
        calls.iter().map(|call| (call["status"].as_str().unwrap(), call["command"].as_str().unwrap())).collect();
    assert_eq!(told, [("started", "ls"), ("completed", "ls")]);
    assert_eq!(calls[1]["exitCode"], 7);
    assert_eq!(of_type(kernel, EventType::CommandOutput)[0]["text"], "a.txt");
    let usage = json!({"model": "played", "inputTokens": 10, "outputTokens": 5, "totalTokens": 15});
    assert_eq!(of_type(kernel, EventType::Usage), [usage]);
    assert_eq!(phases(kernel, "initialize:completed").len(), 1);
    assert_eq!(of_type(kernel, EventType::Session)[0]["threadId"], "s1");
}

#[tokio::test]
async fn each_prompt_of_a_turn_is_counted_where_usage_comes_with_its_answer() {
    let stage = Stage::new(
        r#"begin
        read -r l; text 'One and one.'; until [ -e steered ]; do sleep 0.05; done; sleep 1
        reply 3 '{"stopReason":"end_turn","usage":{"inputTokens":10,"outputTokens":5,"totalTokens":15}}'
        read -r l; text 'Two.'
        reply 4 '{"stopReason":"end_turn","usage":{"inputTokens":20,"outputTokens":5,"totalTokens":1025,"cachedReadTokens":1000}}'
        listen"#,
    );
    let command_id = stage.ask("one");
    let runner = stage.start();
    stage.kernel.until(|kernel| !of_type(kernel, EventType::AssistantDelta).is_empty()).await;
    let steer = stage.kernel.submit(CommandType::Steer, json!({"prompt": "two"}));
    stage.kernel.until(|kernel| kernel.command(steer).state != CommandState::Pending).await;
    std::fs::write(stage.workspace.path().join("steered"), "").unwrap();
    runner.await.unwrap();
    assert_eq!(end(&stage.kernel.command(command_id)).0, TerminalStatus::Completed);
    assert_eq!(messages(&stage.kernel).len(), 2, "the steer was said");
    let used = of_type(&stage.kernel, EventType::Usage);
    let input: Vec<_> = used.iter().map(|used| used["inputTokens"].as_i64().unwrap()).collect();
    assert_eq!(input, [10, 1_020], "what came from a cache was read too");
}

const ASKS: &str = r#"begin
    read -r l
    tell '{"sessionUpdate":"tool_call","toolCallId":"c","title":"Shell: rm x","kind":"execute","status":"pending","rawInput":{"command":"rm x"}}'
    ask 100 session/request_permission '{"sessionId":"s1","toolCall":{"toolCallId":"c","title":"Shell: rm x","rawInput":{"command":"rm x"}},"options":[{"optionId":"forever","name":"Always","kind":"allow_always"},{"optionId":"once","name":"Allow","kind":"allow_once"},{"optionId":"no","name":"No","kind":"reject_once"}]}'
    read -r l; say "$l" >answer
    case "$l" in *once*) s=completed ;; *) s=failed ;; esac
    tell '{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"'$s'"}'
    text 'Well.'; reply 3 '{"stopReason":"end_turn"}'; listen"#;

#[tokio::test]
async fn a_permission_is_asked_for_once_and_answered_in_the_agents_words() {
    for (choice, outcome, status) in [("once", "once", "completed"), ("no", "no", "declined")] {
        // Our first call after the session is the mode, where the agent has modes; this one has none.
        let stage = Stage::with(ASKS, json!({"approval": "untrusted"}));
        let command_id = stage.ask("do it");
        let runner = stage.start();
        stage.kernel.until(|kernel| !kernel.permissions().is_empty()).await;
        let asked = stage.kernel.permissions().remove(0);
        assert_eq!((asked.command.as_deref(), asked.options.len()), (Some("rm x"), 2), "nothing is offered for ever");
        stage.kernel.answer_permission(asked.permission_id, choice, &asked.digest);
        runner.await.unwrap();
        assert_eq!(end(&stage.kernel.command(command_id)).0, TerminalStatus::Completed);
        let answer: Value = serde_json::from_str(&stage.file("answer")).unwrap();
        assert_eq!(answer["result"]["outcome"], json!({"outcome": "selected", "optionId": outcome}));
        let calls = of_type(&stage.kernel, EventType::ToolCall);
        assert_eq!(calls.last().unwrap()["status"], status);
        assert_eq!(asked.tool_call_id.as_deref(), calls[0]["toolCallId"].as_str());
    }
}

#[tokio::test]
async fn an_agent_that_says_nothing_of_a_prompt_is_not_waited_for_for_ever() {
    let told =
        r#"begin; read -r l; tell '{"sessionUpdate":"available_commands_update","availableCommands":[]}'; listen"#;
    let mut stage = Stage::new(told);
    stage.patience.unreachable_ms = 200;
    let command = stage.turn().await;
    assert_eq!(end(&command), (TerminalStatus::Failed, Some(FailureKind::ProviderUnavailable)));
    assert!(command.terminal.unwrap().message.unwrap().contains("said nothing for 200 ms"));
}

#[tokio::test]
async fn a_program_that_is_not_installed_is_named() {
    let stage = Stage::new("");
    let command_id = stage.ask("do it");
    stage.start_program(vec!["no-such-agent".into()]).await.unwrap();
    let terminal = stage.kernel.command(command_id).terminal.unwrap();
    assert_eq!(terminal.failure_kind, Some(FailureKind::InfraFailed));
    assert!(terminal.message.as_ref().unwrap().contains("\"no-such-agent\" is not installed"), "{terminal:?}");
}

/// What is asked about a call that is described like this; nothing, where it is declined without asking.
async fn asked_about(call: Value) -> (Stage, Option<String>) {
    let script = ASKS
        .replace(r#""title":"Shell: rm x","rawInput":{"command":"rm x"}},"#, &format!("{},", &call.to_string()[1..]));
    let script = script
        .replace(r#","title":"Shell: rm x","kind":"execute","status":"pending","rawInput":{"command":"rm x"}"#, "");
    let stage = Stage::with(&script, json!({"approval": "untrusted"}));
    let command_id = stage.ask("do it");
    let runner = stage.start();
    let is_done = |kernel: &Kernel| !kernel.permissions().is_empty() || !kernel.command(command_id).is_unfinished();
    stage.kernel.until(is_done).await;
    let asked = stage.kernel.permissions().pop();
    if let Some(asked) = &asked {
        stage.kernel.answer_permission(asked.permission_id, "no", &asked.digest);
    }
    runner.await.unwrap();
    (stage, asked.and_then(|asked| asked.command))
}

#[tokio::test]
async fn whoever_is_asked_is_shown_the_whole_call() {
    let long = format!("echo {}; touch HIDDEN", "a".repeat(4_000));
    let (_, shown) = asked_about(json!({"title": long, "rawInput": {"command": long, "is_background": false}})).await;
    assert_eq!(shown, Some(format!("{long}\nis_background: false")));
    let input = json!({"file_path": "/w/good.txt", "content": "one\\ntwo"});
    let (_, shown) = asked_about(json!({"title": "Writing to good.txt", "rawInput": input})).await;
    assert_eq!(shown.as_deref(), Some("content: one\\ntwo\nfile_path: /w/good.txt"));
    let diff = json!([{"type": "diff", "path": "good.txt", "oldText": "one", "newText": "two"}]);
    let (_, shown) = asked_about(json!({"title": "Writing to good.txt", "content": diff})).await;
    assert_eq!(shown.as_deref(), Some("good.txt\n-one\n+two"));
}

#[tokio::test]
async fn a_call_that_is_too_long_to_be_shown_is_declined_and_the_log_says_so() {
    let long = format!("echo {}", "a".repeat(70_000));
    let (stage, shown) = asked_about(json!({"title": "Shell", "rawInput": {"command": long}})).await;
    assert_eq!(shown, None);
    let [told] = &phases(&stage.kernel, "approval:declined")[..] else { panic!("it is said once") };
    assert!(told["reason"].as_str().unwrap().contains("too long"), "{told}");
    assert!(stage.file("answer").contains(r#""optionId":"no""#), "{}", stage.file("answer"));
}

#[tokio::test]
async fn a_run_that_is_never_to_ask_declines_and_says_so() {
    let stage = Stage::new(ASKS);
    assert_eq!(end(&stage.turn().await).0, TerminalStatus::Completed);
    assert!(stage.kernel.permissions().is_empty());
    let [told] = &phases(&stage.kernel, "approval:declined")[..] else { panic!("it is said once") };
    assert_eq!((&told["command"], &told["reason"]), (&json!("rm x"), &json!("the run's policy is never to ask")));
    assert_eq!(told["toolCallId"], of_type(&stage.kernel, EventType::ToolCall)[0]["toolCallId"]);
    assert!(stage.file("answer").contains(r#""optionId":"no""#), "{}", stage.file("answer"));
}

#[tokio::test]
async fn an_interrupt_cancels_the_prompt_and_the_open_question() {
    let script = ASKS.replace("read -r l; say \"$l\" >answer", "while read -r l; do say \"$l\" >>answers; case \"$l\" in *outcome*) break ;; esac; done; reply 3 '{\"stopReason\":\"cancelled\"}'; listen");
    let stage = Stage::with(&script, json!({"approval": "untrusted"}));
    let command_id = stage.ask("do it");
    let runner = stage.start();
    stage.kernel.until(|kernel| !kernel.permissions().is_empty()).await;
    stage.kernel.submit(CommandType::Interrupt, json!({}));
    runner.await.unwrap();
    assert_eq!(end(&stage.kernel.command(command_id)).0, TerminalStatus::Cancelled);
    let answers = stage.file("answers");
    assert!(answers.contains("session/cancel") && answers.contains(r#""outcome":"cancelled""#), "{answers}");
}

/// Has the agent make these requests, and returns the answers.
async fn answers(requests: &[(&str, Value)], policy: Value) -> (Stage, Vec<Value>) {
    let calls: String = requests
        .iter()
        .enumerate()
        .map(|(number, (method, params))| {
            format!("ask {} {method} '{params}'; read -r l; say \"$l\" >>\"$log\"\n", 100 + number)
        })
        .collect();
    let script =
        format!("log=$HOME/answers; begin; read -r l\n{calls}reply 3 '{{\"stopReason\":\"end_turn\"}}'; listen");
    let stage = Stage::with(&script, policy);
    std::fs::write(stage.workspace.path().join("there"), "one\ntwo\n").unwrap();
    assert_eq!(end(&stage.turn().await).0, TerminalStatus::Completed);
    let log = std::fs::read_to_string(stage.home.path().join("answers")).unwrap();
    let answers = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (stage, answers)
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
        ("craft/unheardOf", in_session(json!({}))),
        ("fs/read_text_file", json!([1])),
    ];
    let (stage, answers) = answers(&requests, json!({})).await;
    assert_eq!(answers[0]["result"]["content"], "two\n");
    let refused: Vec<_> = (0..answers.len()).filter(|at| answers[*at]["error"].is_object()).collect();
    assert_eq!(refused, [1, 2, 4, 9, 10, 11, 12], "{answers:?}");
    assert_eq!(stage.file("made/here"), "new");
    assert_eq!(std::fs::read_to_string(secret.path()).unwrap(), "secret");
    assert_eq!(answers[6]["result"], json!({"exitCode": 3, "signal": null}));
    let output = answers[7]["result"]["output"].as_str().unwrap();
    let here = stage.workspace.path().canonicalize().unwrap();
    assert!(output.lines().all(|line| Path::new(line).canonicalize().is_ok_and(|path| path == here)), "{output}");
    assert_eq!(answers[11]["error"]["code"], -32601);
}

#[tokio::test]
async fn a_run_that_may_only_read_writes_nothing_and_runs_nothing() {
    let requests = [
        ("fs/read_text_file", in_session(json!({"path": "there"}))),
        ("fs/write_text_file", in_session(json!({"path": "there", "content": "new"}))),
        ("terminal/create", in_session(json!({"command": "touch", "args": ["made"]}))),
    ];
    let (stage, answers) = answers(&requests, json!({"sandbox": "read-only"})).await;
    assert_eq!(answers[0]["result"]["content"], "one\ntwo\n");
    assert!(answers[1]["error"].is_object() && answers[2]["error"].is_object());
    assert_eq!((stage.file("there").as_str(), stage.file("made").as_str()), ("one\ntwo\n", ""));
}

#[tokio::test]
async fn whatever_an_agent_does_the_turn_ends_and_says_why() {
    use FailureKind::*;
    use TerminalStatus::{Blocked, Cancelled as Gone, Failed};
    let cases = [
        ("exit 1", Failed, BackendFailed),
        ("echo hello; echo '[]'; read -r l", Failed, BackendFailed),
        ("read -r l; reply 1 '{\"protocolVersion\":9}'; listen", Failed, BackendFailed),
        ("hello; read -r l; refuse 2 -32000 'Authentication required'; listen", Failed, SecretUnavailable),
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
        let command = Stage::new(script).turn().await;
        assert_eq!(end(&command), (status, Some(kind)), "{script}: {:?}", command.terminal);
    }
}

#[tokio::test]
async fn an_agent_that_never_answers_runs_out_of_time_and_is_killed() {
    let stage = Stage::with("begin; read -r l; echo $$ >pid; text 'one moment'; listen", json!({"timeoutMs": 500}));
    assert_eq!(end(&stage.turn().await), (TerminalStatus::Blocked, Some(FailureKind::BudgetExceeded)));
    let pid = stage.file("pid");
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "process {pid} is still there");
}

/// Remembers what it was asked, in its home, and can load what it began.
const RESUMES: &str = r#"hello
    read -r l; say "$l" >>"$HOME/kept/asked"
    case "$l" in
      *session/load*) tell '{"sessionUpdate":"user_message_chunk","content":{"type":"text","text":"old"}}'; text 'old news'; LOADED ;;
      *) reply 2 '{"sessionId":"s1"}' ;;
    esac
    read -r l; say "$l" >>"$HOME/kept/asked"; text 'New.'; reply 3 '{"stopReason":"end_turn"}'; listen"#;

#[tokio::test]
async fn a_second_runner_goes_on_with_the_session_and_tells_its_history_to_nobody() {
    let stage = Stage::new(&RESUMES.replace("LOADED", "reply 2 '{}'"));
    assert_eq!(end(&stage.turn().await).0, TerminalStatus::Completed);
    assert_eq!(end(&stage.turn().await).0, TerminalStatus::Completed);
    assert_eq!(messages(&stage.kernel), [("New.".into(), true), ("New.".into(), true)]);
    let asked = std::fs::read_to_string(stage.storage.path().join("kept/asked")).unwrap();
    let asked: Vec<Value> = asked.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&asked[0]["method"], &asked[2]["method"]), (&json!("session/new"), &json!("session/load")));
    assert_eq!(asked[2]["params"]["sessionId"], "s1");
}

#[tokio::test]
async fn a_turn_that_was_cut_off_is_never_silently_begun_again() {
    let cut_off =
        r#"; [ -e "$HOME/kept/begun" ] || { say begun >"$HOME/kept/begun"; text 'On it.'; listen; }; text 'New.'"#;
    let stage = Stage::new(&RESUMES.replace("LOADED", "reply 2 '{}'").replace("; text 'New.'", cut_off));
    let command_id = stage.ask("do it");
    let runner = stage.start();
    stage.kernel.until(|kernel| !of_type(kernel, EventType::AssistantDelta).is_empty()).await;
    runner.abort();
    stage.start().await.unwrap();
    assert_eq!(end(&stage.kernel.command(command_id)).0, TerminalStatus::Completed);
    let asked = std::fs::read_to_string(stage.storage.path().join("kept/asked")).unwrap();
    let asked: Vec<Value> = asked.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(asked[2]["method"], "session/load", "the session was known before anything was done in it");
    let prompts: Vec<_> = [1, 3].map(|at| asked[at]["params"]["prompt"][0]["text"].as_str().unwrap()).to_vec();
    assert_eq!(prompts[0], "do it");
    assert!(prompts[1].starts_with("Your work on this was cut off") && prompts[1].ends_with("do it"), "{}", prompts[1]);
}

#[tokio::test]
async fn output_that_cannot_be_the_protocol_fails_the_turn_at_once() {
    // None of them ends its line, and none of them goes away.
    let long = "head -c 9000000 /dev/zero | tr '\\0' x";
    for output in [long, "printf 'PK\\003\\004\\000\\000'", "printf 'caf\\351\\n'"] {
        for script in [
            format!("{output}; listen"),
            format!("hello; read -r l; {output}; listen"),
            format!("begin; read -r l; {output}; listen"),
        ] {
            let stage = Stage::new(&script);
            let command = stage.turn().await;
            assert_eq!(end(&command), (TerminalStatus::Failed, Some(FailureKind::BackendFailed)), "{script}");
            let message = command.terminal.unwrap().message.unwrap_or_default();
            assert!(message.contains("does not keep to its protocol"), "{script}: {message}");
        }
    }
}

#[tokio::test]
async fn an_agent_that_nothing_keeps_from_the_network_takes_no_run_without_it() {
    let stage = Stage::with("touch started; begin", json!({"network": "disabled"}));
    assert_eq!(end(&stage.turn().await), (TerminalStatus::Failed, Some(FailureKind::TenantPolicyDenied)));
    assert!(!stage.workspace.path().join("started").exists());
}

#[tokio::test]
async fn a_session_that_is_gone_is_never_replaced_by_a_new_one() {
    let stage = Stage::new(&RESUMES.replace("LOADED", "refuse 2 -32602 'no such session'"));
    assert_eq!(end(&stage.turn().await).0, TerminalStatus::Completed);
    assert_eq!(end(&stage.turn().await), (TerminalStatus::Failed, Some(FailureKind::ThreadResumeFailed)));
}
