//! The real Qwen Code, unmodified, driven over ACP, with a stand-in for its model provider. A self-test with a real backend
//! process, not acceptance with a real provider. It takes 10 s to start, so each test does several things with it.

use std::{path::PathBuf, sync::Arc};

use ostler_protocol::{
    FailureKind,
    commands::CommandType,
    events::EventType,
    ids::CommandId,
    permissions::OptionKind,
    provider_profiles::AgentConfig,
    runs::{Terminal, TerminalStatus},
};
use ostler_runner::{Outfit, RunnerOrder, RunnerOutcome, run};
use ostler_stand_ins::{Endpoint, chat_with_key};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{task::JoinHandle, time::Duration};

use crate::kernel::{Kernel, of_type};

/// On a machine that has much else to do it takes minutes to start.
const PATIENCE: Duration = Duration::from_secs(300);
const KEY: &str = "planted-key-of-qwen-7f3a";

fn found(variable: &str) -> String {
    let hint = "run `cargo xtask test`, or `eval \"$(cargo xtask agents)\"` first";
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: {hint}"))
}

struct Stable {
    kernel: Arc<Kernel>,
    provider: Endpoint,
    workspace: TempDir,
    storage: TempDir,
}

impl Stable {
    fn new(approval: &str) -> Self {
        let policy = json!({"sandbox": "workspace-write", "approval": approval, "timeoutMs": 600_000});
        let [workspace, storage] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
        Self { kernel: Kernel::new(policy), provider: chat_with_key(KEY), workspace, storage }
    }

    /// A home as a profile makes it: the key is in the agent's own settings, never in an environment.
    fn home(&self, key: &str) -> TempDir {
        let home = tempfile::tempdir().unwrap();
        let auth = json!({"selectedType": "openai", "apiKey": key, "baseUrl": self.provider.base_url()});
        let settings = json!({"security": {"auth": auth}, "model": {"name": "stand-in"},
            "privacy": {"usageStatisticsEnabled": false}, "general": {"enableAutoUpdate": false}});
        std::fs::create_dir(home.path().join(".qwen")).unwrap();
        std::fs::write(home.path().join(".qwen/settings.json"), settings.to_string()).unwrap();
        home
    }

    /// A runner, which ends when it has waited this long for another turn.
    fn start(&self, home: &TempDir, idle_timeout_ms: u64) -> JoinHandle<RunnerOutcome> {
        let command = vec![found("OSTLER_TEST_NODE"), found("OSTLER_TEST_QWEN"), "--acp".to_owned()];
        let outfit = Outfit {
            home: Some(home.path().to_owned()),
            workspace: Some(self.workspace.path().to_owned()),
            storage: Some(self.storage.path().to_owned()),
            ..Outfit::bare(AgentConfig::Acp { command, keep: vec![".qwen/projects".into()] })
        };
        let order = RunnerOrder::resident(self.kernel.run_id(), "runner-a".into(), "scripted".into(), outfit);
        tokio::spawn(run(RunnerOrder { idle_timeout_ms, ..order }, self.kernel.client()))
    }

    fn ask(&self, prompt: &str) -> CommandId {
        self.kernel.submit(CommandType::Turn, json!({"prompt": prompt}))
    }

    async fn until(&self, holds: impl Fn(&Kernel) -> bool) {
        self.kernel.until_within(PATIENCE, holds).await;
    }

    async fn ended(&self, command_id: CommandId) -> Terminal {
        self.until(|kernel| kernel.command(command_id).terminal.is_some()).await;
        self.kernel.command(command_id).terminal.unwrap()
    }

    /// Answers the `count`th question with the option of this kind.
    async fn answer(&self, count: usize, kind: OptionKind) {
        self.until(|kernel| kernel.permissions().len() >= count).await;
        let asked = self.kernel.permissions().pop().unwrap();
        let option = asked.options.iter().find(|option| option.kind == kind).unwrap();
        self.kernel.answer_permission(asked.permission_id, &option.option_id, &asked.digest);
    }

    fn made(&self) -> PathBuf {
        self.workspace.path().join("made.txt")
    }

    fn last_reply(&self) -> String {
        let told = of_type(&self.kernel, EventType::AssistantMessage);
        let reply = told.iter().rev().find(|message| message["final"] == true).unwrap();
        reply["text"].as_str().unwrap().to_owned()
    }

