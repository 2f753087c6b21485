mod calls;
mod ends;

use serde_json::{Value, json};
use uuid::Uuid;

use super::{PromptRef, SentPieces, TranslationContext, begins_turn, frames, is_late_cancel};
use crate::{
    Timestamp,
    daemon::frames::{EVENT_FRAMES, Frame},
    ids::{CommandId, PermissionId, RunId, SessionId},
    kernel::{
        budgets::DEADLINE_EXCEEDED,
        chain,
        events::{Event, EventType},
    },
};

fn event(session_seq: i64, event_type: EventType, payload: &Value) -> Event {
    Event {
        session: SessionId::new(Uuid::nil()),
        session_seq,
        run: Some((RunId::new(Uuid::nil()), session_seq)),
        command_id: Some(CommandId::new(Uuid::nil())),
        event_type,
        payload: Some(payload.to_string().into()),
        digest: chain::GENESIS,
        hash: chain::GENESIS,
        created_at: Timestamp::from_millisecond(5).expect("a time"),
    }
}

fn prompt() -> PromptRef {
    PromptRef { prompt_id: "p1".into(), client_id: Some("client_1".into()), is_turn: true, number: 1 }
}

fn translated(event: &Event, cancel_reason: Option<&str>) -> Vec<Frame> {
    let prompt = prompt();
    let context = TranslationContext { session_id: "s1", prompt: Some(&prompt), cancel_reason, ..Default::default() };
    frames(event, context)
}

/// The type and data of the only frame of an event.
fn one(event_type: EventType, payload: &Value) -> (String, Value) {
    let mut frames = translated(&event(3, event_type, payload), None);
    assert_eq!(frames.len(), 1, "{payload}");
    let frame = frames.remove(0);
    assert!(EVENT_FRAMES.contains(&&*frame.frame_type), "{}", frame.frame_type);
    (frame.frame_type.into_owned(), frame.data)
}

/// The update of the only frame of an event.
fn update(event_type: EventType, payload: &Value) -> Value {
    let (frame_type, mut data) = one(event_type, payload);
    assert_eq!((frame_type.as_str(), &data["sessionId"]), ("session_update", &json!("s1")));
    data["update"].take()
}

#[test]
fn a_frame_names_its_prompt_client_and_time() {
    let sent =
        translated(&event(3, EventType::UserMessage, &json!({"content": [{"type": "text", "text": "hi"}]})), None);
    let expected = json!({"id": 5, "v": 1, "type": "session_update", "data": {"sessionId": "s1", "update": {
        "sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "hi"},
        "_meta": {"source": "bridge-echo"}}}, "originatorClientId": "client_1", "promptId": "p1",
        "_meta": {"serverTimestamp": 5}});
    assert_eq!(json!(sent), json!([expected]));
}

#[test]
fn every_event_type_has_a_typed_frame() {
    for event_type in EventType::ALL {
        for payload in [json!({}), json!({"text": "a", "toolCallId": "t", "status": "completed", "phase": "x"})] {
            let (frame_type, data) = one(*event_type, &payload);
            let is_object = data.is_object();
            assert!(is_object, "{frame_type} of {}", event_type.as_str());
        }
    }
}

#[test]
fn messages_and_thoughts_are_chunks() {
    let text = |update: &Value| update["content"]["text"].as_str().map(str::to_owned);
    for (event_type, payload, kind, expected) in [
        (EventType::AssistantDelta, json!({"messageId": "m", "delta": "he"}), "agent_message_chunk", "he"),
        (EventType::AssistantMessage, json!({"messageId": "m", "text": "he"}), "agent_message_chunk", "he"),
        (EventType::ReasoningDelta, json!({"messageId": "m", "delta": "hm"}), "agent_thought_chunk", "hm"),
        (EventType::Reasoning, json!({"messageId": "m", "text": "hm"}), "agent_thought_chunk", "hm"),
    ] {
        let update = update(event_type, &payload);
        assert_eq!((update["sessionUpdate"].as_str(), text(&update).as_deref()), (Some(kind), Some(expected)));
        assert_eq!(update["_meta"]["ostler"]["messageId"], "m");
    }
}

