//! A tag is there exactly while its behaviour is: every row of the registry is proved against a running server, with each
//! toggle on and off.

mod daemon;
mod daemon_files;
mod dialects;
mod envelope;
mod gate;
mod toggles;
mod tools;

use std::collections::BTreeSet;

use ostler_daemon::toggles::AGENT;
use ostler_protocol::{
    FailureKind::*,
    json::hex,
    kernel::chain::{self, Link},
};
use serde_json::{Value, json, value::RawValue};

use self::toggles::{switch_off_defaults, switch_on, with_implied};
use crate::{
    daemon::shell_agent,
    harness::{self, Engine, Follow, Identity, TestServer, both_engines, eventually, id, run_body},
    mcp_server,
    operations::DIGEST,
    trust::agents::sample_manifest,
};

#[both_engines]
async fn every_tag_is_advertised_exactly_while_its_behaviour_is_there(engine: Engine) {
    let rows: Vec<_> = harness::dialects().capabilities().collect();
    let all = toggles::all();
    let each = all.iter().map(|toggle| vec![*toggle]);
    for (round, on) in [vec![], all.clone()].into_iter().chain(each).enumerate() {
        let server = TestServer::with(engine, |setup| {
            switch_off_defaults(setup);
            on.iter().for_each(|toggle| switch_on(setup, *toggle));
        })
        .await;
        if on.contains(&AGENT) {
            shell_agent::install(&server).await;
        }
        let (chosen, on) = (on.clone(), with_implied(&on));
        let envelope = server.get("/capabilities").await.with_status(200);
        let advertised: BTreeSet<_> =
            envelope["features"].as_array().unwrap().iter().map(|tag| tag.as_str().unwrap()).collect();
        for row in &rows {
            let expected = row.when.iter().all(|toggle| on.contains(toggle));
            assert_eq!(advertised.contains(row.tag), expected, "{} with {on:?}", row.tag);
            // Everything is proved with all toggles off, and with all of them on; with one of them, what it changes.
            if round < 2 || row.when.iter().any(|toggle| chosen.contains(toggle)) {
                assert_eq!(is_there(&server, row.tag).await, expected, "the behaviour of {} with {on:?}", row.tag);
            }
        }
        assert!(advertised.iter().all(|tag| rows.iter().any(|row| row.tag == *tag)), "{advertised:?}");
    }
}