    fn phases(&self, phase: &str) -> Vec<Value> {
        let told = of_type(&self.kernel, EventType::BackendStatus);
        told.into_iter().filter(|told| told["phase"] == phase).collect()
    }

    /// Everything that was told.
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
async fn qwen_answers_asks_leave_for_its_tools_and_needs_one_process() {
    let stable = Stable::new("untrusted");
    let home = stable.home(KEY);
    let runner = stable.start(&home, 120_000);
    let turn = stable.ask("say hello");
    assert_eq!(stable.ended(turn).await.status, TerminalStatus::Completed);
    assert!(stable.last_reply().starts_with("You said: "), "{}", stable.last_reply());

    let turn = stable.ask("[[run:echo tool-was-here > made.txt; exit 7]]");
    stable.answer(1, OptionKind::AllowOnce).await;
    assert_eq!(stable.ended(turn).await.status, TerminalStatus::Completed);
    assert_eq!(std::fs::read_to_string(stable.made()).unwrap(), "tool-was-here\n");
    let calls = of_type(&stable.kernel, EventType::ToolCall);
    let command = json!("echo tool-was-here > made.txt; exit 7");
    assert_eq!((&calls[0]["status"], &calls[0]["command"]), (&json!("started"), &command));
    assert_eq!((calls.len(), &calls[1]["exitCode"]), (2, &json!(7)), "{calls:?}");

    let turn = stable.ask("[[run:rm made.txt]]");
    stable.answer(2, OptionKind::RejectOnce).await;
    stable.ended(turn).await;
    assert!(stable.made().exists(), "it was refused, and done");
    let calls = of_type(&stable.kernel, EventType::ToolCall);
    assert_eq!(calls.last().unwrap()["status"], "declined", "{calls:?}");

    // What may pass it tries again for minutes; this may not.
    let turn = stable.ask("[[status:400]]");
    let end = stable.ended(turn).await;
    assert_eq!(end.failure_kind, Some(FailureKind::BackendFailed), "{end:?}");
    assert_eq!(stable.phases("initialize:completed").len(), 1, "one process did it all");
    let usage = of_type(&stable.kernel, EventType::Usage);
    assert_eq!((&usage[0]["inputTokens"], &usage[0]["outputTokens"]), (&json!(10), &json!(5)));
    let key = format!("Bearer {KEY}");
    assert!(stable.provider.seen().iter().all(|seen| seen.authorization.as_deref() == Some(&key)));
    assert!(!stable.events().contains(KEY), "the key was told");
    runner.abort();
}

#[tokio::test]
async fn qwen_is_interrupted_and_its_session_goes_on_with_a_second_runner() {
    let stable = Stable::new("never");
    let home = stable.home(KEY);
    let turn = stable.ask("[[slow]]");
    let runner = stable.start(&home, 120_000);
    stable.until(|kernel| !of_type(kernel, EventType::AssistantDelta).is_empty()).await;
    stable.kernel.submit(CommandType::Interrupt, json!({}));
    assert_eq!(stable.ended(turn).await.status, TerminalStatus::Cancelled);
    let turn = stable.ask("remember the number 4711");
    assert_eq!(stable.ended(turn).await.status, TerminalStatus::Completed);
    assert_eq!(stable.phases("initialize:completed").len(), 1, "the interrupt cost no process");
    let first = stable.phases("session/new:completed")[0]["threadId"].clone();
    // The runner dies, and its home with it; the next one has another.
    runner.abort();
    drop(home);

    let home = stable.home(KEY);
    let turn = stable.ask("[[recall]]");
    let runner = stable.start(&home, 0);
    assert_eq!(stable.ended(turn).await.status, TerminalStatus::Completed);
    assert_eq!(stable.phases("session/resume:completed")[0]["threadId"], first);
    assert!(stable.last_reply().contains("remember the number 4711"), "{}", stable.last_reply());
    runner.await.unwrap();

    let home = stable.home("wrong-key");
    let turn = stable.ask("hello");
    stable.start(&home, 0).await.unwrap();
    assert_eq!(stable.ended(turn).await.failure_kind, Some(FailureKind::ProviderAuthFailed));
    assert!(!stable.events().contains(KEY), "the key was told");
}