#[test]
fn a_whole_message_repeats_no_text_of_its_pieces() {
    let whole = event(4, EventType::AssistantMessage, &json!({"messageId": "m", "text": "hello", "final": true}));
    let context = TranslationContext { session_id: "s1", is_streamed: true, ..TranslationContext::default() };
    let sent = frames(&whole, context);
    let update = &sent[0].data["update"];
    assert_eq!((&update["content"]["text"], &update["_meta"]["ostler"]["complete"]), (&json!(""), &json!(true)));
}

#[test]
fn streamed_messages_are_recognised() {
    use EventType::{AssistantDelta, AssistantMessage, Reasoning, TerminalStatus, UserMessage};
    let mut streamed = SentPieces::default();
    let mut take = |event_type, payload: Value| streamed.take(&event(1, event_type, &payload));
    // Not followed from the beginning: only the log knows.
    assert_eq!(take(AssistantDelta, json!({"messageId": "a", "delta": "x"})), Some(false));
    assert_eq!(take(AssistantMessage, json!({"messageId": "a", "text": "x"})), None);
    assert_eq!(take(UserMessage, json!({})), Some(false));
    assert_eq!(take(AssistantMessage, json!({"messageId": "b", "text": "x"})), Some(false));
    assert_eq!(take(AssistantDelta, json!({"messageId": "c", "delta": "x"})), Some(false));
    // A thought of the same id is another message.
    assert_eq!(take(Reasoning, json!({"messageId": "c", "text": "x"})), Some(false));
    assert_eq!(take(AssistantMessage, json!({"messageId": "c", "text": "x"})), Some(true));
    assert_eq!(take(AssistantMessage, json!({"messageId": "c", "text": "y"})), Some(false));
    // Agents that do not name their messages.
    assert_eq!(take(AssistantDelta, json!({"delta": "x"})), Some(false));
    assert_eq!(take(AssistantMessage, json!({"text": "x"})), Some(true));
    assert_eq!(take(TerminalStatus, json!({"status": "completed"})), Some(false));
    assert_eq!(take(AssistantMessage, json!({"messageId": "d", "text": "x"})), None);
}

#[test]
fn pieces_of_a_lost_attempt_belong_to_no_later_message() {
    use EventType::{AssistantDelta, AssistantMessage, BackendStatus, UserMessage};
    let mut streamed = SentPieces::default();
    let mut take = |event_type, payload: Value| streamed.take(&event(1, event_type, &payload));
    take(UserMessage, json!({}));
    take(AssistantDelta, json!({"delta": "hal"}));
    take(BackendStatus, json!({"phase": "tools:unavailable"}));
    assert_eq!(take(BackendStatus, json!({"phase": "attempt-restarted"})), Some(false));
    assert_eq!(take(AssistantMessage, json!({"text": "whole"})), Some(false), "no piece of it was sent");
}

#[test]
fn two_attempts_at_a_turn_are_messages_of_their_own() {
    let segment = |message_id: &str| {
        let chunk = update(EventType::AssistantDelta, &json!({"messageId": message_id, "delta": "he"}));
        chunk["_meta"]["qwenTranscript"]["segmentId"].clone()
    };
    assert_eq!((segment("m1"), segment("m2")), (json!("m1"), json!("m2")));
    assert_eq!(segment(&"m".repeat(513)), Value::Null, "longer than published clients accept");
    let unnamed = update(EventType::AssistantDelta, &json!({"delta": "he"}));
    assert!(unnamed["_meta"].get("qwenTranscript").is_none());
    let restarted = update(EventType::BackendStatus, &json!({"phase": "attempt-restarted", "attemptId": "att_2"}));
    assert_eq!(restarted["sessionUpdate"], "agent_message_chunk");
    assert_eq!(restarted["_meta"]["qwenDiscreteMessage"], true, "published clients add nothing to it");
    let facts = json!({"type": "backend_status", "phase": "attempt-restarted", "attemptId": "att_2"});
    assert_eq!(restarted["_meta"]["ostler"], facts);
    assert!(restarted["content"]["text"].as_str().is_some_and(|text| text.contains("starts again")));
}

