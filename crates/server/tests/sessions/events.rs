//! A session's events: pages of everything and of what people read, and streams that outlive runs.

use ostler_protocol::FailureKind::*;
use serde_json::{Value, json};

use super::{at, join, make, play};
use crate::harness::{Caller, Engine, Follow, TestServer, both_engines, id};

/// Every event of a `trace` or `output`, in pages of `limit`, by the number named.
async fn events(caller: &Caller, session_id: &str, rest: &str, limit: usize, number: &str) -> Vec<Value> {
    let (mut all, mut after) = (vec![], 0);
    loop {
        let path = at(session_id, &format!("{rest}&limit={limit}&afterSeq={after}"));
        let page = caller.get(&path).await.with_status(200);
        let found = page["events"].as_array().unwrap().clone();
        assert!(found.len() <= limit);
        assert!(found.last().is_none_or(|event| event[number] == page["nextAfterSeq"]), "{page}");
        after = page["nextAfterSeq"].as_i64().unwrap();
        all.extend(found);
        if page["hasMore"] == false {
            return all;
        }
    }
}

async fn trace(caller: &Caller, session_id: &str) -> Vec<Value> {
    events(caller, session_id, "/trace?", 1_000, "sessionSeq").await
}

fn numbers(events: &[Value], number: &str) -> Vec<i64> {
    events.iter().map(|event| event[number].as_i64().unwrap()).collect()
}

fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

#[both_engines]
async fn a_trace_is_everything_and_output_is_what_people_read(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (first, command_id) = play(&server, "mine").await;
    let second = join(&server, "mine").await;
    let other = server.turn(&second, "hi").await;
    let runner = server.claim(&second, "runner-b").await;
    runner.tell(&other, "command_output", json!({"stream": "stdout", "text": "out"})).await;
    runner.tell(&other, "assistant_delta", json!({"messageId": "m", "delta": "d"})).await;
    runner.say(&other, "said").await;
    let whole = trace(&server, "mine").await;
    assert_eq!(numbers(&whole, "sessionSeq"), (1..=whole.len() as i64).collect::<Vec<_>>());
    assert_eq!(whole, [server.events(&first).await, server.events(&second).await].concat());
    let spoken: Vec<_> = whole
        .iter()
        .filter(|event| ["assistant_message", "command_output"].contains(&event["type"].as_str().unwrap()))
        .cloned()
        .collect();
    assert_eq!(types(&spoken), ["assistant_message", "command_output", "assistant_message"]);
    assert_eq!(spoken[0]["commandId"], command_id.as_str());
    for limit in [1, 2, 3, 7, 100] {
        assert_eq!(events(&server, "mine", "/trace?", limit, "sessionSeq").await, whole);
        assert_eq!(events(&server, "mine", "/output?", limit, "sessionSeq").await, spoken);
        // Of one run, by that run's numbers.
        for run_id in [&first, &second] {
            let of_run = server.events(run_id).await;
            assert_eq!(numbers(&of_run, "seq"), (1..=of_run.len() as i64).collect::<Vec<_>>());
            assert_eq!(events(&server, "mine", &format!("/trace?runId={run_id}"), limit, "seq").await, of_run);
            let said: Vec<_> = spoken.iter().filter(|event| event["runId"] == **run_id).cloned().collect();
            assert_eq!(events(&server, "mine", &format!("/output?runId={run_id}"), limit, "seq").await, said);
        }
    }
    let beyond = server.get(&at("mine", "/trace?afterSeq=1000")).await.with_status(200);
    assert_eq!(beyond, json!({"events": [], "nextAfterSeq": 1_000, "hasMore": false}));
    make(&server, "empty").await;
    assert_eq!(types(&trace(&server, "empty").await), ["session"], "only that it was made");
}

#[both_engines]
async fn a_run_of_another_session_is_unknown_here(engine: Engine) {
    let server = TestServer::start(engine).await;
    make(&server, "mine").await;
    let theirs = join(&server, "theirs").await;
    let nobody = format!("run_{:032x}", 0);
    for run_id in [theirs.as_str(), &nobody, "x", ""] {
        for verb in ["trace", "output"] {
            server.get(&at("mine", &format!("/{verb}?runId={run_id}"))).await.refused(NotFound);
        }
        let request = server.request("GET", &at("mine", &format!("/trace?runId={run_id}")));
        server.send(request.header("accept", "text/event-stream")).await.refused(NotFound);
    }
    let request = server.request("GET", &at("nobody", "/trace")).header("accept", "text/event-stream");
    server.send(request).await.refused(NotFound);
}

