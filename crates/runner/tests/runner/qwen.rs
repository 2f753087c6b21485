//! The real Qwen Code, unmodified, driven over ACP, with a stand-in for its model provider. A self-test with a real backend
//! process, not acceptance with a real provider. It takes 10 s to start, so each test does several things with it.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use ostler_protocol::{
    FailureKind,
    ids::CommandId,
    kernel::{
        commands::CommandType,
        events::EventType,
        permissions::OptionKind,
        provider_profiles::AgentConfig,
        runs::{Terminal, TerminalStatus},
    },
};
use ostler_runner::{
    BackendEnvironment, NamedSecret, OfferedMcpServer, OfferedTransport, RunnerOrder, RunnerOutcome, run, side_query,
};
use ostler_stand_ins::{Endpoint, chat_with_key};
use secrecy::SecretString;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{task::JoinHandle, time::Duration};

use crate::{
    kernel::{Kernel, of_type},
    side_queries::{LIMITS, query},
};

/// On a busy machine it takes minutes to start.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// An MCP server that speaks the real protocol.
const MCP_SERVER: &str = include_str!("../../../testkit/src/mcp_server.py");
const KEY: &str = "planted-key-of-qwen-7f3a";

fn required_variable(variable: &str) -> String {
    let hint = "run `cargo xtask test`, or `eval \"$(cargo xtask agents)\"` first";
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: {hint}"))
}

struct QwenFixture {
    kernel: Arc<Kernel>,
    provider: Endpoint,
    workspace: TempDir,
    storage: TempDir,
    mcp_servers: Vec<OfferedMcpServer>,
    disabled_tools: Vec<String>,
}

impl QwenFixture {
    fn new(approval: &str) -> Self {
        let policy = json!({"sandbox": "workspace-write", "approval": approval, "timeoutMs": 600_000});
        let [workspace, storage] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
        let (mcp_servers, disabled_tools) = (vec![], vec![]);
        let kernel = Kernel::new(policy);
        Self { kernel, provider: chat_with_key(KEY), workspace, storage, mcp_servers, disabled_tools }
    }

    /// A home as a profile creates it: the key is in the agent's own settings, never in an environment variable.
    fn home(&self, key: &str) -> TempDir {
        let home = tempfile::tempdir().unwrap();
        let auth = json!({"selectedType": "openai", "apiKey": key, "baseUrl": self.provider.base_url()});
        let settings = json!({"security": {"auth": auth}, "model": {"name": "stand-in"},
            "privacy": {"usageStatisticsEnabled": false}, "general": {"enableAutoUpdate": false}});
        std::fs::create_dir(home.path().join(".qwen")).unwrap();
        std::fs::write(home.path().join(".qwen/settings.json"), settings.to_string()).unwrap();
        home
    }

    fn environment(&self, home: &TempDir) -> BackendEnvironment {
        let command =
            vec![required_variable("OSTLER_TEST_NODE"), required_variable("OSTLER_TEST_QWEN"), "--acp".to_owned()];
        BackendEnvironment {
            mcp_servers: self.mcp_servers.clone(),
            disabled_tools: self.disabled_tools.clone(),
            home: Some(home.path().to_owned()),
            workspace: Some(self.workspace.path().to_owned()),
            storage: Some(self.storage.path().to_owned()),
            ..BackendEnvironment::bare(AgentConfig::Acp {
                command,
                keep: vec![".qwen/projects".into()],
                extensions: None,
            })
        }
    }

    /// Starts a runner that ends after it has waited this long for another turn.
    fn start(&self, home: &TempDir, idle_timeout_ms: u64) -> JoinHandle<RunnerOutcome> {
        let environment = self.environment(home);
        let order = RunnerOrder::resident(self.kernel.run_id(), "runner-a".into(), "scripted".into(), environment);
        tokio::spawn(run(RunnerOrder { idle_timeout_ms, ..order }, self.kernel.client()))
    }

    fn submit(&self, prompt: &str) -> CommandId {
        self.kernel.submit(CommandType::Turn, json!({"prompt": prompt}))
    }

    async fn until(&self, holds: impl Fn(&Kernel) -> bool) {
        self.kernel.until_within(WAIT_MAX, holds).await;
    }

    async fn wait_for_end(&self, command_id: CommandId) -> Terminal {
        self.until(|kernel| kernel.command(command_id).terminal.is_some()).await;
        self.kernel.command(command_id).terminal.unwrap()
    }

