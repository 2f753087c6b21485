//! The agent.md of an identity: written with its token, readable for every client under its name.

use ostler_protocol::FailureKind;
use serde_json::json;

use crate::harness::{Answer, Engine, Identity, TestServer, both_engines};

fn text(aid: &str, visibility: &str) -> String {
    format!(
        "---\naid: \"{aid}\"\nname: \"Alice\"\ntype: \"assistant\"\nversion: \"1.0.0\"\ndescription: \"一句话描述\"\n\
         visibility: \"{visibility}\"\n---\n# Alice\n"
    )
}

async fn put(server: &TestServer, token: Option<&str>, body: &str) -> Answer {
    let caller = server.with_token(token);
    let request = caller.request("PUT", "/agent.md").header("content-type", "text/markdown; charset=utf-8");
    caller.send(request.header("host", "anyone.localhost.test").body(body.to_owned())).await
}

async fn get(server: &TestServer, token: Option<&str>, host: &str) -> Answer {
    let caller = server.with_token(token);
    caller.send(caller.request("GET", "/agent.md").header("host", host)).await
}

#[both_engines]
async fn an_identity_publishes_its_agent_md(engine: Engine) {
    let server = TestServer::start(engine).await;
    let identity = Identity::register(&server, "alice").await;
    let tokens = identity.login(&server).await;
    get(&server, None, &identity.aid).await.refused(FailureKind::NotFound);
    for visibility in ["public", "unlisted"] {
        let body = text(&identity.aid, visibility);
        let stored = put(&server, Some(&tokens.access), &body).await.with_status(200);
        assert_eq!((&stored["ok"], &stored["aid"]), (&true.into(), &identity.aid.clone().into()));
        let read = get(&server, None, &format!("{}:7000", identity.aid)).await;
        assert_eq!((read.status, &read.text), (200, &body));
        assert_eq!(read.headers["content-type"], "text/markdown; charset=utf-8");
    }
    get(&server, None, "bobby.localhost.test").await.refused(FailureKind::NotFound);
    get(&server, None, "127.0.0.1").await.refused(FailureKind::NotFound);
}

/// Every field that the protocol names, and one that it does not.
#[both_engines]
async fn a_description_of_any_type_keeps_its_optional_fields(engine: Engine) {
    let server = TestServer::start(engine).await;
    let identity = Identity::register(&server, "alice").await;
    let access = identity.login(&server).await.access;
    let optional = "updated_at: 2026-03-20T12:00:00Z
skills:
  - name: review
    description: reads pull requests
    examples: [\"review this\", \"look at #7\"]
input_modes: [text, image]
output_modes: [text]
service_endpoints:
  - url: https://reviewer.example.org/v1
    protocol: a2a
provider:
  organization: Example
  url: https://example.org
contact: ops@example.org
license: MIT
signature: MEUCIQDx7Vn2sQ0pZ1m3bq9cHkq6Jb1c2fK0b4dE5gH6iJ7kLgIgA1B2C3D4E5F6G7H8I9J0KLMNOPQRSTUVWXYZ0123456=
colour: green
";
    let body = text(&identity.aid, "public").replace("type: \"assistant\"\n", &format!("type: gardener\n{optional}"));
    put(&server, Some(&access), &body).await.with_status(200);
    let read = get(&server, None, &identity.aid).await;
    assert_eq!((read.status, &read.text), (200, &body));
}

#[both_engines]
async fn what_is_no_description_is_refused(engine: Engine) {
    let server = TestServer::start(engine).await;
    let identity = Identity::register(&server, "alice").await;
    let access = identity.login(&server).await.access;
    let good = text(&identity.aid, "public");
    for token in [None, Some("x"), Some(&*server.operator_token())] {
        put(&server, token, &good).await.refused(FailureKind::Unauthenticated);
    }
    let other = text("bobby.localhost.test", "public");
    put(&server, Some(&access), &other).await.refused_by(FailureKind::SchemaInvalid, "agent-md-field");
    put(&server, Some(&access), "# Alice").await.refused_by(FailureKind::SchemaInvalid, "agent-md-front-matter");
    let long = format!("{good}{}", "x".repeat(4_096));
    put(&server, Some(&access), &long).await.refused_by(FailureKind::PayloadTooLarge, "agent-md-size");
    let key = format!("{good}-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49\n-----END PRIVATE KEY-----\n");
    put(&server, Some(&access), &key).await.refused_by(FailureKind::SchemaInvalid, "agent-md-secret");
    for line in [
        "private_key: MIGHx",
        "login:\n  api_key: abc123",
        "password: x",
        "key: MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQ",
    ] {
        let planted = good.replacen("---\n", &format!("---\n{line}\n"), 1);
        put(&server, Some(&access), &planted).await.refused_by(FailureKind::SchemaInvalid, "agent-md-secret");
    }
    let caller = server.with_token(Some(&access));
    let request = caller.request("PUT", "/agent.md").header("content-type", "application/json").body(good);
    caller.send(request).await.refused(FailureKind::UnsupportedMediaType);
    get(&server, None, &identity.aid).await.refused(FailureKind::NotFound);
}

#[both_engines]
async fn a_private_one_is_its_owners(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (alice, bobby) = (Identity::register(&server, "alice").await, Identity::register(&server, "bobby").await);
    let (own, other) = (alice.login(&server).await.access, bobby.login(&server).await.access);
    put(&server, Some(&own), &text(&alice.aid, "private")).await.with_status(200);
    for token in [None, Some(&*other)] {
        get(&server, token, &alice.aid).await.refused(FailureKind::NotFound);
    }
    assert_eq!(get(&server, Some(&own), &alice.aid).await.status, 200);
    put(&server, Some(&other), &text(&bobby.aid, "public")).await.with_status(200);
    server.post(&format!("/api/v1/identities/{}/revoke", bobby.aid), &json!({})).await.ok();
    get(&server, None, &bobby.aid).await.refused(FailureKind::NotFound);
}
