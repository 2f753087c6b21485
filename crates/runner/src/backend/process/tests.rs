//! A child process, acted by a shell: real pipes, real signals, no real backend.

use ostler_protocol::redaction::Redactor;
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
    Process::start(&program, TextCutter::new(Redactor::new(&["hunter2-known"]))).unwrap()
}

fn method(incoming: Option<Incoming>) -> String {
    match incoming {
        Some(Incoming::Frame(RpcFrame::Notification { method, .. } | RpcFrame::Request { method, .. })) => method,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_end_of_a_child_is_described_by_its_code_and_the_last_line_of_its_log() {
    for (script, text) in [
        ("echo first >&2; echo 'no key hunter2-known' >&2; echo >&2; exit 3", " with exit code 3: no key [redacted]"),
        ("exit 1", " with exit code 1"),
        ("kill -9 $$", ""),
    ] {
        let mut process = shell(script);
        let called = process.call("initialize", &json!({}), SOON).await;
        assert_eq!(called, Err(CallError::Gone));
        assert_eq!(process.end_text().await, text);
    }
}

async fn wait_until_gone(pid: i32) {
    let waited = timeout(SOON, async {
        while std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("process {pid} is still there"));
}

#[tokio::test]
async fn frames_that_arrive_before_a_reply_are_queued_in_order() {
    let mut process = shell(
        r#"read line; echo '{"method":"one"}'; echo 'what?'; echo '{"method":"two","id":0}'
           echo '{"id":1,"result":{"a":1}}'; echo '{"method":"three"}'; read rest"#,
    );
    let reply = process.call("ask", &json!({}), SOON).await.unwrap();
    assert_eq!(reply.as_str(), r#"{"a":1}"#);
    assert_eq!(method(process.next().await), "one");
    assert!(matches!(process.next().await, Some(Incoming::Invalid(NotAFrame::NotJson { bytes: 5 }))));
    assert_eq!(method(process.next().await), "two");
    assert_eq!(method(process.next().await), "three");
}

#[tokio::test]
async fn an_error_is_a_reply_and_a_late_reply_is_skipped() {
    let mut process = shell(
        r#"read line; echo '{"id":1,"error":{"code":-32600,"message":"no"}}'
           read line; read line; echo '{"id":2,"result":"late"}'; echo '{"id":3,"result":"on time"}'; read rest"#,
    );
    let refused = process.call("first", &json!({}), SOON).await.unwrap_err();
    assert_eq!(refused, CallError::Refused(RpcError::new(-32600, "no")));
    let expired = process.call("second", &json!({}), Duration::from_millis(50)).await;
    assert_eq!(expired.unwrap_err(), CallError::TimedOut);
    assert_eq!(process.call("third", &json!({}), SOON).await.unwrap().as_str(), r#""on time""#);
    assert!(process.queued.is_empty());
}

#[tokio::test]
async fn a_call_fails_when_the_child_ends() {
    let mut process = shell("echo 'cannot find hunter2-known' >&2; exit 3");
    assert_eq!(process.call("ask", &json!({}), SOON).await.unwrap_err(), CallError::Gone);
    assert!(process.next().await.is_none());
    assert_eq!(process.close().await.and_then(|status| status.code()), Some(3));
}

#[tokio::test]
async fn the_log_tail_is_redacted() {
    let mut process = shell("echo 'the key is hunter2-known' >&2; exec >&- 2>&-; read rest");
    assert!(process.next().await.is_none());
    while process.log_tail().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(process.log_tail(), "the key is [redacted]");
}

#[tokio::test]
async fn a_large_frame_is_delivered_while_the_child_is_writing() {
    // Each side writes more than a pipe holds before it reads.
    let mut process = shell(
        r#"n=0; while [ $n -lt 4000 ]; do echo '{"method":"noise","params":{"pad":"0123456789012345678901234567890"}}'; n=$((n+1)); done
           read line; echo "{\"id\":1,\"result\":${#line}}"; read rest"#,
    );
    let reply = process.call("large", &json!({"text": "x".repeat(300_000)}), SOON).await.unwrap();
    assert!(reply.as_str().parse::<usize>().unwrap() > 300_000);
}

#[tokio::test]
async fn the_environment_is_a_short_list_and_the_given_variables() {
    let mut process = shell(r#"echo "{\"id\":1,\"result\":\"$(env | cut -d= -f1 | sort | tr '\n' ' ')\"}"; read rest"#);
    let names = process.call("env", &json!({}), SOON).await.unwrap().to_value();
    let own = ["GIVEN", "PWD", "SHLVL", "_", "OLDPWD"];
    for name in names.as_str().unwrap().split_whitespace() {
        assert!(own.contains(&name) || ENVIRONMENT.contains(&name), "{name}");
    }
    assert!(names.as_str().unwrap().contains("GIVEN"));
}

#[tokio::test]
async fn a_call_fails_when_the_child_sends_too_much_without_replying() {
    // A few large frames.
    let mut process = shell(
        r#"read line; pad=$(head -c 1000000 /dev/zero | tr '\0' x)
           n=0; while [ $n -lt 40 ]; do echo "{\"method\":\"noise\",\"params\":{\"pad\":\"$pad\"}}"; n=$((n+1)); done
           echo '{"id":1,"result":{}}'; read line; echo '{"id":2,"result":"well"}'; read rest"#,
    );
    assert_eq!(process.call("ask", &json!({}), SOON).await.unwrap_err(), CallError::TimedOut);
    let bytes: usize = process.queued.iter().map(|line| line.bytes).sum();
    assert!(bytes > QUEUED_BYTES_MAX && bytes < QUEUED_BYTES_MAX + 2_000_000, "{bytes}");
    // Removing frames makes room, and the late reply is skipped.
    process.retain_queued(|_| false);
    for _ in 0..23 {
        assert_eq!(method(process.next().await), "noise");
    }
    assert_eq!(process.call("again", &json!({}), SOON).await.unwrap().as_str(), r#""well""#);
}

/// A child with a tool. Neither notices the closed pipe.
const WITH_A_TOOL: &str = r#"sleep 1000 & echo "{\"method\":\"$!\"}"; read line; exec sleep 1000"#;

#[tokio::test]
async fn closing_a_process_ends_its_whole_group() {
    let mut process = shell(WITH_A_TOOL);
    let (child, tool) = (process.id(), method(process.next().await).parse().unwrap());
    process.close().await;
    wait_until_gone(child).await;
    wait_until_gone(tool).await;
}

#[tokio::test]
async fn a_dropped_process_is_killed_with_its_group() {
    let mut process = shell(WITH_A_TOOL);
    let (child, tool) = (process.id(), method(process.next().await).parse().unwrap());
    drop(process);
    wait_until_gone(child).await;
    wait_until_gone(tool).await;
}
