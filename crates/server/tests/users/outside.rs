//! Users that an issuer outside vouches for: real keys of every algorithm, a real key set over HTTP, and every way of
//! forging a token that we know of.

use axum::http::StatusCode;
use ostler_protocol::FailureKind::*;
use ostler_server::config::IssuerSection;
use serde_json::{Value, json};

use crate::harness::{Caller, Engine, Issuer, Key, TestServer, both_engines, one_engine, signed_by, start};

const ISSUER: &str = "https://id.example";
const AUDIENCE: &str = "ostler-prod";
/// 2026-01-01T00:00:00Z, where the tests' clock begins.
const NOW: i64 = 1_767_225_600;

fn section(issuer: &str, url: &str) -> IssuerSection {
    let (issuer, audience, jwks_url) = (issuer.to_owned(), AUDIENCE.to_owned(), Some(url.to_owned()));
    IssuerSection { issuer, audience, jwks_url, jwks_file: None }
}

/// A server that trusts the issuer's users, with one of them: subject `7`, named ada.
async fn server(engine: Engine, issuer: &Issuer) -> TestServer {
    let server = TestServer::with(engine, |setup| {
        setup.config.auth.issuers = vec![section(ISSUER, &issuer.url())];
    })
    .await;
    add(&server, "ada", ISSUER).await;
    server
}

async fn add(server: &TestServer, name: &str, issuer: &str) {
    let body = json!({"name": name, "timezone": "UTC", "tenants": ["hwlab"], "issuer": issuer, "subject": "7"});
    server.post("/api/v1/users", &body).await.with_status(201);
}

fn claims() -> Value {
    json!({"iss": ISSUER, "aud": AUDIENCE, "sub": "7", "iat": NOW, "exp": NOW + 3_600})
}

fn header(key: &Key, kid: &str) -> Value {
    json!({"alg": key.algorithm(), "kid": kid, "typ": "JWT"})
}

async fn status(server: &Caller, token: &str) -> u16 {
    server.with_token(Some(token)).get("/api/v1/runs").await.status
}

#[both_engines]
async fn tokens_of_every_algorithm_let_their_user_in(engine: Engine) {
    let issuer = Issuer::start().await;
    let keys = [Key::rsa(), Key::p256(), Key::ed25519()];
    issuer.serve(&keys.iter().map(|key| key.jwk(key.algorithm())).collect::<Vec<_>>());
    let server = server(engine, &issuer).await;
    for key in &keys {
        let token = key.token(&header(key, key.algorithm()), &claims());
        let ada = server.with_token(Some(&token));
        let run_id = ada.create_run().await;
        ada.cancel_run(&run_id).await;
        assert_eq!(server.events_of(&run_id, "audit").await.last().unwrap()["payload"]["by"], "user:ada");
        // An audience among several will do, and so will fractions of seconds.
        let mut several = claims();
        several["aud"] = json!(["elsewhere", AUDIENCE]);
        several["exp"] = json!(NOW as f64 + 60.5);
        assert_eq!(status(&server, &key.token(&header(key, key.algorithm()), &several)).await, 200);
    }
    assert_eq!(issuer.requests(), 1);
    // We vouch for our own users only.
    server.post("/api/v1/users/ada/token", &json!({})).await.refused_by(StateConflict, "user-outside");
}