#[test]
fn a_prompt_that_waits_is_echoed_when_its_turn_begins() {
    let prompt = prompt();
    let message = json!({"content": [{"type": "text", "text": "next"}]});
    let context = TranslationContext { session_id: "s1", prompt: Some(&prompt), ..Default::default() };
    let waiting = frames(&event(3, EventType::UserMessage, &message), TranslationContext { waits: true, ..context });
    let expected = json!({"sessionId": "s1", "promptId": "p1", "text": "next", "queuedAt": 5});
    assert_eq!((waiting.len(), &*waiting[0].frame_type, &waiting[0].data), (1, "pending_prompt_added", &expected));
    assert!(EVENT_FRAMES.contains(&&*waiting[0].frame_type));
    assert_eq!(waiting[0].originator_client_id.as_deref(), Some("client_1"));
    let message = message.to_string();
    let context = TranslationContext { queued_message: Some(&message), ..context };
    let first = frames(&event(7, EventType::AssistantDelta, &json!({"messageId": "m", "delta": "he"})), context);
    let kinds: Vec<_> = first.iter().map(|frame| &frame.data["update"]["sessionUpdate"]).collect();
    assert_eq!(kinds, [&json!("user_message_chunk"), &json!("agent_message_chunk")]);
    assert_eq!(first.iter().map(|frame| frame.id).collect::<Vec<_>>(), [Some(13), Some(14)]);
    assert_eq!(first[0].originator_client_id.as_deref(), Some("client_1"));
    // Both of an event's ids are taken.
    let late = json!({"status": "failed", "failureKind": "backend-failed", "message": DEADLINE_EXCEEDED});
    let ended = frames(&event(7, EventType::TerminalStatus, &late), context);
    assert!(ended.iter().all(|frame| frame.frame_type != "session_update"), "{ended:?}");
}

#[test]
fn a_turn_begins_with_its_first_work_and_never_if_it_is_cancelled() {
    let begins = |event_type, payload: Value| begins_turn(&event(1, event_type, &payload));
    assert!(begins(EventType::BackendStatus, json!({"phase": "x"})));
    assert!(begins(EventType::TerminalStatus, json!({"status": "completed"})), "it had nothing to report");
    for (event_type, payload) in [
        (EventType::UserMessage, json!({})),
        (EventType::State, json!({"snapshot": {}})),
        (EventType::Audit, json!({"action": "command.cancel"})),
        (EventType::TerminalStatus, json!({"status": "cancelled", "failureKind": "cancelled"})),
    ] {
        assert!(!begins(event_type, payload), "{}", event_type.as_str());
    }
}

#[test]
fn tool_calls_start_and_are_updated() {
    let payload = json!({"toolCallId": "t", "name": "shell", "type": "commandExecution", "status": "started",
        "command": "ls", "files": ["a.rs"]});
    let started = update(EventType::ToolCall, &payload);
    let expected = json!({"sessionUpdate": "tool_call", "toolCallId": "t", "status": "in_progress", "title": "ls",
        "kind": "execute", "rawInput": {"command": "ls"}, "locations": [{"path": "a.rs"}], "content": [],
        "_meta": {"toolName": "shell", "ostler": {"status": "started"}}});
    assert_eq!(started, expected);
    for (status, expected) in
        [("completed", "completed"), ("failed", "failed"), ("declined", "failed"), ("outcome-unknown", "failed")]
    {
        let ended = update(EventType::ToolCall, &json!({"toolCallId": "t", "status": status, "exitCode": 1}));
        assert_eq!((&ended["sessionUpdate"], &ended["status"]), (&json!("tool_call_update"), &json!(expected)));
        assert_eq!(ended["rawOutput"], json!({"exitCode": 1}));
    }
    let output = update(EventType::CommandOutput, &json!({"toolCallId": "t", "stream": "stdout", "text": "a\n"}));
    assert_eq!(output["content"], json!([{"type": "content", "content": {"type": "text", "text": "a\n"}}]));
    assert_eq!((&output["sessionUpdate"], &output["status"]), (&json!("tool_call_update"), &json!("in_progress")));
}

