//! How turns end.

use super::*;

#[test]
fn turns_end_with_a_reason_or_an_error() {
    let end = |payload: Value| one(EventType::TerminalStatus, &payload);
    for (payload, reason) in [
        (json!({"status": "completed"}), "end_turn"),
        (json!({"status": "cancelled"}), "cancelled"),
        (json!({"status": "blocked", "failureKind": "cancelled"}), "cancelled"),
        (json!({"status": "blocked", "failureKind": "permission-denied"}), "refusal"),
        (json!({"status": "failed", "message": "the agent refuses to continue"}), "refusal"),
        (
            json!({"status": "blocked", "failureKind": "budget-exceeded", "message": "the budget maxTokens of 5 is used up"}),
            "max_tokens",
        ),
        (
            json!({"status": "blocked", "failureKind": "budget-exceeded", "message": "the budget maxTurns of 5 is used up"}),
            "max_turn_requests",
        ),
    ] {
        let (frame_type, data) = end(payload);
        assert_eq!(
            (frame_type.as_str(), data),
            ("turn_complete", json!({"sessionId": "s1", "stopReason": reason, "promptId": "p1"}))
        );
    }
    let (frame_type, data) =
        end(json!({"status": "failed", "failureKind": "provider-unavailable", "message": "later"}));
    assert_eq!(
        (frame_type.as_str(), data),
        (
            "turn_error",
            json!({"sessionId": "s1", "message": "later", "code": "provider_unavailable", "promptId": "p1"})
        )
    );
    // An agent that did not respond in time failed; that is no deadline of the prompt.
    let (_, data) = end(json!({"status": "failed", "failureKind": "backend-timeout", "message": "no response"}));
    assert_eq!(data["code"], "backend_timeout");
}

#[test]
fn a_prompt_that_runs_out_of_time_fails_and_is_cancelled() {
    let reason = format!("{DEADLINE_EXCEEDED}: it took longer than 50 ms");
    let cancelled = json!({"status": "cancelled", "message": "cancelled on request"});
    let timed_out = json!({"status": "blocked", "failureKind": "budget-exceeded",
        "message": "the budget timeoutMs of 50 is used up"});
    let stated = json!({"status": "failed", "failureKind": "backend-timeout", "message": reason});
    for (payload, cancel_reason) in [(cancelled, Some(reason.as_str())), (timed_out, None), (stated, None)] {
        let sent = translated(&event(3, EventType::TerminalStatus, &payload), cancel_reason);
        let types: Vec<_> = sent.iter().map(|frame| (frame.id, &*frame.frame_type)).collect();
        assert_eq!(types, [(Some(5), "turn_error"), (Some(6), "prompt_cancelled")]);
        assert_eq!(sent[0].data["code"], DEADLINE_EXCEEDED);
        assert!(!sent[0].data["message"].as_str().expect("text").contains(DEADLINE_EXCEEDED));
    }
}

#[test]
fn a_prompt_that_runs_out_of_time_ends_when_it_is_cancelled_and_not_when_its_agent_has_stopped() {
    let audit = json!({"action": "command.cancel", "by": "deadline", "reason": DEADLINE_EXCEEDED});
    assert!(is_late_cancel(&event(2, EventType::Audit, &audit)));
    for other in [json!({"action": "permission.voted"}), json!({"action": "command.cancel", "reason": "enough"})] {
        assert!(!is_late_cancel(&event(2, EventType::Audit, &other)), "{other}");
    }
    let sent = translated(&event(3, EventType::Audit, &audit), None);
    let types: Vec<_> = sent.iter().map(|frame| (frame.id, &*frame.frame_type)).collect();
    assert_eq!(types, [(Some(5), "turn_error"), (Some(6), "prompt_cancelled")]);
    assert_eq!((&sent[0].data["code"], &sent[0].data["promptId"]), (&json!(DEADLINE_EXCEEDED), &json!("p1")));
    assert_eq!(sent[0].originator_client_id.as_deref(), Some("client_1"));
    let prompt = prompt();
    let context = TranslationContext { session_id: "s1", prompt: Some(&prompt), ..Default::default() };
    for status in ["cancelled", "completed"] {
        let end = event(9, EventType::TerminalStatus, &json!({"status": status}));
        let reason = Some(DEADLINE_EXCEEDED);
        let context = TranslationContext { cancel_reason: reason, is_end_sent: true, ..context };
        let sent = frames(&end, context);
        assert_eq!((sent.len(), &*sent[0].frame_type), (1, "session_update"), "{status}: it has ended before");
    }
    let steer = PromptRef { is_turn: false, ..prompt.clone() };
    let context = TranslationContext { prompt: Some(&steer), ..context };
    let sent = frames(&event(3, EventType::Audit, &audit), context);
    assert_eq!((sent.len(), &*sent[0].frame_type), (1, "session_update"));
}

#[test]
fn a_cancel_is_reported_at_once() {
    let (frame_type, data) = one(EventType::Audit, &json!({"action": "command.cancel", "by": "x", "reason": null}));
    assert_eq!((frame_type.as_str(), data), ("prompt_cancelled", json!({"sessionId": "s1", "promptId": "p1"})));
}

#[test]
fn ends_of_steers_and_runs_end_no_turn() {
    let steer = PromptRef { is_turn: false, ..prompt() };
    let ended = event(3, EventType::TerminalStatus, &json!({"status": "completed"}));
    for prompt in [Some(&steer), None] {
        let sent = frames(&ended, TranslationContext { session_id: "s1", prompt, ..TranslationContext::default() });
        assert_eq!((sent.len(), &*sent[0].frame_type), (1, "session_update"));
    }
}
