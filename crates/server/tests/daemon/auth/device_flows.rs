//! Device flows from their start to their end.

use std::time::Duration;

use ostler_stand_ins::{IdentityProvider, IdentityReply};
use serde_json::{Value, json};

use super::{
    Bound, FLOWS, Flows, INTERVAL_MS, PROFILE, PROVIDER, STATUS, TOKEN, configure_flow, refused, section, set_profile,
};
use crate::harness::{Engine, both_engines, eventually, id, one_engine};

#[both_engines]
async fn a_person_authorises_the_server_and_the_token_is_stored(engine: Engine) {
    let flows = Flows::start(engine).await;
    let started = flows.begin("client_a").await.with_status(201);
    let flow = id(&started, "deviceFlowId");
    let expires_at = started["expiresAt"].as_i64().unwrap();
    let expected = json!({"deviceFlowId": flow, "providerId": PROVIDER, "status": "pending", "userCode": "PLNT-0000",
        "verificationUri": "https://id.example/device", "initiatorClientId": "client_a",
        "verificationUriComplete": "https://id.example/device?user_code=PLNT-0000", "expiresAt": expires_at,
        "intervalMs": INTERVAL_MS, "attached": false});
    assert_eq!(started, expected);
    let request = &flows.identity.seen("/device")[0].form;
    assert_eq!((request["client_id"].as_str(), request["scope"].as_str()), ("ostler tests", "openid model"));
    let status = flows.bound.server.get(STATUS).await.with_status(200);
    let pending = json!([{"deviceFlowId": flow, "providerId": PROVIDER, "expiresAt": expires_at}]);
    assert_eq!((&status["pendingDeviceFlows"], &status["providers"][0]["status"]), (&pending, &json!("ok")));
    assert_eq!(flows.credential().await, Value::Null);
    flows.poll().await;
    flows.identity.queue_poll(IdentityReply::Token(TOKEN, 3_600));
    flows.poll().await;
    let state = flows.ended(&flow, "authorized").await;
    assert!(state.get("userCode").is_none() && state.get("expiresAt").is_none(), "{state}");
    assert!(flows.credential().await.is_string());
    let now = expires_at - 600_000 + 2 * INTERVAL_MS;
    let frames = flows.frames().await;
    let expected = [
        ("auth_device_flow_started".to_owned(), pending[0].clone()),
        (
            "auth_device_flow_authorized".to_owned(),
            json!({"deviceFlowId": flow, "providerId": PROVIDER, "expiresAt": now + 3_600_000}),
        ),
    ];
    assert_eq!(frames, expected);
    let status = flows.bound.server.get(STATUS).await.with_status(200);
    assert_eq!(
        (&status["pendingDeviceFlows"], &status["providers"][0]["expiresAt"]),
        (&json!([]), &json!(now + 3_600_000))
    );
    let changes = flows.bound.server.get("/api/v1/provider-profile-changes").await.with_status(200);
    assert_eq!(
        (&changes["changes"][0]["profile"], &changes["changes"][0]["by"]),
        (&json!(PROFILE), &json!("operator"))
    );
}

#[both_engines]
async fn codes_and_tokens_are_not_shown_to_others(engine: Engine) {
    let flows = Flows::start(engine).await;
    let flow = flows.begun().await;
    let taken_over = flows.begin("client_b").await;
    assert_eq!((taken_over.status, &taken_over.body["attached"]), (200, &json!(true)));
    let mut shown = taken_over.text;
    shown += &flows.call("GET", &flow, "client_b").await.text;
    shown += &flows.bound.server.get(&format!("{FLOWS}/{flow}")).await.text;
    shown += &flows.bound.server.get(STATUS).await.text;
    shown += &flows.bound.server.caller("provider").get(&format!("{FLOWS}/{flow}")).await.text;
    assert_eq!(flows.state(&flow).await["userCode"], "PLNT-0000", "the client that started it sees the code");
    flows.identity.queue_poll(IdentityReply::Token(TOKEN, 3_600));
    flows.poll().await;
    shown += &flows.ended(&flow, "authorized").await.to_string();
    shown += &json!(flows.bound.server.logged(&flows.session).await).to_string();
    shown += &flows.bound.server.get("/api/v1/provider-profiles").await.text;
    assert!(!shown.contains("pl4nted") && !shown.contains("PLNT"), "{shown}");
    for secret in ["pl4nted", "PLNT-"] {
        let holds = |bytes: &[u8]| bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
        let kept = flows.bound.server.everything_kept();
        assert!(kept.iter().all(|(_, bytes)| !holds(bytes)), "{secret} is stored in the clear");
    }
}

#[one_engine]
async fn concurrent_starts_are_one_flow(engine: Engine) {
    let flows = Flows::start(engine).await;
    let (first, second, third) =
        tokio::join!(flows.begin("client_a"), flows.begin("client_b"), flows.begin("client_a"));
    let mut statuses = [first.status, second.status, third.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 201]);
    assert_eq!(first.body["deviceFlowId"], second.body["deviceFlowId"]);
    assert_eq!(flows.identity.seen("/device").len(), 1);
    assert_eq!(flows.frames().await.len(), 1);
}