/// Whether the behaviour behind a tag is there. What is always there, or broken, asserts by itself.
async fn is_there(server: &TestServer, tag: &str) -> bool {
    match tag {
        "require_auth" => return gate::requires_tokens_everywhere(server).await,
        "rate_limit" => return gate::limits_rates(server).await,
        "allow_origin" => return gate::shares_responses_with_pages(server).await,
        "health" => {
            assert_eq!(server.get("/health").await.with_status(200)["status"], "ok");
            let deep = server.get("/health?deep=1").await.with_status(200);
            assert!(deep["sessions"].is_u64() && deep["pendingPermissions"].is_u64(), "{deep}");
        }
        "capabilities" => assert_eq!(server.get("/capabilities").await.with_status(200)["v"], 1),
        "ostler_metrics" => {
            let page = server.send(server.request("GET", "/metrics")).await.text;
            assert!(page.contains("\nostler_http_requests_total{"), "{page}");
        }
        "ostler_backends" => {
            let list = server.get("/api/v1/backends").await.with_status(200);
            assert!(list["backends"].as_array().unwrap().iter().any(|backend| backend["profile"] == "scripted"));
        }
        "ostler_agents" => dialects::agents(server).await,
        "ostler_agent_tokens" => dialects::agent_tokens(server).await,
        "ostler_runs" => runs(server).await,
        "ostler_run_states" => run_states(server).await,
        "ostler_commands" => commands(server).await,
        "ostler_idempotency_keys" => idempotency_keys(server).await,
        "ostler_run_events" => run_events(server).await,
        "ostler_results" => results(server).await,
        "ostler_conversation" => conversation(server).await,
        "ostler_whole_payloads" => whole_payloads(server).await,
        "ostler_diffs" => diffs(server).await,
        "ostler_permissions" => permissions(server).await,
        "ostler_tools" => tools::listed(server).await,
        "ostler_run_tools" => tools::of_run(server).await,
        "ostler_runner_jobs" => runner_jobs(server).await,
        "ostler_external_runners" => external_runners(server).await,
        "ostler_runners" => runners(server).await,
        "ostler_sessions" => sessions(server).await,
        "ostler_labels" => labels(server).await,
        "ostler_usage" => usage(server).await,
        "ostler_session_changes" => session_changes(server).await,
        "ostler_session_storage" => session_storage(server).await,
        "ostler_session_events" => session_events(server).await,
        "ostler_caller" => {
            let caller = server.get("/api/v1/caller").await.with_status(200);
            assert_eq!((&caller["kind"], &caller["tenants"]), (&json!("operator"), &Value::Null));
        }
        "ostler_caller_actions" => gate::caller_actions(server).await,
        "ostler_service_tokens" => service_tokens(server).await,
        "ostler_retention" => retention(server).await,
        "ostler_users" => users(server).await,
        "ostler_user_changes" => user_changes(server).await,
        "ostler_consent" => dialects::consent(server).await,
        "ostler_provider_profiles" => provider_profiles(server).await,
        "ostler_agent_runs" => dialects::run_input(server).await,
        "ostler_agent_transcribe" => dialects::transcription(server).await,
        "ostler_agent_attachments" => dialects::attachments(server).await,
        "ostler_agent_history" | "ostler_agent_erase" => dialects::history(server).await,
        "ostler_automations" => dialects::automations(server).await,
        "ostler_calendar" => dialects::calendar(server).await,
        "ostler_webhooks" => dialects::webhooks(server).await,
        "ostler_identities" => dialects::identities(server).await,
        "ostler_mesh_gateway" => {
            let found = server.get("/.well-known/aun-gateway").await.with_status(200);
            assert!(id(&found["gateways"][0], "url").ends_with("/aun"));
        }
        "ostler_mesh_pki" => {
            let chain = server.send(server.request("GET", "/pki/chain")).await.text;
            assert_eq!(chain.matches("BEGIN CERTIFICATE").count(), 3);
            assert!(server.get("/pki/trust-roots.json").await.with_status(200)["authority_signature"].is_string());
        }
        "ostler_agent_md" => {
            server.get("/agent.md").await.refused(NotFound);
        }
        "ostler_hash_chain" => hash_chain(server).await,
        "ostler_mcp_server" => mcp_server::proves(server).await,
        other => return daemon::is_there(server, other).await,
    }
    true
}

async fn run_states(server: &TestServer) {
    let first = server.create_run().await;
    let second = server.create_run_with(|body| body["retryOf"] = json!(first)).await;
    let run = server.run(&second).await;
    assert_eq!((&run["state"], &run["retryOf"]), (&json!("waiting"), &json!(first)));
    let page = server.get("/api/v1/runs?state=waiting").await.with_status(200);
    assert!(page["runs"].as_array().unwrap().iter().any(|run| run["runId"] == second.as_str()));
    let page = server.get("/api/v1/runs?state=failed").await.with_status(200);
    assert!(page["runs"].as_array().unwrap().iter().all(|run| run["runId"] != second.as_str()));
}

