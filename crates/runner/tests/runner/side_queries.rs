//! Side queries, against a scripted endpoint on a real socket.

use std::{collections::BTreeMap, path::Path, time::Duration};

use ostler_protocol::{
    FailureKind,
    kernel::{
        conversation::{ConversationMessage, Role},
        provider_profiles::{AgentConfig, AgentExtensions},
    },
};
use ostler_runner::{BackendEnvironment, SideQuery, SideQueryLimits, side_query};
use ostler_stand_ins::chat;
use secrecy::SecretString;
use serde_json::json;
use tokio::time::Instant;

pub(crate) const LIMITS: SideQueryLimits =
    SideQueryLimits { deadline: Duration::from_secs(300), answer_chars_max: 1_000 };

pub(crate) fn query(question: &str) -> SideQuery {
    let message = |role, text: &str| ConversationMessage { role, text: text.to_owned() };
    let conversation = vec![message(Role::User, "my name is Ada"), message(Role::Assistant, "Hello Ada")];
    SideQuery { conversation, instruction: "Be brief.".into(), question: question.into() }
}

/// The files of a home without any.
fn no_files() -> BTreeMap<String, SecretString> {
    BTreeMap::new()
}

fn model(base_url: String) -> BackendEnvironment {
    BackendEnvironment::bare(AgentConfig::Model { base_url, model: "small".into() })
}

#[tokio::test]
async fn a_model_answers_from_the_conversation_and_is_sent_no_tools() {
    let endpoint = chat();
    let answer = side_query(&model(endpoint.base_url()), &no_files(), &query("[[recall]]"), LIMITS).await.unwrap();
    assert_eq!(answer.as_deref(), Some("user=my name is Ada | assistant=Hello Ada"));
    let request = endpoint.seen().remove(0).body;
    assert_eq!(request["messages"][2]["content"], "Be brief.\n\n[[recall]]");
    assert!(request.get("tools").is_none(), "{request}");
}

#[tokio::test]
async fn thoughts_are_no_answer_and_a_long_answer_is_cut() {
    let endpoint = chat();
    let environment = model(endpoint.base_url());
    let ask =
        async |question: &str, limits| side_query(&environment, &no_files(), &query(question), limits).await.unwrap();
    assert_eq!(ask("[[think]]", LIMITS).await.as_deref(), Some("thought"));
    assert_eq!(ask("[[nothing]]", LIMITS).await, None);
    let short = SideQueryLimits { answer_chars_max: 20, ..LIMITS };
    let began = Instant::now();
    assert_eq!(ask("[[slow]]", short).await.as_deref(), Some("word0 word1 word2 …"));
    assert!(began.elapsed() < Duration::from_secs(10), "the rest is not read");
}

#[tokio::test]
async fn a_provider_that_fails_or_is_silent_ends_the_query() {
    let endpoint = chat();
    let environment = model(endpoint.base_url());
    // No key was sent.
    let failed = side_query(&environment, &no_files(), &query("[[status:401]]"), LIMITS).await.unwrap_err();
    assert_eq!(failed.failure_kind, Some(FailureKind::SecretUnavailable));
    assert!(side_query(&environment, &no_files(), &query("[[cut]]"), LIMITS).await.is_err());
    let short = SideQueryLimits { deadline: Duration::from_millis(200), ..LIMITS };
    let late = side_query(&environment, &no_files(), &query("[[hold]]"), short).await.unwrap_err();
    assert_eq!(late.failure_kind, Some(FailureKind::BackendTimeout));
    assert_eq!(endpoint.seen().len(), 3, "no request was sent twice");
}

#[tokio::test]
async fn scripted_answers_are_defined_and_codex_has_none() {
    let scripted = BackendEnvironment::bare(AgentConfig::Scripted);
    let ask = async |query: &SideQuery| side_query(&scripted, &no_files(), query, LIMITS).await.unwrap();
    assert_eq!(ask(&query("why?")).await.as_deref(), Some("why?: 2 messages; the last one: Hello Ada"));
    let tagged = ask(&query("between <recap> and </recap>")).await;
    assert_eq!(tagged.as_deref(), Some("<recap>2 messages; the last one: Hello Ada</recap>"));
    assert_eq!(ask(&SideQuery::default()).await, None);
    let codex = BackendEnvironment::bare(AgentConfig::Codex);
    assert_eq!(side_query(&codex, &no_files(), &query("why?"), LIMITS).await, Ok(None));
}

/// A program that would leave a file in its workspace.
fn program(extensions: AgentExtensions, workspace: &Path) -> BackendEnvironment {
    let command = ["/bin/sh", "-c", "touch started"].map(str::to_owned).to_vec();
    let config = AgentConfig::Acp { command, keep: vec![], extensions: Some(extensions) };
    BackendEnvironment { workspace: Some(workspace.to_owned()), ..BackendEnvironment::bare(config) }
}

#[tokio::test]
async fn a_program_is_not_started_for_a_question_because_it_would_have_its_tools() {
    let endpoint = chat();
    let workspace = tempfile::tempdir().unwrap();
    let other = program(AgentExtensions::None, workspace.path());
    assert_eq!(side_query(&other, &no_files(), &query("why?"), LIMITS).await, Ok(None));
    let qwen = program(AgentExtensions::Qwen, workspace.path());
    assert_eq!(side_query(&qwen, &no_files(), &query("why?"), LIMITS).await, Ok(None), "it has no settings");
    let auth = json!({"selectedType": "openai", "apiKey": "key", "baseUrl": endpoint.base_url()});
    let settings = json!({"security": {"auth": auth}, "model": {"name": "small"}});
    let files = BTreeMap::from([(".qwen/settings.json".to_owned(), SecretString::from(settings.to_string()))]);
    let answer = side_query(&qwen, &files, &query("[[recall]]"), LIMITS).await.unwrap();
    assert_eq!(answer.as_deref(), Some("user=my name is Ada | assistant=Hello Ada"));
    // A model that calls a tool all the same gets no result of it.
    assert_eq!(side_query(&qwen, &files, &query("[[run:touch made]]"), LIMITS).await, Ok(None));
    assert_eq!(endpoint.seen().len(), 2);
    for request in endpoint.seen() {
        assert_eq!((&request.body["model"], request.body.get("tools")), (&json!("small"), None));
        assert_eq!(request.authorization.as_deref(), Some("Bearer key"));
    }
    assert_eq!(workspace.path().read_dir().unwrap().count(), 0, "nothing was started");
}
