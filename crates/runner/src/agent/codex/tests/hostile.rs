//! A Codex that misbehaves, played by a shell: what the real one cannot be made to do at will.

use std::os::unix::fs::PermissionsExt;

use super::{stage::Stage, *};

const OPENING: &str = r#"
say() { printf '%s\n' "$1"; }
read line; say '{"id":1,"result":{"userAgent":"a shell"}}'
read line; read line; say '{"id":2,"result":{"thread":{"id":"t1"},"model":"m"}}'
read line; say '{"id":3,"result":{"turn":{"id":"u1","status":"inProgress"}}}'
say '{"method":"turn/started","params":{"threadId":"t1","turn":{"id":"u1","status":"inProgress"}}}'
"#;
const ENDING: &str =
    r#"say '{"method":"turn/completed","params":{"threadId":"t1","turn":{"id":"u1","status":"completed"}}}'"#;

/// A stage whose Codex is this script, after an orderly opening.
fn played_by(script: &str) -> Stage {
    stage_of(&format!("{OPENING}\n{script}"))
}

fn stage_of(script: &str) -> Stage {
    let mut stage = Stage::new();
    let path = stage.home().join("script");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    stage.outfit.program = Some(path);
    stage.codex = Codex::new(stage.outfit.clone());
    stage
}

#[tokio::test]
async fn an_interrupt_that_is_never_answered_does_not_hold_the_turn() {
    let mut stage = played_by(
        r#"read line; say '{"method":"turn/completed","params":{"threadId":"t1","turn":{"id":"u1","status":"interrupted"}}}'
           read rest"#,
    );
    let played = stage
        .play_with("hello", |end, event_type, payload| {
            if event_type == "backend_status" && payload["phase"] == "turn/started" {
                end.stop(Stop::Interrupt);
            }
        })
        .await;
    assert_eq!(played.result, Err(Left::Stopped));
    assert!(!played.phases().contains(&"process-ended"), "{:?}", played.phases());
}

#[tokio::test]
async fn a_codex_that_does_not_say_that_it_holds_its_tools_gets_no_turn() {
    let mut stage = played_by("while read line; do :; done");
    stage.policy = json!({"sandbox": "workspace-write", "approval": "never"});
    let played = stage.play("hello").await;
    assert_eq!(played.failure_kind(), Some(FailureKind::InfraFailed), "{:#?}", played.events);
    assert!(!played.phases().contains(&"turn/started"));
}

#[tokio::test]
async fn a_turn_that_does_not_end_when_told_to_ends_with_its_process() {
    let mut stage = played_by("while read line; do :; done");
    let played = stage
        .play_with("hello", |end, event_type, payload| {
            if event_type == "backend_status" && payload["phase"] == "turn/started" {
                end.stop(Stop::Interrupt);
            }
        })
        .await;
    assert_eq!(played.result, Err(Left::Stopped));
    assert!(played.phases().contains(&"process-ended"), "{:?}", played.phases());
    assert_eq!(stage.left_behind(), Vec::<String>::new());
}

#[tokio::test]
async fn a_process_that_dies_in_mid_turn_fails_the_turn_with_the_end_of_its_log() {
    let mut stage = played_by("echo 'out of sorts' >&2; sleep 0.2; exit 9");
    let played = stage.play("hello").await;
    assert_eq!(played.failure_kind(), Some(FailureKind::BackendFailed));
    let ended = stage::selected(&played.events, "backend_status", "phase", "process-ended");
    assert_eq!(ended[0]["logTail"], "out of sorts");
}

#[tokio::test]
async fn a_request_nobody_knows_is_refused_and_told_and_so_is_one_that_the_policy_does_not_allow() {
    let script = format!(
        r#"say '{{"id":"r1","method":"future/thing","params":{{}}}}'; read answer; say "{{\"method\":\"warning\",\"params\":{{\"message\":\"$(printf '%s' "$answer" | tr -d '"')\"}}}}"
           say '{{"id":0,"method":"item/commandExecution/requestApproval","params":{{"itemId":"i1","command":"rm"}}}}'; read answer
           say "{{\"method\":\"warning\",\"params\":{{\"message\":\"$(printf '%s' "$answer" | tr -d '"')\"}}}}"; {ENDING}; read rest"#
    );
    let mut stage = played_by(&script);
    let played = stage.play("hello").await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    let warnings: Vec<_> = stage::selected(&played.events, "backend_status", "phase", "warning");
    assert!(warnings[0]["message"].as_str().unwrap().contains("code:-32601"), "{warnings:?}");
    assert_eq!(warnings[1]["message"], "{id:0,result:{decision:decline}}");
    assert!(played.phases().contains(&"server-request:declined") && played.phases().contains(&"approval:declined"));
    assert!(played.all("permission_request").is_empty(), "a policy of never asking asks nobody");
}

