//! The adapter alone with the real Codex, against a scripted provider on loopback: a self-test with a real backend process,
//! not acceptance with a real provider. What Codex cannot be made to do is played by a shell.

mod approvals;
mod endings;
mod failures;
mod hostile;
mod stage;
mod threads;

use serde_json::json;
use stage::{Stage, selected};

use super::*;
use crate::budgets::Stop;

/// One pixel.
const PICTURE: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

#[tokio::test]
async fn a_picture_reaches_the_model() {
    let mut stage = Stage::new();
    stage.images = vec![PICTURE.to_owned()];
    let played = stage.play("what is this?").await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    let asked = stage.provider.seen().last().unwrap().body.to_string();
    assert!(asked.contains("input_image") && asked.contains(PICTURE), "{asked}");
}

#[tokio::test]
async fn a_plain_turn_is_told_in_events_and_ends_with_its_reply() {
    let mut stage = Stage::new();
    let played = stage.play("hello").await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    let phases = played.phases();
    let expected = ["initialize:completed", "codex-rollout-storage-mounted", "thread/start:completed", "turn/started"];
    assert!(expected.iter().all(|phase| phases.contains(phase)), "{phases:?}");
    let [message] = played.all("assistant_message")[..] else { panic!("{:#?}", played.events) };
    assert_eq!(message["text"], "You said: hello");
    assert_eq!((&message["final"], &message["replyAuthority"]), (&json!(true), &json!(true)));
    let deltas = played.all("assistant_delta");
    assert!(!deltas.is_empty() && deltas.iter().all(|delta| delta["messageId"] == message["messageId"]));
    let pieces: String = deltas.iter().map(|delta| delta["delta"].as_str().unwrap()).collect();
    assert_eq!(pieces, "You said: hello");
    let [usage] = played.all("usage")[..] else { panic!("{:#?}", played.events) };
    assert_eq!(
        (&usage["inputTokens"], &usage["outputTokens"], &usage["totalTokens"]),
        (&json!(11), &json!(7), &json!(18))
    );
    let [session] = played.all("session")[..] else { panic!("{:#?}", played.events) };
    let started = selected(&played.events, "backend_status", "phase", "thread/start:completed");
    assert_eq!(session["threadId"], started[0]["threadId"]);
    let seen = stage.provider.seen();
    assert!(seen.iter().all(|seen| seen.authorization.as_deref() == Some("Bearer planted-provider-key-1")));
}

#[tokio::test]
async fn a_second_turn_starts_no_second_process_and_counts_its_own_tokens() {
    let mut stage = Stage::new();
    let first = stage.play("one").await;
    let second = stage.play("two [[tokens:5]]").await;
    assert_eq!(second.result, Ok(TurnEnd::completed()));
    assert!(!second.phases().contains(&"initialize:completed"), "{:?}", second.phases());
    assert_eq!(first.all("usage")[0]["totalTokens"], 18);
    assert_eq!(second.all("usage")[0]["totalTokens"], 10);
    assert!(second.all("session").is_empty(), "the thread is known");
}

#[tokio::test]
async fn what_the_agents_cost_that_codex_makes_itself_is_counted_too() {
    let mut stage = Stage::new();
    let played = stage.play("[[spawn:say this]]").await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    let counts: Vec<_> = played.all("usage").iter().map(|usage| usage["totalTokens"].as_i64().unwrap()).collect();
    assert_eq!(counts, [18; 4], "three calls of its own, one of the other's");
    assert_eq!(played.all("assistant_message").len(), 1, "what the other says is its own affair");
}

#[tokio::test]
async fn a_second_turn_is_held_to_the_same_policy_as_the_first() {
    let mut stage = Stage::new();
    stage.policy = json!({"sandbox": "read-only", "approval": "never"});
    for file in ["first", "second"] {
        let played = stage.play(&format!("[[tool:touch {file}]]")).await;
        assert_eq!(played.all("usage").len(), 2, "the tool was called: {:#?}", played.events);
        let calls = played.all("tool_call");
        let told: Vec<_> = calls.iter().map(|call| (call["status"].as_str().unwrap(), &call["exitCode"])).collect();
        assert_eq!(told, [("started", &Value::Null), ("failed", &json!(1))], "{:#?}", played.events);
        assert!(calls[1]["command"].as_str().unwrap().contains(&format!("touch {file}")), "{calls:?}");
        assert!(!stage.outfit.workspace.as_ref().unwrap().join(file).exists());
    }
}