    /// Resolves the `count`th permission request with the option of this kind.
    async fn resolve(&self, count: usize, kind: OptionKind) {
        self.until(|kernel| kernel.permissions().len() >= count).await;
        let request = self.kernel.permissions().pop().unwrap();
        let option = request.options.iter().find(|option| option.kind == kind).unwrap();
        self.kernel.answer_permission(request.permission_id, &option.option_id, &request.digest);
    }

    fn created_file(&self) -> PathBuf {
        self.workspace.path().join("made.txt")
    }

    fn last_reply(&self) -> String {
        let messages = of_type(&self.kernel, EventType::AssistantMessage);
        let reply = messages.iter().rev().find(|message| message["final"] == true).unwrap();
        reply["text"].as_str().unwrap().to_owned()
    }

    fn phases(&self, phase: &str) -> Vec<Value> {
        let statuses = of_type(&self.kernel, EventType::BackendStatus);
        statuses.into_iter().filter(|status| status["phase"] == phase).collect()
    }

    /// The payloads of all events.
    fn events(&self) -> String {
        self.kernel
            .events()
            .iter()
            .filter_map(|event| event.payload.clone())
            .map(|payload| payload.to_string())
            .collect()
    }
}

#[tokio::test]
async fn qwens_model_answers_side_queries_without_tools_and_without_qwen() {
    let fixture = QwenFixture::new("untrusted");
    let home = fixture.home(KEY);
    std::fs::write(fixture.workspace.path().join("secret.txt"), "planted").unwrap();
    let environment = fixture.environment(&home);
    let files_of = |home: &TempDir| {
        let settings = std::fs::read_to_string(home.path().join(".qwen/settings.json")).unwrap();
        BTreeMap::from([(".qwen/settings.json".to_owned(), SecretString::from(settings))])
    };
    let files = files_of(&home);
    let answer = side_query(&environment, &files, &query("say hello"), LIMITS).await.unwrap().unwrap();
    assert!(answer.starts_with("You said: ") && answer.ends_with("say hello"), "{answer}");
    for call in ["[[run:cat secret.txt > made.txt]]", "[[call:read_file {\"absolute_path\": \"secret.txt\"}]]"] {
        assert_eq!(side_query(&environment, &files, &query(call), LIMITS).await, Ok(None), "{call}");
    }
    assert!(!fixture.created_file().exists());
    let seen = fixture.provider.seen();
    assert_eq!(seen.len(), 3, "the result of no tool was sent");
    assert!(seen.iter().all(|request| request.body.get("tools").is_none()));
    assert!(seen.iter().all(|request| !request.body.to_string().contains("planted")));
    let entries = home.path().join(".qwen").read_dir().unwrap().count();
    assert_eq!((entries, fixture.storage.path().read_dir().unwrap().count()), (1, 0), "Qwen was not started");
    let wrong = fixture.home("wrong-key");
    let failed = side_query(&environment, &files_of(&wrong), &query("say hello"), LIMITS).await.unwrap_err();
    assert_eq!(failed.failure_kind, Some(FailureKind::ProviderAuthFailed), "{failed:?}");
}

#[tokio::test]
async fn qwen_replies_asks_permission_for_its_tools_and_needs_one_process() {
    let fixture = QwenFixture::new("untrusted");
    let home = fixture.home(KEY);
    let runner = fixture.start(&home, 120_000);
    let turn = fixture.submit("say hello");
    assert_eq!(fixture.wait_for_end(turn).await.status, TerminalStatus::Completed);
    assert!(fixture.last_reply().starts_with("You said: "), "{}", fixture.last_reply());

    let turn = fixture.submit("[[run:echo tool-was-here > made.txt; exit 7]]");
    fixture.resolve(1, OptionKind::AllowOnce).await;
    assert_eq!(fixture.wait_for_end(turn).await.status, TerminalStatus::Completed);
    assert_eq!(std::fs::read_to_string(fixture.created_file()).unwrap(), "tool-was-here\n");
    let calls = of_type(&fixture.kernel, EventType::ToolCall);
    let command = json!("echo tool-was-here > made.txt; exit 7");
    assert_eq!((&calls[0]["status"], &calls[0]["command"]), (&json!("started"), &command));
    assert_eq!((calls.len(), &calls[1]["exitCode"]), (2, &json!(7)), "{calls:?}");

    let turn = fixture.submit("[[run:rm made.txt]]");
    fixture.resolve(2, OptionKind::RejectOnce).await;
    fixture.wait_for_end(turn).await;
    assert!(fixture.created_file().exists(), "it was denied and done anyway");
    let calls = of_type(&fixture.kernel, EventType::ToolCall);
    assert_eq!(calls.last().unwrap()["status"], "declined", "{calls:?}");

    // Qwen retries transient errors for minutes. This one is not transient.
    let turn = fixture.submit("[[status:400]]");
    let end = fixture.wait_for_end(turn).await;
    assert_eq!(end.failure_kind, Some(FailureKind::BackendFailed), "{end:?}");
    assert_eq!(fixture.phases("initialize:completed").len(), 1, "one process did it all");
    let usage = of_type(&fixture.kernel, EventType::Usage);
    assert_eq!((&usage[0]["inputTokens"], &usage[0]["outputTokens"]), (&json!(10), &json!(5)));
    let key = format!("Bearer {KEY}");
    assert!(fixture.provider.seen().iter().all(|seen| seen.authorization.as_deref() == Some(&key)));
    assert!(!fixture.events().contains(KEY), "the key was reported");
    runner.abort();
}