#[one_engine]
async fn forged_and_misdirected_tokens_are_refused(engine: Engine) {
    let issuer = Issuer::start().await;
    let (rsa, p256, ed25519, stranger) = (Key::rsa(), Key::p256(), Key::ed25519(), Key::ed25519());
    issuer.serve(&[rsa.jwk("rsa"), p256.jwk("p256"), ed25519.jwk("ed")]);
    let server = server(engine, &issuer).await;
    let with = |field: &str, value: Value| {
        let mut claims = claims();
        claims[field] = value;
        claims
    };
    let good = header(&ed25519, "ed");
    assert_eq!(status(&server, &ed25519.token(&good, &claims())).await, 200);
    let public_key_as_secret = |message: &[u8]| {
        let secret = rsa.jwk("rsa")["n"].as_str().unwrap().to_owned();
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret.as_bytes());
        ring::hmac::sign(&key, message).as_ref().to_vec()
    };
    let mut attacks = vec![
        ("no algorithm", signed_by(&json!({"alg": "none", "kid": "ed"}), &claims(), |_| vec![])),
        ("no algorithm, with a signature", ed25519.token(&json!({"alg": "none", "kid": "ed"}), &claims())),
        (
            "the public key as a secret",
            signed_by(&json!({"alg": "HS256", "kid": "rsa"}), &claims(), public_key_as_secret),
        ),
        ("another algorithm in the header", ed25519.token(&json!({"alg": "RS256", "kid": "ed"}), &claims())),
        ("no algorithm named", ed25519.token(&json!({"kid": "ed"}), &claims())),
        ("a key of another type", ed25519.token(&json!({"alg": "EdDSA", "kid": "p256"}), &claims())),
        ("another key's name", ed25519.token(&json!({"alg": "RS256", "kid": "rsa"}), &claims())),
        ("a stranger's key", stranger.token(&good, &claims())),
        ("a stranger's key in the header", {
            let jwk = stranger.jwk("ed");
            stranger.token(&json!({"alg": "EdDSA", "kid": "ed", "jwk": jwk, "jku": issuer.url()}), &claims())
        }),
        ("an unknown key", ed25519.token(&header(&ed25519, "other"), &claims())),
        ("no key", ed25519.token(&json!({"alg": "EdDSA"}), &claims())),
        ("an extension", ed25519.token(&json!({"alg": "EdDSA", "kid": "ed", "crit": ["exp"]}), &claims())),
        ("no signature", ed25519.token(&good, &claims()).rsplit_once('.').unwrap().0.to_owned() + "."),
        ("two signatures", ed25519.token(&good, &claims()) + ".AAAA"),
    ];
    for (what, field, value) in [
        ("another audience", "aud", json!("somebody-else")),
        ("our own audience", "aud", json!("ostler")),
        ("no audience", "aud", Value::Null),
        ("an empty list of audiences", "aud", json!([])),
        ("another issuer", "iss", json!("https://evil.example")),
        ("ourselves as the issuer", "iss", json!("ostler")),
        ("no issuer", "iss", Value::Null),
        ("no subject", "sub", Value::Null),
        ("an empty subject", "sub", json!("")),
        ("an end that has passed", "exp", json!(NOW - 30)),
        ("no end", "exp", Value::Null),
        ("an end that is no number", "exp", json!("9999999999")),
        ("an end beyond numbers", "exp", json!(1e300)),
        ("a beginning to come", "nbf", json!(NOW + 31)),
    ] {
        attacks.push((what, ed25519.token(&good, &with(field, value))));
    }
    for (what, token) in &attacks {
        let answer = server.with_token(Some(token)).get("/api/v1/runs").await;
        assert_eq!(answer.status, 401, "{what}: {}", answer.text);
        assert!(!answer.text.contains(token.as_str()));
        answer.refused(Unauthenticated);
    }
    // The edges themselves are good: clocks differ by a little.
    assert_eq!(status(&server, &ed25519.token(&good, &with("exp", json!(NOW - 29)))).await, 200);
    assert_eq!(status(&server, &ed25519.token(&good, &with("nbf", json!(NOW + 30)))).await, 200);
    let long = ed25519.token(&good, &with("padding", json!("x".repeat(8 * 1024))));
    assert_eq!(status(&server, &long).await, 401);
}

#[one_engine]
async fn the_same_key_name_of_two_issuers_is_two_keys(engine: Engine) {
    const OTHER: &str = "https://other.example";
    let (first, second) = (Issuer::start().await, Issuer::start().await);
    let (one, two) = (Key::ed25519(), Key::p256());
    first.serve(&[one.jwk("key-1")]);
    second.serve(&[two.jwk("key-1")]);
    let server = TestServer::with(engine, |setup| {
        setup.config.auth.issuers = vec![section(ISSUER, &first.url()), section(OTHER, &second.url())];
    })
    .await;
    add(&server, "ada", ISSUER).await;
    add(&server, "bob", OTHER).await;
    let mut others = claims();
    others["iss"] = OTHER.into();
    let by = async |token: String| -> Value {
        let caller = server.with_token(Some(&token));
        let run_id = caller.create_run().await;
        caller.cancel_run(&run_id).await;
        server.events_of(&run_id, "audit").await.last().unwrap()["payload"]["by"].clone()
    };
    // The same subject, too, is two people.
    assert_eq!(by(one.token(&header(&one, "key-1"), &claims())).await, "user:ada");
    assert_eq!(by(two.token(&header(&two, "key-1"), &others)).await, "user:bob");
    assert_eq!(status(&server, &one.token(&header(&one, "key-1"), &others)).await, 401);
    assert_eq!(status(&server, &two.token(&header(&two, "key-1"), &claims())).await, 401);
}

