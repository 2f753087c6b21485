//! A Codex that misbehaves, acted by a shell: what the real one cannot be made to do on demand.

use std::os::unix::fs::PermissionsExt;

use super::{fixture::CodexFixture, *};

const OPENING: &str = r#"
say() { printf '%s\n' "$1"; }
read line; say '{"id":1,"result":{"userAgent":"a shell"}}'
read line; read line; say '{"id":2,"result":{"thread":{"id":"t1"},"model":"m"}}'
read line; say '{"id":3,"result":{"turn":{"id":"u1","status":"inProgress"}}}'
say '{"method":"turn/started","params":{"threadId":"t1","turn":{"id":"u1","status":"inProgress"}}}'
"#;
const ENDING: &str =
    r#"say '{"method":"turn/completed","params":{"threadId":"t1","turn":{"id":"u1","status":"completed"}}}'"#;

/// A fixture whose Codex is this script, after a regular opening.
fn acted_by(script: &str) -> CodexFixture {
    fixture_of(&format!("{OPENING}\n{script}"))
}

fn fixture_of(script: &str) -> CodexFixture {
    let mut fixture = CodexFixture::new();
    let path = fixture.home().join("script");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    fixture.environment.program = Some(path);
    fixture.codex = CodexBackend::new(fixture.environment.clone());
    fixture
}

#[tokio::test]
async fn an_interrupt_without_a_reply_does_not_delay_the_turn() {
    let mut fixture = acted_by(
        r#"read line; say '{"method":"turn/completed","params":{"threadId":"t1","turn":{"id":"u1","status":"interrupted"}}}'
           read rest"#,
    );
    let played = fixture
        .play_with("hello", |side, event_type, payload| {
            if event_type == "backend_status" && payload["phase"] == "turn/started" {
                side.stop(StopReason::Interrupt);
            }
        })
        .await;
    assert_eq!(played.result, Err(TurnAbort::Stopped));
    assert!(!played.phases().contains(&"process-ended"), "{:?}", played.phases());
}

#[tokio::test]
async fn a_codex_that_does_not_confirm_the_sandbox_gets_no_turn() {
    let mut fixture = acted_by("while read line; do :; done");
    fixture.policy = json!({"sandbox": "workspace-write", "approval": "never"});
    let played = fixture.play("hello").await;
    assert_eq!(played.failure_kind(), Some(FailureKind::InfraFailed), "{:#?}", played.events);
    assert!(!played.phases().contains(&"turn/started"));
}

#[tokio::test]
async fn a_turn_that_ignores_the_interrupt_ends_with_its_process() {
    let mut fixture = acted_by("while read line; do :; done");
    let played = fixture
        .play_with("hello", |side, event_type, payload| {
            if event_type == "backend_status" && payload["phase"] == "turn/started" {
                side.stop(StopReason::Interrupt);
            }
        })
        .await;
    assert_eq!(played.result, Err(TurnAbort::Stopped));
    assert!(played.phases().contains(&"process-ended"), "{:?}", played.phases());
    assert_eq!(fixture.remaining_processes(), Vec::<String>::new());
}

#[tokio::test]
async fn a_process_that_dies_in_mid_turn_fails_the_turn_with_its_log_tail() {
    let mut fixture = acted_by("echo 'out of sorts' >&2; sleep 0.2; exit 9");
    let played = fixture.play("hello").await;
    assert_eq!(played.failure_kind(), Some(FailureKind::BackendFailed));
    let ended = fixture::selected(&played.events, "backend_status", "phase", "process-ended");
    assert_eq!(ended[0]["logTail"], "out of sorts");
}

#[tokio::test]
async fn unknown_and_forbidden_requests_are_refused_and_reported() {
    let script = format!(
        r#"say '{{"id":"r1","method":"future/thing","params":{{}}}}'; read answer; say "{{\"method\":\"warning\",\"params\":{{\"message\":\"$(printf '%s' "$answer" | tr -d '"')\"}}}}"
           say '{{"id":0,"method":"item/commandExecution/requestApproval","params":{{"itemId":"i1","command":"rm"}}}}'; read answer
           say "{{\"method\":\"warning\",\"params\":{{\"message\":\"$(printf '%s' "$answer" | tr -d '"')\"}}}}"; {ENDING}; read rest"#
    );
    let mut fixture = acted_by(&script);
    let played = fixture.play("hello").await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    let warnings: Vec<_> = fixture::selected(&played.events, "backend_status", "phase", "warning");
    assert!(warnings[0]["message"].as_str().unwrap().contains("code:-32601"), "{warnings:?}");
    assert_eq!(warnings[1]["message"], "{id:0,result:{decision:decline}}");
    assert!(played.phases().contains(&"server-request:declined") && played.phases().contains(&"approval:declined"));
    assert!(played.all("permission_request").is_empty(), "the policy never asks");
}

