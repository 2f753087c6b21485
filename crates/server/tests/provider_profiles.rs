//! Provider profiles: what is set is kept sealed and shown by name only, nothing falls back to anything, and a run whose
//! profile lacks something is refused before anything starts.

use std::os::unix::fs::PermissionsExt;

use ostler_protocol::FailureKind::*;
use serde_json::{Value, json};

use crate::harness::{Answer, Caller, EXTERNAL, Engine, Setup, TestServer, both_engines, eventually, id, run_body};

const KEY: &str = "pl4nted-key-0123456789";

fn path(profile: &str) -> String {
    format!("/api/v1/provider-profiles/{profile}")
}

async fn put(caller: &Caller, profile: &str, body: Value) -> Answer {
    caller.call("PUT", &format!("{}/credential", path(profile)), &body).await
}

async fn put_config(caller: &Caller, profile: &str, body: Value) -> Answer {
    caller.call("PUT", &format!("{}/config", path(profile)), &body).await
}

async fn delete(caller: &Caller, profile: &str) -> Value {
    caller.send(caller.request("DELETE", &path(profile))).await.with_status(200)
}

/// A whole secret, marked.
fn files(mark: &str) -> Value {
    let auth = json!({"OPENAI_API_KEY": format!("{KEY}-{mark}")}).to_string();
    json!({"files": {"auth.json": auth, "config.toml": format!("model = \"{mark}\"")}})
}

/// A run of this profile that names its credential.
fn run_of(profile: &str) -> Value {
    let mut body = run_body();
    body["backendProfile"] = profile.into();
    let secret = json!({"name": format!("agentrun-v01-provider-{profile}"), "keys": ["auth.json", "config.toml"]});
    body["executionPolicy"] =
        json!({"secretScope": {"providerCredentials": [{"profile": profile, "secretRef": secret}]}});
    body
}

/// A program that reports to be Codex: without one, no profile of Codex's is ready.
fn with_codex(setup: &mut Setup) {
    let path = setup.config.server.data_dir.clone().unwrap().with_file_name("codex");
    std::fs::write(&path, "#!/bin/sh\necho codex-cli 1.2.3\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    setup.config.agents.codex = Some(path);
}

/// All profiles except the one of runners elsewhere.
async fn profiles(caller: &Caller) -> Vec<Value> {
    let list = caller.get("/api/v1/provider-profiles").await.with_status(200);
    let own = list["providerProfiles"].as_array().unwrap().iter().filter(|profile| profile["profile"] != EXTERNAL);
    own.cloned().collect()
}

#[both_engines]
async fn built_in_profiles_are_always_listed(engine: Engine) {
    let server = TestServer::start(engine).await;
    let all = profiles(&server).await;
    let names: Vec<_> = all.iter().map(|profile| id(profile, "profile")).collect();
    assert_eq!(names, ["codex", "deepseek", "minimax-m3", "dsflash-go", "model"]);
    for profile in &all {
        assert_eq!((&profile["builtIn"], &profile["configured"]), (&json!(true), &json!(false)), "{profile}");
        assert_eq!(profile["failureKind"], "secret-unavailable");
        assert_eq!(profile["secretRef"]["name"], format!("agentrun-v01-provider-{}", id(profile, "profile")));
        assert_eq!(profile["resourceVersion"], Value::Null);
    }
    assert_eq!(all[3]["secretRef"]["keys"], json!(["auth.json", "config.toml", "model-catalog.json"]));
    assert_eq!((&all[0]["agent"], &all[4]["agent"]), (&json!("codex"), &json!("model")));
}

#[both_engines]
async fn a_credential_is_stored_and_never_shown(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        with_codex(setup);
        setup.token("platform", "provide", &[]);
    })
    .await;
    let platform = server.caller("platform");
    let set = put(platform, "deepseek", files("one")).await.with_status(200);
    assert_eq!((&set["configured"], &set["failureKind"]), (&json!(true), &Value::Null));
    assert_eq!(
        set["secretRef"],
        json!({"name": "agentrun-v01-provider-deepseek", "keys": ["auth.json", "config.toml"]})
    );
    let hash = ostler_protocol::json::hex(&ostler_crypto::sha256(b"model = \"one\""));
    assert_eq!(set["configHashSuffix"], hash[hash.len() - 8..]);
    assert_eq!(server.get(&path("deepseek")).await.with_status(200), set);
    assert_eq!(profiles(platform).await[1], set);
    let config = platform.get(&format!("{}/config", path("deepseek"))).await.with_status(200);
    assert_eq!((&config["config"], &config["resourceVersion"]), (&json!("model = \"one\""), &set["resourceVersion"]));
    for place in ["", "/deepseek", "/deepseek/config"] {
        assert!(!platform.get(&format!("/api/v1/provider-profiles{place}")).await.text.contains("pl4nted"));
    }
    assert!(server.everything_kept().iter().all(|(_, bytes)| !bytes.windows(7).any(|part| part == b"pl4nted")));
}

