//! Votes on permission requests: whose answer counts, over every dialect that answers.

mod room;

use ostler_protocol::{FailureKind::*, kernel::permissions::PermissionStrategy, limits::PERMISSION_REFUSALS_MAX};
use ostler_server::{
    Config,
    config::{Environment, Overrides},
};
use serde_json::{Value, json};

use crate::{
    harness::{Answer, Caller, Engine, ManualRunner, Setup, TestServer, both_engines, dialects, id, run_body},
    run_input::runs::{
        ReceivedEvent, received,
        resuming::{resume, yes},
    },
};

const DIGEST: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const FIRST: &str = "prm_00000000000000000000000000000001";
const SECOND: &str = "prm_00000000000000000000000000000002";

async fn server(engine: Engine, strategy: PermissionStrategy) -> TestServer {
    server_with(engine, strategy, |_| ()).await
}

async fn server_with(engine: Engine, strategy: PermissionStrategy, choose: impl FnOnce(&mut Setup)) -> TestServer {
    TestServer::with(engine, |setup| {
        setup.dialects = dialects().with(room::dialect());
        setup.config.policy.permission_strategy = strategy;
        setup.token("other", "client", &["hwlab"]);
        choose(setup);
    })
    .await
}

impl Caller {
    async fn act(&self, run_id: &str, client: &str, action: &str) -> Value {
        let body = json!({"runId": run_id, "client": client, "action": action});
        self.post("/room", &body).await.with_status(200)
    }

    /// The vote of a client; without an option it cancels the request.
    async fn vote(&self, run_id: &str, client: &str, option: Option<&str>) -> Answer {
        let body = json!({"runId": run_id, "client": client, "action": "vote", "permissionId": FIRST,
            "optionId": option});
        self.post("/room", &body).await
    }

    /// An answer that a proxy in front of the server has forwarded for this address.
    async fn forwarded(&self, request: &Value, address: &str) -> Answer {
        let (run_id, permission_id) = (id(request, "runId"), id(request, "permissionId"));
        let path = format!("/api/v1/runs/{run_id}/permissions/{permission_id}/answer");
        let body = json!({"optionId": "yes", "digest": DIGEST}).to_string();
        let request = self.request("POST", &path).header("content-type", "application/json");
        self.send(request.header("x-forwarded-for", address).body(body)).await
    }

    async fn request_of(&self, run_id: &str, permission_id: &str) -> Value {
        let all = self.permissions(run_id).await;
        all.into_iter().find(|request| request["permissionId"] == permission_id).expect("the request is listed")
    }

    async fn audits(&self, run_id: &str, action: &str) -> Vec<Value> {
        let audits = self.events_of(run_id, "audit").await.into_iter().map(|event| event["payload"].clone());
        audits.filter(|fact| fact["action"] == action).collect()
    }
}

#[track_caller]
fn forbidden(answer: Answer, reason: &str) {
    let refused = answer.refused_by(Forbidden, "permission-forbidden");
    assert_eq!(refused.details["reason"], reason, "{}", refused.message);
}

/// A run whose agent has asked, after these clients have joined its session. Client `editor` has prompted.
async fn pending_request(server: &TestServer, clients: &[&str]) -> (ManualRunner, Value) {
    let run_id = server.create_run().await;
    for client in clients {
        server.act(&run_id, client, "join").await;
    }
    let command_id = id(&server.act(&run_id, "editor", "prompt").await, "commandId");
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&command_id).await;
    runner.ask(&command_id, FIRST, DIGEST).await;
    let request = server.request_of(&run_id, FIRST).await;
    (runner, request)
}

