//! T2: what a run request must have, and what the tenant policy lets through; reading runs back; sessions.

use ostler_protocol::FailureKind::{self, *};
use serde_json::{Value, json};

use crate::harness::{Engine, TestServer, both_engines, id, run_body};

#[both_engines]
async fn a_valid_run_reads_back_as_it_was_accepted(engine: Engine) {
    let server = TestServer::start(engine).await;
    let mut body = run_body();
    body["workspaceRef"] =
        json!({"kind": "git", "repoUrl": "https://git.example/HWLAB.git", "commit": "abc", "z": [1, {"y": null}]});
    body["traceSink"] = json!({"kind": "loki", "stream": "x"});
    let created = server.post("/api/v1/runs", &body).await.with_status(201);
    let run_id = id(&created, "runId");
    assert!(run_id.starts_with("run_") && run_id.len() == 36, "{run_id}");
    let mut read = server.run(&run_id).await;
    // A run that is read also has what people want to know.
    let standing = ["state", "openPermissions"].map(|field| read.as_object_mut().unwrap().remove(field));
    assert_eq!(standing, [Some(json!("waiting")), Some(json!(0))]);
    assert_eq!(read, created);
    for field in ["tenantId", "projectId", "workspaceRef", "providerId", "backendProfile", "traceSink"] {
        assert_eq!(read[field], body[field], "{field}");
    }
    assert_eq!(read["status"], "pending");
    assert_eq!(read["terminal"], Value::Null);
    let policy = &read["executionPolicy"];
    assert_eq!(policy["sandbox"], "workspace-write");
    assert_eq!(policy["approval"], "never");
    assert_eq!(policy["network"], "enabled");
    assert_eq!(policy["timeoutMs"], 1_800_000);
    let scope = json!({"allowCredentialEcho": false, "providerCredentials": [], "toolCredentials": []});
    assert_eq!(policy["secretScope"], scope);
}

/// Sends a changed run request that must be refused.
async fn refused(server: &TestServer, kind: FailureKind, rule: &str, change: impl FnOnce(&mut Value)) {
    let mut body = run_body();
    change(&mut body);
    let answer = server.post("/api/v1/runs", &body).await;
    assert_eq!(answer.body["details"]["rule"], rule, "{body}: {}", answer.text);
    answer.refused(kind);
}

#[both_engines]
async fn each_missing_field_is_refused_by_its_own_rule(engine: Engine) {
    let server = TestServer::start(engine).await;
    for (field, rule) in [
        ("tenantId", "tenant-id-required"),
        ("projectId", "project-id-required"),
        ("workspaceRef", "workspace-ref-required"),
        ("providerId", "provider-id-required"),
        ("backendProfile", "backend-profile-required"),
        ("traceSink", "trace-sink-required"),
    ] {
        refused(&server, SchemaInvalid, rule, |body| drop(body.as_object_mut().unwrap().remove(field))).await;
    }
    for (field, rule) in [
        ("tenantId", "tenant-id-required"),
        ("workspaceRef", "workspace-ref-required"),
        ("backendProfile", "backend-profile-required"),
    ] {
        refused(&server, SchemaInvalid, rule, |body| body[field] = Value::Null).await;
    }
}