#[test]
fn the_arguments_of_an_acp_call_are_json_again() {
    let call = json!({"toolCallId": "t", "name": "read_file", "type": "read", "status": "started",
        "arguments": "{\"path\":\"a\"}"});
    let started = update(EventType::ToolCall, &call);
    assert_eq!((&started["rawInput"], &started["kind"]), (&json!({"path": "a"}), &json!("read")));
    let cut = json!({"toolCallId": "t", "name": "x", "status": "started", "arguments": "{\"path\":\"a…"});
    assert_eq!(update(EventType::ToolCall, &cut)["rawInput"], json!({"arguments": "{\"path\":\"a…"}));
}

#[test]
fn plans_of_both_kinds_of_agents_are_plans() {
    let acp = json!({"activityType": "plan", "content": {"entries": [
        {"content": "a", "priority": "high", "status": "in_progress"}]}});
    let codex = json!({"activityType": "plan", "content": {"plan": [{"step": "a", "status": "inProgress"}]}});
    for (payload, priority) in [(acp, "high"), (codex, "medium")] {
        let plan = update(EventType::Activity, &payload);
        assert_eq!(
            plan,
            json!({"sessionUpdate": "plan",
            "entries": [{"content": "a", "priority": priority, "status": "in_progress"}]})
        );
    }
    let other = update(EventType::Activity, &json!({"activityType": "search", "content": {"q": 1}}));
    assert_eq!(other["_meta"]["ostler"]["payload"]["content"], json!({"q": 1}));
}

#[test]
fn the_echo_of_a_prompt_has_its_parts_without_the_bytes_of_images() {
    let image = json!({"type": "image", "mimeType": "image/png", "bytes": 3});
    let link = json!({"type": "resource_link", "uri": format!("file:///{}", "x".repeat(2_000)), "name": "x"});
    let only_image = update(EventType::UserMessage, &json!({"content": [image]}));
    let echoed = json!({"type": "image", "mimeType": "image/png", "data": "", "_meta": {"bytes": 3}});
    assert_eq!((&only_image["content"], &only_image["_meta"]["parts"]), (&echoed, &json!([echoed])));
    let parts: Vec<_> = std::iter::repeat_n(link, 100).collect();
    let content: Vec<_> = [json!({"type": "text", "text": "look"}), image].into_iter().chain(parts).collect();
    let mixed = update(EventType::UserMessage, &json!({"content": content}));
    assert_eq!(mixed["content"], json!({"type": "text", "text": "look"}));
    let listed = mixed["_meta"]["parts"].as_array().unwrap();
    assert_eq!((listed.len(), &listed[0], &listed[1]["name"]), (32, &echoed, &json!("x")));
    assert!(listed[1]["uri"].as_str().unwrap().chars().count() <= 513);
}

#[test]
fn usage_is_counted() {
    let update = update(EventType::Usage, &json!({"model": "m", "inputTokens": 3, "outputTokens": 4, "costUsd": 0.5}));
    assert_eq!((&update["used"], &update["cost"]["amount"]), (&json!(7), &json!(0.5)));
    assert_eq!(update["_meta"]["usage"], json!({"model": "m", "inputTokens": 3, "outputTokens": 4}));
}