#[tokio::test]
async fn nothing_is_left_in_the_workspace_that_nobody_made() {
    let mut stage = Stage::new();
    let (hidden, workspace) = (stage.scratch.path().canonicalize().unwrap(), stage.outfit.workspace.clone().unwrap());
    stage.hide(&hidden);
    stage.policy = json!({"sandbox": "workspace-write", "approval": "never"});
    std::fs::create_dir(workspace.join(".aws")).unwrap();
    for prompt in ["hello", "[[tool:echo x > made]]"] {
        let played = stage.play(prompt).await;
        assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    }
    let mut found: Vec<_> = std::fs::read_dir(&workspace).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    found.sort();
    assert_eq!(found, [".aws", "made"]);
}

/// Codex itself makes no item of them.
#[tokio::test]
async fn commands_that_the_sandbox_denied_something_are_told_once_and_counted() {
    let mut stage = Stage::new();
    stage.policy = json!({"sandbox": "workspace-write", "approval": "never"});
    let played = stage.play("[[tool:echo changed > real.txt; touch /etc/denied]]").await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    let calls = played.all("tool_call");
    assert_eq!(
        (calls.len(), &calls[1]["status"], &calls[1]["exitCode"]),
        (2, &json!("failed"), &json!(1)),
        "{calls:#?}"
    );
    let output: String = played.all("command_output").iter().map(|out| out["text"].as_str().unwrap()).collect();
    assert!(output.contains("cannot touch '/etc/denied'"), "{output}");
    stage.budgets.max_tool_calls = Some(2);
    let played = stage.play("[[loop:echo x >> real.txt; touch /etc/denied]]").await;
    assert_eq!(played.result, Err(Left::Stopped), "{:#?}", played.events);
    let started = played.all("tool_call").into_iter().filter(|call| call["status"] == "started").count();
    assert_eq!(started, 3, "one past the budget");
}

/// Tools of a run work in their workspace, in the data directory, and see nothing else there.
#[tokio::test]
async fn tools_cannot_read_what_is_hidden_from_agents() {
    for sandbox in ["read-only", "workspace-write"] {
        let mut stage = Stage::new();
        let hidden = stage.scratch.path().canonicalize().unwrap();
        std::fs::create_dir(hidden.join("other-home")).unwrap();
        for file in ["token", "other-home/auth.json", "workspace/ours"] {
            std::fs::write(hidden.join(file), format!("held-in-{file}\n")).unwrap();
        }
        stage.hide(&hidden);
        stage.policy = json!({"sandbox": sandbox, "approval": "never"});
        let look = format!(
            "cat ours; cd {}; cat token other-home/* home/auth.json storage/*; ls; echo seen",
            hidden.display()
        );
        let played = stage.play(&format!("[[tool:{look}]]")).await;
        assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
        let told: String = played.all("command_output").iter().map(|out| out["text"].as_str().unwrap()).collect();
        assert!(told.starts_with("held-in-workspace/ours\n") && told.ends_with("seen\n"), "{sandbox}: {told}");
        for secret in ["held-in-token", "held-in-other-home", "planted-provider-key"] {
            assert!(!told.contains(secret), "{sandbox}: {told}");
        }
    }
}

#[tokio::test]
async fn a_tool_is_told_with_its_output_and_exit_code() {
    let mut stage = Stage::new();
    for (command, status, code) in [("echo said; exit 0", "completed", 0), ("echo said; exit 7", "failed", 7)] {
        let played = stage.play(&format!("[[tool:{command}]]")).await;
        assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
        let [started, ended] = played.all("tool_call")[..] else { panic!("{:#?}", played.events) };
        assert_eq!((&started["status"], &started["name"]), (&json!("started"), &json!("shell")));
        assert!(started["command"].as_str().unwrap().contains("echo said"), "{started}");
        assert_eq!((&ended["status"], &ended["exitCode"]), (&json!(status), &json!(code)));
        assert_eq!(started["toolCallId"], ended["toolCallId"]);
        let output: String = played.all("command_output").iter().map(|out| out["text"].as_str().unwrap()).collect();
        assert_eq!(output, "said\n");
        assert_eq!(played.all("usage").len(), 2, "one for each call of the model");
    }
}

