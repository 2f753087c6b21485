//! Threads: resumed by another runner from the session's storage, and never replaced.

use super::{fixture::CodexFixture, *};

#[tokio::test]
async fn another_runner_resumes_the_thread_from_the_sessions_storage_alone() {
    let mut fixture = CodexFixture::new();
    fixture.play("remember the number 41").await;
    let thread_id = fixture.thread_id.clone().unwrap();
    fixture.codex.close().await;
    fixture.take_over();
    let played = fixture.play("and now?").await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    assert!(played.phases().contains(&"thread/resume:completed"), "{:?}", played.phases());
    assert_eq!(fixture.thread_id.as_deref(), Some(thread_id.as_str()));
    let last = fixture.provider.seen().pop().unwrap().body.to_string();
    assert!(last.contains("remember the number 41"), "the history came along");
    assert_eq!(played.all("usage")[0]["totalTokens"], 18, "what was used before is not counted again");
}

#[tokio::test]
async fn a_process_that_ended_between_two_turns_is_reported_and_replaced() {
    let mut fixture = CodexFixture::new();
    let first = fixture.play("remember the number 41").await;
    let process = selected(&first.events, "backend_status", "phase", "initialize:completed")[0]["processId"]
        .as_i64()
        .and_then(|id| rustix::process::Pid::from_raw(id as i32))
        .unwrap();
    rustix::process::kill_process_group(process, rustix::process::Signal::KILL).unwrap();
    tokio::time::sleep(tokio::time::Duration::from_millis(500)).await;
    let second = fixture.play("and now?").await;
    assert_eq!(second.result, Ok(TurnEnd::completed()), "{:#?}", second.events);
    assert_eq!(second.phases()[0], "transport-disconnected");
    assert!(second.phases().contains(&"thread/resume:completed"), "{:?}", second.phases());
}

#[tokio::test]
async fn an_interrupted_turn_in_an_unreported_thread_continues_there() {
    let mut fixture = CodexFixture::new();
    // There is no guard here, so the interrupted tool keeps running for a while.
    fixture.abandon("[[tool:sleep 3]] once").await;
    // Dropped in mid-turn, as if the runner had been killed before it reported the thread: only the storage has it.
    let thread_id = rollout(&fixture);
    assert_eq!(fixture.thread_id, None);
    fixture.take_over();
    fixture.is_repeat = true;
    let played = fixture.play("[[tool:sleep 3]] once").await;
    assert_eq!(fixture.thread_id, Some(thread_id), "it is reported now");
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    assert!(played.all("tool_call").is_empty(), "the command was not run again: {:#?}", played.events);
    let reply = played.all("assistant_message").last().unwrap()["text"].as_str().unwrap().to_owned();
    assert!(reply.starts_with("You said: The work on this request was cut off"), "{reply}");
}

#[tokio::test]
async fn a_repeated_turn_that_never_reached_the_thread_is_sent_in_full() {
    let mut fixture = CodexFixture::new();
    fixture.is_repeat = true;
    let played = fixture.play("say this").await;
    assert_eq!(played.all("assistant_message")[0]["text"], "You said: say this");
}

#[tokio::test]
async fn a_thread_missing_from_the_storage_is_never_replaced() {
    let mut fixture = CodexFixture::new();
    fixture.play("hello").await;
    fixture.codex.close().await;
    std::fs::remove_dir_all(fixture.environment.storage.as_ref().unwrap().join("sessions")).unwrap();
    fixture.take_over();
    let calls = fixture.provider.seen().len();
    let played = fixture.play("and now?").await;
    assert_eq!(played.failure_kind(), Some(FailureKind::SessionStoreEvicted), "{:#?}", played.events);
    fixture.environment.storage = None;
    fixture.take_over();
    let played = fixture.play("and now?").await;
    assert_eq!(played.failure_kind(), Some(FailureKind::ThreadResumeFailed), "{:#?}", played.events);
    assert_eq!(fixture.provider.seen().len(), calls, "the provider was not called");
}

#[tokio::test]
async fn a_thread_that_another_process_has_open_is_awaited() {
    let mut fixture = CodexFixture::new();
    fixture.play("hello").await;
    // In the same home, where Codex has its lock, and in mid-turn: between turns Codex may release the thread.
    let first = fixture.hold().await;
    let played = fixture.play_with("and now?", |_, _, fact| {
        if fact["phase"] == "thread/resume:waiting" {
            first.abort();
        }
    });
    let played = played.await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    let phases = played.phases();
    assert!(phases.contains(&"thread/resume:waiting") && phases.contains(&"thread/resume:completed"), "{phases:?}");
}

/// The id of the only thread in the storage, from its file name.
fn rollout(fixture: &CodexFixture) -> String {
    let mut waiting = vec![fixture.environment.storage.clone().unwrap()];
    while let Some(folder) = waiting.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            match name.strip_prefix("rollout-") {
                _ if path.is_dir() => waiting.push(path),
                Some(rest) => return rest.trim_end_matches(".jsonl")[20..].to_owned(),
                None => {}
            }
        }
    }
    panic!("no rollout in the storage");
}