#[one_engine]
async fn at_most_four_flows_wait(engine: Engine) {
    let identity = IdentityProvider::start();
    let bound = Bound::with(engine, |setup| {
        (0..5).for_each(|number| configure_flow(setup, &format!("id-{number}"), section(&identity)));
    })
    .await;
    set_profile(&bound.server).await;
    let start = async |number: usize| bound.server.post(FLOWS, &json!({"providerId": format!("id-{number}")})).await;
    for number in 0..4 {
        start(number).await.with_status(201);
    }
    assert_eq!(refused(start(4).await, 409, "too_many_active_flows")["limit"], 4);
    let flow = id(&start(0).await.with_status(200), "deviceFlowId");
    bound.server.remove(&format!("{FLOWS}/{flow}")).await.with_status(204);
    start(4).await.with_status(201);
}

#[both_engines]
async fn a_cancelled_flow_stores_nothing(engine: Engine) {
    let flows = Flows::start(engine).await;
    let flow = flows.begun().await;
    flows
        .identity
        .queue_poll(IdentityReply::Late(Duration::from_millis(300), Box::new(IdentityReply::Token(TOKEN, 3_600))));
    flows.poll().await;
    flows.call("DELETE", &flow, "client_b").await.with_status(204);
    flows.call("DELETE", &flow, "client_b").await.with_status(204);
    assert_eq!(flows.state(&flow).await["status"], "cancelled");
    // The token that was already on its way.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(
        (flows.state(&flow).await["status"].clone(), flows.credential().await),
        (json!("cancelled"), Value::Null)
    );
    let frames = flows.frames().await;
    assert_eq!(frames[1..], [("auth_device_flow_cancelled".to_owned(), json!({"deviceFlowId": flow}))]);
    refused(flows.call("DELETE", "no-such-flow", "client_a").await, 404, "device_flow_not_found");
    flows.begin("client_a").await.with_status(201);
}

#[one_engine]
async fn a_flow_expires_and_is_forgotten(engine: Engine) {
    let flows = Flows::start(engine).await;
    let flow = flows.begun().await;
    flows.bound.server.clock.advance_ms(600_000);
    let state = flows.ended(&flow, "expired").await;
    assert_eq!(state["errorKind"], "expired_token");
    flows.bound.server.clock.advance_ms(299_999);
    assert_eq!(flows.state(&flow).await["status"], "expired");
    flows.bound.server.clock.advance_ms(1);
    refused(flows.call("GET", &flow, "client_a").await, 404, "device_flow_not_found");
    let frames = eventually("the frame", async || Some(flows.frames().await).filter(|frames| frames.len() == 2)).await;
    assert_eq!((frames[1].0.as_str(), &frames[1].1["errorKind"]), ("auth_device_flow_failed", &json!("expired_token")));
}

#[one_engine]
async fn a_shutdown_cancels_the_flows(engine: Engine) {
    let mut flows = Flows::start(engine).await;
    let flow = flows.begun().await;
    flows.bound.server.restart().await;
    refused(flows.call("GET", &flow, "client_a").await, 404, "device_flow_not_found");
    let frames = flows.frames().await;
    assert_eq!(frames[1..], [("auth_device_flow_cancelled".to_owned(), json!({"deviceFlowId": flow}))]);
}

#[one_engine]
async fn a_flow_needs_a_provider_a_profile_and_the_right_to_provide(engine: Engine) {
    let identity = IdentityProvider::start();
    let bound = Bound::with(engine, |setup| {
        setup.config.server.open_loopback = true;
        configure_flow(setup, PROVIDER, section(&identity));
    })
    .await;
    let body = json!({"providerId": PROVIDER});
    let post = async |body: &Value| bound.server.post(FLOWS, body).await;
    refused(post(&json!({})).await, 400, "invalid_request");
    let unknown = refused(post(&json!({"providerId": "nobody"})).await, 400, "unsupported_provider");
    assert_eq!(unknown["supportedProviders"], json!([PROVIDER]));
    refused(post(&body).await, 400, "unsupported_provider");
    set_profile(&bound.server).await;
    refused(bound.server.with_token(None).post(FLOWS, &body).await, 401, "token_required");
    refused(bound.server.with_token(None).get(&format!("{FLOWS}/x")).await, 401, "token_required");
    refused(bound.server.caller("client").post(FLOWS, &body).await, 403, "role");
    refused(bound.server.caller("foreign-provider").post(FLOWS, &body).await, 403, "tenant");
    refused(bound.server.caller("foreign-provider").get(&format!("{FLOWS}/x")).await, 403, "tenant");
    refused(bound.server.caller("foreign").get(STATUS).await, 403, "tenant");
    refused(bound.post_as("client_x", FLOWS, &body).await, 400, "invalid_client_id");
    assert_eq!(identity.seen("/device").len(), 0);
    bound.server.caller("provider").post(FLOWS, &body).await.with_status(201);
    // If the operator takes the name, the profile is not the tenant's to change.
    let config = "[ostler]\nagent = \"model\"\nbase_url = \"https://models.example/v1\"\nmodel = \"m\"\n";
    let path = format!("/api/v1/provider-profiles/{PROFILE}/config");
    bound.server.call("PUT", &path, &json!({"config": config})).await.with_status(200);
    refused(bound.server.caller("provider").post(FLOWS, &body).await, 403, "profile_owner");
}
