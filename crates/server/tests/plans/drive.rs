//! Calls every operation of every dialect once, on servers whose statements are recorded.

use std::collections::BTreeSet;

use ostler_stand_ins::IdentityProvider;
use serde_json::{Value, json};

use crate::{
    daemon,
    harness::{Engine, Identity, Recorder, SentStatement, Setup, TestServer, id},
    operations::{OPERATIONS, Scene},
};

/// Lists by what they can be narrowed to. Their first and second pages are read.
const LISTS: &[&str] = &[
    "/api/v1/runs?tenantId=hwlab",
    "/api/v1/runs?label=team=search",
    "/api/v1/sessions?state=all",
    "/api/v1/sessions?state=all&label=team=search",
    "/api/v1/sessions?readerId=me",
    "/api/v1/tokens?",
    "/api/v1/users?",
    "/api/v1/retention/holds?",
    "/api/v1/identities?",
    "/agents?",
    "/h2a/relations?",
    "/api/v1/automations?",
    "/api/v1/calendar-events?",
];

/// What servers of this engine run when every operation is called.
pub(crate) async fn statements(engine: Engine) -> BTreeSet<SentStatement> {
    let mut all = BTreeSet::new();

    let mut recorder = None;
    let server = TestServer::with(engine, |setup| recorder = Some(recorded(setup))).await;
    call_operations(&server).await;
    exchange_messages(&server).await;
    all.extend(recorder.unwrap().statements());

    let mut recorder = None;
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 4;
        recorder = Some(recorded(setup));
    })
    .await;
    // A run by the server's own runner, with a launcher and leases.
    let (run_id, command_id) = server.start("hi").await;
    server.ended(&run_id, &command_id).await;
    all.extend(recorder.unwrap().statements());

    let identity = IdentityProvider::start();
    let mut recorder = None;
    let server = daemon::operations::server_with(engine, &identity, |setup| recorder = Some(recorded(setup))).await;
    daemon::operations::call_all(&server).await;
    all.extend(recorder.unwrap().statements());

    #[cfg(feature = "kubernetes")]
    all.extend(cluster_statements(engine).await);
    all
}

/// What a server runs whose runners are Jobs of a cluster, for one Job from its order to its end.
#[cfg(feature = "kubernetes")]
async fn cluster_statements(engine: Engine) -> BTreeSet<SentStatement> {
    use crate::kubernetes::cluster::{TestCluster, job_shows, waiting_run};

    let cluster = TestCluster::start();
    let mut recorder = None;
    let server = TestServer::with(engine, |setup| {
        cluster.choose(setup);
        recorder = Some(recorded(setup));
    })
    .await;
    let (run_id, command_id) = waiting_run(&server).await;
    let job = server.create_job(&run_id, &json!({"commandId": command_id})).await.with_status(201);
    let pod = cluster.pod_of(&id(&job, "jobName")).await;
    let runner = server.claim(&run_id, &id(&job, "runnerId")).await;
    runner.end(&command_id, "completed").await;
    runner.release().await;
    cluster.report(&pod, "Succeeded", &json!({"terminated": {"exitCode": 0}}));
    job_shows(&server, &job, "its end", |job| job["phase"] == "succeeded").await;
    let statements = recorder.unwrap().statements();
    let is_count = |sent: &SentStatement| sent.sql.contains("AS open_jobs");
    assert!(statements.iter().any(is_count), "the order counts the Jobs that have not ended");
    statements
}

