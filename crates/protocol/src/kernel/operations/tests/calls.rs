//! Calls of this server's tools.

use super::*;
use crate::kernel::fold::KnownCalls;

fn call(turn: CommandId, status: &str, more: &serde_json::Value) -> NewEvent {
    let mut payload = json!({"toolCallId": "a", "name": "write_note", "type": "toolkit", "status": status});
    payload.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
    NewEvent::written(EventType::ToolCall, Some(turn), &payload)
}

#[test]
fn a_call_is_started_once_unless_it_is_executed_again_on_purpose() {
    let mut scene = Scene::new();
    let op = scene.new_run();
    let run = op.run.run_id;
    scene.apply(run, Op::CreateRun(Box::new(op))).unwrap();
    let turn = scene.turn(run);
    scene.claim(run, "runner");
    let nothing = json!({});
    let started = || vec![call(turn, "started", &nothing)];
    scene.append(run, started()).unwrap();
    for end in [None, Some("completed")] {
        if let Some(status) = end {
            scene.append(run, vec![call(turn, status, &nothing)]).unwrap();
        }
        let refused = scene.append(run, started()).unwrap_err();
        assert_eq!(refused.broken_rule(), Some(crate::Rule::ToolCallReused), "{end:?}");
    }
    assert_eq!(scene.facts(EventType::ToolCall).len(), 2);
    scene.append(run, vec![call(turn, "started", &json!({"executedAgain": true}))]).unwrap();
    let own = json!({"type": "command"});
    scene.append(run, vec![call(turn, "started", &own)]).unwrap();
}

#[test]
fn a_call_is_not_started_if_the_command_has_calls_that_the_server_does_not_know() {
    let mut scene = Scene::new();
    let op = scene.new_run();
    let run = op.run.run_id;
    scene.apply(run, Op::CreateRun(Box::new(op))).unwrap();
    let turn = scene.turn(run);
    let epoch = scene.claim(run, "runner");
    let start = |id: &str, recorded: i64| {
        let Op::Append(op) =
            Scene::append_op("runner", epoch, None, vec![call(turn, "started", &json!({"toolCallId": id}))])
        else {
            panic!("an append")
        };
        Op::Append(AppendOp { known_calls: Some(KnownCalls { recorded, ..KnownCalls::default() }), ..op })
    };
    scene.apply(run, start("first", 0)).unwrap();
    // More than the fold has as items.
    for number in 0..20 {
        scene.append(run, vec![call(turn, "completed", &json!({"toolCallId": format!("other-{number}")}))]).unwrap();
    }
    for known in [1, 20] {
        let refused = scene.apply(run, start("other-0", known)).unwrap_err();
        assert_eq!(refused.broken_rule(), Some(crate::Rule::ToolCallReused), "{known}");
    }
    assert_eq!(scene.facts(EventType::ToolCall).len(), 21);
    scene.apply(run, start("second", 21)).unwrap();
}

/// The facts of open calls that follow from an end of their command with this status, or from a failure of the run.
fn facts_after_end(status: Option<&str>) -> Vec<serde_json::Value> {
    let mut scene = Scene::new();
    let op = scene.new_run();
    let run = op.run.run_id;
    scene.apply(run, Op::CreateRun(Box::new(op))).unwrap();
    let turn = scene.turn(run);
    scene.claim(run, "runner");
    let front_end = json!({"toolCallId": "page", "type": "function", "method": "front-end"});
    scene.append(run, vec![call(turn, "started", &json!({})), call(turn, "started", &front_end)]).unwrap();
    let end = status.map_or_else(|| ends_run("failed"), |status| ends(turn, status));
    scene.append(run, vec![end]).unwrap();
    scene.facts(EventType::ToolCall).split_off(2)
}

#[test]
fn calls_of_the_servers_tools_end_with_their_command() {
    for status in ["cancelled", "failed", "blocked", "completed"] {
        let facts = facts_after_end(Some(status));
        let [left] = &facts[..] else { panic!("{status}: a call of the front end stays open: {facts:?}") };
        assert_eq!((&left["toolCallId"], &left["status"]), (&json!("a"), &json!("outcome-unknown")), "{status}");
        assert_eq!((&left["type"], &left["name"]), (&json!("toolkit"), &json!("write_note")));
        assert!(left["result"].as_str().unwrap().contains("not known"), "later turns get it: {left}");
    }
    assert_eq!(facts_after_end(None).len(), 2, "with a run that fails, everything open ends");
}

#[test]
fn every_open_call_of_the_servers_tools_ends_with_its_command_however_many_there_are() {
    let mut scene = Scene::new();
    let op = scene.new_run();
    let run = op.run.run_id;
    scene.apply(run, Op::CreateRun(Box::new(op))).unwrap();
    let turn = scene.turn(run);
    scene.claim(run, "runner");
    let front_end = json!({"toolCallId": "page", "type": "function", "method": "front-end"});
    scene.append(run, vec![call(turn, "started", &front_end)]).unwrap();
    // More than results show.
    let calls = 30;
    for number in 0..calls {
        scene.append(run, vec![call(turn, "started", &json!({"toolCallId": format!("call-{number}")}))]).unwrap();
    }
    scene.append(run, vec![ends(turn, "completed")]).unwrap();
    let facts = scene.facts(EventType::ToolCall).split_off(1 + calls);
    assert_eq!(facts.len(), calls, "the call of the front end stays open");
    for (number, left) in facts.iter().enumerate() {
        assert_eq!(left["toolCallId"], format!("call-{number}"));
        assert_eq!((&left["status"], &left["name"]), (&json!("outcome-unknown"), &json!("write_note")));
    }
}
