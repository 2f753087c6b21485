//! Agents: who owns them, how their manifests get versions, what a change would do, and tokens that speak for them.

use std::collections::BTreeSet;

use ostler_protocol::{
    FailureKind::*,
    trust::agents::{AGENT_TOKENS_MAX, AGENTS_PER_OWNER_MAX},
};
use serde_json::{Value, json};

use crate::harness::{Caller, Engine, TestServer, both_engines, id, run_body};

/// A manifest with one tool under a preset scope.
pub(crate) fn sample_manifest() -> Value {
    json!({
        "schema_version": "1.0",
        "agent_version": "1.0.0",
        "tools": [{
            "name": "read_file",
            "description_i18n_key": "agent.cap.read_file.description",
            "input_schema": {"type": "object", "properties": {"path": {"enum": ["a"]}}, "additionalProperties": false},
            "permission_scope": "filesystem:read",
        }],
        "permission_scopes": [{
            "id": "filesystem:read",
            "label_i18n_key": "agent.scope.filesystem_read.label",
            "sensitivity": "medium",
        }],
    })
}

/// The sample, whose tool takes these paths.
fn taking(paths: Value) -> Value {
    let mut manifest = sample_manifest();
    manifest["tools"][0]["input_schema"]["properties"]["path"]["enum"] = paths;
    manifest
}

async fn agent(caller: &Caller) -> String {
    let body = json!({"name": "Reader", "capability_manifest": sample_manifest()});
    id(&caller.post("/agents", &body).await.with_status(201), "id")
}

async fn publish(caller: &Caller, agent: &str, manifest: &Value) -> Value {
    let body = json!({"capability_manifest": manifest});
    caller.call("PATCH", &format!("/agents/{agent}"), &body).await.with_status(200)
}

async fn user(server: &TestServer, name: &str) -> Caller {
    server.post("/api/v1/users", &json!({"name": name, "timezone": "UTC"})).await.with_status(201);
    let made = server.post(&format!("/api/v1/users/{name}/token"), &json!({})).await.with_status(201);
    server.with_token(Some(&id(&made, "token")))
}

#[both_engines]
async fn an_agent_is_made_read_found_and_changed(engine: Engine) {
    let server = TestServer::start(engine).await;
    let body = json!({"name": "Reader", "backend_profile": "scripted", "capability_manifest": sample_manifest()});
    let made = server.post("/agents", &body).await.with_status(201);
    assert_eq!(made["capability_manifest"], sample_manifest());
    assert_eq!((&made["capability_manifest_version"], &made["owner_id"]), (&json!(1), &json!("local")));
    assert_eq!(made["warnings"], json!([]));
    let path = format!("/agents/{}", id(&made, "id"));
    let nobody = server.with_token(None);
    let read = nobody.get(&path).await.with_status(200);
    assert_eq!(read["capability_manifest_hash"], made["capability_manifest_hash"]);
    server.clock.advance_ms(1);
    let changed = server.call("PATCH", &path, &json!({"backend_profile": null})).await.with_status(200);
    assert_eq!((&changed["backend_profile"], &changed["capability_manifest_version"]), (&Value::Null, &json!(1)));
    let bare = server.post("/agents", &json!({"name": "bare"})).await.with_status(201);
    assert_eq!((&bare["capability_manifest_version"], &bare["capability_manifest_hash"]), (&json!(0), &Value::Null));
}

/// People trust an agent by its name, so their grants cannot be moved to another one.
#[both_engines]
async fn an_agent_keeps_its_name(engine: Engine) {
    let server = TestServer::start(engine).await;
    let path = format!("/agents/{}", agent(&server).await);
    let change = json!({"name": "Bank", "capability_manifest": taking(json!(["b"]))});
    server.call("PATCH", &path, &change).await.refused_by(StateConflict, "name-fixed");
    let read = server.get(&path).await.ok();
    assert_eq!((&read["name"], &read["capability_manifest_version"]), (&json!("Reader"), &json!(1)));
    server.call("PATCH", &path, &json!({"name": "Reader"})).await.with_status(200);
}

