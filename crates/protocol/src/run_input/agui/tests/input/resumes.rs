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

/// Clients repeat their instructions with each message.
#[test]
fn system_and_developer_messages_of_a_transcript_go_to_the_agent_and_count() {
    let system = json!({"id": "s", "role": "system", "content": "be brief", "name": "page", "encrypted_value": "eA=="});
    let developer = json!({"id": "d", "role": "developer", "content": "be kind"});
    let earlier = [user("before"), json!({"id": "a", "role": "assistant", "content": "yes"})];
    let transcript = [vec![system.clone()], earlier.to_vec(), vec![developer.clone()]].concat();
    let input = streamed(&with("messages", [transcript.clone(), vec![user("now")]].concat().into())).expect("accepted");
    assert_eq!((input.user.expect("the last one").text(), input.transcript.len()), ("now".to_owned(), 4));
    let roles: Vec<_> = input.others.iter().map(|sent| sent.message.role()).collect();
    assert_eq!(roles, ["system", "developer"]);
    assert_eq!(input.others[0].sent["encryptedValue"], "eA==");
    assert_eq!(input.others[0].remark().text, "page: be brief");

    // Results of tools continue the work, which needs the instructions as well.
    let call = json!({"id": "c", "function": {"name": "f", "arguments": "{}"}});
    let answers = [
        transcript,
        vec![
            json!({"id": "b", "role": "assistant", "toolCalls": [call]}),
            json!({"id": "t", "role": "tool", "toolCallId": "c", "content": "42"}),
        ],
    ];
    let input = streamed(&with("messages", answers.concat().into())).expect("accepted");
    assert_eq!((input.user, input.replies.len(), input.others.len()), (None, 1, 2));

    // A turn that continues has them already.
    let mut resumed = with("messages", json!([system, earlier[0], earlier[1]]));
    resumed["resume"] = json!([{"interruptId": "p", "status": "cancelled"}]);
    assert!(streamed(&resumed).expect("accepted").others.is_empty());

    let many: Vec<Value> = (0..200).map(|n| json!({"id": n.to_string(), "role": "system", "content": ""})).collect();
    let refused = streamed(&with("messages", [many, vec![user("now")]].concat().into())).expect_err("too many");
    assert!(refused.detail.starts_with("RunAgentInput.messages exceeds limit: the system"), "{}", refused.detail);
    let large = json!({"id": "s", "role": "system", "content": "x".repeat(INPUT_BYTES_MAX)});
    let refused =
        streamed(&with("messages", json!([large, earlier[0], earlier[1], user("now")]))).expect_err("too large");
    assert_eq!(refused.rule, Rule::AgentPayloadInvalid);
}

#[test]
fn a_field_of_the_transcript_that_has_no_meaning_is_rejected_by_name() {
    let mut before = user("before");
    before["subagentRunId"] = "sub-1".into();
    let refused = streamed(&with("messages", json!([before, user("now")]))).expect_err("rejected");
    assert!(refused.detail.starts_with("RunAgentInput.messages[0].subagentRunId"), "{}", refused.detail);
}

#[test]
fn a_new_thread_may_begin_with_instructions_before_its_message() {
    let call = json!({"id": "c", "function": {"name": "f", "arguments": "{}"}});
    let messages = json!([{"id": "s", "role": "system", "content": "be brief"}, user("now"),
        {"id": "a", "role": "assistant", "toolCalls": [call]},
        {"id": "t", "role": "tool", "toolCallId": "c", "content": "42"}]);
    let body = with("messages", messages);
    let opening = |body: &Value| RunInput::read(body.to_string().as_bytes(), Form::Opening);
    let input = opening(&body).expect("accepted");
    let roles: Vec<_> = input.others.iter().map(|sent| sent.message.role()).collect();
    assert_eq!((input.user.expect("a message").text(), roles), ("now".to_owned(), vec!["system", "assistant", "tool"]));
    let mut other = body;
    other["messages"][0]["role"] = "reasoning".into();
    assert_eq!(opening(&other).expect_err("rejected").detail, "RunAgentInput.messages[0].role must be user");
}