async fn session_storage(server: &TestServer) {
    let stored = json!({"tenantId": "hwlab", "backendProfile": "scripted", "storageKind": "local",
        "expiresAt": "2000-01-01T00:00:00Z"});
    let session_id = id(&server.post("/api/v1/sessions", &stored).await.with_status(201), "sessionId");
    let run_id = server.create_run_with(|body| body["sessionRef"] = json!({"sessionId": session_id})).await;
    let storage = format!("/api/v1/sessions/{session_id}/storage");
    let found = json!({"runId": run_id, "sizeBytes": 7, "filesCount": 1, "sha256": DIGEST});
    server.post(&format!("{storage}/refresh"), &found).await.with_status(200);
    assert_eq!(server.get(&storage).await.with_status(200)["storageSizeBytes"], 7);
    server.post("/api/v1/sessions/storage/gc", &json!({})).await.with_status(200);
    let evicted = server.send(server.request("DELETE", &storage)).await.with_status(200);
    assert_eq!(evicted["storageKind"], "evicted");
}

async fn diffs(server: &TestServer) {
    let run_id = server.create_run().await;
    let turn = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&turn).await;
    let told = json!({"phase": "workspace-changed", "filesChanged": 1, "bytesAdded": 3, "bytesRemoved": 0,
        "files": [{"path": "a", "change": "added", "bytesAdded": 3}], "diff": "+hi\n"});
    runner.tell(&turn, "backend_status", told).await;
    let diff = server.get(&format!("/api/v1/runs/{run_id}/commands/{turn}/diff")).await.with_status(200);
    assert_eq!((&diff["filesChanged"], &diff["diff"]), (&json!(1), &json!("+hi\n")));
    assert_eq!(server.result(&run_id, &turn).await["artifactSummary"]["bytesAdded"], 3);
}

/// Whether the first page has it.
async fn lists(server: &TestServer, path: &str, items: &str, field: &str, wanted: &str) -> bool {
    let page = server.get(path).await.with_status(200);
    page[items].as_array().unwrap().iter().any(|item| item[field] == wanted)
}

async fn runs(server: &TestServer) {
    let run_id = server.create_run().await;
    assert!(lists(server, "/api/v1/runs", "runs", "runId", &run_id).await);
    assert_eq!(server.cancel_run(&run_id).await["status"], "cancelled");
    assert_eq!(server.run(&run_id).await["status"], "cancelled");
}

async fn commands(server: &TestServer) {
    let run_id = server.create_run().await;
    let turn = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&turn).await;
    assert_eq!(server.steer(&run_id, "left").await["targetCommandId"], turn.as_str());
    server.submit(&run_id, &json!({"type": "interrupt", "payload": {}})).await.with_status(201);
    assert!(server.cancel_command(&turn).await["cancelRequestedAt"].is_string());
    assert_eq!(server.command(&run_id, &turn).await["state"], "acked");
}

async fn idempotency_keys(server: &TestServer) {
    let run_id = server.create_run().await;
    let turn = json!({"type": "turn", "payload": {"prompt": "x"}});
    let job = json!({"commandId": server.turn(&run_id, "y").await});
    let session = json!({"tenantId": "hwlab", "backendProfile": "scripted"});
    for (path, body, field, other) in [
        ("/api/v1/runs".to_owned(), run_body(), "runId", json!({"projectId": "other/one"})),
        (format!("/api/v1/runs/{run_id}/commands"), turn, "commandId", json!({"payload": {"prompt": "other"}})),
        (format!("/api/v1/runs/{run_id}/runner-jobs"), job, "runnerJobId", json!({"standing": true})),
        ("/api/v1/sessions".to_owned(), session, "sessionId", json!({"title": "other"})),
    ] {
        let mut keyed = body.clone();
        keyed["idempotencyKey"] = json!("proof");
        let first = id(&server.post(&path, &keyed).await.with_status(201), field);
        // The body's field and the header are one key.
        let request = server.request("POST", &path).header("idempotency-key", "proof");
        let again = server.send(request.header("content-type", "application/json").body(body.to_string())).await;
        assert_eq!(id(&again.with_status(200), field), first, "{path}");
        keyed.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
        server.post(&path, &keyed).await.refused(IdempotencyConflict);
        server.post(&path, &body).await.with_status(201);
    }
}

