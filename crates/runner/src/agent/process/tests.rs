//! A child process, played by a shell: real pipes, real signals, no agent.

use serde_json::json;

use super::*;

const SOON: Duration = Duration::from_secs(20);

fn shell(script: &str) -> Process {
    let program = Program {
        path: "/bin/sh".into(),
        arguments: vec!["-c".into(), script.into()],
        directory: None,
        environment: vec![("GIVEN".into(), "yes".into())],
        version: Version::Bare,
        guarded: None,
    };
    Process::start(&program, Arc::new(Redactor::new(&["hunter2-known"]))).unwrap()
}

fn method(heard: Option<Heard>) -> String {
    match heard {
        Some(Heard::Frame(Frame::Notification { method, .. } | Frame::Request { method, .. })) => method,
        other => panic!("{other:?}"),
    }
}

async fn gone(pid: i32) {
    let waited = timeout(SOON, async {
        while std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("process {pid} is still there"));
}

#[tokio::test]
async fn what_arrives_before_an_answer_is_kept_in_order() {
    let mut process = shell(
        r#"read line; echo '{"method":"one"}'; echo 'what?'; echo '{"method":"two","id":0}'
           echo '{"id":1,"result":{"a":1}}'; echo '{"method":"three"}'; read rest"#,
    );
    let answer = process.call("ask", &json!({}), SOON).await.unwrap();
    assert_eq!(answer.as_str(), r#"{"a":1}"#);
    assert_eq!(method(process.next().await), "one");
    assert!(matches!(process.next().await, Some(Heard::Noise(NotAFrame::NotJson { bytes: 5 }))));
    assert_eq!(method(process.next().await), "two");
    assert_eq!(method(process.next().await), "three");
}

#[tokio::test]
async fn a_refusal_is_an_answer_and_a_late_answer_is_passed_over() {
    let mut process = shell(
        r#"read line; echo '{"id":1,"error":{"code":-32600,"message":"no"}}'
           read line; read line; echo '{"id":2,"result":"late"}'; echo '{"id":3,"result":"on time"}'; read rest"#,
    );
    let refused = process.call("first", &json!({}), SOON).await.unwrap_err();
    assert_eq!(refused, CallError::Refused(RpcError::new(-32600, "no")));
    let unanswered = process.call("second", &json!({}), Duration::from_millis(50)).await;
    assert_eq!(unanswered.unwrap_err(), CallError::TimedOut);
    assert_eq!(process.call("third", &json!({}), SOON).await.unwrap().as_str(), r#""on time""#);
    assert!(process.kept.is_empty());
}

#[tokio::test]
async fn a_child_that_ends_leaves_no_call_waiting() {
    let mut process = shell("echo 'cannot find hunter2-known' >&2; exit 3");
    assert_eq!(process.call("ask", &json!({}), SOON).await.unwrap_err(), CallError::Gone);
    assert!(process.next().await.is_none());
    assert_eq!(process.close().await.and_then(|status| status.code()), Some(3));
}

#[tokio::test]
async fn the_tail_of_its_log_is_redacted() {
    let mut process = shell("echo 'the key is hunter2-known' >&2; exec >&- 2>&-; read rest");
    assert!(process.next().await.is_none());
    while process.log_tail().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(process.log_tail(), "the key is [redacted]");
}

#[tokio::test]
async fn a_large_frame_goes_through_while_the_child_talks() {
    // Neither side reads before it has written more than a pipe holds.
    let mut process = shell(
        r#"n=0; while [ $n -lt 4000 ]; do echo '{"method":"noise","params":{"pad":"0123456789012345678901234567890"}}'; n=$((n+1)); done
           read line; echo "{\"id\":1,\"result\":${#line}}"; read rest"#,
    );
    let answer = process.call("large", &json!({"text": "x".repeat(300_000)}), SOON).await.unwrap();
    assert!(answer.as_str().parse::<usize>().unwrap() > 300_000);
}

#[tokio::test]
async fn its_environment_is_a_short_list_and_what_it_was_given() {
    let mut process = shell(r#"echo "{\"id\":1,\"result\":\"$(env | cut -d= -f1 | sort | tr '\n' ' ')\"}"; read rest"#);
    let names = process.call("env", &json!({}), SOON).await.unwrap().to_value();
    let own = ["GIVEN", "PWD", "SHLVL", "_", "OLDPWD"];
    for name in names.as_str().unwrap().split_whitespace() {
        assert!(own.contains(&name) || ENVIRONMENT.contains(&name), "{name}");
    }
    assert!(names.as_str().unwrap().contains("GIVEN"));
}

#[tokio::test]
async fn a_child_that_talks_and_does_not_answer_is_given_up_when_it_has_said_too_much() {
    // Few frames, and large ones.
    let mut process = shell(
        r#"read line; pad=$(head -c 1000000 /dev/zero | tr '\0' x)
           n=0; while [ $n -lt 40 ]; do echo "{\"method\":\"noise\",\"params\":{\"pad\":\"$pad\"}}"; n=$((n+1)); done
           echo '{"id":1,"result":{}}'; read line; echo '{"id":2,"result":"well"}'; read rest"#,
    );
    assert_eq!(process.call("ask", &json!({}), SOON).await.unwrap_err(), CallError::TimedOut);
    let bytes: usize = process.kept.iter().map(|line| line.bytes).sum();
    assert!(bytes > KEPT_BYTES_MAX && bytes < KEPT_BYTES_MAX + 2_000_000, "{bytes}");
    // What was taken makes room, and the late answer is passed over.
    process.retain_kept(|_| false);
    for _ in 0..23 {
        assert_eq!(method(process.next().await), "noise");
    }
    assert_eq!(process.call("again", &json!({}), SOON).await.unwrap().as_str(), r#""well""#);
}

/// A child with a tool, neither of which hears of the closed pipe.
const WITH_A_TOOL: &str = r#"sleep 1000 & echo "{\"method\":\"$!\"}"; read line; exec sleep 1000"#;

#[tokio::test]
async fn closing_ends_the_whole_group() {
    let mut process = shell(WITH_A_TOOL);
    let (child, tool) = (process.id(), method(process.next().await).parse().unwrap());
    process.close().await;
    gone(child).await;
    gone(tool).await;
}

#[tokio::test]
async fn a_process_that_is_dropped_is_killed_with_its_group() {
    let mut process = shell(WITH_A_TOOL);
    let (child, tool) = (process.id(), method(process.next().await).parse().unwrap());
    drop(process);
    gone(child).await;
    gone(tool).await;
}
