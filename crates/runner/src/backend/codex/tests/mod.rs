//! The Codex backend alone, with the real Codex and a scripted provider on loopback: a self-test with a real process, not
//! acceptance with a real provider. What the real Codex cannot be made to do is acted by a shell.

mod approvals;
mod endings;
mod failures;
mod fixture;
mod hostile;
mod threads;

use fixture::{CodexFixture, selected};
use serde_json::json;

use ostler_protocol::{FailureKind, Rule};
use serde_json::Value;

use super::*;
use crate::{backend::turn::TurnAbort, budgets::StopReason};

/// One pixel.
const IMAGE: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

#[tokio::test]
async fn an_image_reaches_the_model() {
    let mut fixture = CodexFixture::new();
    fixture.images = vec![IMAGE.to_owned()];
    let played = fixture.play("what is this?").await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    let request = fixture.provider.seen().last().unwrap().body.to_string();
    assert!(request.contains("input_image") && request.contains(IMAGE), "{request}");
}

#[tokio::test]
async fn a_plain_turn_emits_its_events_and_ends_with_the_reply() {
    let mut fixture = CodexFixture::new();
    let played = fixture.play("hello").await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    let phases = played.phases();
    let expected = ["initialize:completed", "thread/start:completed", "turn/started"];
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
    let seen = fixture.provider.seen();
    assert!(seen.iter().all(|seen| seen.authorization.as_deref() == Some("Bearer planted-provider-key-1")));
}

#[tokio::test]
async fn a_second_turn_starts_no_second_process_and_counts_its_own_tokens() {
    let mut fixture = CodexFixture::new();
    let first = fixture.play("one").await;
    let second = fixture.play("two [[tokens:5]]").await;
    assert_eq!(second.result, Ok(TurnEnd::completed()));
    assert!(!second.phases().contains(&"initialize:completed"), "{:?}", second.phases());
    assert_eq!(first.all("usage")[0]["totalTokens"], 18);
    assert_eq!(second.all("usage")[0]["totalTokens"], 10);
    assert!(second.all("session").is_empty(), "the thread was reported before");
}

#[tokio::test]
async fn usage_of_agents_that_codex_starts_itself_is_counted() {
    let mut fixture = CodexFixture::new();
    let played = fixture.play("[[spawn:say this]]").await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    let counts: Vec<_> = played.all("usage").iter().map(|usage| usage["totalTokens"].as_i64().unwrap()).collect();
    assert_eq!(counts, [18; 4], "three calls of its own, one of the other agent");
    assert_eq!(played.all("assistant_message").len(), 1, "messages of the other agent are not reported");
}

#[tokio::test]
async fn a_second_turn_has_the_same_policy_as_the_first() {
    let mut fixture = CodexFixture::new();
    fixture.policy = json!({"sandbox": "read-only", "approval": "never"});
    for file in ["first", "second"] {
        let played = fixture.play(&format!("[[tool:touch {file}]]")).await;
        assert_eq!(played.all("usage").len(), 2, "the tool was called: {:#?}", played.events);
        let calls = played.all("tool_call");
        let statuses: Vec<_> = calls.iter().map(|call| (call["status"].as_str().unwrap(), &call["exitCode"])).collect();
        assert_eq!(statuses, [("started", &Value::Null), ("failed", &json!(1))], "{:#?}", played.events);
        assert!(calls[1]["command"].as_str().unwrap().contains(&format!("touch {file}")), "{calls:?}");
        assert!(!fixture.environment.workspace.as_ref().unwrap().join(file).exists());
    }
}

#[tokio::test]
async fn folders_that_codex_creates_in_the_workspace_are_removed() {
    let mut fixture = CodexFixture::new();
    let (hidden, workspace) =
        (fixture.scratch.path().canonicalize().unwrap(), fixture.environment.workspace.clone().unwrap());
    fixture.hide(&hidden);
    fixture.policy = json!({"sandbox": "workspace-write", "approval": "never"});
    std::fs::create_dir(workspace.join(".aws")).unwrap();
    for prompt in ["hello", "[[tool:echo x > made]]"] {
        let played = fixture.play(prompt).await;
        assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    }
    let mut found: Vec<_> = std::fs::read_dir(&workspace).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    found.sort();
    assert_eq!(found, [".aws", "made"]);
}