/// What a server on Postgres runs for a turn: by its own runner, and by a runner elsewhere with a follower, polls, a steer, cancels and
/// reads of its session.
pub(crate) async fn hot_path() -> BTreeSet<SentStatement> {
    let mut recorder = None;
    let server = TestServer::with(Engine::Postgres, |setup| {
        setup.config.runner.slots = 4;
        recorder = Some(recorded(setup));
    })
    .await;
    let (run_id, command_id) = server.start("hi").await;
    server.ended(&run_id, &command_id).await;

    // With a key, and in a session of the caller's.
    let run_id = server
        .create_run_with(|body| {
            body["idempotencyKey"] = "key-1".into();
            body["sessionRef"] = json!({"sessionId": "mine"});
        })
        .await;
    let mut follower = server.follow(&run_id, 0).await;
    let command_id = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.poll("afterSeq=0").await;
    runner.ack(&command_id).await;
    for number in 1..=3 {
        let event = json!({"type": "custom", "commandId": command_id, "payload": {"name": "note", "value": number}});
        // The second time it is an answer that was lost.
        for _ in 0..2 {
            runner.try_append(Some(number), json!([event])).await.with_status(200);
        }
    }
    runner.heartbeat().await;
    let digest = "ab".repeat(32);
    runner.ask(&command_id, &format!("prm_{:032x}", 1), &digest).await;
    server.answer(&server.permissions(&run_id).await[0], "yes", &digest).await.with_status(200);
    let steer = server.steer(&run_id, "also this").await;
    runner.poll("afterSeq=1").await;
    runner.ack(&id(&steer, "commandId")).await;
    runner.end(&id(&steer, "commandId"), "completed").await;
    let cancelled = server.turn(&run_id, "not this").await;
    server.cancel_command(&cancelled).await;
    runner.say(&command_id, "done").await;
    runner.end(&command_id, "completed").await;
    follower.take(5).await;
    server.get(&format!("/api/v1/runs/{run_id}/events?afterSeq=1&limit=2")).await.with_status(200);
    server.result(&run_id, &command_id).await;
    let session_id = id(&server.run(&run_id).await, "sessionId");
    for part in ["trace", "output"] {
        for range in ["limit=2", "afterSeq=2&limit=2"] {
            server.get(&format!("/api/v1/sessions/{session_id}/{part}?{range}")).await.with_status(200);
        }
    }
    // A command that is cancelled while the runner works on it, and its run.
    let command_id = server.turn(&run_id, "next").await;
    runner.ack(&command_id).await;
    server.cancel_command(&command_id).await;
    runner.poll("afterSeq=0").await;
    runner.end(&command_id, "cancelled").await;
    runner.release().await;
    server.cancel_run(&run_id).await;
    // A runner in a pod comes with a token of its job.
    let token = format!("ost_run_{}", "0".repeat(64));
    server.with_token(Some(&token)).get(&format!("/api/v1/runs/{run_id}")).await.with_status(401);
    server.get("/metrics").await.with_status(200);
    recorder.unwrap().statements()
}

fn recorded(setup: &mut Setup) -> Recorder {
    Recorder::of(&mut setup.config)
}

async fn call_operations(server: &TestServer) {
    // The first scene stays as it is, so that lists have a second page.
    Scene::set(server, "first").await;
    let scene = Scene::set(server, "second").await;
    for list in LISTS {
        read_two_pages(server, list).await;
    }
    for (method, template, body) in OPERATIONS {
        let request = server.request(method, &scene.path(template));
        let answer = server.send(server.with_body(request, template, &body(&scene))).await;
        assert!(![401, 403, 500].contains(&answer.status), "{method} {template}: {}", answer.text);
    }
    // A mark settles the reader, whose list is then put together in another way.
    let session_id = &scene.session_id;
    server.post(&format!("/api/v1/sessions/{session_id}/read"), &json!({"readerId": "me"})).await;
    read_two_pages(server, "/api/v1/sessions?readerId=me").await;
}

async fn read_two_pages(server: &TestServer, list: &str) {
    let first = server.get(&format!("{list}&limit=1")).await.with_status(200);
    let next = first.get("nextCursor").unwrap_or(&first["next_cursor"]);
    if let Value::String(cursor) = next {
        server.get(&format!("{list}&limit=1&cursor={cursor}")).await.with_status(200);
    }
}

/// The mesh has its calls on WebSockets.
async fn exchange_messages(server: &TestServer) {
    let (alice, bobby) = (Identity::register(server, "alice").await, Identity::register(server, "bobby").await);
    let (mut from, mut to) = (alice.connect(server, "desk").await, bobby.connect(server, "desk").await);
    for number in 0..3 {
        let message =
            json!({"to": bobby.aid, "payload": {"type": "text", "text": "hi"}, "message_id": format!("m-{number}")});
        from.call("message.send", message).await;
    }
    to.call("message.pull", json!({"after_seq": 0, "limit": 2})).await;
    to.call("message.ack", json!({"seq": 1, "device_id": "desk"})).await;
    from.ask("message.recall", json!({"message_id": "m-2"})).await;
    from.ask("message.query_online", json!({"aids": [bobby.aid]})).await;
}