#[both_engines]
async fn a_wrong_tenant_or_backend_is_refused(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.policy.projects = vec!["pikasTech/HWLAB".into()];
        setup.config.policy.providers = vec!["G14".into()];
        setup.config.policy.backend_profiles = vec!["scripted".into(), "codex".into()];
    })
    .await;
    server.create_run().await;
    for (field, value, kind, rule) in [
        ("tenantId", json!("nobody"), TenantPolicyDenied, "tenant-allow-list"),
        ("tenantId", json!(""), SchemaInvalid, "name-shape"),
        ("projectId", json!("other/project"), TenantPolicyDenied, "project-allow-list"),
        ("projectId", json!(" padded "), SchemaInvalid, "name-shape"),
        ("providerId", json!("D601"), TenantPolicyDenied, "provider-allow-list"),
        ("backendProfile", json!("deepseek"), TenantPolicyDenied, "backend-profile-allow-list"),
        ("backendProfile", json!("Not-A-Slug"), SchemaInvalid, "slug-shape"),
        ("backendProfile", json!("under_score"), SchemaInvalid, "slug-shape"),
        ("workspaceRef", json!("somewhere"), SchemaInvalid, "workspace-ref-shape"),
        ("workspaceRef", json!({"repo": "x"}), SchemaInvalid, "workspace-ref-shape"),
        ("workspaceRef", json!({"kind": "git", "tenantId": "unidesk"}), TenantPolicyDenied, "workspace-tenant"),
        ("traceSink", json!(7), SchemaInvalid, "trace-sink-shape"),
    ] {
        refused(&server, kind, rule, |body| body[field] = value).await;
    }
}

fn credential(profile: &str, name: &str, keys: Value) -> Value {
    json!({"secretScope": {"providerCredentials": [{"profile": profile, "secretRef": {"name": name, "keys": keys}}]}})
}

#[both_engines]
async fn a_profile_without_its_credential_is_refused(engine: Engine) {
    let server = TestServer::start(engine).await;
    for profile in ["codex", "deepseek", "minimax-m3", "dsflash-go", "some-dynamic-slug"] {
        let rule = "provider-credential-required";
        refused(&server, SecretUnavailable, rule, |body| body["backendProfile"] = profile.into()).await;
        let mut keys = vec!["auth.json", "config.toml"];
        if profile == "dsflash-go" {
            keys.push("model-catalog.json");
        }
        let policy = credential(profile, &format!("agentrun-v01-provider-{profile}"), json!(keys));
        server
            .create_run_with(|body| {
                body["backendProfile"] = profile.into();
                body["executionPolicy"] = policy;
            })
            .await;
    }
}

#[both_engines]
async fn nothing_widens_the_execution_policy(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.policy.ceiling.network = ostler_protocol::kernel::policy::Network::Disabled;
        setup.config.policy.ceiling.approval = ostler_protocol::kernel::policy::Approval::OnRequest;
        setup.config.policy.ceiling.max_tokens = Some(1_000);
    })
    .await;
    for (policy, rule) in [
        (json!({"sandbox": "danger-full-access"}), "sandbox-widened"),
        (json!({"approval": "never"}), "approval-widened"),
        (json!({"network": "enabled"}), "network-widened"),
        (json!({"timeoutMs": 1_800_001}), "timeout-widened"),
        (json!({"maxTokens": 1_001}), "budget-widened"),
        (json!({"secretScope": {"allowCredentialEcho": true}}), "credential-echo"),
        (json!({"secretScope": {"toolCredentials": [{"tool": "aws"}]}}), "secret-scope-tool"),
        (
            json!({"secretScope": {"toolCredentials": [{"tool": "github", "secretRef": {"name": "another"}}]}}),
            "secret-scope-name",
        ),
        (credential("codex", "agentrun-v01-provider-codex", json!([])), "secret-scope-profile"),
        (credential("scripted", "somebody-elses-secret", json!([])), "secret-scope-name"),
        (credential("scripted", "agentrun-v01-provider-scripted", json!(["id_rsa"])), "secret-scope-key"),
    ] {
        refused(&server, TenantPolicyDenied, rule, |body| body["executionPolicy"] = policy).await;
    }
    for (policy, rule) in [
        (json!({"timeoutMs": 0}), "timeout-positive"),
        (json!({"maxToolCalls": -1}), "budget-positive"),
        (json!({"sandbox": "everything"}), "execution-policy-shape"),
        (json!([]), "execution-policy-shape"),
        (json!({"secretScope": {"providerCredentials": "all"}}), "execution-policy-shape"),
    ] {
        refused(&server, SchemaInvalid, rule, |body| body["executionPolicy"] = policy).await;
    }
}