/// Codex itself emits no item for them.
#[tokio::test]
async fn sandbox_denied_commands_are_reported_once_and_counted() {
    let mut fixture = CodexFixture::new();
    fixture.policy = json!({"sandbox": "workspace-write", "approval": "never"});
    let played = fixture.play("[[tool:echo changed > real.txt; touch /etc/denied]]").await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    let calls = played.all("tool_call");
    assert_eq!(
        (calls.len(), &calls[1]["status"], &calls[1]["exitCode"]),
        (2, &json!("failed"), &json!(1)),
        "{calls:#?}"
    );
    let output: String = played.all("command_output").iter().map(|out| out["text"].as_str().unwrap()).collect();
    assert!(output.contains("cannot touch '/etc/denied'"), "{output}");
    fixture.budgets.max_tool_calls = Some(2);
    let played = fixture.play("[[loop:echo x >> real.txt; touch /etc/denied]]").await;
    assert_eq!(played.result, Err(TurnAbort::Stopped), "{:#?}", played.events);
    let started = played.all("tool_call").into_iter().filter(|call| call["status"] == "started").count();
    assert_eq!(started, 3, "one past the budget");
}

/// Tools of a run work in their workspace inside the data directory, and see nothing else there.
#[tokio::test]
async fn tools_cannot_read_hidden_directories() {
    for sandbox in ["read-only", "workspace-write"] {
        let mut fixture = CodexFixture::new();
        let hidden = fixture.scratch.path().canonicalize().unwrap();
        std::fs::create_dir(hidden.join("other-home")).unwrap();
        for file in ["token", "other-home/auth.json", "workspace/ours"] {
            std::fs::write(hidden.join(file), format!("held-in-{file}\n")).unwrap();
        }
        fixture.hide(&hidden);
        fixture.policy = json!({"sandbox": sandbox, "approval": "never"});
        let look = format!(
            "exec 2>&1; cat ours; cd {}; cat token other-home/* home/auth.json storage/*; ls; echo seen",
            hidden.display()
        );
        let played = fixture.play(&format!("[[tool:{look}]]")).await;
        assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
        let output: String = played.all("command_output").iter().map(|out| out["text"].as_str().unwrap()).collect();
        // Codex may report lines in another order than they were printed in.
        assert!(output.contains("held-in-workspace/ours\n") && output.contains("seen\n"), "{sandbox}: {output}");
        for secret in ["held-in-token", "held-in-other-home", "planted-provider-key"] {
            assert!(!output.contains(secret), "{sandbox}: {output}");
        }
    }
}

#[tokio::test]
async fn a_tool_is_reported_with_its_output_and_exit_code() {
    let mut fixture = CodexFixture::new();
    for (command, status, code) in [("echo printed; exit 0", "completed", 0), ("echo printed; exit 7", "failed", 7)] {
        let played = fixture.play(&format!("[[tool:{command}]]")).await;
        assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
        let [started, ended] = played.all("tool_call")[..] else { panic!("{:#?}", played.events) };
        assert_eq!((&started["status"], &started["name"]), (&json!("started"), &json!("shell")));
        assert!(started["command"].as_str().unwrap().contains("echo printed"), "{started}");
        assert_eq!((&ended["status"], &ended["exitCode"]), (&json!(status), &json!(code)));
        assert_eq!(started["toolCallId"], ended["toolCallId"]);
        let output: String = played.all("command_output").iter().map(|out| out["text"].as_str().unwrap()).collect();
        assert_eq!(output, "printed\n");
        assert_eq!(played.all("usage").len(), 2, "one for each model call");
    }
}

/// Codex holds the provider's key, so nothing that a caller orders may be in its own environment.
#[tokio::test]
async fn short_lived_variables_reach_tools_and_not_codex_itself() {
    let mut fixture = CodexFixture::new();
    fixture.environment.variables = [("GH_TOKEN".to_owned(), "planted-tool-token".into())].into();
    for sandbox in ["danger-full-access", "workspace-write"] {
        fixture.codex = CodexBackend::new(fixture.environment.clone());
        fixture.policy = json!({"sandbox": sandbox, "approval": "never"});
        let played = fixture.play("[[tool:echo $GH_TOKEN | md5sum]]").await;
        assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
        let output: String = played.all("command_output").iter().map(|out| out["text"].as_str().unwrap()).collect();
        // The digest of the value and a line feed. The value itself would be removed from the output.
        assert!(output.contains("7454daa90fe8388ef531e7b9bd4bab79"), "{sandbox}: {output}");
        let program = fixture.codex.program(Sandbox::WorkspaceWrite).unwrap();
        assert!(program.environment.iter().all(|(name, _)| name != "GH_TOKEN"), "{sandbox}: {:?}", program.environment);
        fixture.codex.close().await;
        let mut search = std::process::Command::new("grep");
        search.args(["-r", "-l", "planted-tool-token"]).arg(fixture.environment.storage.as_ref().unwrap());
        assert_eq!(search.output().unwrap().stdout, b"", "the storage outlives the job");
    }
}