#[both_engines]
async fn the_caller_that_prompted_decides(engine: Engine) {
    let server = server(engine, PermissionStrategy::Designated).await;
    let capabilities = server.get("/capabilities").await.ok();
    assert_eq!(capabilities["policy"]["permission"], "designated");
    let (runner, request) = pending_request(&server, &["editor", "phone"]).await;
    assert_eq!(request["strategy"], "designated");
    forbidden(server.vote(&runner.run_id, "phone", Some("yes")).await, "designated_mismatch");
    forbidden(server.answer(&request, "yes", DIGEST).await, "designated_mismatch");
    forbidden(server.caller("other").vote(&runner.run_id, "editor", Some("yes")).await, "designated_mismatch");
    let recorded = server.audits(&runner.run_id, "permission.forbidden").await;
    assert_eq!(recorded.len(), 3);
    assert_eq!((&recorded[0]["voter"], &recorded[0]["reason"]), (&json!("phone"), &json!("designated_mismatch")));
    let decided = server.vote(&runner.run_id, "editor", Some("yes")).await.with_status(200);
    assert_eq!((&decided["status"], &decided["optionId"]), (&json!("allowed"), &json!("yes")));
    // A prompt without a client is of its principal, here of the operator.
    let command_id = server.turn(&runner.run_id, "again").await;
    runner.ask(&command_id, SECOND, DIGEST).await;
    let request = server.request_of(&runner.run_id, SECOND).await;
    forbidden(server.caller("other").answer(&request, "yes", DIGEST).await, "designated_mismatch");
    server.answer(&request, "no", DIGEST).await.with_status(200);
}

#[both_engines]
async fn as_many_equal_votes_as_the_quorum_decide(engine: Engine) {
    let server = server(engine, PermissionStrategy::Consensus).await;
    let (runner, request) = pending_request(&server, &["a", "b", "c", "a"]).await;
    let run_id = &runner.run_id;
    assert_eq!((&request["strategy"], request.get("votes")), (&json!("consensus"), None));
    forbidden(server.vote(run_id, "d", Some("yes")).await, "not_a_voter");
    let partial = server.vote(run_id, "a", Some("yes")).await.with_status(200);
    assert_eq!((&partial["status"], &partial["votes"][0]["voter"]), (&json!("pending"), &json!("a")));
    let voted = json!({"action": "permission.voted", "permissionId": FIRST, "optionId": "yes", "voter": "a",
        "votesReceived": 1, "votesNeeded": 2, "quorum": 2, "optionTallies": {"yes": 1}});
    assert_eq!(server.audits(run_id, "permission.voted").await, [voted]);
    assert_eq!(server.vote(run_id, "a", Some("yes")).await.with_status(200), partial, "each client votes once");
    server.vote(run_id, "a", Some("no")).await.refused_by(StateConflict, "permission-voted");
    server.act(run_id, "b", "leave").await;
    server.act(run_id, "d", "join").await;
    forbidden(server.vote(run_id, "d", Some("yes")).await, "not_a_voter");
    server.vote(run_id, "b", Some("perhaps")).await.refused_by(SchemaInvalid, "permission-option");
    assert_eq!(server.act(run_id, "d", "pending").await, json!([partial]));
    let decided = server.vote(run_id, "b", Some("yes")).await.with_status(200);
    assert_eq!((&decided["status"], decided["votes"].as_array().unwrap().len()), (&json!("allowed"), 2));
    assert_eq!(server.act(run_id, "d", "pending").await, json!([]));
    server.vote(run_id, "c", Some("no")).await.refused_by(StateConflict, "permission-resolved");
    assert_eq!(runner.poll("").await["resolvedPermissions"], json!([decided]));
}

#[both_engines]
async fn a_configured_quorum_replaces_the_majority(engine: Engine) {
    let configure = |setup: &mut Setup| setup.config.policy.consensus_quorum = Some(1);
    let server = server_with(engine, PermissionStrategy::Consensus, configure).await;
    let (runner, _) = pending_request(&server, &["a", "b", "c"]).await;
    assert_eq!(server.vote(&runner.run_id, "c", Some("no")).await.with_status(200)["status"], "denied");
}

#[both_engines]
async fn only_callers_of_the_servers_own_machine_decide(engine: Engine) {
    let server = server(engine, PermissionStrategy::LocalOnly).await;
    let (runner, request) = pending_request(&server, &[]).await;
    for _ in 0..PERMISSION_REFUSALS_MAX + 2 {
        forbidden(server.forwarded(&request, "203.0.113.7").await, "remote_not_allowed");
    }
    let recorded = server.audits(&runner.run_id, "permission.forbidden").await;
    assert_eq!(recorded.len() as i64, PERMISSION_REFUSALS_MAX, "rejected votes do not fill the log");
    assert_eq!(server.answer(&request, "yes", DIGEST).await.with_status(200)["status"], "allowed");
}