/// So the manifest's hash identifies everything that is public.
#[both_engines]
async fn what_runs_an_agent_is_its_owners_business(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.token("platform", "client", &["hwlab"])).await;
    let (ada, bob) = (user(&server, "ada").await, user(&server, "bob").await);
    let path = format!("/agents/{}", agent(&ada).await);
    let nobody = server.with_token(None);
    let before = nobody.get(&path).await;
    server.clock.advance_ms(1);
    let saved = ada.call("PATCH", &path, &json!({"backend_profile": "scripted"})).await.with_status(200);
    assert_eq!(saved["backend_profile"], "scripted");
    for stranger in [&nobody, &bob] {
        let now = stranger.get(&path).await;
        assert_eq!((&now.body, &now.headers["etag"]), (&before.body, &before.headers["etag"]));
        assert_eq!(stranger.get("/agents").await.ok()["agents"][0]["backend_profile"], Value::Null);
    }
    for insider in [&ada, &*server, server.caller("platform")] {
        assert_eq!(insider.get(&path).await.ok()["backend_profile"], "scripted");
        assert_eq!(insider.get("/agents").await.ok()["agents"][0]["backend_profile"], "scripted");
    }
}

#[both_engines]
async fn only_its_owner_changes_an_agent(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (ada, bob) = (user(&server, "ada").await, user(&server, "bob").await);
    let path = format!("/agents/{}", agent(&ada).await);
    let change = json!({"capability_manifest": taking(json!(["b"]))});
    // Not even the operator, who owns what the user `local` owns.
    for other in [&bob, &server] {
        other.call("PATCH", &path, &change).await.refused_by(Forbidden, "not-owner");
        other.post(&format!("{path}/manifest/diff"), &change).await.refused_by(Forbidden, "not-owner");
        other.post(&format!("{path}/tokens"), &json!({"name": "t"})).await.refused_by(Forbidden, "not-owner");
    }
    // The agent itself speaks with a token of its own, and that opens nothing here.
    let made = ada.post(&format!("{path}/tokens"), &json!({"name": "t"})).await.with_status(201);
    let itself = server.with_token(Some(&id(&made, "token")));
    itself.call("PATCH", &path, &change).await.refused_by(Forbidden, "role");
    itself.post("/agents", &json!({"name": "another"})).await.refused_by(Forbidden, "role");
    assert_eq!(itself.get(&path).await.with_status(200)["capability_manifest_version"], 1);
    ada.call("PATCH", &path, &change).await.with_status(200);
}

#[both_engines]
async fn a_retired_agent_is_gone_and_so_is_all_that_was_granted_to_it(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (ada, bob) = (user(&server, "ada").await, user(&server, "bob").await);
    let agent = agent(&ada).await;
    let path = format!("/agents/{agent}");
    let made = ada.post(&format!("{path}/tokens"), &json!({"name": "own"})).await.with_status(201);
    let itself = server.with_token(Some(&id(&made, "token")));
    ada.call("PUT", &format!("{path}/webhook"), &json!({"url": "http://127.0.0.1:9/"})).await.with_status(200);
    let grant = json!({"agent_id": agent, "granted_scopes": ["filesystem:read"]});
    let relation = id(&bob.post("/h2a/relations", &grant).await.with_status(201), "id");
    let retire = async |caller: &Caller| caller.send(caller.request("DELETE", &path)).await;
    retire(&bob).await.refused_by(Forbidden, "not-owner");
    let retired = retire(&ada).await.with_status(200);
    assert!(retired["retired_at"].is_string(), "{retired}");
    server.clock.advance_ms(1);
    assert_eq!(retire(&ada).await.with_status(200), retired, "the first time is final");
    for gone in ["", "/tokens", "/webhook"] {
        ada.get(&format!("{path}{gone}")).await.refused_by(Gone, "agent-retired");
    }
    let change = json!({"capability_manifest": taking(json!(["b"]))});
    ada.call("PATCH", &path, &change).await.refused_by(Gone, "agent-retired");
    bob.post("/h2a/relations", &grant).await.refused_by(Gone, "agent-retired");
    assert_eq!(server.get("/agents").await.ok()["agents"], json!([]));
    itself.get("/agents").await.refused(Unauthenticated);
    let ended = bob.get(&format!("/h2a/relations/{relation}")).await.ok();
    assert!(ended["revoked_at"].is_string() && ended["granted_scopes"] == json!([]), "{ended}");
    let receipts = bob.get(&format!("/h2a/relations/{relation}/receipts")).await.ok();
    let last = receipts["receipts"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&last["act"], &last["agent_name"]), (&json!("ended"), &json!("Reader")));
}