#[tokio::test]
async fn what_codex_does_not_hear_of_a_command_is_told_with_what_it_heard_next() {
    let mut stage = Stage::new();
    let pieces = "for i in sk-abcd efgh 0123 4567; do printf %s $i; sleep .3; done; echo; sleep .3; echo tail";
    let played = stage.play(&format!("[[tool:{pieces}]]")).await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    let outputs = played.all("command_output");
    let told = |is_beginning: bool| -> String {
        let fits = outputs.iter().filter(|out| out["isBeginning"] == is_beginning);
        fits.map(|out| out["text"].as_str().unwrap()).collect()
    };
    // Whole, so that whoever keeps it can see what it is.
    assert_eq!(format!("{}{}", told(true), told(false)), "sk-abcdefgh01234567\ntail\n", "{outputs:#?}");
    let pieces: Vec<_> = outputs.iter().filter(|out| out["text"].as_str().unwrap().contains("4567")).collect();
    assert!(pieces.len() == 1 && pieces[0]["text"].as_str().unwrap().starts_with("sk-abcdefgh0123"), "{outputs:#?}");
}

#[tokio::test]
async fn endless_output_is_cut_and_says_so() {
    let mut stage = Stage::new();
    let played = stage.play("[[tool:head -c 300000 /dev/zero | tr '\\0' x]]").await;
    assert_eq!(played.result, Ok(TurnEnd::completed()));
    let outputs = played.all("command_output");
    let bytes: usize = outputs.iter().map(|out| out["text"].as_str().unwrap().len()).sum();
    assert!(bytes <= 64 * 1024, "{bytes}");
    assert!(outputs.last().is_some_and(|out| out["outputTruncated"] == true) || bytes < 64 * 1024, "{outputs:?}");
}

#[tokio::test]
async fn text_that_only_came_in_pieces_is_no_reply() {
    let mut stage = Stage::new();
    let played = stage.play("[[delta-only]]").await;
    assert_eq!(played.result, Ok(TurnEnd::completed()));
    assert_eq!(played.all("assistant_delta").len(), 1);
    assert!(played.all("assistant_message").is_empty(), "{:#?}", played.events);
}

#[tokio::test]
async fn thoughts_are_told_as_such() {
    let mut stage = Stage::new();
    let played = stage.play("[[think]]").await;
    assert_eq!(played.all("reasoning").len(), 1, "{:#?}", played.events);
    assert_eq!(played.all("reasoning")[0]["text"], "a thought");
    assert_eq!(played.all("assistant_message")[0]["text"], "after some thought");
}

#[tokio::test]
async fn a_steer_reaches_the_running_turn_and_is_accepted() {
    let mut stage = Stage::new();
    let mut steered = false;
    let played = stage
        .play_with("[[hold]]", |end, event_type, _| {
            if event_type == "assistant_delta" && !std::mem::replace(&mut steered, true) {
                end.steer(&stage::command(stage::STEER, "steer", "turn left"));
            }
        })
        .await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    assert!(played.phases().contains(&"turn/steer:completed"));
    assert_eq!(played.all("assistant_message").last().unwrap()["text"], "You said: turn left");
}

#[tokio::test]
async fn a_budget_on_tokens_stops_the_turn_at_the_agents_own_counts() {
    let mut stage = Stage::new();
    stage.budgets.max_tokens = Some(10);
    let played = stage.play("[[tool:echo one]] [[tokens:6]]").await;
    assert_eq!(played.result, Err(Left::Stopped), "{:#?}", played.events);
    assert!(matches!(played.stop, Some(Stop::Budget(ref used)) if used.name == "maxTokens"), "{:?}", played.stop);
}

#[tokio::test]
async fn a_storm_of_compactions_is_bounded_by_the_budget_of_model_calls() {
    let mut stage = Stage::new();
    let overflow = stage.play("[[storm]]").await;
    assert_eq!(overflow.failure_kind(), Some(FailureKind::BackendFailed), "{:#?}", overflow.events);
    stage.budgets.max_turns = Some(4);
    let before = stage.provider.seen().len();
    let played = stage.play("go on").await;
    assert_eq!(played.result, Err(Left::Stopped), "{:#?}", played.events);
    assert!(matches!(played.stop, Some(Stop::Budget(ref used)) if used.name == "maxTurns"), "{:?}", played.stop);
    let calls = stage.provider.seen().len() - before;
    assert!(calls < 12, "{calls} calls were made");
}