#[both_engines]
async fn a_forwarded_request_is_not_of_the_servers_own_machine(engine: Engine) {
    for proxies in [vec![], vec!["127.0.0.1".to_owned()]] {
        let is_behind_proxy = !proxies.is_empty();
        let configure = |setup: &mut Setup| setup.config.server.trusted_proxies = proxies;
        let server = server_with(engine, PermissionStrategy::LocalOnly, configure).await;
        let (_, request) = pending_request(&server, &[]).await;
        for address in ["127.0.0.1", "::1", "nonsense"] {
            forbidden(server.forwarded(&request, address).await, "remote_not_allowed");
        }
        // A proxy that names no client forwards all the same.
        if is_behind_proxy {
            forbidden(server.answer(&request, "yes", DIGEST).await, "remote_not_allowed");
        }
    }
}

#[both_engines]
async fn no_run_replaces_the_configured_strategy(engine: Engine) {
    let choose = |strategy: &'static str| {
        move |body: &mut Value| body["executionPolicy"]["permissionStrategy"] = json!(strategy)
    };
    let configured = server(engine, PermissionStrategy::Designated).await;
    for other in ["first-responder", "consensus", "local-only"] {
        let mut body = run_body();
        choose(other)(&mut body);
        let refused = configured.post("/api/v1/runs", &body).await;
        refused.refused_by(TenantPolicyDenied, "permission-strategy-widened");
    }
    configured.create_run_with(choose("designated")).await;
    // The widest strategy leaves the choice to runs.
    let open = server(engine, PermissionStrategy::FirstResponder).await;
    let run_id = open.create_run_with(choose("consensus")).await;
    open.act(&run_id, "a", "join").await;
    let command_id = open.turn(&run_id, "hi").await;
    let runner = open.claim(&run_id, "runner-a").await;
    runner.ask(&command_id, FIRST, DIGEST).await;
    let request = open.request_of(&run_id, FIRST).await;
    assert_eq!(request["strategy"], "consensus");
    forbidden(open.answer(&request, "yes", DIGEST).await, "not_a_voter");
}

#[both_engines]
async fn a_thread_votes_like_every_other_caller(engine: Engine) {
    let server = server(engine, PermissionStrategy::Consensus).await;
    server.say("run-1", "one").await.with_status(202);
    let run_id = server.run_of_thread().await;
    for client in ["operator", "phone"] {
        server.act(&run_id, client, "join").await;
    }
    let runner = server.claim(&run_id, "runner-a").await;
    let command_id = id(&runner.poll("").await["commands"][0], "commandId");
    runner.ask(&command_id, FIRST, DIGEST).await;
    let first = server.received("run-1").await;
    let outcome = |received: &[ReceivedEvent]| received.last().unwrap().event["outcome"].clone();
    assert_eq!(outcome(&first)["type"], "interrupt");
    // The vote of the thread's owner does not decide, so the run that brought it ends with the same interrupt.
    let second = received(&server.stream(&resume("run-2", &[(FIRST, yes())])).await.text);
    assert_eq!(outcome(&second), outcome(&first));
    assert_eq!(server.request_of(&run_id, FIRST).await["votes"][0]["voter"], "operator");
    server.say("run-3", "two").await.refused_as(RunInputInvalid, "AGENT_RUN_INPUT_INVALID");
    // A second vote of the same owner changes nothing.
    let again = received(&server.stream(&resume("run-4", &[(FIRST, json!({"approved": false}))])).await.text);
    assert_eq!(outcome(&again), outcome(&first));
    assert_eq!(server.vote(&run_id, "phone", Some("yes")).await.with_status(200)["status"], "allowed");
    assert_eq!(server.received("run-1").await, first, "events that were sent do not change");
    assert_eq!(server.received("run-2").await, second, "events that were sent do not change");
}

