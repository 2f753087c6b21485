//! Agents that are stopped in the middle of a turn.

use ostler_runner::{RunnerStatus, run_until};
use tokio::time::{Duration, sleep, timeout};

use super::*;

#[tokio::test]
async fn an_interrupt_cancels_the_prompt_and_the_open_permission_request() {
    let script = ASKS.replace("read -r l; say \"$l\" >reply", "while read -r l; do say \"$l\" >>replies; case \"$l\" in *outcome*) break ;; esac; done; reply 3 '{\"stopReason\":\"cancelled\"}'; listen");
    let fixture = Fixture::with(&script, json!({"approval": "untrusted"}));
    let command_id = fixture.submit("do it");
    let runner = fixture.start();
    fixture.kernel.until(|kernel| !kernel.permissions().is_empty()).await;
    fixture.kernel.submit(CommandType::Interrupt, json!({}));
    runner.await.unwrap();
    assert_eq!(end(&fixture.kernel.command(command_id)).0, TerminalStatus::Cancelled);
    let replies = fixture.file("replies");
    assert!(replies.contains("session/cancel") && replies.contains(r#""outcome":"cancelled""#), "{replies}");
}

#[tokio::test]
async fn an_agent_that_never_replies_times_out_and_is_killed() {
    let fixture = Fixture::with("begin; read -r l; echo $$ >pid; text 'one moment'; listen", json!({"timeoutMs": 500}));
    assert_eq!(end(&fixture.turn().await), (TerminalStatus::Blocked, Some(FailureKind::BudgetExceeded)));
    let pid = fixture.file("pid");
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "process {pid} is still there");
}

/// Lets the agent work until it has created the file `ready`, and then stops the runner.
async fn stop_when_ready(fixture: &Fixture) -> RunnerOutcome {
    let ready = fixture.workspace.path().join("ready");
    let stopped = async move {
        while !ready.exists() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let (order, grace) = (fixture.order(fixture.shell()), Duration::from_secs(20));
    timeout(Duration::from_secs(60), run_until(order, fixture.kernel.client(), stopped, grace)).await.unwrap()
}

#[tokio::test]
async fn a_stopped_runner_releases_its_lease_after_its_agent_has_ended() {
    // The agent takes a while to end, and a tool ends after the order to stop.
    let working = r#"begin; read -r l
        tell '{"sessionUpdate":"tool_call","toolCallId":"c","title":"Shell","kind":"execute","status":"in_progress","rawInput":{"command":"make"}}'
        : >ready; read -r l; say "$l" >cancelled
        tell '{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"completed"}'
        reply 3 '{"stopReason":"cancelled"}'; listen; sleep 0.3; : >ended"#;
    let opening = "read -r l; : >ready; listen; sleep 0.3; : >ended";
    for (script, statuses) in [(working, &["started", "completed"][..]), (opening, &[])] {
        let fixture = Fixture::new(script);
        let command_id = fixture.submit("do it");
        assert_eq!(stop_when_ready(&fixture).await.status, RunnerStatus::Stopped, "{script}");
        assert!(fixture.workspace.path().join("ended").exists(), "the agent was not waited for: {script}");
        assert!(!fixture.kernel.leased(), "{script}");
        let command = fixture.kernel.command(command_id);
        assert!(command.terminal.is_none(), "another runner continues the turn: {:?}", command.terminal);
        let calls = of_type(&fixture.kernel, EventType::ToolCall);
        let found: Vec<_> = calls.iter().map(|call| call["status"].as_str().unwrap()).collect();
        assert_eq!(found, statuses, "{script}");
    }
}
