//! Cancels: while text streams and while a tool runs. No process is left behind.

use serde_json::json;

use super::with_both_launchers;
use crate::fixtures::{
    backend_server::{BackendServer, CODEX, is_phase, is_tool, processes},
    runner::count,
};

with_both_launchers!(
    a_cancel_while_text_streams_ends_the_turn_and_the_next_one_works,
    a_cancel_while_a_tool_runs_leaves_no_process_behind,
    no_process_is_left_behind_when_the_server_stops,
);

fn a_cancel_while_text_streams_ends_the_turn_and_the_next_one_works(launcher: &str) {
    let mut server = BackendServer::open(&CODEX, launcher);
    let (run, turn) = server.submit("[[hold]] on");
    server.event(&run, "text streams", |event| event["type"] == "assistant_delta");
    server.cancel(&turn);
    let result = server.ended(&run, &turn);
    assert_eq!((&result["status"], &result["failureKind"]), (&json!("cancelled"), &json!("cancelled")), "{result}");
    assert_eq!(result["reply"], json!(null));
    let next = server.command(&run, "turn", "and now?");
    assert_eq!(server.ended(&run, &next)["reply"], "You said: and now?");
    let events = server.events(&run);
    assert_eq!(count(&events, "backend_status", "/phase", "initialize:completed"), 1, "by the same process");
    server.close();
}

fn a_cancel_while_a_tool_runs_leaves_no_process_behind(launcher: &str) {
    // A different duration for each test: they search for it among all processes.
    let sleep = format!("sleep 12{}01", launcher.len());
    let mut server = BackendServer::open(&CODEX, launcher);
    let (run, turn) = server.submit(&format!("[[tool:{sleep}]]"));
    server.event(&run, "the tool runs", |event| is_tool(event, "started"));
    server.cancel(&turn);
    assert_eq!(server.ended(&run, &turn)["status"], "cancelled");
    server.gone(&sleep);
    let next = server.command(&run, "turn", "and now?");
    assert_eq!(server.ended(&run, &next)["reply"], "You said: and now?");
    server.close();
}

fn no_process_is_left_behind_when_the_server_stops(launcher: &str) {
    let sleep = format!("sleep 12{}02", launcher.len());
    let mut server = BackendServer::open(&CODEX, launcher);
    let (run, _) = server.submit(&format!("[[tool:{sleep}]]"));
    let started = server.event(&run, "Codex is there", |event| is_phase(event, "initialize:completed"));
    let codex = started["payload"]["processId"].as_i64().unwrap();
    server.event(&run, "the tool runs", |event| is_tool(event, "started"));
    let BackendServer { server, home, .. } = server;
    server.stop();
    crate::fixtures::process::eventually("the tool and its agent are gone", || {
        let agent = std::fs::read(format!("/proc/{codex}/cmdline")).unwrap_or_default();
        (processes(&sleep).is_empty() && agent.is_empty()).then_some(())
    });
    home.assert_verified();
}