#[both_engines]
async fn a_thread_of_another_caller_does_not_decide(engine: Engine) {
    let server = server(engine, PermissionStrategy::Consensus).await;
    server.say("run-1", "one").await.with_status(202);
    let run_id = server.run_of_thread().await;
    server.act(&run_id, "phone", "join").await;
    let runner = server.claim(&run_id, "runner-a").await;
    let command_id = id(&runner.poll("").await["commands"][0], "commandId");
    runner.ask(&command_id, FIRST, DIGEST).await;
    let refused = server.resume("run-2", &[(FIRST, yes())]).await;
    assert_eq!((refused.status, &refused.body["details"]["reason"]), (403, &json!("not_a_voter")), "{}", refused.text);
    // Giving the question up is not a vote.
    server.resume("run-2", &[(FIRST, Value::Null)]).await.with_status(202);
    assert_eq!(server.request_of(&run_id, FIRST).await["status"], "cancelled");
}

#[both_engines]
async fn a_turn_can_be_cancelled_by_callers_that_may_not_decide(engine: Engine) {
    let server = server(engine, PermissionStrategy::Designated).await;
    let (runner, request) = pending_request(&server, &["editor"]).await;
    let other = server.caller("other");
    forbidden(other.answer(&request, "no", DIGEST).await, "designated_mismatch");
    other.cancel_command(request["commandId"].as_str().unwrap()).await;
    let cancelled = server.request_of(&runner.run_id, FIRST).await;
    assert_eq!((&cancelled["status"], &cancelled["resolvedBy"]), (&json!("cancelled"), &json!("cancelled on request")));
    // So can the request alone.
    let (runner, _) = pending_request(&server, &["editor"]).await;
    let cancelled = other.vote(&runner.run_id, "phone", None).await.with_status(200);
    assert_eq!((&cancelled["status"], &cancelled["optionId"]), (&json!("cancelled"), &Value::Null));
}

#[both_engines]
async fn a_strategy_is_captured_when_the_request_is_made(engine: Engine) {
    let mut server = server(engine, PermissionStrategy::Designated).await;
    let (runner, _) = pending_request(&server, &["editor"]).await;
    server.config.policy.permission_strategy = PermissionStrategy::FirstResponder;
    server.restart().await;
    let request = server.request_of(&runner.run_id, FIRST).await;
    assert_eq!(request["strategy"], "designated");
    forbidden(server.answer(&request, "yes", DIGEST).await, "designated_mismatch");
    assert_eq!(server.vote(&runner.run_id, "editor", Some("yes")).await.with_status(200)["status"], "allowed");
    // Later requests of the same run follow the new configuration.
    let runner = server.claim(&runner.run_id, "runner-a").await;
    runner.ask(request["commandId"].as_str().unwrap(), SECOND, DIGEST).await;
    let second = server.request_of(&runner.run_id, SECOND).await;
    assert_eq!(second.get("strategy"), None);
    assert_eq!(server.answer(&second, "yes", DIGEST).await.with_status(200)["status"], "allowed");
}

#[test]
fn a_quorum_or_strategy_that_makes_no_sense_stops_the_start() {
    let load = |name: &str, value: &str| {
        let environment = Environment::with_taken([(name.into(), value.into())]);
        Config::load(None, &environment, Overrides::default(), &dialects().sections())
    };
    let config = load("OSTLER_POLICY__PERMISSION_STRATEGY", "local-only").unwrap();
    assert_eq!(config.policy.permission_strategy, PermissionStrategy::LocalOnly);
    assert_eq!(load("OSTLER_POLICY__CONSENSUS_QUORUM", "2").unwrap().policy.consensus_quorum, Some(2));
    for (name, value) in [("CONSENSUS_QUORUM", "0"), ("CONSENSUS_QUORUM", "-1"), ("PERMISSION_STRATEGY", "everyone")] {
        let refused = load(&format!("OSTLER_POLICY__{name}"), value).expect_err(value);
        assert!(refused.message.to_uppercase().contains(name), "{}", refused.message);
    }
}