#[both_engines]
async fn a_key_alone_is_enough_for_codex(engine: Engine) {
    let server = TestServer::start(engine).await;
    assert_eq!(put(&server, "codex", json!({"apiKey": KEY})).await.with_status(200)["configured"], true);
    // Codex's own provider is no other profile's.
    let deepseek = put(&server, "deepseek", json!({"apiKey": KEY})).await.with_status(200);
    assert_eq!((&deepseek["configured"], &deepseek["failureKind"]), (&json!(false), &json!("secret-unavailable")));
    assert!(id(&deepseek, "message").contains("config.toml"));
    // Nor was the key given for what the config names afterwards.
    let dropped = put_config(&server, "deepseek", json!({"config": "model = \"m\""})).await.with_status(200);
    assert_eq!((&dropped["configured"], &dropped["credentialDropped"]), (&json!(false), &json!(true)));
    assert_eq!(put(&server, "deepseek", json!({"apiKey": KEY})).await.with_status(200)["configured"], true);
}

#[both_engines]
async fn a_new_config_keeps_the_credential(engine: Engine) {
    let server = TestServer::start(engine).await;
    let before = put(&server, "mine", files("one")).await.with_status(200);
    let after = put_config(&server, "mine", json!({"config": "model = \"two\""})).await.with_status(200);
    assert_eq!(after["credentialHashSuffix"], before["credentialHashSuffix"]);
    assert_ne!(after["configHashSuffix"], before["configHashSuffix"]);
    assert_ne!(after["resourceVersion"], before["resourceVersion"]);
    let keyed = put(&server, "mine", json!({"apiKey": KEY})).await.with_status(200);
    assert_eq!(keyed["configHashSuffix"], after["configHashSuffix"]);
    assert_ne!(keyed["credentialHashSuffix"], after["credentialHashSuffix"]);
}

#[both_engines]
async fn the_same_again_changes_nothing(engine: Engine) {
    let server = TestServer::start(engine).await;
    let first = put(&server, "mine", files("one")).await.with_status(200);
    server.clock.advance_ms(1_000);
    assert_eq!(put(&server, "mine", files("one")).await.with_status(200), first);
    assert_eq!(put_config(&server, "mine", json!({"config": "model = \"one\""})).await.with_status(200), first);
}

#[both_engines]
async fn a_change_for_another_version_is_refused(engine: Engine) {
    let server = TestServer::start(engine).await;
    let version = id(&put(&server, "mine", files("one")).await.with_status(200), "resourceVersion");
    let with = |version: &str| {
        let mut body = files("two");
        body["resourceVersion"] = version.into();
        body
    };
    put(&server, "mine", with("another")).await.refused_by(StateConflict, "resource-version");
    put(&server, "yours", with(&version)).await.refused_by(StateConflict, "resource-version");
    let two = put(&server, "mine", with(&version)).await.with_status(200);
    put(&server, "mine", with(&version)).await.refused_by(StateConflict, "resource-version");
    let body = json!({"config": "model = \"three\""}).to_string();
    let request = |version: &str| {
        let request = server.request("PUT", &format!("{}/config", path("mine"))).header("if-match", version);
        server.send(request.header("content-type", "application/json").body(body.clone()))
    };
    request(&format!("\"{version}\"")).await.refused_by(StateConflict, "resource-version");
    request(&format!("\"{}\"", id(&two, "resourceVersion"))).await.with_status(200);
}