#[tokio::test]
async fn output_that_codex_missed_is_sent_together_with_the_next_piece() {
    let mut fixture = CodexFixture::new();
    let pieces = "for i in sk-abcd efgh 0123 4567; do printf %s $i; sleep .3; done; echo; sleep .3; echo tail";
    let played = fixture.play(&format!("[[tool:{pieces}]]")).await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    let outputs = played.all("command_output");
    let text = |is_beginning: bool| -> String {
        let fits = outputs.iter().filter(|out| out["isBeginning"] == is_beginning);
        fits.map(|out| out["text"].as_str().unwrap()).collect()
    };
    // Whole, so that the server can recognise it as a credential.
    assert_eq!(format!("{}{}", text(true), text(false)), "sk-abcdefgh01234567\ntail\n", "{outputs:#?}");
    let pieces: Vec<_> = outputs.iter().filter(|out| out["text"].as_str().unwrap().contains("4567")).collect();
    assert!(pieces.len() == 1 && pieces[0]["text"].as_str().unwrap().starts_with("sk-abcdefgh0123"), "{outputs:#?}");
}

#[tokio::test]
async fn endless_output_is_cut_and_marked() {
    let mut fixture = CodexFixture::new();
    let played = fixture.play("[[tool:head -c 300000 /dev/zero | tr '\\0' x]]").await;
    assert_eq!(played.result, Ok(TurnEnd::completed()));
    let outputs = played.all("command_output");
    let bytes: usize = outputs.iter().map(|out| out["text"].as_str().unwrap().len()).sum();
    assert!(bytes <= 64 * 1024, "{bytes}");
    assert!(outputs.last().is_some_and(|out| out["outputTruncated"] == true) || bytes < 64 * 1024, "{outputs:?}");
}

#[tokio::test]
async fn text_that_came_only_in_pieces_is_no_reply() {
    let mut fixture = CodexFixture::new();
    let played = fixture.play("[[delta-only]]").await;
    assert_eq!(played.result, Ok(TurnEnd::completed()));
    assert_eq!(played.all("assistant_delta").len(), 1);
    assert!(played.all("assistant_message").is_empty(), "{:#?}", played.events);
}

#[tokio::test]
async fn thoughts_are_reported_as_reasoning() {
    let mut fixture = CodexFixture::new();
    let played = fixture.play("[[think]]").await;
    assert_eq!(played.all("reasoning").len(), 1, "{:#?}", played.events);
    assert_eq!(played.all("reasoning")[0]["text"], "a thought");
    assert_eq!(played.all("assistant_message")[0]["text"], "after some thought");
}

#[tokio::test]
async fn a_steer_reaches_the_running_turn_and_is_accepted() {
    let mut fixture = CodexFixture::new();
    let mut steered = false;
    let played = fixture
        .play_with("[[hold]]", |side, event_type, _| {
            if event_type == "assistant_delta" && !std::mem::replace(&mut steered, true) {
                side.steer(&fixture::command(fixture::STEER, "steer", "turn left"));
            }
        })
        .await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    assert!(played.phases().contains(&"turn/steer:completed"));
    assert_eq!(played.all("assistant_message").last().unwrap()["text"], "You said: turn left");
}

#[tokio::test]
async fn a_token_budget_stops_the_turn_at_codexs_own_counts() {
    let mut fixture = CodexFixture::new();
    fixture.budgets.max_tokens = Some(10);
    let played = fixture.play("[[tool:echo one]] [[tokens:6]]").await;
    assert_eq!(played.result, Err(TurnAbort::Stopped), "{:#?}", played.events);
    assert!(matches!(played.stop, Some(StopReason::Budget(ref used)) if used.name == "maxTokens"), "{:?}", played.stop);
}

#[tokio::test]
async fn repeated_compactions_are_bounded_by_the_budget_of_model_calls() {
    let mut fixture = CodexFixture::new();
    let overflow = fixture.play("[[storm]]").await;
    assert_eq!(overflow.failure_kind(), Some(FailureKind::BackendFailed), "{:#?}", overflow.events);
    fixture.budgets.max_turns = Some(4);
    let before = fixture.provider.seen().len();
    let played = fixture.play("go on").await;
    assert_eq!(played.result, Err(TurnAbort::Stopped), "{:#?}", played.events);
    assert!(matches!(played.stop, Some(StopReason::Budget(ref used)) if used.name == "maxTurns"), "{:?}", played.stop);
    let calls = fixture.provider.seen().len() - before;
    assert!(calls < 12, "{calls} calls were made");
}