#[tokio::test]
async fn what_a_command_said_before_codex_listened_is_told_when_it_ends() {
    let item = r#""threadId":"t1","item":{"type":"commandExecution","id":"c","command":"x""#;
    let script = format!(
        r#"say '{{"method":"item/started","params":{{{item}}}}}}}'
           say '{{"method":"item/commandExecution/outputDelta","params":{{"threadId":"t1","itemId":"c","delta":"late\n"}}}}'
           say '{{"method":"item/completed","params":{{{item},"status":"completed","aggregatedOutput":"early\nlate\n"}}}}}}'
           {ENDING}; read rest"#
    );
    let played = played_by(&script).play("hello").await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    let output: Vec<_> = played.all("command_output").iter().map(|out| out["text"].as_str().unwrap()).collect();
    assert_eq!(output, ["early\nlate\n"]);
}

#[tokio::test]
async fn output_that_does_not_fit_an_event_is_cut_and_not_left_out() {
    let item = r#""threadId":"t1","item":{"type":"commandExecution","id":"c","command":"x""#;
    let script = format!(
        r#"printed=$(head -c 60000 /dev/zero | tr '\0' 1 | sed 's/1/\\u0001/g')
           say '{{"method":"item/started","params":{{{item}}}}}}}'
           say '{{"method":"item/completed","params":{{{item},"status":"completed","aggregatedOutput":"'"$printed"'"}}}}}}'
           {ENDING}; read rest"#
    );
    let played = played_by(&script).play("hello").await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.phases());
    let output = played.all("command_output");
    let (text, is_cut) = (output[0]["text"].as_str().unwrap(), &output[0]["outputTruncated"]);
    assert_eq!((output.len(), text.len(), is_cut), (1, 240 * 1024 / 6, &true.into()));
}

#[tokio::test]
async fn settings_are_told_with_the_thread_and_a_request_that_comes_before_the_turn_is_answered() {
    let script = r#"read_to() { read -r line; printf '%s\n' "$line" >> "$HOME/heard"; }
        say() { printf '%s\n' "$1"; }
        read line; say '{"id":1,"result":{"userAgent":"a shell"}}'
        read line; read_to; say '{"id":"early","method":"future/thing","params":{}}'
        say '{"id":2,"result":{"thread":{"id":"t1"},"model":"m"}}'
        for turn in 3 4; do
            read_to; say "{\"id\":$turn,\"result\":{\"turn\":{\"id\":\"u$turn\",\"status\":\"inProgress\"}}}"
            [ $turn = 4 ] || read_to
            say "{\"method\":\"turn/completed\",\"params\":{\"threadId\":\"t1\",\"turn\":{\"id\":\"u$turn\",\"status\":\"completed\"}}}"
        done; read rest"#;
    let mut stage = stage_of(script);
    for prompt in ["one", "two"] {
        let played = stage.play(prompt).await;
        assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    }
    let heard = std::fs::read_to_string(stage.home().join("heard")).unwrap();
    let [opened, first, early, second] = heard.lines().collect::<Vec<_>>()[..] else { panic!("{heard}") };
    assert!(opened.contains("\"sandbox\":") && opened.contains("approvalPolicy"), "{opened}");
    assert!(early.contains("early") && early.contains("-32601"), "{early}");
    // Codex is a tenth of a turn slower each time it is told.
    for turn in [first, second] {
        assert!(turn.contains("turn/start") && !turn.contains("Policy"), "{turn}");
    }
}

#[tokio::test]
async fn noise_is_told_and_bounded_and_a_turn_of_another_thread_ends_nothing() {
    let script = format!(
        r#"n=0; while [ $n -lt 500 ]; do say 'noise'; n=$((n+1)); done
           say '{{"method":"turn/completed","params":{{"threadId":"t2","turn":{{"id":"u2","status":"failed"}}}}}}'
           say '{{"method":"item/completed","params":{{"threadId":"t2","item":{{"type":"agentMessage","id":"m","text":"not ours"}}}}}}'
           say '{{"method":"item/completed","params":{{"threadId":"t1","item":{{"type":"agentMessage","id":"m","text":"ours"}}}}}}'
           {ENDING}; read rest"#
    );
    let mut stage = played_by(&script);
    let played = stage.play("hello").await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    assert_eq!(played.phases().iter().filter(|phase| **phase == "noise").count(), 50);
    let [message] = played.all("assistant_message")[..] else { panic!("{:#?}", played.events) };
    assert_eq!(message["text"], "ours");
}