async fn run_events(server: &TestServer) {
    let run_id = server.create_run().await;
    let turn = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    let page = server.events(&run_id).await;
    let last = page.last().unwrap()["seq"].as_i64().unwrap();
    assert_eq!(last as usize, page.len());
    let mut stream = server.follow(&run_id, 0).await;
    let path = format!("/api/v1/runs/{run_id}/events?afterSeq={last}&waitMs=30000");
    let (waited, _) = tokio::join!(server.get(&path), runner.say(&turn, "there"));
    let waited = waited.with_status(200)["events"].as_array().unwrap().clone();
    assert_eq!(waited.len(), 1, "{waited:?}");
    assert_eq!(stream.take(page.len() + 1).await, [page, waited].concat());
}

async fn results(server: &TestServer) {
    let run_id = server.create_run().await;
    let turn = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&turn).await;
    runner.say(&turn, "done").await;
    assert_eq!(server.result(&run_id, &turn).await["terminalStatus"], Value::Null);
    runner.end(&turn, "completed").await;
    let result = server.result(&run_id, &turn).await;
    assert_eq!((&result["terminalStatus"], &result["finalResponse"]["text"]), (&json!("completed"), &json!("done")));
    let whole = server.get(&format!("/api/v1/runs/{run_id}/result")).await.with_status(200);
    assert_eq!(whole["finalResponse"]["text"], "done");
}

/// The short forms are made by the daemon dialect; its tests show what is left out of them.
async fn whole_payloads(server: &TestServer) {
    let run_id = server.create_run().await;
    let turn = server.turn(&run_id, "hi").await;
    let path = format!("/api/v1/runs/{run_id}/commands/{turn}/payload");
    assert_eq!(server.get(&path).await.ok()["payload"], json!({"prompt": "hi"}));
}

async fn conversation(server: &TestServer) {
    let run_id = server.create_run().await;
    let turn = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&turn).await;
    runner.say(&turn, "hello").await;
    runner.end(&turn, "completed").await;
    let next = server.turn(&run_id, "again").await;
    let path = format!("/api/v1/runs/{run_id}/commands/{next}/conversation");
    let said = json!([{"role": "user", "text": "hi"}, {"role": "assistant", "text": "hello"}]);
    assert_eq!(server.get(&path).await.ok(), json!({"messages": said, "truncated": false}));
}

async fn permissions(server: &TestServer) {
    let run_id = server.create_run().await;
    let turn = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    let permission_id = format!("prm_{}", &hex(&chain::payload_digest(&run_id))[..32]);
    runner.ask(&turn, &permission_id, DIGEST).await;
    let asked = server.permissions(&run_id).await.remove(0);
    assert_eq!((&asked["permissionId"], &asked["digest"]), (&json!(permission_id), &json!(DIGEST)));
    server.answer(&asked, "yes", &DIGEST.replace('0', "1")).await.refused(StateConflict);
    assert_eq!(server.answer(&asked, "yes", DIGEST).await.with_status(200)["status"], "allowed");
    server.answer(&asked, "no", DIGEST).await.refused(StateConflict);
}

async fn runner_jobs(server: &TestServer) {
    let run_id = server.create_run().await;
    let turn = server.turn(&run_id, "hi").await;
    let job = id(&server.create_job(&run_id, &json!({"commandId": turn})).await.with_status(201), "runnerJobId");
    let path = format!("/api/v1/runs/{run_id}/runner-jobs");
    assert_eq!(server.get(&path).await.with_status(200)["runnerJobs"][0]["runnerJobId"], job.as_str());
    assert_eq!(server.get(&format!("{path}/{job}")).await.with_status(200)["commandId"], turn.as_str());
}

