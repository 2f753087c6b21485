//! Calls of this server's tools.

use super::*;

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
