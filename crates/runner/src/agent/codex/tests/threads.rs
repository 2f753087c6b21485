//! Threads: resumed by another runner from the session's storage, and never replaced.

use super::{stage::Stage, *};

#[tokio::test]
async fn another_runner_resumes_the_thread_from_the_sessions_storage_alone() {
    let mut stage = Stage::new();
    stage.play("remember the number 41").await;
    let thread_id = stage.thread_id.clone().unwrap();
    stage.codex.close().await;
    stage.take_over();
    let played = stage.play("and now?").await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    assert!(played.phases().contains(&"thread/resume:completed"), "{:?}", played.phases());
    assert_eq!(stage.thread_id.as_deref(), Some(thread_id.as_str()));
    let last = stage.provider.seen().pop().unwrap().body.to_string();
    assert!(last.contains("remember the number 41"), "the history came along");
    assert_eq!(played.all("usage")[0]["totalTokens"], 18, "what was used before is not counted again");
}

#[tokio::test]
async fn a_process_that_ended_between_two_turns_is_reported_and_replaced() {
    let mut stage = Stage::new();
    let first = stage.play("remember the number 41").await;
    let process =
        super::stage::selected(&first.events, "backend_status", "phase", "initialize:completed")[0]["processId"]
            .as_i64()
            .and_then(|id| rustix::process::Pid::from_raw(id as i32))
            .unwrap();
    rustix::process::kill_process_group(process, rustix::process::Signal::KILL).unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let second = stage.play("and now?").await;
    assert_eq!(second.result, Ok(TurnEnd::completed()), "{:#?}", second.events);
    assert_eq!(second.phases()[0], "transport-disconnected");
    assert!(second.phases().contains(&"thread/resume:completed"), "{:?}", second.phases());
}

#[tokio::test]
async fn a_turn_that_was_cut_off_in_a_thread_nobody_was_told_of_goes_on_in_it() {
    let mut stage = Stage::new();
    // Nobody stands guard here: what is cut off runs on for a while.
    stage.abandon("[[tool:sleep 3]] once").await;
    // Dropped in mid-turn, as by a killed runner, before the server heard of its thread: the storage is all the next one has.
    let thread_id = rollout(&stage);
    assert_eq!(stage.thread_id, None);
    stage.take_over();
    stage.is_repeat = true;
    let played = stage.play("[[tool:sleep 3]] once").await;
    assert_eq!(stage.thread_id, Some(thread_id), "it is told now");
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    assert!(played.all("tool_call").is_empty(), "the command was not run again: {:#?}", played.events);
    let reply = played.all("assistant_message").last().unwrap()["text"].as_str().unwrap().to_owned();
    assert!(reply.starts_with("You said: The work on this request was cut off"), "{reply}");
}

#[tokio::test]
async fn a_repeated_turn_whose_thread_never_heard_it_is_said_in_full() {
    let mut stage = Stage::new();
    stage.is_repeat = true;
    let played = stage.play("say this").await;
    assert_eq!(played.all("assistant_message")[0]["text"], "You said: say this");
}

#[tokio::test]
async fn a_thread_that_is_not_in_the_storage_is_never_replaced_by_a_new_one() {
    let mut stage = Stage::new();
    stage.play("hello").await;
    stage.codex.close().await;
    std::fs::remove_dir_all(stage.outfit.storage.as_ref().unwrap().join("sessions")).unwrap();
    stage.take_over();
    let calls = stage.provider.seen().len();
    let played = stage.play("and now?").await;
    assert_eq!(played.failure_kind(), Some(FailureKind::SessionStoreEvicted), "{:#?}", played.events);
    stage.outfit.storage = None;
    stage.take_over();
    let played = stage.play("and now?").await;
    assert_eq!(played.failure_kind(), Some(FailureKind::ThreadResumeFailed), "{:#?}", played.events);
    assert_eq!(stage.provider.seen().len(), calls, "nobody was asked");
}

#[tokio::test]
async fn a_thread_that_another_process_has_open_is_waited_for() {
    let mut stage = Stage::new();
    stage.play("hello").await;
    // In one home, where Codex keeps its lock, and in the middle of a turn: between two it may let go of the thread.
    let first = stage.hold().await;
    let played = stage.play_with("and now?", |_, _, fact| {
        if fact["phase"] == "thread/resume:waiting" {
            first.abort();
        }
    });
    let played = played.await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    let phases = played.phases();
    assert!(phases.contains(&"thread/resume:waiting") && phases.contains(&"thread/resume:completed"), "{phases:?}");
}

/// The id of the one thread in the storage, as its file is called.
fn rollout(stage: &Stage) -> String {
    let mut waiting = vec![stage.outfit.storage.clone().unwrap()];
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