async fn external_runners(server: &TestServer) {
    let run_id = server.create_run_with(|run| run["backendProfile"] = json!(harness::EXTERNAL)).await;
    let turn = server.turn(&run_id, "hi").await;
    server.create_job(&run_id, &json!({"commandId": turn})).await.with_status(201);
    let claim = |runner: &str| json!({"runnerId": runner, "profiles": [harness::EXTERNAL]});
    let claimed = server.post("/api/v1/runner-jobs/claim", &claim("runner-a")).await.with_status(200);
    assert_eq!((&claimed["run"]["runId"], &claimed["runnerJob"]["launcher"]), (&json!(run_id), &json!("external")));
    server.post("/api/v1/runner-jobs/claim", &claim("runner-b")).await.with_status(204);
}

async fn runners(server: &TestServer) {
    let run_id = server.create_run().await;
    let turn = server.turn(&run_id, "hi").await;
    let register = json!({"runnerId": "runner-a", "runId": run_id, "backendProfile": "scripted"});
    server.post("/api/v1/runners/register", &register).await.with_status(200);
    let before = server.claim(&run_id, "runner-a").await;
    server.try_claim(&run_id, "runner-b", 1_000).await.refused(RunnerLeaseConflict);
    let runner = server.claim(&run_id, "runner-a").await;
    before.try_ack(&turn).await.refused(RunnerLeaseConflict);
    assert_eq!(runner.poll("").await["commands"][0]["commandId"], turn.as_str());
    runner.ack(&turn).await;
    runner.heartbeat().await;
    runner.end(&turn, "completed").await;
    assert_eq!(runner.try_end_run("completed").await.with_status(200)["status"], "completed");
}

async fn sessions(server: &TestServer) {
    let name = format!("mine-{}", server.create_run().await);
    let body = json!({"tenantId": "hwlab", "backendProfile": "scripted", "sessionId": name});
    server.post("/api/v1/sessions", &body).await.with_status(201);
    server.post("/api/v1/sessions", &body).await.with_status(200);
    let run_id = server.create_run_with(|run| run["sessionRef"] = json!({"sessionId": name})).await;
    let path = format!("/api/v1/sessions/{name}");
    let turn = server.turn(&run_id, "hi").await;
    assert_eq!(server.get(&path).await.with_status(200)["activeCommandId"], turn.as_str());
    server.post(&format!("{path}/control"), &json!({"action": "cancel"})).await.with_status(200);
    let unread = "/api/v1/sessions?readerId=proof";
    assert!(lists(server, unread, "sessions", "sessionId", &name).await);
    server.post(&format!("{path}/read"), &json!({"readerId": "proof"})).await.with_status(200);
    assert!(!lists(server, unread, "sessions", "sessionId", &name).await);
    server.get(&format!("{path}/output")).await.with_status(200);
}

async fn session_changes(server: &TestServer) {
    let body = json!({"tenantId": "hwlab", "backendProfile": "scripted"});
    let path =
        format!("/api/v1/sessions/{}", id(&server.post("/api/v1/sessions", &body).await.with_status(201), "sessionId"));
    assert_eq!(server.patch(&path, &json!({"title": "proof"})).await.with_status(200)["title"], "proof");
    let closed = server.post(&format!("{path}/control"), &json!({"action": "close"})).await.with_status(200);
    assert!(closed["closedAt"].is_string());
    let page = server.get(&format!("{path}/trace")).await.with_status(200);
    let facts: Vec<_> =
        page["events"].as_array().unwrap().iter().map(|event| event["payload"]["change"].clone()).collect();
    assert_eq!(facts, ["created", "renamed", "closed"]);
}

async fn labels(server: &TestServer) {
    let run_id = server.create_run_with(|run| run["labels"] = json!({"proof": "first"})).await;
    let path = format!("/api/v1/runs/{run_id}");
    let labelled = server.patch(&path, &json!({"labels": {"proof": "second"}})).await.with_status(200);
    assert_eq!(labelled["labels"], json!({"proof": "second"}));
    let found = server.get("/api/v1/runs?label=proof=second").await.with_status(200);
    assert_eq!(found["runs"][0]["runId"], run_id.as_str());
    let session = format!("/api/v1/sessions/{}", id(&labelled, "sessionId"));
    server.patch(&session, &json!({"labels": {"proof": "third"}})).await.with_status(200);
    let found = server.get("/api/v1/sessions?state=all&label=proof=third").await.with_status(200);
    assert_eq!(found["sessions"].as_array().unwrap().len(), 1);
}

