//! The model backend, against the pure kernel and a scripted endpoint on a real socket.

use std::sync::Arc;

use ostler_protocol::{
    FailureKind, Rule,
    ids::CommandId,
    kernel::{
        commands::{Command, CommandType},
        events::EventType,
        provider_profiles::AgentConfig,
        runs::TerminalStatus,
    },
};
use ostler_runner::{BackendEnvironment, RetryPolicy, RunnerOrder, RunnerOutcome, run};
use ostler_stand_ins::{Endpoint, chat, chat_with_key};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::kernel::{Kernel, of_type};

const LATER_MS: u64 = 20;
const KEY: &str = "planted-key-of-the-model";

pub(crate) fn environment(base_url: String) -> BackendEnvironment {
    let retry_policy = RetryPolicy { later_ms: LATER_MS, ..RetryPolicy::default() };
    BackendEnvironment {
        retry_policy,
        ..BackendEnvironment::bare(AgentConfig::Model { base_url, model: "small".into() })
    }
}

/// A home with a key file of this content.
fn home_with(auth: &str) -> TempDir {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("auth.json"), auth).unwrap();
    home
}

pub(crate) fn start(kernel: &Arc<Kernel>, environment: BackendEnvironment) -> JoinHandle<RunnerOutcome> {
    let order = RunnerOrder::resident(kernel.run_id(), "runner-a".into(), "scripted".into(), environment);
    tokio::spawn(run(order, kernel.client()))
}

fn submit(kernel: &Kernel, prompt: &str) -> CommandId {
    kernel.submit(CommandType::Turn, json!({"prompt": prompt}))
}

/// Runs one turn to its end.
async fn turn(prompt: &str, environment: BackendEnvironment, policy: Value) -> (Arc<Kernel>, Command) {
    let kernel = Kernel::new(policy);
    let command_id = submit(&kernel, prompt);
    start(&kernel, environment).await.unwrap();
    let command = kernel.command(command_id);
    (kernel, command)
}

fn end(command: &Command) -> (TerminalStatus, Option<FailureKind>) {
    let terminal = command.terminal.as_ref().expect("the command has ended");
    (terminal.status, terminal.failure_kind)
}

/// Whether the turn ended by the rule that makes people store a key.
fn lacks_key(command: &Command) -> bool {
    command.terminal.as_ref().is_some_and(|terminal| terminal.rule == Some(Rule::ProfileKey))
}

