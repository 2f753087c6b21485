//! Identity providers that are slow, refuse, or send what they should not.

use ostler_stand_ins::IdentityReply;
use serde_json::{Value, json};

use super::{Flows, INTERVAL_MS, TOKEN, refused};
use crate::harness::{Engine, eventually, one_engine};

#[one_engine]
async fn a_provider_that_is_polled_too_often_is_polled_less_often(engine: Engine) {
    let flows = Flows::start(engine).await;
    let flow = flows.begun().await;
    flows.identity.queue_poll(IdentityReply::Error("slow_down"));
    flows.poll().await;
    let throttled = eventually("the frame", async || flows.frames().await.get(1).cloned()).await;
    let data = json!({"deviceFlowId": flow, "intervalMs": 2 * INTERVAL_MS});
    assert_eq!(throttled, ("auth_device_flow_throttled".to_owned(), data));
    assert_eq!(flows.state(&flow).await["intervalMs"], 2 * INTERVAL_MS);
    flows.identity.queue_poll(IdentityReply::Token(TOKEN, 60));
    flows.poll().await;
    flows.ended(&flow, "authorized").await;
}

#[one_engine]
async fn a_provider_that_is_away_is_polled_again(engine: Engine) {
    let flows = Flows::start(engine).await;
    let flow = flows.begun().await;
    for (reply, times) in [(IdentityReply::Plain(503, "pl4nted".into()), 2), (IdentityReply::Cut, 4)] {
        flows.identity.queue_poll(reply);
        flows.poll().await;
        eventually("it is polled less often", async || {
            (flows.state(&flow).await["intervalMs"] == times * INTERVAL_MS).then_some(())
        })
        .await;
    }
    flows.identity.queue_poll(IdentityReply::Token(TOKEN, 60));
    flows.poll().await;
    flows.ended(&flow, "authorized").await;
    let both = async || flows.frames().await.get(1).cloned();
    eventually("the frame of its end", both).await;
    assert_eq!(flows.frames().await.len(), 2, "only its start and its end");
}

#[one_engine]
async fn each_bad_reply_to_a_poll_ends_the_flow(engine: Engine) {
    let flows = Flows::start(engine).await;
    let garbage = |status, body: &str| IdentityReply::Plain(status, body.to_owned());
    for (reply, status, kind) in [
        (IdentityReply::Error("expired_token"), "expired", "expired_token"),
        (IdentityReply::Error("access_denied"), "error", "access_denied"),
        (IdentityReply::Error("invalid_grant"), "error", "invalid_grant"),
        (IdentityReply::Error("pl4nted-error"), "error", "upstream_error"),
        (garbage(200, "<html>pl4nted</html>"), "error", "upstream_error"),
        (garbage(200, "{\"access_token\": \"pl4nted two\"}"), "error", "upstream_error"),
        (garbage(404, ""), "error", "upstream_error"),
        (IdentityReply::Huge, "error", "upstream_error"),
        (IdentityReply::Redirect, "error", "upstream_error"),
    ] {
        let flow = flows.begun().await;
        flows.identity.queue_poll(reply.clone());
        flows.poll().await;
        let state = flows.ended(&flow, status).await;
        assert_eq!(state["errorKind"], kind, "{reply:?}");
        assert!(state["hint"].is_string() && !state.to_string().contains("pl4nted"), "{state}");
        let frame = eventually("the frame", async || {
            let frames = flows.frames().await.into_iter();
            frames.last().filter(|(_, data)| data["deviceFlowId"] == flow.as_str() && data.get("errorKind").is_some())
        })
        .await;
        let data = json!({"deviceFlowId": flow, "errorKind": kind, "hint": state["hint"]});
        assert_eq!(frame, ("auth_device_flow_failed".to_owned(), data));
    }
    assert_eq!((flows.credential().await, flows.identity.seen("/trap").len()), (Value::Null, 0));
}

#[one_engine]
async fn a_provider_without_usable_codes_starts_no_flow(engine: Engine) {
    let flows = Flows::start(engine).await;
    let codes = |uri: &str| {
        let codes = json!({"device_code": "pl4nted", "user_code": "PLNT", "verification_uri": uri});
        IdentityReply::Plain(200, codes.to_string())
    };
    for reply in [
        IdentityReply::Error("invalid_client"),
        IdentityReply::Plain(500, "pl4nted".into()),
        IdentityReply::Plain(200, "<html>pl4nted</html>".into()),
        IdentityReply::Huge,
        IdentityReply::Cut,
        IdentityReply::Redirect,
        codes("javascript:alert(1)"),
        codes("http://id.example/"),
    ] {
        flows.identity.queue_start(reply.clone());
        let answer = flows.begin("client_a").await;
        assert!(!answer.text.to_lowercase().contains("pl4nted"), "{}", answer.text);
        refused(answer, 502, "upstream_error");
    }
    assert_eq!((flows.frames().await.len(), flows.identity.seen("/trap").len()), (0, 0));
    flows.begin("client_a").await.with_status(201);
}