#[both_engines]
async fn a_diff_shows_what_a_change_would_do_and_does_nothing(engine: Engine) {
    let server = TestServer::start(engine).await;
    let agent = agent(&server).await;
    let diff = async |manifest: &Value| {
        let path = format!("/agents/{agent}/manifest/diff");
        server.post(&path, &json!({"capability_manifest": manifest})).await.with_status(200)
    };
    let narrower = diff(&taking(json!(["b"]))).await;
    assert_eq!((&narrower["breaking"], &narrower["capability_manifest_version"]), (&json!(true), &json!(2)));
    assert_eq!(narrower["scopes_requiring_reauth"], json!(["filesystem:read"]));
    let pointer = "/tools/0/input_schema/properties/path/enum";
    let gone = json!({"rule": "enum-value-removed", "pointer": pointer, "old": "a", "new": null, "breaking": true,
        "scope": "filesystem:read", "tool": "read_file"});
    assert_eq!(narrower["changes"][0], gone);
    let wider = diff(&taking(json!(["a", "b"]))).await;
    assert_eq!((&wider["breaking"], &wider["scopes_requiring_reauth"]), (&json!(false), &json!([])));
    assert_eq!(diff(&sample_manifest()).await["capability_manifest_version"], 1);
    let after = server.get(&format!("/agents/{agent}")).await.with_status(200);
    assert_eq!(after["capability_manifest_version"], 1);
    // What was foretold is what happens.
    let published = publish(&server, &agent, &taking(json!(["b"]))).await;
    assert_eq!(published["capability_manifest_hash"], narrower["capability_manifest_hash"]);
    assert_eq!(published["capability_manifest_version"], 2);
    assert_eq!((&published["manifest_changed"], &published["breaking"]), (&json!(true), &json!(true)));
    assert_eq!(published["scopes_requiring_reauth"], narrower["scopes_requiring_reauth"]);
    let again = publish(&server, &agent, &taking(json!(["b"]))).await;
    assert_eq!((&again["manifest_changed"], &again["breaking"]), (&json!(false), &json!(false)));
    let silent = publish(&server, &agent, &taking(json!(["a", "b"]))).await;
    assert_eq!((&silent["manifest_changed"], &silent["breaking"]), (&json!(true), &json!(false)));
}

#[both_engines]
async fn what_breaks_for_those_alone_who_consented_before_is_foretold(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (agent, ada) = (agent(&server).await, user(&server, "ada").await);
    let diff = async |manifest: &Value| {
        let path = format!("/agents/{agent}/manifest/diff");
        server.post(&path, &json!({"capability_manifest": manifest})).await.with_status(200)
    };
    publish(&server, &agent, &taking(json!(["a", "b"]))).await;
    let body = json!({"agent_id": agent, "granted_scopes": ["filesystem:read"]});
    ada.post("/h2a/relations", &body).await.with_status(201);
    // The tool is removed, which needs no consent, and comes back narrower.
    let mut without = sample_manifest();
    without["tools"] = json!([]);
    assert_eq!(diff(&without).await["breaking"], false);
    publish(&server, &agent, &without).await;
    let mut narrower = taking(json!(["b"]));
    let foretold = diff(&narrower).await;
    assert_eq!(
        (&foretold["breaking"], &foretold["scopes_requiring_reauth"]),
        (&json!(true), &json!(["filesystem:read"]))
    );
    publish(&server, &agent, &narrower).await;
    assert_eq!(ada.get("/h2a/pending").await.ok()["pending"].as_array().unwrap().len(), 1);
    narrower["agent_version"] = json!("1.0.1");
    assert_eq!(diff(&narrower).await["breaking"], false, "users with an open request are not asked again");
}

#[both_engines]
async fn the_same_manifest_again_is_no_new_version(engine: Engine) {
    let server = TestServer::start(engine).await;
    let agent = agent(&server).await;
    // The same meaning, written otherwise.
    let text = format!("{{\"capability_manifest\": {}}}", serde_json::to_string_pretty(&sample_manifest()).unwrap());
    let again = server.send_text("PATCH", &format!("/agents/{agent}"), text).await.with_status(200);
    assert_eq!(again["capability_manifest_version"], 1);
    assert_eq!(publish(&server, &agent, &taking(json!(["a", "b"]))).await["capability_manifest_version"], 2);
    assert_eq!(publish(&server, &agent, &sample_manifest()).await["capability_manifest_version"], 3);
}