#[both_engines]
async fn a_narrower_policy_is_stored_and_completed(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server
        .create_run_with(|body| {
            body["executionPolicy"] = json!({"sandbox": "read-only", "timeoutMs": 5_000, "maxToolCalls": 3,
                "secretScope": {"toolCredentials": [{"tool": "github"}]}});
        })
        .await;
    let policy = &server.run(&run_id).await["executionPolicy"];
    assert_eq!((&policy["sandbox"], &policy["timeoutMs"]), (&json!("read-only"), &json!(5_000)));
    assert_eq!((&policy["approval"], &policy["maxToolCalls"]), (&json!("never"), &json!(3)));
    assert_eq!(policy["secretScope"]["toolCredentials"][0]["tool"], "github");
}

#[both_engines]
async fn a_refused_run_leaves_nothing_behind(engine: Engine) {
    let server = TestServer::start(engine).await;
    refused(&server, SchemaInvalid, "first-command", |body| {
        body["command"] = json!({"type": "steer", "payload": {"text": "x"}});
    })
    .await;
    refused(&server, SchemaInvalid, "prompt-required", |body| {
        body["command"] = json!({"type": "turn", "payload": {"prompt": "  "}});
    })
    .await;
    refused(&server, SchemaInvalid, "name-shape", |body| body["sessionRef"] = json!({"sessionId": ""})).await;
    refused(&server, SchemaInvalid, "name-shape", |body| body["idempotencyKey"] = json!("")).await;
    assert_eq!(server.get("/api/v1/runs").await.ok()["runs"], json!([]));
}

#[both_engines]
async fn the_same_run_key_gives_the_same_run(engine: Engine) {
    let server = TestServer::start(engine).await;
    let mut body = run_body();
    body["command"] = json!({"type": "turn", "payload": {"prompt": "hello"}});
    body["idempotencyKey"] = "key-1".into();
    let first = server.post("/api/v1/runs", &body).await.with_status(201);
    let again = server.post("/api/v1/runs", &body).await.with_status(200);
    assert_eq!(again["runId"], first["runId"]);
    assert_eq!(again["command"]["commandId"], first["command"]["commandId"]);
    assert_eq!(again["runnerJob"]["runnerJobId"], first["runnerJob"]["runnerJobId"]);
    body.as_object_mut().unwrap().remove("idempotencyKey");
    let request = server.request("POST", "/api/v1/runs").header("idempotency-key", "key-1");
    let by_header = server.send(request.header("content-type", "application/json").body(body.to_string())).await;
    assert_eq!(by_header.with_status(200)["runId"], first["runId"]);
    // Another tenant's keys are its own.
    body["tenantId"] = "unidesk".into();
    body["idempotencyKey"] = "key-1".into();
    assert_ne!(server.post("/api/v1/runs", &body).await.with_status(201)["runId"], first["runId"]);
}

#[both_engines]
async fn a_run_key_with_another_body_is_a_conflict(engine: Engine) {
    let server = TestServer::start(engine).await;
    let mut body = run_body();
    body["idempotencyKey"] = "key-1".into();
    let first = server.post("/api/v1/runs", &body).await.with_status(201);
    body["providerId"] = "D601".into();
    let refused = server.post("/api/v1/runs", &body).await.refused_by(IdempotencyConflict, "payload-hash");
    assert_eq!(refused.details["runId"], first["runId"]);
    assert_eq!(server.get("/api/v1/runs").await.ok()["runs"].as_array().unwrap().len(), 1);
}

#[both_engines]
async fn business_intents_are_only_recorded(engine: Engine) {
    let server = TestServer::start(engine).await;
    let intents = json!([{"kind": "hwlab-live-device-mutation", "device": "d1"}]);
    let run_id = server.create_run_with(|body| body["businessIntents"] = intents.clone()).await;
    let audit = server.events_of(&run_id, "audit").await;
    assert_eq!(audit[0]["payload"]["action"], "run.create");
    assert_eq!(audit[0]["payload"]["by"], "operator");
    assert_eq!(audit[0]["payload"]["businessIntents"], intents);
    assert_eq!(audit[0]["payload"]["executionPolicy"]["sandbox"], "workspace-write");
}