#[both_engines]
async fn a_stream_goes_on_from_run_to_run(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.limits.heartbeat_ms = 50).await;
    make(&server, "mine").await;
    // Open before there is anything.
    let mut stream = server.follow_session("mine", 0).await;
    assert_eq!((stream.status, &stream.headers["content-type"]), (200, &"text/event-stream".parse().unwrap()));
    let mut seen: Vec<Value> = vec![];
    for _ in 0..3 {
        play(&server, "mine").await;
        let whole = trace(&server, "mine").await;
        seen.extend(stream.take(whole.len() - seen.len()).await);
        assert_eq!(seen, whole);
        assert_eq!(types(&seen).last(), Some(&"terminal_status"));
    }
    // The session's own first fact is of no run.
    let runs: std::collections::BTreeSet<_> = seen[1..].iter().map(|event| id(event, "runId")).collect();
    assert_eq!(runs.len(), 3);
    // The last run's end is not the stream's: it beats on, and tells what comes.
    let beat = stream.frame().await.unwrap();
    assert_eq!((beat.comment.as_str(), beat.id), ("keep-alive", None));
    join(&server, "mine").await;
    assert_eq!(stream.take(1).await[0]["sessionSeq"], seen.len() + 1);
    // A later follower begins where it likes; `afterSeq` works too, and the header wins.
    assert_eq!(server.follow_session("mine", 4).await.take(seen.len() - 4).await, seen[4..]);
    let request = server.request("GET", &at("mine", "/trace?afterSeq=2")).header("accept", "text/event-stream");
    let mut late = Follow::of_session(request.try_clone().unwrap().send().await.unwrap());
    assert_eq!(late.take(1).await, seen[2..3]);
    let mut late = Follow::of_session(request.header("last-event-id", "5").send().await.unwrap());
    assert_eq!(late.take(1).await, seen[5..6]);
}

#[both_engines]
async fn a_stream_resumes_without_gap_or_repetition(engine: Engine) {
    let server = TestServer::start(engine).await;
    make(&server, "mine").await;
    let caller = (*server).clone();
    let writing = tokio::spawn(async move {
        for _ in 0..3 {
            let run_id = join(&caller, "mine").await;
            let runner = caller.claim(&run_id, "runner-a").await;
            for n in 0..12 {
                let note = |m| json!({"type": "custom", "payload": {"name": "note", "value": n * 10 + m}});
                runner.try_append(None, (0..10).map(note).collect()).await.with_status(200);
            }
            runner.try_end_run("completed").await.with_status(200);
        }
    });
    let mut seen: Vec<Value> = vec![];
    // Connections that break after a few events each.
    for count in [1, 7, 40, 3, 120, 2, 60] {
        let after = seen.last().map_or(0, |event| event["sessionSeq"].as_i64().unwrap());
        seen.extend(server.follow_session("mine", after).await.take(count).await);
    }
    let mut last = server.follow_session("mine", seen.len() as i64).await;
    writing.await.unwrap();
    let whole = trace(&server, "mine").await;
    seen.extend(last.take(whole.len() - seen.len()).await);
    assert_eq!(seen, whole);
    assert_eq!(numbers(&seen, "sessionSeq"), (1..=1 + 3 * (2 + 120 + 1)).collect::<Vec<_>>());
}

#[both_engines]
async fn a_stream_of_one_run_ends_with_it(engine: Engine) {
    let server = TestServer::start(engine).await;
    play(&server, "mine").await;
    let run_id = join(&server, "mine").await;
    let request = server.request("GET", &at("mine", &format!("/trace?runId={run_id}")));
    let mut stream = Follow::new(request.header("accept", "text/event-stream").send().await.unwrap());
    assert_eq!(stream.event().await.unwrap()["seq"], 1);
    server.cancel_run(&run_id).await;
    let rest = stream.rest().await;
    assert_eq!(rest, server.events(&run_id).await[1..]);
}

#[both_engines]
async fn a_restarted_server_goes_on_where_the_stream_broke_off(engine: Engine) {
    let mut server = TestServer::start(engine).await;
    play(&server, "mine").await;
    let mut stream = server.follow_session("mine", 0).await;
    let mut seen = stream.take(3).await;
    server.restart().await;
    play(&server, "mine").await;
    let whole = trace(&server, "mine").await;
    seen.extend(server.follow_session("mine", 3).await.take(whole.len() - 3).await);
    assert_eq!(seen, whole);
}
