//! Resumes, and transcripts that are read as a stream.

use super::*;

#[test]
fn a_resume_needs_no_user_message_and_is_chosen_by_option_or_approval() {
    let mut body = with("messages", json!([]));
    body["resume"] = json!([{"interruptId": "p", "status": "resolved", "payload": {"approved": true}}]);
    assert_eq!((accepted(&body).user, accepted(&body).resume.len()), (None, 1));
    let mut snake = body.clone();
    snake["resume"] = json!([{"interrupt_id": "p", "status": "resolved", "payload": {"approved": true}}]);
    assert_eq!(accepted(&snake), accepted(&body));
    // A message sent with it would reach no agent.
    for message in [user("a"), json!({"id": "s", "role": "system", "content": "Be brief."})] {
        body["messages"] = json!([message]);
        refused(&body, Rule::AgentRunMessagesInvalid, "RunAgentInput.messages must be empty with resume");
    }

    let option = |id: &str, kind| PermissionOption { option_id: id.into(), name: id.into(), kind };
    let options = [
        option("always", OptionKind::AllowAlways),
        option("once", OptionKind::AllowOnce),
        option("never", OptionKind::RejectAlways),
    ];
    let chosen = |status, payload| {
        let entry = ResumeEntry { interrupt_id: "p".into(), status, payload, metadata: None };
        entry.choice().select(&options).map(|option| option.option_id.clone())
    };
    use ResumeStatus::{Cancelled, Resolved};
    for (payload, option) in [
        (json!({"optionId": "always"}), Some("always")),
        (json!({"option_id": "never"}), Some("never")),
        (json!({"approved": true}), Some("once")),
        (json!({"approved": false}), Some("never")),
        (json!(true), Some("once")),
        (json!({"optionId": "no such"}), None),
        (json!({"optionId": 1, "approved": true}), None),
        (json!({"approved": "yes"}), None),
        (json!(null), None),
    ] {
        assert_eq!(chosen(Resolved, payload.clone()).as_deref(), option, "{payload}");
    }
    assert_eq!(chosen(Cancelled, json!({"approved": true})), None);
}

#[test]
fn a_streamed_transcript_is_set_aside_and_counts_for_nothing() {
    let long = "x".repeat(10_001);
    let mut messages = vec![];
    for turn in 0..150 {
        messages.push(json!({"id": format!("u{turn}"), "role": "user", "content": long}));
        messages.push(json!({"id": format!("a{turn}"), "role": "assistant", "content": "yes"}));
    }
    messages.extend([user("now"), json!({"id": "s", "role": "system", "content": "be brief"})]);
    let body = with("messages", messages.into());
    let input = streamed(&body).expect("accepted");
    assert_eq!((input.transcript.len(), input.others.len()), (300, 1));
    assert_eq!(input.user.expect("the last one").text(), "now");
    // Queued, all of it counts.
    assert_eq!(read(&body).expect_err("too large").rule, Rule::AgentPayloadInvalid);

    let mut heavy = body.clone();
    heavy["messages"][301]["content"] = "x".repeat(INPUT_BYTES_MAX).into();
    assert_eq!(streamed(&heavy).expect_err("too large").detail, "RunAgentInput payload exceeds size limit");
    let mut huge = body;
    huge["messages"][1]["content"] = "x".repeat(4 * 1024 * 1024).into();
    assert_eq!(streamed(&huge).expect_err("too large").rule, Rule::AgentPayloadInvalid);
}

#[test]
fn what_is_left_of_a_streamed_transcript_follows_the_rules() {
    let before = json!({"id": "u0", "role": "user", "content": "before"});
    let after: Vec<Value> = (0..200).map(|n| json!({"id": n.to_string(), "role": "system", "content": ""})).collect();
    let of = |count: usize| {
        let mut messages = vec![before.clone(), user("now")];
        messages.extend_from_slice(&after[..count]);
        streamed(&with("messages", messages.into()))
    };
    assert!(of(199).is_ok());
    assert_eq!(of(200).expect_err("too many").detail, "RunAgentInput.messages exceeds limit");
    let none = streamed(&with("messages", json!([after[0]]))).expect_err("no user message");
    assert_eq!(none.detail, "RunAgentInput.messages must contain exactly one user message");

    let mut resumed = with("messages", json!([before, {"id": "a", "role": "assistant", "content": "may I?"}]));
    resumed["resume"] = json!([{"interruptId": "p", "status": "cancelled"}]);
    let resumed = streamed(&resumed).expect("accepted");
    assert_eq!((resumed.user, resumed.transcript.len()), (None, 2));
}