#[test]
fn notices_hold_what_clients_can_use() {
    let status = update(EventType::BackendStatus, &json!({"phase": "waiting-provider", "threadId": "internal"}));
    assert_eq!(
        status,
        json!({"sessionUpdate": "notice",
        "_meta": {"ostler": {"type": "backend_status", "phase": "waiting-provider"}}})
    );
    let step = update(EventType::Step, &json!({"name": "router", "status": "started"}));
    assert_eq!(step["_meta"]["ostler"], json!({"type": "step", "payload": {"name": "router", "status": "started"}}));
    let planned = json!({"phase": "router:planned", "tools": ["time_now"], "context": ["clock"], "message": "Look."});
    let mut expected = planned.clone();
    expected["type"] = json!("backend_status");
    assert_eq!(update(EventType::BackendStatus, &planned)["_meta"]["ostler"], expected);
    let lease = update(EventType::Lease, &json!({"state": "claimed", "runnerId": "r", "leaseEpoch": 2}));
    assert_eq!(lease["_meta"]["ostler"], json!({"type": "lease", "state": "claimed", "leaseEpoch": 2}));
    let long = update(EventType::Error, &json!({"failureKind": "infra-failed", "message": "x".repeat(10_000)}));
    assert!(long["_meta"]["ostler"]["message"].as_str().expect("text").len() < 2_100);
}

fn ask() -> Value {
    json!({"permissionId": PermissionId::new(Uuid::nil()), "title": "Run it?", "command": "rm x",
        "toolCallId": "t", "digest": "a".repeat(64), "options": [
        {"optionId": "allow", "name": "Allow", "kind": "allow_once"}]})
}

#[test]
fn permission_requests_and_their_outcomes() {
    let payload = ask();
    let (frame_type, data) = one(EventType::PermissionRequest, &payload);
    assert_eq!(frame_type, "permission_request", "{data}");
    assert_eq!(
        data,
        json!({"requestId": payload["permissionId"], "sessionId": "s1",
        "toolCall": {"toolCallId": "t", "title": "Run it?", "status": "pending", "rawInput": {"command": "rm x"}},
        "options": payload["options"]})
    );
    let mut expiring = payload.clone();
    expiring["deadline"] = "2030-01-01T00:10:00Z".into();
    let (_, data) = one(EventType::PermissionRequest, &expiring);
    assert_eq!(data["_meta"], json!({"ostler": {"deadline": "2030-01-01T00:10:00Z"}}));
    for (payload, outcome) in [
        (
            json!({"permissionId": "p", "status": "allowed", "optionId": "allow"}),
            json!({"outcome": "selected", "optionId": "allow"}),
        ),
        (
            json!({"permissionId": "p", "status": "denied", "optionId": "deny"}),
            json!({"outcome": "selected", "optionId": "deny"}),
        ),
        (json!({"permissionId": "p", "status": "denied", "optionId": null}), json!({"outcome": "cancelled"})),
        (json!({"permissionId": "p", "status": "cancelled"}), json!({"outcome": "cancelled"})),
    ] {
        let (frame_type, data) = one(EventType::PermissionResolved, &payload);
        assert_eq!((frame_type.as_str(), data), ("permission_resolved", json!({"requestId": "p", "outcome": outcome})));
    }
}

#[test]
fn votes_are_caused_by_their_voters() {
    let vote = json!({"action": "permission.voted", "permissionId": "p", "optionId": "allow", "voter": "client_2",
        "votesReceived": 1, "votesNeeded": 2, "quorum": 2, "optionTallies": {"allow": 1}});
    let sent = translated(&event(3, EventType::Audit, &vote), None);
    assert_eq!(
        (&*sent[0].frame_type, sent[0].originator_client_id.as_deref()),
        ("permission_partial_vote", Some("client_2"))
    );
    assert_eq!(
        sent[0].data,
        json!({"requestId": "p", "sessionId": "s1", "votesReceived": 1, "votesNeeded": 1,
        "quorum": 2, "optionTallies": {"allow": 1}})
    );
    let refusal = json!({"action": "permission.forbidden", "permissionId": "p", "voter": "client_3",
        "reason": "not_a_voter"});
    let (frame_type, data) = one(EventType::Audit, &refusal);
    assert_eq!(
        (frame_type.as_str(), &data["reason"], &data["clientId"]),
        ("permission_forbidden", &json!("designated_mismatch"), &json!("client_3"))
    );
}

