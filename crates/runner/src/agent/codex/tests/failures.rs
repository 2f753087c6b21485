//! What a provider can do wrong, and what a profile can.

use super::{
    stage::{Stage, config},
    *,
};

#[tokio::test]
async fn each_failure_of_a_provider_has_its_kind_and_the_next_turn_works() {
    let mut stage = Stage::new();
    for (marker, kind) in [
        ("status:401", FailureKind::ProviderAuthFailed),
        ("status:400", FailureKind::BackendFailed),
        ("status:503", FailureKind::ProviderUnavailable),
        ("cut", FailureKind::ProviderUnavailable),
        ("overflow", FailureKind::BackendFailed),
    ] {
        let played = stage.play(&format!("[[{marker}]]")).await;
        assert_eq!(played.failure_kind(), Some(kind), "{marker}: {:?} {:#?}", played.result, played.events);
        assert!(played.all("assistant_message").iter().all(|message| message["final"] == false), "{marker}");
    }
    let mut fresh = Stage::new();
    let cut = fresh.play("[[cut-once]]").await;
    assert_eq!(cut.result, Ok(TurnEnd::completed()), "Codex tries a cut stream again");
    let transport: Vec<_> = cut.phases().into_iter().filter(|phase| phase.starts_with("transport-")).collect();
    assert_eq!(transport, ["transport-disconnected", "transport-reconnected"], "{:#?}", cut.events);
    assert_eq!(fresh.play("well?").await.result, Ok(TurnEnd::completed()));
}

#[tokio::test]
async fn a_provider_that_says_later_is_asked_again_a_few_times_and_then_blocks() {
    let mut stage = Stage::new();
    let played = stage.play("[[later:99]]").await;
    let end = played.result.clone().unwrap();
    assert_eq!((end.status.as_str(), end.failure_kind), ("blocked", Some(FailureKind::ProviderUnavailable)));
    let waits = stage::selected(&played.events, "backend_status", "phase", "waiting-provider");
    assert_eq!(waits.len(), 3, "{:#?}", played.events);
    assert!(waits.iter().all(|wait| wait["resumeAt"].is_string()));
}

#[tokio::test]
async fn a_provider_that_comes_back_is_told_to_go_on_not_the_same_again() {
    let mut stage = Stage::new();
    let played = stage.play("[[later:1]] only once").await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    let reply = played.all("assistant_message").last().unwrap()["text"].as_str().unwrap().to_owned();
    assert!(reply.starts_with("You said: The work on this request was cut off"), "{reply}");
}

#[tokio::test]
async fn a_provider_that_cannot_be_reached_is_given_up_after_a_bounded_wait() {
    let mut stage = Stage::new();
    let base_url = ostler_stand_ins::responses().base_url();
    stage.write_home(&config(&base_url));
    let played = stage.play("anybody there?").await;
    assert_eq!(played.failure_kind(), Some(FailureKind::ProviderUnavailable), "{:#?}", played.events);
    assert!(played.all("error").iter().any(|error| error["willRetry"] == true), "{:#?}", played.events);
    let lost = stage::selected(&played.events, "backend_status", "phase", "transport-disconnected");
    assert_eq!(lost.len(), 1, "said once: {:#?}", played.events);
    assert_eq!(lost[0]["failureKind"], "provider-unavailable");
}

#[tokio::test]
async fn a_profile_whose_configuration_makes_no_sense_never_runs_with_defaults() {
    for bad in ["model_provider = \"nope\"\n", "this is no toml", "model = 7\n"] {
        let mut stage = Stage::new();
        stage.write_home(bad);
        let played = stage.play("hello").await;
        assert_eq!(played.failure_kind(), Some(FailureKind::BackendFailed), "{bad}: {:#?}", played.events);
        assert!(played.all("assistant_message").is_empty());
    }
    let mut stage = Stage::new();
    let chat = config(&stage.provider.base_url()).replace("\"responses\"", "\"chat\"");
    stage.write_home(&chat);
    assert_eq!(stage.play("hello").await.failure_kind(), Some(FailureKind::BackendFailed));
}

#[tokio::test]
async fn a_key_that_is_not_there_is_a_secret_that_is_unavailable() {
    let mut stage = Stage::new();
    let absent =
        config(&stage.provider.base_url()).replace("requires_openai_auth = true", "env_key = \"NOT_SET_HERE\"");
    stage.write_home(&absent);
    assert_eq!(stage.play("hello").await.failure_kind(), Some(FailureKind::SecretUnavailable));
}

#[tokio::test]
async fn an_agent_without_a_home_or_a_program_says_what_is_missing() {
    let mut stage = Stage::new();
    stage.outfit.home = None;
    stage.codex = Codex::new(stage.outfit.clone());
    assert_eq!(stage.play("hello").await.failure_kind(), Some(FailureKind::SecretUnavailable));
    let mut stage = Stage::new();
    stage.outfit.program = Some(stage.scratch.path().join("absent"));
    stage.codex = Codex::new(stage.outfit.clone());
    assert_eq!(stage.play("hello").await.failure_kind(), Some(FailureKind::InfraFailed));
}