fn texts(kernel: &Kernel) -> Vec<String> {
    of_type(kernel, EventType::AssistantMessage).iter().map(|m| m["text"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_reply_is_streamed_counted_and_final() {
    let endpoint = chat();
    let (kernel, command) = turn("hello there", environment(endpoint.base_url()), json!({})).await;
    assert_eq!(end(&command), (TerminalStatus::Completed, None));
    let message = of_type(&kernel, EventType::AssistantMessage).remove(0);
    assert_eq!((&message["text"], &message["final"]), (&json!("You said: hello there"), &json!(true)));
    let deltas = of_type(&kernel, EventType::AssistantDelta);
    let streamed: String = deltas.iter().map(|delta| delta["delta"].as_str().unwrap()).collect();
    assert_eq!(streamed, "You said: hello there");
    assert_eq!(deltas[0]["messageId"], message["messageId"]);
    let usage = json!({"model": "stand-in", "requestedModel": "small", "inputTokens": 10, "outputTokens": 5, "totalTokens": 15});
    assert_eq!(of_type(&kernel, EventType::Usage), [usage]);
    let request = endpoint.seen().remove(0);
    assert_eq!((&request.body["model"], request.authorization), (&json!("small"), None));
    assert!(!kernel.leased(), "the lease was released");
}

#[tokio::test]
async fn earlier_turns_of_the_session_are_sent() {
    let endpoint = chat();
    let kernel = Kernel::new(json!({}));
    submit(&kernel, "my name is Ada");
    submit(&kernel, "[[status:400]]");
    submit(&kernel, "[[recall]]");
    submit(&kernel, "not yet");
    start(&kernel, environment(endpoint.base_url())).await.unwrap();
    let recalled = "user=my name is Ada | assistant=You said: my name is Ada";
    assert_eq!(texts(&kernel)[1], recalled);
    // The prompt of a failed turn is still part of the conversation: it comes before the current prompt.
    let requests = endpoint.seen();
    assert_eq!(requests[2].body["messages"][2]["content"], "[[status:400]]\n\n[[recall]]");
}

#[tokio::test]
async fn a_model_receives_the_images_of_a_message() {
    let (endpoint, kernel) = (chat(), Kernel::new(json!({})));
    let image = |url: &str| json!({"type": "image", "mimeType": "image/gif", "url": url});
    let ours = "https://chat.example/api/v1/agent/attachments/object/local";
    let content = json!([{"type": "text", "text": "what are these?"}, image(&format!("{ours}/here.gif?expires=1&signature=2")),
        image("https://trusted.example/x.gif"), image(&format!("{ours}/gone.gif?expires=1&signature=2"))]);
    kernel.submit(CommandType::Turn, json!({"prompt": "what are these?", "content": content}));
    start(&kernel, environment(endpoint.base_url())).await.unwrap();
    let content = endpoint.seen()[0].body["messages"][0]["content"].clone();
    let unseen = "what are these?\n\n[The message came with an image that you cannot see.]";
    let part = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    assert_eq!(
        content,
        json!([{"type": "text", "text": unseen}, part("data:image/gif;base64,R0lGODlh"),
        part("https://trusted.example/x.gif")])
    );
    assert_eq!(texts(&kernel), [format!("You said: {unseen}")]);
}

#[tokio::test]
async fn context_follows_the_history_and_ends_with_its_turn() {
    let endpoint = chat();
    let kernel = Kernel::new(json!({}));
    submit(&kernel, "one");
    let context = json!({"notes": [{"description": "page", "value": "/orders/7"}]});
    kernel.submit(CommandType::Turn, json!({"prompt": "two", "context": context}));
    submit(&kernel, "three");
    start(&kernel, environment(endpoint.base_url())).await.unwrap();
    let requests = endpoint.seen();
    let messages = requests[1].body["messages"].as_array().unwrap();
    assert_eq!((messages.len(), &messages[0]["content"]), (3, &json!("one")));
    assert_eq!(messages[2]["content"], "<context>\npage: /orders/7\n</context>\n\ntwo");
    // The endpoint's own reply contains it; the messages of users do not.
    let users = requests[2].body["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "user");
    assert_eq!(users.map(|message| &message["content"]).collect::<Vec<_>>(), ["one", "two", "three"]);
}

#[tokio::test]
async fn thoughts_are_reported_apart_from_the_reply() {
    let endpoint = chat();
    let (kernel, command) = turn("[[think]]", environment(endpoint.base_url()), json!({})).await;
    assert_eq!(end(&command).0, TerminalStatus::Completed);
    assert_eq!(of_type(&kernel, EventType::Reasoning)[0]["text"], "let me see");
    assert_eq!(texts(&kernel), ["thought"]);
}

#[tokio::test]
async fn provider_failures_map_to_their_kinds() {
    use FailureKind::*;
    use TerminalStatus::{Blocked, Failed};
    let endpoint = chat();
    let cases = [
        ("[[status:401]]", Blocked, SecretUnavailable),
        ("[[status:400]]", Failed, BackendFailed),
        ("[[status:404]]", Failed, BackendFailed),
        ("[[status:302]]", Failed, BackendFailed),
        ("[[status:500]]", Failed, ProviderUnavailable),
        ("[[status:503]]", Blocked, ProviderUnavailable),
        ("[[busy:9]]", Blocked, ProviderUnavailable),
        ("[[cut]]", Failed, ProviderUnavailable),
        ("[[unfinished]]", Failed, ProviderUnavailable),
        ("[[error]]", Failed, ProviderUnavailable),
        ("[[garbage]]", Failed, BackendFailed),
        ("[[flood]]", Failed, BackendFailed),
        ("[[nothing]]", Failed, BackendFailed),
        ("[[loop]]", Failed, BackendFailed),
    ];
    // Concurrently, because some of them wait before they give up.
    let turns = cases.map(|(prompt, ..)| turn(prompt, environment(endpoint.base_url()), json!({})));
    let ended = futures_util::future::join_all(turns).await;
    for ((prompt, status, kind), (_, command)) in cases.into_iter().zip(ended) {
        assert_eq!(end(&command), (status, Some(kind)), "{prompt}: {:?}", command.terminal);
        assert_eq!(lacks_key(&command), kind == SecretUnavailable, "{prompt}: {:?}", command.terminal);
    }
    let (kernel, refused) =
        turn("hello", environment("http://127.0.0.1:1/v1?key=planted-query".into()), json!({})).await;
    assert_eq!(end(&refused), (Failed, Some(ProviderUnavailable)));
    let phases = of_type(&kernel, EventType::BackendStatus);
    let lost: Vec<_> = phases.iter().filter(|phase| phase["phase"] == "transport-disconnected").collect();
    assert_eq!(lost.len(), 4, "once before each retry: {phases:?}");
    assert!(lost.iter().all(|phase| phase["resumeAt"].is_string() && phase["failureKind"] == "provider-unavailable"));
    // Host, port and cause, and nothing else of the URL.
    let expected = "the provider at 127.0.0.1:1 cannot be reached (connection refused)";
    assert!(lost.iter().all(|phase| phase["message"] == expected), "{lost:?}");
    assert_eq!(refused.terminal.unwrap().message.as_deref(), Some(expected));
    let (_, invalid) = turn("hello", environment("ftp://127.0.0.1".into()), json!({})).await;
    assert_eq!(end(&invalid), (Failed, Some(BackendFailed)));
}

#[tokio::test]
async fn a_throttling_provider_is_retried_and_the_wait_is_reported() {
    let endpoint = chat();
    let (kernel, command) = turn("[[busy:2]]", environment(endpoint.base_url()), json!({})).await;
    assert_eq!(end(&command).0, TerminalStatus::Completed);
    let waits = of_type(&kernel, EventType::BackendStatus);
    let waits: Vec<_> = waits.iter().filter(|phase| phase["phase"] == "waiting-provider").collect();
    assert_eq!(waits.len(), 2);
    assert!(waits[0]["resumeAt"].is_string());
    assert_eq!(endpoint.seen().len(), 3);
    let (kernel, command) = turn("[[busy:9]]", environment(endpoint.base_url()), json!({})).await;
    assert_eq!(end(&command), (TerminalStatus::Blocked, Some(FailureKind::ProviderUnavailable)));
    let phases = of_type(&kernel, EventType::BackendStatus);
    let waits = phases.iter().filter(|phase| phase["phase"] == "waiting-provider").count();
    assert_eq!((waits, endpoint.seen().len()), (3, 3 + 4), "as often as other backends retry");
}

#[tokio::test]
async fn a_call_of_an_unknown_tool_fails_and_is_counted() {
    let endpoint = chat();
    let (kernel, command) = turn("[[run:ls]]", environment(endpoint.base_url()), json!({})).await;
    assert_eq!(end(&command).0, TerminalStatus::Completed);
    let calls = of_type(&kernel, EventType::ToolCall);
    assert_eq!((&calls[0]["status"], &calls[1]["status"]), (&json!("started"), &json!("failed")));
    assert!(texts(&kernel)[0].contains(r#"there is no tool "run_shell_command""#), "{:?}", texts(&kernel));
    let (_, command) = turn("[[loop]]", environment(endpoint.base_url()), json!({"maxToolCalls": 3})).await;
    assert_eq!(end(&command), (TerminalStatus::Blocked, Some(FailureKind::BudgetExceeded)));
}

#[tokio::test]
async fn the_budget_counts_the_providers_own_tokens() {
    let endpoint = chat();
    let (_, command) = turn("[[loop]]", environment(endpoint.base_url()), json!({"maxTokens": 45})).await;
    assert_eq!(end(&command), (TerminalStatus::Blocked, Some(FailureKind::BudgetExceeded)));
    assert_eq!(endpoint.seen().len(), 3);
}

#[tokio::test]
async fn a_cost_budget_counts_the_profiles_prices() {
    let endpoint = chat();
    let prices = json!({"small": {"input": 1_000.0, "output": 2_000.0}});
    let environment =
        BackendEnvironment { prices: serde_json::from_value(prices).unwrap(), ..environment(endpoint.base_url()) };
    let (kernel, command) = turn("[[loop]]", environment, json!({"maxCostUsd": 0.06})).await;
    assert_eq!(end(&command), (TerminalStatus::Blocked, Some(FailureKind::BudgetExceeded)));
    let terminal = command.terminal.unwrap();
    assert!(terminal.message.unwrap().contains("maxCostUsd of 0.06"));
    let cost: Vec<_> = of_type(&kernel, EventType::Usage).iter().map(|used| used["costUsd"].clone()).collect();
    assert_eq!(cost, [json!(0.02), json!(0.02), json!(0.02)]);
}

#[tokio::test]
async fn an_unknown_cost_under_a_cost_budget_is_reported_once() {
    let endpoint = chat();
    let (kernel, command) = turn("[[run:ls]]", environment(endpoint.base_url()), json!({"maxCostUsd": 0.01})).await;
    assert_eq!(end(&command).0, TerminalStatus::Completed);
    let phases = of_type(&kernel, EventType::BackendStatus);
    let unknown: Vec<_> = phases.iter().filter(|phase| phase["phase"] == "budget:cost-unknown").collect();
    assert_eq!(unknown.len(), 1, "{phases:?}");
    assert_eq!((of_type(&kernel, EventType::Usage).len(), &unknown[0]["model"]), (2, &json!("stand-in")));
}

/// Starts a turn and waits until the model sends text.
async fn start_streaming(endpoint: &Endpoint, prompt: &str) -> (Arc<Kernel>, CommandId, JoinHandle<RunnerOutcome>) {
    let kernel = Kernel::new(json!({}));
    let command_id = submit(&kernel, prompt);
    let runner = start(&kernel, environment(endpoint.base_url()));
    kernel.until(|kernel| !of_type(kernel, EventType::AssistantDelta).is_empty()).await;
    (kernel, command_id, runner)
}

#[tokio::test]
async fn a_steer_is_sent_after_the_current_reply() {
    let endpoint = chat();
    let (kernel, command_id, runner) = start_streaming(&endpoint, "[[slow:20]]").await;
    let steer = kernel.submit(CommandType::Steer, json!({"prompt": "and now [[recall]]"}));
    runner.await.unwrap();
    assert_eq!(end(&kernel.command(steer)).0, TerminalStatus::Completed);
    assert_eq!(end(&kernel.command(command_id)).0, TerminalStatus::Completed);
    let messages = of_type(&kernel, EventType::AssistantMessage);
    assert_eq!((&messages[0]["final"], &messages[1]["final"]), (&json!(false), &json!(true)));
    assert!(texts(&kernel)[1].starts_with("user=[[slow:20]] | assistant=word0 word1"), "{:?}", texts(&kernel));
}

#[tokio::test]
async fn an_interrupt_drops_the_request() {
    let endpoint = chat();
    let (kernel, command_id, runner) = start_streaming(&endpoint, "[[hold]]").await;
    let interrupt = kernel.submit(CommandType::Interrupt, json!({}));
    runner.await.unwrap();
    assert_eq!(end(&kernel.command(command_id)).0, TerminalStatus::Cancelled);
    assert_eq!(end(&kernel.command(interrupt)).0, TerminalStatus::Completed);
}

#[tokio::test]
async fn the_key_comes_from_the_home_and_is_never_reported() {
    let endpoint = chat_with_key(KEY);
    let home = home_with(&json!({"OPENAI_API_KEY": KEY}).to_string());
    let at_home =
        |home: &TempDir| BackendEnvironment { home: Some(home.path().to_owned()), ..environment(endpoint.base_url()) };
    let (_, command) = turn("hello", at_home(&home), json!({})).await;
    assert_eq!(end(&command).0, TerminalStatus::Completed);
    // A provider that rejects the key repeats it in its error.
    let wrong = home_with(r#"{"OPENAI_API_KEY": "another-planted-key"}"#);
    let (kernel, command) = turn("hello", at_home(&wrong), json!({})).await;
    assert_eq!(end(&command), (TerminalStatus::Failed, Some(FailureKind::ProviderAuthFailed)));
    assert!(!lacks_key(&command), "it has one");
    let events: String =
        kernel.events().iter().filter_map(|event| event.payload.clone()).map(|p| p.to_string()).collect();
    assert!(events.contains("refused the key") && !events.contains("another-planted-key"), "{events}");
    for auth in ["{}", "not JSON", r#"{"OPENAI_API_KEY": ""}"#] {
        let (_, command) = turn("hello", at_home(&home_with(auth)), json!({})).await;
        assert_eq!(end(&command), (TerminalStatus::Blocked, Some(FailureKind::SecretUnavailable)), "{auth}");
        assert!(lacks_key(&command), "{auth}: {:?}", command.terminal);
    }
    let (_, command) = turn("hello", at_home(&tempfile::tempdir().unwrap()), json!({})).await;
    assert_eq!(end(&command), (TerminalStatus::Blocked, Some(FailureKind::SecretUnavailable)), "a key is required");
    assert!(lacks_key(&command), "{:?}", command.terminal);
}

/// A turn whose plan is requested on its own, within this time.
fn submit_with_router(kernel: &Kernel, prompt: &str, router_ms: u64) -> CommandId {
    let config = json!({"router": "always", "routerMs": router_ms});
    kernel.submit(CommandType::Turn, json!({"prompt": prompt, "runtimeConfig": config}))
}

#[tokio::test]
async fn a_router_waits_as_long_as_its_provider_asks_for() {
    let (endpoint, kernel) = (chat(), Kernel::new(json!({})));
    let command_id = submit_with_router(&kernel, "[[busy:1]]", 300);
    let retry_policy = RetryPolicy { later_ms: 400, ..RetryPolicy::default() };
    start(&kernel, BackendEnvironment { retry_policy, ..environment(endpoint.base_url()) }).await.unwrap();
    assert_eq!(end(&kernel.command(command_id)).0, TerminalStatus::Completed);
    let requests = endpoint.seen();
    assert_eq!(requests.len(), 4, "router and worker are each asked to come back later");
    assert!(requests[0].body == requests[1].body && requests[1].body != requests[2].body);
    let fallback = of_type(&kernel, EventType::BackendStatus).into_iter().find(|p| p["phase"] == "router:fallback");
    assert_eq!(fallback.unwrap()["reason"], "not-json", "the pause did not use up the router's time");
}

#[tokio::test]
async fn a_router_that_never_replies_counts_as_a_model_call() {
    // Connections are accepted, and no request is read.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let base_url = format!("http://{}/v1", silent.local_addr().unwrap());
    let kernel = Kernel::new(json!({}));
    submit_with_router(&kernel, "hello", 100);
    let runner = start(&kernel, environment(base_url));
    kernel.until(|kernel| of_type(kernel, EventType::Usage) == [json!({"model": "small"})]).await;
    kernel.submit(CommandType::Interrupt, json!({}));
    runner.await.unwrap();
}