#[both_engines]
async fn an_empty_version_is_that_of_a_profile_that_does_not_exist(engine: Engine) {
    let server = TestServer::start(engine).await;
    let new = |mark: &str| {
        let mut body = files(mark);
        body["resourceVersion"] = "".into();
        body
    };
    let config = json!({"config": "model = \"two\"", "resourceVersion": ""});
    put(&server, "mine", new("one")).await.with_status(200);
    put(&server, "mine", new("two")).await.refused_by(StateConflict, "resource-version");
    put_config(&server, "mine", config.clone()).await.refused_by(StateConflict, "resource-version");
    put_config(&server, "yours", config).await.with_status(200);
    let config = server.get(&format!("{}/config", path("mine"))).await.ok();
    assert_eq!(config["config"], "model = \"one\"", "nothing was changed");
    // A built-in profile has no secret at first.
    put(&server, "codex", new("one")).await.with_status(200);
    delete(&server, "codex").await;
    put(&server, "codex", new("two")).await.with_status(200);
}

#[both_engines]
async fn credentials_put_at_once_leave_one_whole(engine: Engine) {
    let server = TestServer::start(engine).await;
    let marks: Vec<_> = (0..16).map(|at| format!("m{at}")).collect();
    let puts = marks.iter().map(|mark| put(&server, "mine", files(mark)));
    for answer in futures_util::future::join_all(puts).await {
        answer.with_status(200);
    }
    let left = server.get(&path("mine")).await.ok();
    let config = server.get(&format!("{}/config", path("mine"))).await.ok();
    let mark = marks.iter().find(|mark| config["config"] == format!("model = \"{mark}\"")).unwrap();
    let whole = put(&server, "mine", files(mark)).await.with_status(200);
    assert_eq!(whole["resourceVersion"], left["resourceVersion"], "both files are of the same put");
}

#[both_engines]
async fn what_is_no_credential_changes_nothing(engine: Engine) {
    let server = TestServer::start(engine).await;
    let before = put(&server, "mine", files("one")).await.with_status(200);
    let huge = json!({"a": format!("{KEY}{}", "x".repeat(256 * 1024))}).to_string();
    for (body, kind, rule) in [
        (json!({}), SchemaInvalid, "credential-shape"),
        (json!({"apiKey": KEY, "files": {"auth.json": "{}"}}), SchemaInvalid, "credential-shape"),
        (json!({"apiKey": format!("{KEY} {KEY}")}), SchemaInvalid, "credential-shape"),
        (json!({"apiKey": KEY.repeat(1_000)}), PayloadTooLarge, "api-key-size"),
        (json!({"files": {"auth.json": KEY}}), SchemaInvalid, "credential-json"),
        (json!({"files": {"auth.json": "{}", "config.toml": KEY}}), SchemaInvalid, "config-toml"),
        (json!({"files": {"auth.json": "{}", "../config.toml": KEY}}), SchemaInvalid, "credential-shape"),
        (json!({"files": {"auth.json": huge}}), PayloadTooLarge, "profile-file-size"),
        (json!({"files": {"auth.json": {"OPENAI_API_KEY": KEY}}}), SchemaInvalid, "body-shape"),
    ] {
        let answer = put(&server, "mine", body).await;
        assert!(!answer.text.contains("pl4nted"), "{}", answer.text);
        answer.refused_by(kind, rule);
    }
    put_config(&server, "mine", json!({"config": "[ostler]\nagent = \"cron\""}))
        .await
        .refused_by(SchemaInvalid, "config-shape");
    put(&server, "Mine", files("one")).await.refused_by(SchemaInvalid, "slug-shape");
    put(&server, "scripted", files("one")).await.refused_by(SchemaInvalid, "profile-scripted");
    assert_eq!(server.get(&path("mine")).await.ok(), before);
}

#[both_engines]
async fn an_unknown_profile_is_not_found(engine: Engine) {
    let server = TestServer::start(engine).await;
    put(&server, "codex", json!({"apiKey": KEY})).await.with_status(200);
    server.get(&path("codex-2")).await.refused(NotFound);
    server.get(&format!("{}/config", path("codex-2"))).await.refused(NotFound);
    server.post(&format!("{}/validate", path("codex-2")), &json!({})).await.refused(NotFound);
    let mut body = run_of("codex-2");
    body["command"] = json!({"type": "turn", "payload": {"prompt": "x"}});
    let refused = server.post("/api/v1/runs", &body).await.refused_by(NotFound, "profile-unknown");
    assert!(refused.message.contains("no profile \"codex-2\""), "{}", refused.message);
}

