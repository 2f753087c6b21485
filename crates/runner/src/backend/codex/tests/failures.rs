//! Failures of a provider, and mistakes in a profile.

use super::{
    fixture::{CodexFixture, config},
    *,
};

#[tokio::test]
async fn provider_failures_have_their_kinds_and_the_next_turn_works() {
    let mut fixture = CodexFixture::new();
    for (marker, kind) in [
        ("status:401", FailureKind::ProviderAuthFailed),
        ("status:400", FailureKind::BackendFailed),
        ("status:503", FailureKind::ProviderUnavailable),
        ("cut", FailureKind::ProviderUnavailable),
        ("overflow", FailureKind::BackendFailed),
    ] {
        let played = fixture.play(&format!("[[{marker}]]")).await;
        assert_eq!(played.failure_kind(), Some(kind), "{marker}: {:?} {:#?}", played.result, played.events);
        assert!(played.all("assistant_message").iter().all(|message| message["final"] == false), "{marker}");
    }
    let mut fresh = CodexFixture::new();
    let cut = fresh.play("[[cut-once]]").await;
    assert_eq!(cut.result, Ok(TurnEnd::completed()), "Codex retries a cut stream");
    let transport: Vec<_> = cut.phases().into_iter().filter(|phase| phase.starts_with("transport-")).collect();
    assert_eq!(transport, ["transport-disconnected", "transport-reconnected"], "{:#?}", cut.events);
    assert_eq!(fresh.play("well?").await.result, Ok(TurnEnd::completed()));
}

#[tokio::test]
async fn a_throttling_provider_is_retried_a_few_times_and_then_blocks() {
    let mut fixture = CodexFixture::new();
    let played = fixture.play("[[later:99]]").await;
    let end = played.result.clone().unwrap();
    assert_eq!((end.status.as_str(), end.failure_kind), ("blocked", Some(FailureKind::ProviderUnavailable)));
    let waits = fixture::selected(&played.events, "backend_status", "phase", "waiting-provider");
    assert_eq!(waits.len(), 3, "{:#?}", played.events);
    assert!(waits.iter().all(|wait| wait["resumeAt"].is_string()));
}

#[tokio::test]
async fn a_provider_that_recovers_gets_a_prompt_to_continue() {
    let mut fixture = CodexFixture::new();
    let played = fixture.play("[[later:1]] only once").await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    let reply = played.all("assistant_message").last().unwrap()["text"].as_str().unwrap().to_owned();
    assert!(reply.starts_with("You said: The work on this request was cut off"), "{reply}");
}

#[tokio::test]
async fn an_unreachable_provider_is_given_up_after_a_bounded_wait() {
    let mut fixture = CodexFixture::new();
    let base_url = ostler_stand_ins::responses().base_url();
    fixture.write_home(&config(&base_url));
    let played = fixture.play("anybody there?").await;
    assert_eq!(played.failure_kind(), Some(FailureKind::ProviderUnavailable), "{:#?}", played.events);
    assert!(played.all("error").iter().any(|error| error["willRetry"] == true), "{:#?}", played.events);
    let lost = selected(&played.events, "backend_status", "phase", "transport-disconnected");
    assert_eq!(lost.len(), 1, "reported once: {:#?}", played.events);
    assert_eq!(lost[0]["failureKind"], "provider-unavailable");
}

#[tokio::test]
async fn an_invalid_profile_configuration_never_runs_with_defaults() {
    for bad in ["model_provider = \"nope\"\n", "this is no toml", "model = 7\n"] {
        let mut fixture = CodexFixture::new();
        fixture.write_home(bad);
        let played = fixture.play("hello").await;
        assert_eq!(played.failure_kind(), Some(FailureKind::BackendFailed), "{bad}: {:#?}", played.events);
        assert!(played.all("assistant_message").is_empty());
    }
    let mut fixture = CodexFixture::new();
    let chat = config(&fixture.provider.base_url()).replace("\"responses\"", "\"chat\"");
    fixture.write_home(&chat);
    assert_eq!(fixture.play("hello").await.failure_kind(), Some(FailureKind::BackendFailed));
}

#[tokio::test]
async fn a_missing_key_is_an_unavailable_secret() {
    let mut fixture = CodexFixture::new();
    let absent =
        config(&fixture.provider.base_url()).replace("requires_openai_auth = true", "env_key = \"NOT_SET_HERE\"");
    fixture.write_home(&absent);
    let end = fixture.play("hello").await.result.unwrap();
    assert_eq!((end.failure_kind, end.rule), (Some(FailureKind::SecretUnavailable), Some(Rule::ProfileKey)));
}

#[tokio::test]
async fn a_missing_home_or_program_is_reported() {
    let mut fixture = CodexFixture::new();
    fixture.environment.home = None;
    fixture.codex = CodexBackend::new(fixture.environment.clone());
    assert_eq!(fixture.play("hello").await.failure_kind(), Some(FailureKind::SecretUnavailable));
    let mut fixture = CodexFixture::new();
    fixture.environment.program = Some(fixture.scratch.path().join("absent"));
    fixture.codex = CodexBackend::new(fixture.environment.clone());
    let end = fixture.play("hello").await.result.unwrap();
    assert_eq!((end.failure_kind, end.rule), (Some(FailureKind::InfraFailed), Some(Rule::AgentProgram)));
}
