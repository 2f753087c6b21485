use serde_json::{Value, json};
use uuid::Uuid;

use super::*;
use crate::{
    ids::{CommandId, RunId, SessionId},
    kernel::{budgets::Spent, chain, events::PHASE_RUNS_CHARGED},
};

fn event(seq: i64, event_type: EventType, payload: &Value) -> Event {
    Event {
        session: SessionId::new(Uuid::nil()),
        session_seq: seq + 10,
        run: Some((RunId::new(Uuid::nil()), seq)),
        command_id: Some(CommandId::new(Uuid::nil())),
        event_type,
        payload: Some(payload.to_string().into()),
        digest: chain::GENESIS,
        hash: chain::GENESIS,
        created_at: Timestamp::from_microsecond(1_767_225_600_000_000 + seq).unwrap(),
    }
}

fn fold(events: &[(EventType, Value)]) -> CommandFold {
    let mut fold = CommandFold::default();
    for (index, (event_type, payload)) in events.iter().enumerate() {
        let event = event(index as i64 + 1, *event_type, payload);
        fold.apply(&event, &event.facts());
    }
    fold
}

#[test]
fn a_fold_without_texts_keeps_its_counts_and_kinds() {
    let call = json!({"toolCallId": "a", "name": "shell", "status": "completed", "exitCode": 0, "command": "planted"});
    let error = json!({"failureKind": "backend-failed", "message": "planted"});
    let before = fold(&[(EventType::ToolCall, call), (EventType::Error, error)]);
    let mut after = before.clone();
    after.remove_texts();
    let stored = serde_json::to_string(&after).unwrap();
    assert!(!stored.contains("planted") && stored.contains(r#""texts_removed":true"#), "{stored}");
    assert_eq!((after.events, after.tools.count, after.tools.exit_codes), (2, 1, before.tools.exit_codes.clone()));
    assert_eq!(after.last_error, Some((Some(FailureKind::BackendFailed), String::new())));
    assert!(!serde_json::to_string(&before).unwrap().contains("texts_removed"), "older folds stay as they are");
}

fn tool(call: &str, status: &str) -> (EventType, Value) {
    (EventType::ToolCall, json!({"toolCallId": call, "name": "shell", "status": status, "exitCode": 0}))
}

#[test]
fn a_fold_that_was_stored_between_any_two_events_is_the_fold_of_them_all() {
    let mut events = vec![(EventType::AssistantMessage, json!({"text": "hello", "final": true}))];
    for number in 0..2_000 {
        let cost = f64::from(number) / 7.0 + 0.1;
        events.push((EventType::Usage, json!({"totalTokens": number, "costUsd": cost})));
        events.push(tool(&format!("call-{}", number % 5), if number % 2 == 0 { "started" } else { "completed" }));
    }
    let mut stored = CommandFold::default();
    for (index, (event_type, payload)) in events.iter().enumerate() {
        let event = event(index as i64 + 1, *event_type, payload);
        stored.apply(&event, &event.facts());
        stored = serde_json::from_str(&serde_json::to_string(&stored).unwrap()).unwrap();
    }
    assert_eq!(stored, fold(&events));
}

#[test]
fn the_reply_is_the_last_final_message_with_authority_else_the_last_with_text() {
    let message = |text: &str, authority: bool| {
        (EventType::AssistantMessage, json!({"text": text, "final": authority, "replyAuthority": authority}))
    };
    assert_eq!(fold(&[message("a", true), message("b", true), message("c", false)]).pick().unwrap().seq, 2);
    assert_eq!(fold(&[message("a", false), message("b", false), message("  ", false)]).pick().unwrap().seq, 2);
    assert_eq!(fold(&[(EventType::AssistantDelta, json!({"delta": "a"}))]).pick(), None);
}

#[test]
fn a_later_attempt_restarts_its_reply_and_keeps_the_counts() {
    let restarted = (EventType::BackendStatus, json!({"phase": PHASE_ATTEMPT_RESTARTED}));
    let message = (EventType::AssistantMessage, json!({"text": "a", "final": true, "replyAuthority": true}));
    let fold = fold(&[message, tool("call", "started"), restarted]);
    assert_eq!(fold.pick(), None);
    assert!(fold.tools.open.is_empty());
    assert_eq!((fold.events, fold.tools.count), (3, 1));
}

#[test]
fn a_tool_call_counts_once_however_many_facts_it_has() {
    let fold = fold(&[tool("a", "started"), tool("b", "started"), tool("a", "completed"), tool("c", "failed")]);
    assert_eq!(fold.tools.count, 3);
    assert_eq!(fold.tools.open, ["b"]);
    assert_eq!(fold.tools.statuses.values().sum::<i64>(), 3);
    assert_eq!(fold.tools.statuses["started"], 1);
    assert_eq!(fold.standing, CommandStanding::AfterTool);
}

#[test]
fn a_call_is_new_if_all_recorded_calls_are_known_and_it_is_not_among_them() {
    let call =
        |id: &str, status: &str| (EventType::ToolCall, json!({"toolCallId": id, "type": TOOLKIT, "status": status}));
    let known = |recorded, pending: &[&str], unknown_outcomes| KnownCalls {
        recorded,
        pending: pending.iter().map(|id| (*id).to_owned()).collect(),
        unknown_outcomes,
    };
    let mut events: Vec<_> = (0..20).map(|n| call(&format!("call-{n}"), "completed")).collect();
    let tools = fold(&events).tools;
    assert!(tools.has_only(&known(20, &[], 0)));
    assert!(tools.has_only(&known(20, &["a"], 0)), "it is not recorded yet");
    assert!(tools.has_only(&known(19, &["call-19"], 0)), "it is recorded in the meantime");
    assert!(!tools.has_only(&known(19, &[], 0)) && !tools.has_only(&known(19, &["a"], 0)));
    events.push(call("a", "started"));
    let tools = fold(&events).tools;
    assert!(!tools.has_only(&known(20, &[], 0)) && !tools.has_only(&known(20, &["b"], 0)));
    assert!(tools.has_only(&known(20, &["a"], 0)));
    events.push(call("a", "outcome-unknown"));
    let tools = fold(&events).tools;
    assert!(!tools.has_only(&known(21, &[], 0)) && tools.has_only(&known(21, &[], 1)));
}

#[test]
fn calls_without_an_answer_are_counted_for_the_newest_lease_that_has_any() {
    let unanswered = |id: &str, lease_epoch: Option<i64>| {
        let payload =
            json!({"toolCallId": id, "type": TOOLKIT, "status": "outcome-unknown", "leaseEpoch": lease_epoch});
        (EventType::ToolCall, payload)
    };
    let tools = fold(&[]).tools;
    assert!(tools.is_unknown_only_under(1), "no outcome is unknown");
    assert!(!serde_json::to_string(&tools).unwrap().contains("unanswered"), "older folds stay as they are");
    let mut events = vec![unanswered("a", Some(1)), unanswered("b", Some(1))];
    let tools = fold(&events).tools;
    assert!(tools.is_unknown_only_under(1) && !tools.is_unknown_only_under(2));
    let older = ToolFold { unanswered: None, ..tools };
    assert!(!older.is_unknown_only_under(1), "an older server has not counted them");
    events.push(unanswered("c", Some(2)));
    let tools = fold(&events).tools;
    assert!(!tools.is_unknown_only_under(2), "those of the earlier lease are unknown to the agent of this one");
    let tools = fold(&[unanswered("a", Some(1)), unanswered("b", None)]).tools;
    assert!(!tools.is_unknown_only_under(1), "the process that executed the second one has ended");
    let own = json!({"toolCallId": "a", "type": "command", "status": "outcome-unknown", "leaseEpoch": 1});
    assert_eq!(fold(&[(EventType::ToolCall, own)]).tools.unanswered, None);
}

#[test]
fn a_stored_fold_may_lack_calls_without_an_answer_and_nothing_else() {
    let unanswered = |id: &str| {
        let payload = json!({"toolCallId": id, "type": TOOLKIT, "status": "outcome-unknown", "leaseEpoch": 1});
        (EventType::ToolCall, payload)
    };
    let replayed = fold(&[unanswered("a"), unanswered("b")]);
    let with = |unanswered: Option<UnansweredCalls>| {
        let mut stored = replayed.clone();
        stored.tools.unanswered = unanswered;
        stored
    };
    let calls = |lease_epoch, count| Some(UnansweredCalls { lease_epoch, count });
    for fits in [None, calls(1, 1), calls(1, 2)] {
        assert!(with(fits).is_of_log(&replayed), "{fits:?}");
    }
    for forged in [calls(1, 3), calls(2, 1)] {
        assert!(!with(forged).is_of_log(&replayed), "{forged:?}");
    }
    assert!(!CommandFold { tokens: 1, ..with(None) }.is_of_log(&replayed));
    assert!(!replayed.is_of_log(&with(None)), "the log has none");
}

#[test]
fn another_end_of_a_call_that_has_ended_is_recognised() {
    let facts = |status: &str, kind: &str| {
        let payload = json!({"toolCallId": "a", "type": kind, "status": status});
        let Facts::Tool(facts) = event(1, EventType::ToolCall, &payload).facts() else { panic!("a call") };
        facts
    };
    let call = |status: &str| (EventType::ToolCall, json!({"toolCallId": "a", "type": TOOLKIT, "status": status}));
    let completed = facts("completed", TOOLKIT);
    assert!(!fold(&[]).tools.is_ended_again(&completed));
    assert!(!fold(&[call("started")]).tools.is_ended_again(&completed));
    let ended = fold(&[call("started"), call("outcome-unknown")]).tools;
    assert!(ended.is_ended_again(&completed) && ended.is_ended_again(&facts("outcome-unknown", TOOLKIT)));
    assert!(!ended.is_ended_again(&facts("started", TOOLKIT)), "it is executed again");
    assert!(!ended.is_ended_again(&facts("completed", "command")), "calls of agents' own tools may have the same id");
    let again = fold(&[call("started"), call("outcome-unknown"), call("started")]).tools;
    assert!(!again.is_ended_again(&completed), "the second execution has an end of its own");
}

#[test]
fn what_a_call_has_delegated_is_counted_apart() {
    let ended = |kind: &str| {
        let payload = json!({"toolCallId": "a", "type": kind, "status": "completed", "totalTokens": 7, "costUsd": 0.5,
            "toolCalls": 4});
        (EventType::ToolCall, payload)
    };
    let mut events = vec![ended(TOOLKIT), ended("command"), (EventType::Usage, json!({"totalTokens": 3}))];
    let counted = fold(&events);
    assert_eq!(counted.delegated, DelegatedUse { tokens: 7, cost_usd: 0.5, tool_calls: 4 });
    assert_eq!((counted.tokens, counted.turns, counted.tools.count), (3, 1, 2));
    let spent = Spent::of(&counted);
    assert_eq!((spent.tokens, spent.tool_calls), (10, 6));
    let total = json!({"phase": PHASE_RUNS_CHARGED, "totalTokens": 1, "costUsd": 0, "toolCalls": 5});
    events.push((EventType::BackendStatus, total));
    let raised = fold(&events).delegated;
    assert_eq!(raised, DelegatedUse { tokens: 7, cost_usd: 0.5, tool_calls: 5 });
    let without_calls = DelegatedUse { tool_calls: 0, ..raised };
    assert!(!serde_json::to_string(&without_calls).unwrap().contains("tool_calls"), "older folds stay as they are");
}

#[test]
fn a_stored_fold_may_lack_the_tool_calls_of_started_runs() {
    let ended = json!({"toolCallId": "a", "type": TOOLKIT, "status": "completed", "totalTokens": 7, "toolCalls": 4});
    let replayed = fold(&[(EventType::ToolCall, ended)]);
    let with = |tokens, tool_calls| {
        let delegated = DelegatedUse { tokens, tool_calls, ..replayed.delegated };
        CommandFold { delegated, ..replayed.clone() }
    };
    assert!(with(7, 0).is_of_log(&replayed) && with(7, 4).is_of_log(&replayed));
    assert!(!with(7, 5).is_of_log(&replayed) && !with(6, 4).is_of_log(&replayed));
}

#[test]
fn fields_of_a_calls_start_still_hold_at_its_end() {
    let start = json!({"toolCallId": "a", "type": "command", "method": "exec", "name": "shell", "command": "ls",
        "status": "started"});
    let end = json!({"toolCallId": "a", "status": "completed", "exitCode": 0});
    let fold = fold(&[(EventType::ToolCall, start), (EventType::ToolCall, end)]);
    let [item] = &fold.tools.items[..] else { panic!("one call") };
    assert_eq!(item.status.as_deref(), Some("completed"));
    let fields = [&item.tool_type, &item.method, &item.tool_name, &item.command].map(|field| field.as_deref());
    assert_eq!(fields, [Some("command"), Some("exec"), Some("shell"), Some("ls")]);
}

#[test]
fn open_calls_stay_until_they_end_and_results_show_the_last_calls_only() {
    let mut events: Vec<_> = (0..30).map(|n| tool(&format!("call-{n}"), "started")).collect();
    let tools = fold(&events).tools;
    assert_eq!((tools.items.len(), tools.last_items().len()), (30, TOOL_ITEMS_KEPT));
    assert_eq!(tools.last_items()[0].tool_call_id.as_deref(), Some("call-20"));
    events.extend((1..30).map(|n| tool(&format!("call-{n}"), "completed")));
    let tools = fold(&events).tools;
    assert_eq!(tools.items.len(), TOOL_ITEMS_KEPT);
    assert!(tools.item("call-0").is_some() && tools.item("call-29").is_some() && tools.item("call-1").is_none());
}

#[test]
fn calls_that_have_not_ended_are_counted_beyond_those_that_are_listed() {
    let mut events: Vec<_> = (0..100).map(|n| tool(&format!("call-{n}"), "started")).collect();
    let tools = fold(&events).tools;
    assert_eq!((tools.has_room_for_open(), tools.unended_max()), (false, 100));
    events.extend((0..60).map(|n| tool(&format!("call-{n}"), "completed")));
    events.push((EventType::TerminalStatus, json!({"status": "completed"})));
    let tools = fold(&events).tools;
    assert_eq!((tools.open.len(), tools.unended_max()), (0, 40));
    // Calls of many different statuses may have not ended, either.
    let mut events: Vec<_> = (0..20).map(|n| tool(&format!("call-{n}"), &format!("status-{n}"))).collect();
    assert_eq!(fold(&events).tools.unended_max(), 4);
    events.push(tool("call-20", "started"));
    assert_eq!(fold(&events).tools.unended_max(), 5);
}

#[test]
fn whatever_a_runner_sends_the_fold_stays_small() {
    let events: Vec<_> = (0..5_000).map(|n| tool(&format!("call-{n}"), &format!("status-{n}"))).collect();
    let fold = fold(&events);
    assert_eq!(fold.tools.count, 5_000);
    assert_eq!(fold.tools.statuses.values().sum::<i64>(), 5_000);
    assert!(fold.tools.statuses.values().all(|count| *count > 0));
    assert!(serde_json::to_string(&fold).unwrap().len() < 10_000);
}