#[both_engines]
async fn a_deleted_profile_is_gone(engine: Engine) {
    let server = TestServer::start(engine).await;
    put(&server, "mine", files("one")).await.with_status(200);
    put(&server, "codex", files("one")).await.with_status(200);
    for _ in 0..2 {
        assert_eq!(delete(&server, "mine").await["configured"], false);
        assert_eq!(delete(&server, "codex").await["failureKind"], "secret-unavailable");
    }
    server.get(&path("mine")).await.refused(NotFound);
    assert_eq!(server.get(&path("codex")).await.ok()["configured"], false);
    assert_eq!(profiles(&server).await.len(), 5);
}

#[both_engines]
async fn a_damaged_secret_is_reported_as_damaged(engine: Engine) {
    let server = TestServer::start(engine).await;
    put(&server, "mine", files("one")).await.with_status(200);
    let file = server.config.server.data_dir.clone().unwrap().join("secrets/agentrun-v01-provider-mine.sealed");
    std::fs::write(&file, "not what it was").unwrap();
    let told = server.get(&path("mine")).await.with_status(200);
    assert_eq!((&told["configured"], &told["failureKind"]), (&json!(false), &json!("secret-unavailable")));
    assert!(id(&told, "message").contains("damaged"), "{told}");
    put(&server, "mine", files("two")).await.refused_by(SecretUnavailable, "secret-damaged");
    delete(&server, "mine").await;
    put(&server, "mine", files("two")).await.with_status(200);
}

#[both_engines]
async fn secrets_outlive_the_server(engine: Engine) {
    let mut server = TestServer::start(engine).await;
    let before = put(&server, "mine", files("one")).await.with_status(200);
    server.restart().await;
    assert_eq!(server.get(&path("mine")).await.ok(), before);
    // A value that was learnt is known again.
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, &format!("my key is {KEY}-one")).await;
    assert!(!server.command(&run_id, &command_id).await.to_string().contains("pl4nted"));
}

#[both_engines]
async fn a_run_without_its_secret_is_refused_before_anything_starts(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let mut whole = run_of("deepseek");
    whole["command"] = json!({"type": "turn", "payload": {"prompt": "x"}});
    server.post("/api/v1/runs", &whole).await.refused_by(SecretUnavailable, "profile-secret-missing");
    // A reference is checked by its shape alone; the order to start a runner is what needs the secret.
    let run_id = id(&server.post("/api/v1/runs", &run_of("deepseek")).await.with_status(201), "runId");
    let command_id = server.turn(&run_id, "x").await;
    let refused = server.create_job(&run_id, &json!({"commandId": command_id})).await;
    let refused = refused.refused_by(SecretUnavailable, "profile-secret-missing");
    assert_eq!(refused.details["profile"], "deepseek");
    assert_eq!(server.get(&format!("/api/v1/runs/{run_id}/runner-jobs")).await.ok()["runnerJobs"], json!([]));
    put(&server, "deepseek", files("one")).await.with_status(200);
    server.create_job(&run_id, &json!({"commandId": command_id})).await.with_status(201);
}

#[both_engines]
async fn a_profile_that_was_deleted_is_an_unavailable_secret_to_its_runs(engine: Engine) {
    let server = TestServer::start(engine).await;
    put(&server, "mine", files("one")).await.with_status(200);
    let run_id = id(&server.post("/api/v1/runs", &run_of("mine")).await.with_status(201), "runId");
    let command_id = server.turn(&run_id, "x").await;
    delete(&server, "mine").await;
    let refused = server.create_job(&run_id, &json!({"commandId": command_id})).await;
    refused.refused_by(SecretUnavailable, "profile-unknown");
}