async fn usage(server: &TestServer) {
    server.create_run().await;
    for by in ["profile", "tenant", "user", "agent", "day"] {
        let report = server.get(&format!("/api/v1/usage?by={by}")).await.with_status(200);
        assert!(report["total"]["runs"].as_i64().unwrap() > 0, "{report}");
    }
    let runs = server.get("/api/v1/runs?sort=cost").await.with_status(200);
    assert_eq!(runs["runs"][0]["usage"]["costUsd"], 0.0);
}

async fn session_events(server: &TestServer) {
    let run_id = server.create_run().await;
    server.turn(&run_id, "hi").await;
    let path = format!("/api/v1/sessions/{}/trace", id(&server.run(&run_id).await, "sessionId"));
    let page = server.get(&path).await.with_status(200)["events"].as_array().unwrap().clone();
    let request = server.request("GET", &path).header("accept", "text/event-stream").header("last-event-id", "1");
    let mut stream = Follow::new(request.send().await.unwrap());
    // The session has one run, so its numbers are the run's too.
    assert_eq!(stream.take(page.len() - 1).await, page[1..]);
}

async fn service_tokens(server: &TestServer) {
    for role in ["client", "runner"] {
        let body = json!({"name": "proof", "role": role, "tenants": ["hwlab"]});
        let made = server.post("/api/v1/tokens", &body).await.with_status(201);
        let (token_id, bearer) = (id(&made, "tokenId"), server.with_token(made["token"].as_str()));
        let may_submit = bearer.post("/api/v1/runs", &run_body()).await.status == 201;
        assert_eq!(may_submit, role == "client");
        assert!(lists(server, "/api/v1/tokens", "tokens", "tokenId", &token_id).await);
        server.send(server.request("DELETE", &format!("/api/v1/tokens/{token_id}"))).await.with_status(200);
        bearer.get("/api/v1/runs").await.refused(Unauthenticated);
    }
}

async fn retention(server: &TestServer) {
    let body = json!({"identity": "wren.localhost.test", "reason": "proof"});
    let hold_id = id(&server.post("/api/v1/retention/holds", &body).await.with_status(201), "holdId");
    assert!(lists(server, "/api/v1/retention/holds", "holds", "holdId", &hold_id).await);
    let release = server.request("DELETE", &format!("/api/v1/retention/holds/{hold_id}"));
    assert!(server.send(release).await.with_status(200)["releasedAt"].is_string());
    let swept = server.post("/api/v1/retention/sweeps", &json!({})).await.with_status(200);
    assert_eq!(swept["counts"], server.get("/api/v1/retention").await.with_status(200)["counts"]);
}

async fn users(server: &TestServer) {
    let body = json!({"name": "proof", "timezone": "UTC", "tenants": ["hwlab"]});
    server.post("/api/v1/users", &body).await.with_status(201);
    assert!(lists(server, "/api/v1/users", "users", "name", "proof").await);
    let made = server.post("/api/v1/users/proof/token", &json!({})).await.with_status(201);
    let user = server.with_token(made["token"].as_str());
    user.post("/api/v1/runs", &run_body()).await.with_status(201);
    assert!(!server.get("/.well-known/jwks.json").await.with_status(200)["keys"].as_array().unwrap().is_empty());
    server.send(server.request("DELETE", "/api/v1/users/proof")).await.with_status(200);
    user.get("/api/v1/runs").await.refused(Forbidden);
}