#[tokio::test]
async fn qwen_is_interrupted_and_a_second_runner_resumes_its_session() {
    let fixture = QwenFixture::new("never");
    let home = fixture.home(KEY);
    let turn = fixture.submit("[[slow]]");
    let runner = fixture.start(&home, 120_000);
    fixture.until(|kernel| !of_type(kernel, EventType::AssistantDelta).is_empty()).await;
    fixture.kernel.submit(CommandType::Interrupt, json!({}));
    assert_eq!(fixture.wait_for_end(turn).await.status, TerminalStatus::Cancelled);
    let turn = fixture.submit("remember the number 4711");
    assert_eq!(fixture.wait_for_end(turn).await.status, TerminalStatus::Completed);
    assert_eq!(fixture.phases("initialize:completed").len(), 1, "the interrupt cost no process");
    let first = fixture.phases("session/new:completed")[0]["threadId"].clone();
    // The runner dies, and its home with it. The next runner has another home.
    runner.abort();
    drop(home);

    let home = fixture.home(KEY);
    let turn = fixture.submit("[[recall]]");
    let runner = fixture.start(&home, 0);
    assert_eq!(fixture.wait_for_end(turn).await.status, TerminalStatus::Completed);
    assert_eq!(fixture.phases("session/resume:completed")[0]["threadId"], first);
    assert!(fixture.last_reply().contains("remember the number 4711"), "{}", fixture.last_reply());
    runner.await.unwrap();

    let home = fixture.home("wrong-key");
    let turn = fixture.submit("hello");
    fixture.start(&home, 0).await.unwrap();
    assert_eq!(fixture.wait_for_end(turn).await.failure_kind, Some(FailureKind::ProviderAuthFailed));
    assert!(!fixture.events().contains(KEY), "the key was reported");
}

#[tokio::test]
async fn qwen_starts_the_mcp_servers_that_it_gets_and_has_no_disabled_tools() {
    let mut fixture = QwenFixture::new("untrusted");
    let files = tempfile::tempdir().unwrap();
    let mark = files.path().join("started");
    let script = files.path().join("mcp_server.py");
    std::fs::write(&script, MCP_SERVER).unwrap();
    let args = [script, "marks".into(), mark.clone()].map(|path| path.display().to_string());
    let python = std::env::var("OSTLER_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let secret = NamedSecret { name: "SECRET".into(), value: "pl4nted-mcp-secret-93ab".to_owned().into() };
    let transport = OfferedTransport::Stdio { command: python, args: args.into(), env: vec![secret] };
    fixture.mcp_servers = vec![OfferedMcpServer { name: "notes".into(), transport }];
    fixture.disabled_tools = vec!["run_shell_command".into()];
    let home = fixture.home(KEY);
    let runner = fixture.start(&home, 120_000);
    let turn = fixture.submit("say hello");
    assert_eq!(fixture.wait_for_end(turn).await.status, TerminalStatus::Completed);
    assert!(mark.exists(), "the server was not started");
    let turn = fixture.submit("[[run:echo tool-was-here > made.txt]]");
    fixture.wait_for_end(turn).await;
    assert!(!fixture.created_file().exists(), "it was disabled and done anyway");
    assert!(fixture.kernel.permissions().is_empty(), "nobody was asked");
    assert!(!fixture.events().contains("pl4nted-mcp-secret"), "a secret was reported");
    runner.abort();
}