#[both_engines]
async fn repeated_requests_get_their_first_response_after_the_profile_was_deleted(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.token("elsewhere", "client", &["unidesk"])).await;
    put(&server, "mine", files("one")).await.with_status(200);
    let run_id = id(&server.post("/api/v1/runs", &run_of("mine")).await.with_status(201), "runId");
    let turn = |prompt: &str, key: &str| json!({"type": "turn", "payload": {"prompt": prompt}, "idempotencyKey": key});
    let command_id = id(&server.submit(&run_id, &turn("x", "turn-1")).await.with_status(201), "commandId");
    let order = |key: &str| json!({"commandId": command_id, "standing": true, "idempotencyKey": key});
    let job_id = id(&server.create_job(&run_id, &order("job-1")).await.with_status(201), "runnerJobId");
    delete(&server, "mine").await;
    server.submit(&run_id, &turn("x", "turn-2")).await.refused_by(SecretUnavailable, "profile-unknown");
    server.create_job(&run_id, &order("job-2")).await.refused_by(SecretUnavailable, "profile-unknown");
    assert_eq!(server.submit(&run_id, &turn("x", "turn-1")).await.with_status(200)["commandId"], command_id.as_str());
    assert_eq!(server.create_job(&run_id, &order("job-1")).await.with_status(200)["runnerJobId"], job_id.as_str());
    // Another body under the same key is still a conflict, and the key opens the run to no other caller.
    server.submit(&run_id, &turn("y", "turn-1")).await.refused_by(IdempotencyConflict, "payload-hash");
    let other = json!({"commandId": command_id, "idempotencyKey": "job-1"});
    server.create_job(&run_id, &other).await.refused_by(IdempotencyConflict, "payload-hash");
    let elsewhere = server.caller("elsewhere");
    assert_eq!(elsewhere.submit(&run_id, &turn("x", "turn-1")).await.status, 404);
    assert_eq!(elsewhere.create_job(&run_id, &order("job-1")).await.status, 404);
    // Nor does it matter that the command has ended in the meantime.
    server.cancel_command(&command_id).await;
    assert_eq!(server.submit(&run_id, &turn("x", "turn-1")).await.with_status(200)["state"], "cancelled");
    assert_eq!(server.create_job(&run_id, &order("job-1")).await.with_status(200)["runnerJobId"], job_id.as_str());
    assert_eq!(server.run(&run_id).await["commandCount"], 1);
}

#[both_engines]
async fn a_secret_deleted_before_the_runner_started_ends_the_turn(engine: Engine) {
    let mut server = TestServer::start(engine).await;
    put(&server, "deepseek", files("one")).await.with_status(200);
    let mut whole = run_of("deepseek");
    whole["command"] = json!({"type": "turn", "payload": {"prompt": "x"}});
    let created = server.post("/api/v1/runs", &whole).await.with_status(201);
    delete(&server, "deepseek").await;
    server.config.runner.slots = 4;
    server.restart().await;
    let result = server.ended(&id(&created, "runId"), &id(&created["command"], "commandId")).await;
    assert_eq!((&result["terminalStatus"], &result["failureKind"]), (&json!("blocked"), &json!("secret-unavailable")));
    assert!(id(&result, "blocker").contains("deepseek"), "{result}");
}

#[both_engines]
async fn a_profile_that_has_a_credential_wants_it_named(engine: Engine) {
    let server = TestServer::start(engine).await;
    let unnamed = || {
        let mut body = run_body();
        body["backendProfile"] = "model".into();
        body
    };
    server.post("/api/v1/runs", &unnamed()).await.with_status(201);
    server.post("/api/v1/runs", &run_of("model")).await.with_status(201);
    put(&server, "model", json!({"apiKey": KEY})).await.with_status(200);
    server.post("/api/v1/runs", &unnamed()).await.refused_by(SecretUnavailable, "provider-credential-required");
    server.post("/api/v1/runs", &run_of("model")).await.with_status(201);
}