#[both_engines]
async fn a_field_that_is_not_known_is_refused_by_name(engine: Engine) {
    let server = TestServer::start(engine).await;
    let agent = agent(&server).await;
    let misspelled = json!({"name": "reader", "capabilty_manifest": sample_manifest()});
    let tried = json!({"capability_manifest": sample_manifest(), "dry_run": true});
    for (method, path, body, field) in [
        ("POST", "/agents".to_owned(), &misspelled, "capabilty_manifest"),
        ("PATCH", format!("/agents/{agent}"), &misspelled, "capabilty_manifest"),
        ("POST", format!("/agents/{agent}/manifest/diff"), &tried, "dry_run"),
    ] {
        let refused = server.call(method, &path, body).await;
        assert!(refused.text.contains(&format!("unknown field `{field}`")), "{}", refused.text);
        refused.refused(SchemaInvalid);
    }
    // A value of another type is described in words of JSON.
    let refused = server.call("PATCH", &format!("/agents/{agent}"), &json!({"capability_manifest": []})).await;
    assert!(refused.text.contains("capability_manifest: must be an object"), "{}", refused.text);
    let mut manifest = sample_manifest();
    manifest["tools"][0]["timeout_ms"] = json!(-1);
    let refused = server.call("PATCH", &format!("/agents/{agent}"), &json!({"capability_manifest": manifest})).await;
    let said = "/tools/0/timeout_ms: must be a whole number, 1 or more";
    assert!(refused.text.contains(said), "{}", refused.text);
}

#[both_engines]
async fn a_refused_manifest_takes_no_version(engine: Engine) {
    let server = TestServer::start(engine).await;
    let agent = agent(&server).await;
    let path = format!("/agents/{agent}");
    for (pointer, value, rule) in [
        ("/schema_version", json!("2.0"), "manifest-invalid"),
        ("/permission_scopes/0/id", json!("system:all"), "scope-reserved"),
        ("/tools/0/permission_scope", json!("clipboard:read"), "scope-unknown"),
        ("/tools/0/input_schema", json!({"type": "object", "$ref": "https://example.com"}), "schema-invalid"),
    ] {
        let mut manifest = sample_manifest();
        *manifest.pointer_mut(pointer).unwrap() = value;
        let refused = server.call("PATCH", &path, &json!({"capability_manifest": manifest})).await;
        refused.refused_by(SchemaInvalid, rule);
    }
    let twice = r#"{"capability_manifest": {"schema_version": "1.0", "schema_version": "1.0"}}"#;
    server.send_text("PATCH", &path, twice).await.refused_by(SchemaInvalid, "manifest-invalid");
    let large = taking(json!(["x".repeat(128 * 1024)]));
    let refused = server.call("PATCH", &path, &json!({"capability_manifest": large})).await;
    refused.refused_by(PayloadTooLarge, "manifest-too-large");
    assert_eq!(publish(&server, &agent, &taking(json!(["b"]))).await["capability_manifest_version"], 2);
}

#[both_engines]
async fn a_hundred_changes_at_once_get_a_hundred_versions(engine: Engine) {
    let server = TestServer::start(engine).await;
    let agent = agent(&server).await;
    let changes: Vec<_> = (0..100)
        .map(|n| {
            let (caller, agent) = (server.with_token(Some(&server.operator_token())), agent.clone());
            tokio::spawn(async move { publish(&caller, &agent, &taking(json!([n]))).await })
        })
        .collect();
    let mut versions = BTreeSet::new();
    for change in changes {
        versions.insert(change.await.unwrap()["capability_manifest_version"].as_i64().unwrap());
    }
    assert_eq!(versions, (2..=101).collect());
}