#[one_engine]
async fn a_new_key_is_found_and_strangers_cannot_make_us_look_often(engine: Engine) {
    let issuer = Issuer::start().await;
    let (old, new) = (Key::ed25519(), Key::ed25519());
    issuer.serve(&[old.jwk("old")]);
    let server = server(engine, &issuer).await;
    let (olds, news) = (old.token(&header(&old, "old"), &claims()), new.token(&header(&new, "new"), &claims()));
    assert_eq!(status(&server, &olds).await, 200);
    for stranger in 0..20 {
        let token = new.token(&header(&new, &format!("stranger-{stranger}")), &claims());
        assert_eq!(status(&server, &token).await, 401);
    }
    assert_eq!(issuer.requests(), 1);
    issuer.serve(&[new.jwk("new")]);
    assert_eq!(status(&server, &news).await, 401);
    server.clock.advance_ms(30_000);
    assert_eq!(status(&server, &news).await, 200);
    assert_eq!(issuer.requests(), 2);
    // The issuer has withdrawn the old one.
    assert_eq!(status(&server, &olds).await, 401);
    // And one that is withdrawn later is dropped within ten minutes, although no token named another one.
    issuer.serve(&[]);
    server.clock.advance_ms(10 * 60_000 - 1);
    assert_eq!(status(&server, &news).await, 200);
    server.clock.advance_ms(5_000);
    assert_eq!(status(&server, &news).await, 401);
}

#[one_engine]
async fn when_the_keys_cannot_be_had_the_old_ones_serve_for_a_day(engine: Engine) {
    let issuer = Issuer::start().await;
    let key = Key::ed25519();
    let token = |seconds: i64| {
        let mut claims = claims();
        claims["exp"] = (NOW + seconds).into();
        key.token(&header(&key, "key"), &claims)
    };
    let server = server(engine, &issuer).await;
    let unknown = async || {
        let answer = server.with_token(Some(&token(200_000))).get("/api/v1/runs").await;
        answer.refused_by(InfraFailed, "issuer-keys");
    };
    for (status, body) in [
        (StatusCode::INTERNAL_SERVER_ERROR, "{\"keys\": []}".to_owned()),
        (StatusCode::OK, "not a key set".to_owned()),
        (StatusCode::OK, format!("{{\"keys\": [], \"padding\": \"{}\"}}", "x".repeat(256 * 1024))),
        (StatusCode::FOUND, json!({"keys": [key.jwk("key")]}).to_string()),
    ] {
        issuer.answer(status, body);
        unknown().await;
        server.clock.advance_ms(30_000);
    }
    issuer.serve(&[key.jwk("key")]);
    assert_eq!(status(&server, &token(200_000)).await, 200);
    issuer.answer(StatusCode::SERVICE_UNAVAILABLE, String::new());
    server.clock.advance_ms(24 * 3_600_000 - 1);
    assert_eq!(status(&server, &token(200_000)).await, 200);
    server.clock.advance_ms(5_000);
    unknown().await;
}

#[one_engine]
async fn keys_can_come_from_a_file(engine: Engine) {
    let scratch = tempfile::TempDir::new().unwrap();
    let file = scratch.path().join("jwks.json");
    let key = Key::p256();
    std::fs::write(&file, json!({"keys": [key.jwk("key")]}).to_string()).unwrap();
    let from_file = IssuerSection { jwks_url: None, jwks_file: Some(file.clone()), ..section(ISSUER, "") };
    let server = TestServer::with(engine, |setup| setup.config.auth.issuers = vec![from_file.clone()]).await;
    add(&server, "ada", ISSUER).await;
    assert_eq!(status(&server, &key.token(&header(&key, "key"), &claims())).await, 200);
    // A file that is no key set stops the start; so does a configuration with too few or too many keys.
    std::fs::write(&file, "{}").unwrap();
    for wrong in [
        vec![from_file.clone()],
        vec![IssuerSection { jwks_file: None, ..from_file.clone() }],
        vec![section("ostler", "https://id.example/jwks")],
        vec![section(ISSUER, "http://id.example/jwks")],
        vec![section(ISSUER, "https://id.example/jwks"), section(ISSUER, "https://id.example/more")],
    ] {
        let elsewhere = tempfile::TempDir::new().unwrap();
        let mut config = server.config.clone();
        (config.server.data_dir, config.store.database_url) = (Some(elsewhere.path().to_owned()), None);
        config.auth.issuers = wrong.clone();
        let refused = start(config, server.clock.clone()).await.err();
        let refused = refused.unwrap_or_else(|| panic!("it started with {wrong:?}"));
        assert_eq!(refused.rule_name(), Some("issuer"), "{refused}");
    }
}

#[both_engines]
async fn an_unknown_user_is_refused_with_the_reason(engine: Engine) {
    let issuer = Issuer::start().await;
    let key = Key::ed25519();
    issuer.serve(&[key.jwk("key")]);
    let server = server(engine, &issuer).await;
    let mut other = claims();
    other["sub"] = "8".into();
    let token = key.token(&header(&key, "key"), &other);
    server.with_token(Some(&token)).get("/api/v1/runs").await.refused_by(Forbidden, "user-unknown");
    let unknown = json!({"name": "bob", "timezone": "UTC", "issuer": "https://nobody.example", "subject": "8"});
    server.post("/api/v1/users", &unknown).await.refused_by(SchemaInvalid, "issuer");
}