async fn user_changes(server: &TestServer) {
    server.post("/api/v1/users", &json!({"name": "mover", "timezone": "UTC"})).await.with_status(201);
    let moved = server.call("PATCH", "/api/v1/users/mover", &json!({"timezone": "Asia/Tokyo"})).await.with_status(200);
    assert_eq!(moved["timezone"], "Asia/Tokyo");
    assert!(lists(server, "/api/v1/users", "users", "timezone", "Asia/Tokyo").await);
}

/// An event as any client reads it, its payload as it was sent.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Read<'a> {
    session_seq: i64,
    seq: Option<i64>,
    run_id: Option<String>,
    command_id: Option<String>,
    #[serde(rename = "type")]
    event_type: String,
    created_at: String,
    #[serde(borrow)]
    payload: &'a RawValue,
}

#[derive(serde::Deserialize)]
struct ReadPage<'a> {
    #[serde(borrow)]
    events: Vec<Read<'a>>,
}

async fn provider_profiles(server: &TestServer) {
    let path = "/api/v1/provider-profiles/proved";
    let auth = r#"{"OPENAI_API_KEY":"pl4nted-0123456789"}"#;
    for (agent, config) in [
        ("codex", "model = \"m\""),
        ("acp", "[ostler]\nagent = \"acp\"\ncommand = [\"agent\"]"),
        ("model", "[ostler]\nagent = \"model\"\nbase_url = \"http://127.0.0.1:1\"\nmodel = \"m\""),
    ] {
        let files = json!({"files": {"auth.json": auth, "config.toml": config}});
        let set = server.call("PUT", &format!("{path}/credential"), &files).await.with_status(200);
        assert_eq!((&set["agent"], &set["configured"]), (&json!(agent), &json!(true)));
    }
    let config = json!({"config": "model = \"another\""});
    let changed = server.call("PUT", &format!("{path}/config"), &config).await.with_status(200);
    assert_eq!(changed["credentialDropped"], true, "it was given for another destination");
    server.call("PUT", &format!("{path}/credential"), &json!({"files": {"auth.json": auth}})).await.with_status(200);
    assert!(lists(server, "/api/v1/provider-profile-changes", "changes", "profile", "proved").await);
    assert_eq!(server.get(&format!("{path}/config")).await.with_status(200)["config"], config["config"]);
    assert!(lists(server, "/api/v1/provider-profiles", "providerProfiles", "profile", "proved").await);
    assert!(!server.get(path).await.text.contains("pl4nted"));
    let trial = server.post(&format!("{path}/validate"), &json!({})).await.with_status(202);
    assert_eq!(server.get(&id(&trial, "poll")).await.with_status(200)["status"], "running");
    server.cancel_run(&id(&trial, "runId")).await;
    assert_eq!(server.get(&id(&trial, "poll")).await.with_status(200)["status"], "failed");
    server.send(server.request("DELETE", path)).await.with_status(200);
    server.get(path).await.refused(NotFound);
}

async fn hash_chain(server: &TestServer) {
    let run_id = server.create_run().await;
    server.turn(&run_id, "hi").await;
    let path = format!("/api/v1/sessions/{}", id(&server.run(&run_id).await, "sessionId"));
    let trace = server.get(&format!("{path}/trace")).await;
    let page: ReadPage<'_> = serde_json::from_str(&trace.text).unwrap();
    let head = page.events.iter().fold(chain::GENESIS, |head, event| {
        let link = Link {
            session_seq: event.session_seq,
            run: event.run_id.as_ref().map(|run_id| (run_id.parse().unwrap(), event.seq.unwrap())),
            command_id: event.command_id.as_ref().map(|command_id| command_id.parse().unwrap()),
            event_type: ostler_protocol::kernel::events::EventType::parse(&event.event_type).unwrap(),
            created_at: event.created_at.parse().unwrap(),
            payload_digest: &chain::payload_digest(event.payload.get()),
        };
        chain::next(&head, &link)
    });
    let session = server.get(&path).await.with_status(200);
    assert_eq!(session["chainHead"], json!({"sessionSeq": page.events.len(), "hash": hex(&head)}));
}
