//! Cancels: while text streams and while a tool runs. No process is left behind.

use serde_json::json;

use super::with_both_launchers;
use crate::{
    inn::{CODEX, Inn, is_phase, is_tool, processes},
    runner::count,
};

with_both_launchers!(
    a_cancel_while_text_streams_ends_the_turn_and_the_next_one_works,
    a_cancel_while_a_tool_runs_leaves_no_process_behind,
    nothing_is_left_behind_when_the_server_stops,
);

fn a_cancel_while_text_streams_ends_the_turn_and_the_next_one_works(launcher: &str) {
    let mut inn = Inn::open(&CODEX, launcher);
    let (run, turn) = inn.submit("[[hold]] on");
    inn.event(&run, "text streams", |event| event["type"] == "assistant_delta");
    inn.cancel(&turn);
    let result = inn.ended(&run, &turn);
    assert_eq!((&result["status"], &result["failureKind"]), (&json!("cancelled"), &json!("cancelled")), "{result}");
    assert_eq!(result["reply"], json!(null));
    let next = inn.command(&run, "turn", "and now?");
    assert_eq!(inn.ended(&run, &next)["reply"], "You said: and now?");
    let events = inn.events(&run);
    assert_eq!(count(&events, "backend_status", "/phase", "initialize:completed"), 1, "by the same process");
    inn.close();
}

fn a_cancel_while_a_tool_runs_leaves_no_process_behind(launcher: &str) {
    // A length of its own for each test: they look for it among all processes.
    let sleep = format!("sleep 12{}01", launcher.len());
    let mut inn = Inn::open(&CODEX, launcher);
    let (run, turn) = inn.submit(&format!("[[tool:{sleep}]]"));
    inn.event(&run, "the tool runs", |event| is_tool(event, "started"));
    inn.cancel(&turn);
    assert_eq!(inn.ended(&run, &turn)["status"], "cancelled");
    inn.gone(&sleep);
    let next = inn.command(&run, "turn", "and now?");
    assert_eq!(inn.ended(&run, &next)["reply"], "You said: and now?");
    inn.close();
}

fn nothing_is_left_behind_when_the_server_stops(launcher: &str) {
    let sleep = format!("sleep 12{}02", launcher.len());
    let mut inn = Inn::open(&CODEX, launcher);
    let (run, _) = inn.submit(&format!("[[tool:{sleep}]]"));
    let started = inn.event(&run, "Codex is there", |event| is_phase(event, "initialize:completed"));
    let codex = started["payload"]["processId"].as_i64().unwrap();
    inn.event(&run, "the tool runs", |event| is_tool(event, "started"));
    let Inn { server, home, .. } = inn;
    server.stop();
    crate::process::eventually("the tool and its agent are gone", || {
        let agent = std::fs::read(format!("/proc/{codex}/cmdline")).unwrap_or_default();
        (processes(&sleep).is_empty() && agent.is_empty()).then_some(())
    });
    home.assert_verified();
}