#[test]
fn votes_of_callers_without_a_client_are_not_those_of_the_client_that_sent_the_prompt() {
    for action in ["permission.voted", "permission.forbidden"] {
        let vote = json!({"action": action, "permissionId": "p", "voter": "service:other", "reason": "not_a_voter",
            "votesReceived": 1, "quorum": 2, "optionTallies": {"allow": 1}});
        let sent = translated(&event(3, EventType::Audit, &vote), None);
        assert_eq!((sent[0].originator_client_id.as_deref(), sent[0].data.get("clientId")), (None, None), "{action}");
        assert_eq!(sent[0].prompt_id.as_deref(), Some("p1"));
    }
}

#[test]
fn changes_of_the_session_have_frames() {
    let (frame_type, data) = one(EventType::Session, &json!({"change": "renamed", "title": "T", "by": "x"}));
    assert_eq!(
        (frame_type.as_str(), data),
        ("session_metadata_updated", json!({"sessionId": "s1", "displayName": "T"}))
    );
    let (_, cleared) = one(EventType::Session, &json!({"change": "renamed", "title": null, "by": "x"}));
    assert_eq!(cleared["displayName"], "");
    let (frame_type, data) = one(EventType::Session, &json!({"change": "closed", "by": "x"}));
    assert_eq!((frame_type.as_str(), data), ("session_closed", json!({"sessionId": "s1", "reason": "closed"})));
}

#[test]
fn cancels_and_renames_name_the_client_that_caused_them() {
    let cancel = json!({"action": "command.cancel", "by": "x", "reason": null, "origin": "client_7"});
    let renamed = json!({"change": "renamed", "title": "T", "by": "x", "origin": "client_7"});
    for (event_type, payload) in [(EventType::Audit, cancel), (EventType::Session, renamed)] {
        let sent = translated(&event(3, event_type, &payload), None);
        assert_eq!(sent[0].originator_client_id.as_deref(), Some("client_7"), "{payload}");
    }
    // What an agent reports cannot name a client.
    let custom = translated(&event(3, EventType::Custom, &json!({"origin": "client_7"})), None);
    assert_eq!(custom[0].originator_client_id.as_deref(), Some("client_1"), "the client that submitted the prompt");
}

#[test]
fn notes_of_the_daemon_are_frames() {
    let note = |note: &str| {
        json!({"change": "noted", "note": note, "by": "x",
        "data": {"data": {"scope": "workspace"}, "clientId": "client_7"}})
    };
    let sent = translated(&event(3, EventType::Session, &note("daemon.memory_changed")), None);
    assert_eq!(
        (sent[0].id, &*sent[0].frame_type, &sent[0].data),
        (Some(5), "memory_changed", &json!({"scope": "workspace"}))
    );
    assert_eq!(sent[0].originator_client_id.as_deref(), Some("client_7"));
    for other in ["other.note", "daemon.", "daemon.not a name", "daemon.a\nid: 1"] {
        assert_eq!(one(EventType::Session, &note(other)).0, "session_update", "{other}");
    }
}

#[test]
fn removed_payloads_have_no_frames_except_the_erasure() {
    let mut removed = event(3, EventType::Session, &json!({}));
    removed.payload = None;
    assert!(translated(&removed, None).is_empty());
    removed.digest = chain::payload_digest(&json!({"change": "erased"}).to_string());
    assert_eq!(translated(&removed, None)[0].data["reason"], "erased");
}