#[both_engines]
async fn a_trial_is_an_ordinary_run_that_outlives_the_server(engine: Engine) {
    let mut server = TestServer::with(engine, |setup| {
        with_codex(setup);
        setup.token("platform", "provide", &[]);
    })
    .await;
    let version = put(&server, "mine", files("one")).await.with_status(200)["resourceVersion"].clone();
    server.post(&format!("{}/validate", path("deepseek")), &json!({})).await.refused(SecretUnavailable);
    let asked = json!({"idempotencyKey": "once", "tenantId": "hwlab"});
    let validate = format!("{}/validate", path("mine"));
    let trial = server.caller("platform").post(&validate, &asked).await.with_status(202);
    assert_eq!(server.caller("platform").post(&validate, &asked).await.with_status(202), trial);
    assert_eq!((&trial["status"], &trial["resourceVersion"]), (&json!("running"), &version));
    let run = server.run(&id(&trial, "runId")).await;
    assert_eq!((&run["tenantId"], &run["executionPolicy"]["sandbox"]), (&json!("hwlab"), &json!("read-only")));
    let runner = server.claim(&id(&trial, "runId"), "runner-a").await;
    let command_id = id(&trial, "commandId");
    runner.ack(&command_id).await;
    server.restart().await;
    let runner = server.claim(&id(&trial, "runId"), "runner-a").await;
    runner.say(&command_id, "ready").await;
    runner.end(&command_id, "completed").await;
    let ended = server.get(&id(&trial, "poll")).await.with_status(200);
    assert_eq!((&ended["status"], &ended["terminalStatus"]), (&json!("passed"), &json!("completed")));
    let profile = server.get(&path("mine")).await.ok();
    assert_eq!((&profile["validation"]["status"], &profile["failureKind"]), (&json!("passed"), &Value::Null));
    server.get(&id(&trial, "poll").replace("/mine/", "/codex/")).await.refused(NotFound);
    server.get(&format!("{}/validations/val_{:032x}", path("mine"), 0)).await.refused(NotFound);
}

#[both_engines]
async fn a_failed_trial_is_shown_until_the_secret_changes(engine: Engine) {
    let server = TestServer::with(engine, with_codex).await;
    put(&server, "mine", files("one")).await.with_status(200);
    let trial =
        server.post(&format!("{}/validate", path("mine")), &json!({"tenantId": "hwlab"})).await.with_status(202);
    let runner = server.claim(&id(&trial, "runId"), "runner-a").await;
    let mut end = json!({"runnerId": "runner-a", "leaseEpoch": runner.epoch, "status": "failed"});
    end["failureKind"] = "provider-auth-failed".into();
    end["message"] = format!("401 for {KEY}-one").into();
    server.patch(&format!("/api/v1/commands/{}/status", id(&trial, "commandId")), &end).await.with_status(200);
    let told = server.get(&path("mine")).await.ok();
    assert_eq!((&told["failureKind"], &told["configured"]), (&json!("provider-auth-failed"), &json!(true)));
    assert_eq!(told["message"], "401 for [redacted]");
    let fixed = put(&server, "mine", files("two")).await.with_status(200);
    assert_eq!((&fixed["failureKind"], &fixed["validation"]["status"]), (&Value::Null, &json!("failed")));
    assert_ne!(fixed["validation"]["resourceVersion"], fixed["resourceVersion"]);
}

#[both_engines]
async fn homes_left_behind_are_swept(engine: Engine) {
    let mut server = TestServer::start(engine).await;
    let homes = server.config.server.data_dir.clone().unwrap().join("homes");
    let run_id = server.create_run().await;
    server.turn(&run_id, "x").await;
    let job_id = id(&server.create_job(&run_id, &json!({})).await.with_status(201), "runnerJobId");
    for name in [&job_id, "job_unknown"] {
        std::fs::create_dir_all(homes.join(name)).unwrap();
        std::fs::write(homes.join(name).join("auth.json"), KEY).unwrap();
    }
    server.restart().await;
    eventually("the homes are gone", async || (std::fs::read_dir(&homes).unwrap().count() == 0).then_some(())).await;
}

#[both_engines]
async fn a_config_that_would_show_a_key_is_refused(engine: Engine) {
    let server = TestServer::start(engine).await;
    let acp = |word: &str| json!({"config": format!("[ostler]\nagent = \"acp\"\ncommand = [\"agent\", \"{word}\"]")});
    put(&server, "mine", files("one")).await.with_status(200);
    for word in [format!("--key={KEY}-one"), "sk-0123456789abcdef".to_owned()] {
        let answer = put_config(&server, "mine", acp(&word)).await;
        assert!(!answer.text.contains("pl4nted"), "{}", answer.text);
        answer.refused_by(SchemaInvalid, "config-credential");
    }
    put_config(&server, "mine", acp("--acp")).await.with_status(200);
}