#[both_engines]
async fn who_knows_the_manifest_is_not_sent_it_again(engine: Engine) {
    let server = TestServer::start(engine).await;
    let agent = agent(&server).await;
    let path = format!("/agents/{agent}");
    let read = server.get(&path).await;
    let tag = read.headers["etag"].to_str().unwrap().to_owned();
    assert_eq!(tag, format!("\"{}\"", read.with_status(200)["capability_manifest_hash"].as_str().unwrap()));
    let asked = async |tags: &str| {
        let response = server.request("GET", &path).header("if-none-match", tags).send().await.unwrap();
        (response.status().as_u16(), response.headers()["etag"].to_str().unwrap().to_owned())
    };
    for known in [tag.as_str(), "*", &format!("\"other\", W/{tag}")] {
        assert_eq!(asked(known).await, (304, tag.clone()), "{known}");
    }
    assert_eq!(asked("\"other\"").await.0, 200);
    publish(&server, &agent, &taking(json!(["a", "b"]))).await;
    let (status, now) = asked(&tag).await;
    assert_eq!(status, 200);
    assert_ne!(now, tag);
}

#[both_engines]
async fn failures_speak_the_dialect(engine: Engine) {
    let server = TestServer::start(engine).await;
    let unknown = server.get(&format!("/agents/agt_{:032x}", 0)).await;
    assert_eq!((unknown.status, &unknown.body["error"]["code"]), (404, &json!("NOT_FOUND")));
    let mut manifest = sample_manifest();
    manifest["permission_scopes"][0]["id"] = json!("hashee:admin");
    let refused = server.post("/agents", &json!({"name": "a", "capability_manifest": manifest})).await;
    let error = &refused.body["error"];
    assert_eq!((&error["code"], &error["i18n_key"]), (&json!("SCOPE_RESERVED"), &json!("errors.scope_reserved")));
    assert_eq!(error["params"]["pointer"], "/permission_scopes/0/id");
    refused.refused_by(SchemaInvalid, "scope-reserved");
    // No other endpoint has it.
    assert_eq!(server.get("/api/v1/runs/x").await.body["error"], Value::Null);
}

#[both_engines]
async fn an_agents_token_is_shown_once_and_ends_when_it_is_revoked(engine: Engine) {
    let server = TestServer::start(engine).await;
    let path = format!("/agents/{}", agent(&server).await);
    let made = server.post(&format!("{path}/tokens"), &json!({"name": "laptop"})).await.with_status(201);
    let token = id(&made, "token");
    assert!(token.starts_with("ost_agt_"), "{token}");
    let listed = server.get(&format!("{path}/tokens")).await;
    assert!(!listed.text.contains(&token), "{}", listed.text);
    assert_eq!(listed.with_status(200)["tokens"][0]["token_id"], made["token_id"]);
    let speaking = server.with_token(Some(&token));
    speaking.get(&path).await.with_status(200);
    speaking.get("/api/v1/runs").await.refused_by(Forbidden, "role");
    let one = format!("{path}/tokens/{}", id(&made, "token_id"));
    let revoked = server.send(server.request("DELETE", &one)).await.with_status(200);
    speaking.get(&path).await.refused(Unauthenticated);
    server.clock.advance_ms(1);
    assert_eq!(server.send(server.request("DELETE", &one)).await.with_status(200), revoked);
    // Another agent's token is unknown here.
    let other = format!("/agents/{}/tokens/{}", agent(&server).await, id(&made, "token_id"));
    server.send(server.request("DELETE", &other)).await.refused(NotFound);
    let short = json!({"name": "short", "expires_in_ms": 1_000});
    let short = id(&server.post(&format!("{path}/tokens"), &short).await.with_status(201), "token");
    let speaking = server.with_token(Some(&short));
    speaking.get(&path).await.with_status(200);
    server.clock.advance_ms(1_000);
    speaking.get(&path).await.refused(Unauthenticated);
}

#[both_engines]
async fn agents_come_in_pages_and_by_name(engine: Engine) {
    let server = TestServer::start(engine).await;
    for name in ["Alpha", "beta", "ALPHABET", "100%_sure"] {
        server.clock.advance_ms(1);
        let body = json!({"name": name, "capability_manifest": sample_manifest()});
        server.post("/agents", &body).await.with_status(201);
    }
    let names = |page: &Value| -> Vec<String> {
        page["agents"].as_array().unwrap().iter().map(|agent| id(agent, "name")).collect()
    };
    let first = server.get("/agents?limit=3").await.with_status(200);
    assert_eq!(names(&first), ["100%_sure", "ALPHABET", "beta"]);
    assert_eq!(first["agents"][0]["capability_manifest"], Value::Null);
    let cursor = id(&first, "next_cursor");
    let rest = server.get(&format!("/agents?limit=3&cursor={cursor}")).await.with_status(200);
    assert_eq!((names(&rest), &rest["next_cursor"]), (vec!["Alpha".to_owned()], &Value::Null));
    let found = server.get("/agents?name=alpha").await.with_status(200);
    assert_eq!(names(&found), ["ALPHABET", "Alpha"]);
    assert_eq!(names(&server.get("/agents?name=%25_").await.with_status(200)), ["100%_sure"]);
    server.get(&format!("/agents?name=x&cursor={cursor}")).await.refused(SchemaInvalid);
}