#[both_engines]
async fn a_session_is_reused_by_its_name(engine: Engine) {
    let server = TestServer::start(engine).await;
    let named = |body: &mut Value| body["sessionRef"] = json!({"sessionId": "thread-7"});
    let first = server.create_run_with(named).await;
    let second = server.create_run_with(named).await;
    assert_eq!(server.run(&first).await["sessionId"], "thread-7");
    let (mine, theirs) = (server.events(&first).await, server.events(&second).await);
    assert_eq!((&mine[0]["sessionSeq"], &mine[0]["seq"]), (&json!(1), &json!(1)));
    assert_eq!((&theirs[0]["sessionSeq"], &theirs[0]["seq"]), (&json!(2), &json!(1)));
    // Without a name each run has a session of its own, which can be named afterwards.
    let alone = server.create_run().await;
    let session_id = id(&server.run(&alone).await, "sessionId");
    assert!(session_id.starts_with("ses_"));
    let beside = server.create_run_with(|body| body["sessionRef"] = json!({"sessionId": session_id})).await;
    assert_eq!(server.events(&beside).await[0]["sessionSeq"], 2);
    // The same name in another tenant is another session.
    let foreign = server
        .create_run_with(|body| {
            named(body);
            body["tenantId"] = "unidesk".into();
        })
        .await;
    assert_eq!(server.events(&foreign).await[0]["sessionSeq"], 1);
    let mut body = run_body();
    body["sessionRef"] = json!({"sessionId": format!("ses_{:032x}", 7)});
    server.post("/api/v1/runs", &body).await.refused(NotFound);
}

#[both_engines]
async fn a_busy_session_takes_no_second_run(engine: Engine) {
    let server = TestServer::start(engine).await;
    let mut body = run_body();
    body["sessionRef"] = json!({"sessionId": "thread-7"});
    let first = id(&server.post("/api/v1/runs", &body).await.with_status(201), "runId");
    let idle = id(&server.post("/api/v1/runs", &body).await.with_status(201), "runId");
    let command_id = server.turn(&first, "work").await;
    let refused = server.post("/api/v1/runs", &body).await.refused(SessionBusy);
    assert_eq!(refused.details["activeRunId"], first.as_str());
    let turn = json!({"type": "turn", "payload": {"prompt": "me too"}});
    server.submit(&idle, &turn).await.refused(SessionBusy);
    server.try_claim(&idle, "runner-b", 1_000).await.refused(SessionBusy);
    // A live lease keeps it busy as well; once both are gone, so is the refusal.
    let runner = server.claim(&first, "runner-a").await;
    runner.end(&command_id, "completed").await;
    server.post("/api/v1/runs", &body).await.refused(SessionBusy);
    runner.release().await;
    server.post("/api/v1/runs", &body).await.with_status(201);
    server.submit(&idle, &turn).await.with_status(201);
}

#[both_engines]
async fn a_password_that_is_a_word_of_the_protocol_breaks_no_run(engine: Engine) {
    let (server, app) = TestServer::with_app(engine, |_| {}).await;
    // As a password of the database is known, from the start.
    app.redactor.learn(["secret", "enabled", "prompt", "status"]);
    let run_id = id(&server.post("/api/v1/runs", &run_body()).await.with_status(201), "runId");
    let run = server.run(&run_id).await;
    assert!(run["executionPolicy"]["secretScope"].is_object(), "{run}");
    assert_eq!(run["executionPolicy"]["network"], "enabled");
    let command_id = server.turn(&run_id, "tell me a secret").await;
    assert_eq!(server.command(&run_id, &command_id).await["payload"]["prompt"], "tell me a [redacted]");
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&command_id).await;
    runner.end(&command_id, "completed").await;
    assert_eq!(server.command(&run_id, &command_id).await["state"], "completed");
    let audit = server.events_of(&run_id, "audit").await;
    assert!(audit[0]["payload"]["executionPolicy"]["secretScope"].is_object(), "{audit:?}");
}
