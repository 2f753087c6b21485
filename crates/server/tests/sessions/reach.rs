//! Which session an id means, and for whom.

use ostler_protocol::FailureKind::*;
use serde_json::{Value, json};

use super::{at, body, cancel, ids, join, list, make, play, read, show};
use crate::harness::{Answer, Caller, Engine, Setup, TestServer, both_engines, id};

pub(crate) fn tokens(setup: &mut Setup) {
    setup.token("hwlab", "client", &["hwlab"]);
    setup.token("unidesk", "client", &["unidesk"]);
    setup.token("both", "client", &["unidesk", "hwlab"]);
    setup.token("runner", "runner", &["hwlab"]);
}

type Call = (&'static str, &'static str, Value);

/// Every operation on one session.
fn calls() -> [Call; 5] {
    [
        ("GET", "", Value::Null),
        ("GET", "/trace", Value::Null),
        ("GET", "/output", Value::Null),
        ("POST", "/read", json!({})),
        ("POST", "/control", json!({"action": "cancel"})),
    ]
}

async fn call(caller: &Caller, session_id: &str, (method, rest, body): &Call, tenant: Option<&str>) -> Answer {
    let path = at(session_id, rest);
    match (body, tenant) {
        (Value::Null, None) => caller.send(caller.request(method, &path)).await,
        (Value::Null, Some(tenant)) => caller.send(caller.request(method, &format!("{path}?tenantId={tenant}"))).await,
        (body, tenant) => {
            let mut body = body.clone();
            body["tenantId"] = json!(tenant);
            caller.call(method, &path, &body).await
        }
    }
}

#[both_engines]
async fn ids_of_any_letters_find_their_session(engine: Engine) {
    let server = TestServer::start(engine).await;
    let odd =
        ["a/b c", "ünï/💥 ok", "a?b#c&d=e", "100%", "%2F", "a/../b", "\"quoted'; --", "a+b", "RUN_1", "run_1", "日本"];
    for name in odd {
        assert_eq!(make(&server, name).await["sessionId"], name);
        let (run_id, _) = play(&server, name).await;
        assert_eq!(server.run(&run_id).await["sessionId"], name);
        for wanted in calls() {
            call(&server, name, &wanted, None).await.with_status(200);
        }
        assert_eq!(show(&server, name).await["lastRunId"], run_id.as_str(), "{name}");
        assert_eq!(cancel(&server, name).await["unread"], false);
    }
    assert_eq!(list(&server, "state=all").await.len(), odd.len());
    assert_eq!(list(&server, "").await, Vec::<String>::new());
    // Case counts, and nothing is a pattern.
    for other in ["A/B C", "a/b", "a/b%", "%", "_", "日"] {
        server.get(&at(other, "")).await.refused(NotFound);
    }
}

#[both_engines]
async fn the_same_id_in_two_tenants_asks_for_the_tenant(engine: Engine) {
    let server = TestServer::with(engine, tokens).await;
    let (ours, theirs) = (server.caller("hwlab"), server.caller("unidesk"));
    make(ours, "mine").await;
    let mut foreign = body("mine");
    foreign["tenantId"] = "unidesk".into();
    assert_eq!(theirs.post("/api/v1/sessions", &foreign).await.with_status(201)["tenantId"], "unidesk");
    play(&server, "mine").await;
    assert_eq!(show(ours, "mine").await["version"], 2);
    assert_eq!(show(theirs, "mine").await["version"], 0);
    for wanted in calls() {
        for caller in [&*server, server.caller("both")] {
            call(caller, "mine", &wanted, None).await.refused_by(StateConflict, "tenant-ambiguous");
            assert!([403, 404].contains(&call(caller, "mine", &wanted, Some("local")).await.status));
            for tenant in ["hwlab", "unidesk"] {
                let answer = call(caller, "mine", &wanted, Some(tenant)).await.with_status(200);
                assert!(answer["tenantId"].is_null() || answer["tenantId"] == tenant, "{wanted:?}: {answer}");
            }
        }
        for caller in [ours, theirs] {
            call(caller, "mine", &wanted, None).await.with_status(200);
        }
    }
    let stream = async |tenant: &str| {
        let request = server.request("GET", &at("mine", tenant)).header("accept", "text/event-stream");
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!([stream("/trace").await, stream("/trace?tenantId=hwlab").await], [409, 200]);
    // Each tenant's marks are its own, and lists show both.
    assert_eq!(list(&server, "state=all").await, ["mine", "mine"]);
    assert_eq!(list(&server, "").await, Vec::<String>::new());
    assert_eq!(ids(&ours.get("/api/v1/sessions?state=all").await.ok()), ["mine"]);
}

#[both_engines]
async fn a_foreign_tenants_token_finds_no_session(engine: Engine) {
    let server = TestServer::with(engine, tokens).await;
    make(&server, "mine").await;
    let run_id = join(&server, "mine").await;
    let command_id = server.turn(&run_id, "hi").await;
    let own = server.create_run().await;
    let ours = id(&server.run(&own).await, "sessionId");
    let foreign = server.caller("unidesk");
    for wanted in calls() {
        for name in ["mine", &ours] {
            call(foreign, name, &wanted, None).await.refused(NotFound);
            call(foreign, name, &wanted, Some("hwlab")).await.refused_by(Forbidden, "tenant");
            call(foreign, name, &wanted, Some("unidesk")).await.refused(NotFound);
        }
    }
    let request = foreign.request("GET", &at("mine", "/trace")).header("accept", "text/event-stream");
    foreign.send(request).await.refused(NotFound);
    foreign.post("/api/v1/sessions", &body("new")).await.refused_by(Forbidden, "tenant");
    foreign.get("/api/v1/sessions?tenantId=hwlab").await.refused_by(Forbidden, "tenant");
    assert_eq!(list(foreign, "state=all").await, Vec::<String>::new());
    // A run of another tenant is as unknown as one of another session.
    let mut theirs = body("theirs");
    theirs["tenantId"] = "unidesk".into();
    foreign.post("/api/v1/sessions", &theirs).await.with_status(201);
    foreign.get(&at("theirs", &format!("/trace?runId={run_id}"))).await.refused(NotFound);
    assert_eq!(server.command(&run_id, &command_id).await["cancelRequestedAt"], Value::Null);
    let nobody = server.with_token(None);
    for wanted in calls() {
        call(&nobody, "mine", &wanted, None).await.refused(Unauthenticated);
    }
}

#[both_engines]
async fn a_runner_may_look_but_not_control(engine: Engine) {
    let server = TestServer::with(engine, tokens).await;
    play(&server, "mine").await;
    let runner = server.caller("runner");
    runner.post("/api/v1/sessions", &body("mine")).await.refused_by(Forbidden, "role");
    runner.post(&at("mine", "/control"), &json!({"action": "cancel"})).await.refused_by(Forbidden, "role");
    assert_eq!(list(runner, "").await, ["mine"]);
    for path in ["", "/trace", "/output"] {
        runner.get(&at("mine", path)).await.with_status(200);
    }
    read(runner, "mine", json!({"readerId": "runner"})).await.with_status(200);
    assert_eq!(list(&server, "").await, ["mine"]);
}