#[both_engines]
async fn names_are_found_in_any_case_of_their_ascii_letters(engine: Engine) {
    let server = TestServer::start(engine).await;
    for name in ["Überblick", "Reader"] {
        let body = json!({"name": name, "capability_manifest": sample_manifest()});
        server.post("/agents", &body).await.with_status(201);
    }
    // `Ü` in a URL.
    for (query, expected) in [("%C3%9Cberblick", "Überblick"), ("%C3%9CBERB", "Überblick"), ("READER", "Reader")] {
        let found = server.get(&format!("/agents?name={query}")).await.with_status(200);
        assert_eq!(found["agents"].as_array().unwrap().len(), 1, "{query}: {found}");
        assert_eq!(found["agents"][0]["name"], expected, "{query}");
    }
}

#[both_engines]
async fn a_manifest_near_its_limit_is_counted(engine: Engine) {
    let server = TestServer::start(engine).await;
    let agent = agent(&server).await;
    let counted = async || {
        let page = server.send(server.request("GET", "/metrics")).await.text;
        let line = page.lines().find(|line| line.starts_with("ostler_manifests_large_total ")).unwrap().to_owned();
        line.rsplit_once(' ').unwrap().1.to_owned()
    };
    assert_eq!(counted().await, "0");
    let large = publish(&server, &agent, &taking(json!(["x".repeat(64 * 1024)]))).await;
    assert_eq!(large["warnings"][0]["rule"], "manifest-large");
    assert_eq!(counted().await, "1");
}

#[both_engines]
async fn a_run_is_of_the_agent_it_names(engine: Engine) {
    let server = TestServer::start(engine).await;
    let agent = agent(&server).await;
    let mut body = run_body();
    body["agentId"] = json!(agent);
    let run = server.post("/api/v1/runs", &body).await.with_status(201);
    assert_eq!(server.run(&id(&run, "runId")).await["agentId"], json!(agent));
    // The agent's own profile runs it, and no other.
    let change = json!({"backend_profile": "scripted"});
    server.call("PATCH", &format!("/agents/{agent}"), &change).await.with_status(200);
    body.as_object_mut().unwrap().remove("backendProfile");
    assert_eq!(server.post("/api/v1/runs", &body).await.with_status(201)["backendProfile"], "scripted");
    body["backendProfile"] = json!("codex");
    server.post("/api/v1/runs", &body).await.refused_by(SchemaInvalid, "agent-profile");
    body["agentId"] = json!(format!("agt_{:032x}", 0));
    server.post("/api/v1/runs", &body).await.refused(NotFound);
    assert_eq!(server.run(&server.create_run().await).await["agentId"], Value::Null);
}

#[both_engines]
async fn an_owner_has_so_many_agents_and_an_agent_so_many_tokens(engine: Engine) {
    let server = TestServer::start(engine).await;
    let agent = agent(&server).await;
    let tokens = format!("/agents/{agent}/tokens");
    let named = json!({"name": "one"});
    let mut made = Value::Null;
    for _ in 0..AGENT_TOKENS_MAX {
        made = server.post(&tokens, &named).await.with_status(201);
    }
    server.post(&tokens, &named).await.refused_by(RateLimited, "agent-quota");
    server.send(server.request("DELETE", &format!("{tokens}/{}", id(&made, "token_id")))).await.with_status(200);
    server.post(&tokens, &named).await.with_status(201);
    for _ in 1..AGENTS_PER_OWNER_MAX {
        server.post("/agents", &json!({"name": "Reader"})).await.with_status(201);
    }
    server.post("/agents", &json!({"name": "Reader"})).await.refused_by(RateLimited, "agent-quota");
    user(&server, "ada").await.post("/agents", &json!({"name": "Reader"})).await.with_status(201);
}