#[tokio::test]
async fn output_that_codex_missed_is_reported_when_the_command_ends() {
    let item = r#""threadId":"t1","item":{"type":"commandExecution","id":"c","command":"x""#;
    let script = format!(
        r#"say '{{"method":"item/started","params":{{{item}}}}}}}'
           say '{{"method":"item/commandExecution/outputDelta","params":{{"threadId":"t1","itemId":"c","delta":"late\n"}}}}'
           say '{{"method":"item/completed","params":{{{item},"status":"completed","aggregatedOutput":"early\nlate\n"}}}}}}'
           {ENDING}; read rest"#
    );
    let played = acted_by(&script).play("hello").await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    let output: Vec<_> = played.all("command_output").iter().map(|out| out["text"].as_str().unwrap()).collect();
    assert_eq!(output, ["early\nlate\n"]);
}

#[tokio::test]
async fn output_that_does_not_fit_an_event_is_cut() {
    let item = r#""threadId":"t1","item":{"type":"commandExecution","id":"c","command":"x""#;
    let script = format!(
        r#"printed=$(head -c 60000 /dev/zero | tr '\0' 1 | sed 's/1/\\u0001/g')
           say '{{"method":"item/started","params":{{{item}}}}}}}'
           say '{{"method":"item/completed","params":{{{item},"status":"completed","aggregatedOutput":"'"$printed"'"}}}}}}'
           {ENDING}; read rest"#
    );
    let played = acted_by(&script).play("hello").await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.phases());
    let output = played.all("command_output");
    let (text, is_cut) = (output[0]["text"].as_str().unwrap(), &output[0]["outputTruncated"]);
    assert_eq!((output.len(), text.len(), is_cut), (1, 240 * 1024 / 6, &true.into()));
}

#[tokio::test]
async fn settings_are_sent_with_the_thread_and_an_early_request_gets_a_reply() {
    let script = r#"read_to() { read -r line; printf '%s\n' "$line" >> "$HOME/received"; }
        say() { printf '%s\n' "$1"; }
        read line; say '{"id":1,"result":{"userAgent":"a shell"}}'
        read line; read_to; say '{"id":"early","method":"future/thing","params":{}}'
        say '{"id":2,"result":{"thread":{"id":"t1"},"model":"m"}}'
        for turn in 3 4; do
            read_to; say "{\"id\":$turn,\"result\":{\"turn\":{\"id\":\"u$turn\",\"status\":\"inProgress\"}}}"
            [ $turn = 4 ] || read_to
            say "{\"method\":\"turn/completed\",\"params\":{\"threadId\":\"t1\",\"turn\":{\"id\":\"u$turn\",\"status\":\"completed\"}}}"
        done; read rest"#;
    let mut fixture = fixture_of(script);
    for prompt in ["one", "two"] {
        let played = fixture.play(prompt).await;
        assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    }
    let received = std::fs::read_to_string(fixture.home().join("received")).unwrap();
    let [opened, first, early, second] = received.lines().collect::<Vec<_>>()[..] else { panic!("{received}") };
    assert!(opened.contains("\"sandbox\":") && opened.contains("approvalPolicy"), "{opened}");
    assert!(early.contains("early") && early.contains("-32601"), "{early}");
    // Sending them again would make each turn a tenth slower.
    for turn in [first, second] {
        assert!(turn.contains("turn/start") && !turn.contains("Policy"), "{turn}");
    }
}

#[tokio::test]
async fn invalid_lines_are_reported_up_to_a_limit_and_other_threads_end_nothing() {
    let script = format!(
        r#"n=0; while [ $n -lt 500 ]; do say 'noise'; n=$((n+1)); done
           say '{{"method":"turn/completed","params":{{"threadId":"t2","turn":{{"id":"u2","status":"failed"}}}}}}'
           say '{{"method":"item/completed","params":{{"threadId":"t2","item":{{"type":"agentMessage","id":"m","text":"not ours"}}}}}}'
           say '{{"method":"item/completed","params":{{"threadId":"t1","item":{{"type":"agentMessage","id":"m","text":"ours"}}}}}}'
           {ENDING}; read rest"#
    );
    let mut fixture = acted_by(&script);
    let played = fixture.play("hello").await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    assert_eq!(played.phases().iter().filter(|phase| **phase == "noise").count(), 50);
    let [message] = played.all("assistant_message")[..] else { panic!("{:#?}", played.events) };
    assert_eq!(message["text"], "ours");
}
