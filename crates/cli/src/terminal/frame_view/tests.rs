use super::*;

fn view() -> FrameView {
    FrameView::new(Some("client_me".into()), true, String::new(), Paint::PLAIN)
}

fn frame(frame_type: &str, data: Value) -> ReceivedFrame {
    serde_json::from_value(json!({"id": 1, "v": 1, "type": frame_type, "data": data})).unwrap()
}

fn update(kind: &str, rest: Value) -> ReceivedFrame {
    let mut update = rest;
    update["sessionUpdate"] = kind.into();
    frame("session_update", json!({"sessionId": "s", "update": update}))
}

fn text(kind: &str, text: &str) -> ReceivedFrame {
    update(kind, json!({"content": {"type": "text", "text": text}}))
}

/// Everything that is printed, as on a terminal that both streams go to.
fn printed(view: &mut FrameView, frames: &[ReceivedFrame]) -> String {
    let mut out = String::new();
    for piece in frames.iter().flat_map(|frame| view.apply(frame)) {
        match piece {
            Piece::Reply(text) => out += &text,
            Piece::NextMessage if !out.ends_with('\n') => out.push('\n'),
            Piece::NextMessage => {}
            Piece::Note(text) => {
                assert!(out.is_empty() || out.ends_with('\n'), "a note in the middle of a line: {out:?} {text:?}");
                out += &text;
            }
        }
    }
    out
}

#[test]
fn a_server_that_stops_does_not_end_the_session() {
    let died = |reason: &str| frame("session_died", json!({"sessionId": "s", "reason": reason}));
    let stopping = "the server is stopping; waiting for it to come back\n";
    assert_eq!(printed(&mut view(), &[died("daemon_shutdown")]), stopping);
    assert_eq!(printed(&mut view(), &[died("agent_crashed")]), "the session ended: agent_crashed\n");
}

#[test]
fn a_turn_is_shown_as_it_streams() {
    let mut other = text("user_message_chunk", "list the files");
    other.originator_client_id = Some("client_0123456789abcdef".into());
    let mut own = text("user_message_chunk", "not printed again");
    own.originator_client_id = Some("client_me".into());
    let call = json!({"toolCallId": "t", "title": "shell", "status": "in_progress", "rawInput": {"command": "ls"}});
    let frames = [
        own,
        other,
        text("agent_thought_chunk", "I should "),
        text("agent_thought_chunk", "look."),
        text("agent_message_chunk", "Look"),
        text("agent_message_chunk", "ing…"),
        update("tool_call", call),
        update("tool_call_update", json!({"toolCallId": "t", "status": "in_progress"})),
        update("tool_call_update", json!({"toolCallId": "t", "status": "completed"})),
        text("agent_message_chunk", "Done."),
        frame("turn_complete", json!({"stopReason": "end_turn", "promptId": "p"})),
        frame("turn_complete", json!({"stopReason": "cancelled", "promptId": "p"})),
    ];
    assert_eq!(
        printed(&mut view(), &frames),
        "client_89abcdef: list the files\nI should look.\nLooking…\ntool shell started: ls\n\
         tool shell completed: ls\nDone.\nturn ended: cancelled\n"
    );
}

#[test]
fn nothing_that_an_agent_sends_drives_the_terminal() {
    let frames = [
        text("agent_thought_chunk", "a\u{1b}[2Jb\n"),
        text("user_message_chunk", "c\u{1b}]0;x\u{7}"),
        frame("memory_changed\u{1b}", json!({"sessionId": "s", "x": "\u{1b}[2J"})),
    ];
    let shown = printed(&mut view(), &frames);
    assert!(!shown.contains('\u{1b}') && !shown.contains('\u{7}'), "{shown:?}");
    assert!(shown.contains("memory_changed {\"x\":"), "{shown}");
}

fn request() -> ReceivedFrame {
    let options = json!([{"optionId": "yes", "name": "Once", "kind": "allow_once"},
        {"optionId": "no", "name": "No", "kind": "reject_once"}]);
    let call = json!({"toolCallId": "t", "title": "Clean up?", "rawInput": {"command": "rm -r build"}});
    frame("permission_request", json!({"requestId": "r", "sessionId": "s", "toolCall": call, "options": options}))
}

#[test]
fn a_permission_request_shows_when_it_expires() {
    let mut expiring = request();
    expiring.data["_meta"] = json!({"ostler": {"deadline": "9000-01-01T00:00:00Z"}});
    let shown = printed(&mut view(), std::slice::from_ref(&expiring));
    assert!(shown.starts_with("permission needed: Clean up?\n  command: rm -r build\n  answer:  within "), "{shown}");
    let mut elsewhere = FrameView::new(None, false, "  approve: ostler approve s\n".into(), Paint::PLAIN);
    let shown = printed(&mut elsewhere, std::slice::from_ref(&expiring));
    assert!(shown.contains("options: yes (Once), no (No)\n  answer:  within "), "{shown}");
    // Earlier frames are shown again to a client that attaches later.
    for deadline in [json!("2020-01-01T00:00:00Z"), json!("soon"), json!(7)] {
        expiring.data["_meta"]["ostler"]["deadline"] = deadline;
        assert!(!printed(&mut view(), std::slice::from_ref(&expiring)).contains("answer:"), "{expiring:?}");
    }
}

#[test]
fn a_permission_request_shows_what_will_run_and_how_it_ended() {
    let mut resolved =
        frame("permission_resolved", json!({"requestId": "r", "outcome": {"outcome": "selected", "optionId": "yes"}}));
    resolved.originator_client_id = Some("client_me".into());
    let shown = printed(&mut view(), &[request(), resolved.clone()]);
    assert_eq!(shown, "permission needed: Clean up?\n  command: rm -r build\npermission allowed by you\n");
    let mut elsewhere = FrameView::new(None, false, "  approve: ostler approve s\n".into(), Paint::PLAIN);
    resolved.data["outcome"] = json!({"outcome": "cancelled"});
    resolved.originator_client_id = None;
    assert_eq!(
        printed(&mut elsewhere, &[request(), resolved]),
        "permission needed: Clean up?\n  command: rm -r build\n  options: yes (Once), no (No)\n  \
         approve: ostler approve s\npermission cancelled\n"
    );
}

#[test]
fn the_whole_input_of_a_call_is_shown_if_it_is_more_than_a_command() {
    let call = |input: Value| command_of(&json!({"rawInput": input}));
    assert_eq!(call(json!({"command": "ls"})).unwrap(), "ls");
    assert_eq!(call(json!("ls")).unwrap(), "ls");
    let whole = call(json!({"command": "ls", "directory": "/etc"})).unwrap();
    assert!(whole.contains("\"directory\": \"/etc\"") && whole.contains("\"command\": \"ls\""), "{whole}");
    assert_eq!(call(Value::Null), None);
    let content = command_of(&json!({"content": [{"type": "diff", "path": "a", "newText": "b"}]})).unwrap();
    assert!(content.contains("\"path\": \"a\""), "{content}");
}

#[test]
fn a_request_that_was_denied_without_a_vote_shows_the_reason() {
    let notice = |facts: Value| update("notice", json!({"_meta": {"ostler": facts}}));
    let frames = [
        notice(json!({"type": "permission_request", "permissionId": "r"})),
        notice(json!({"type": "permission_resolved", "status": "denied", "resolvedBy": "manager",
            "reason": "the request could not be read or is over-long"})),
        notice(json!({"type": "backend_status", "phase": "approval:declined", "reason": "it is too long"})),
    ];
    assert_eq!(
        printed(&mut view(), &frames),
        "permission denied by the server: the request could not be read or is over-long\n\
         permission denied without asking: it is too long\n"
    );
}

#[test]
fn a_call_is_shown_as_the_server_writes_it() {
    let mut asked = request();
    asked.data["toolCall"]["rawInput"] = json!({"command": "rm -r build", "description": "d"});
    asked.data["toolCall"]["_meta"] = json!({"ostler": {"command": "rm -r build\ndescription: d"}});
    let shown = printed(&mut view(), &[asked]);
    assert!(shown.contains("rm -r build\n") && shown.contains("description: d\n") && !shown.contains('{'), "{shown}");
}

#[test]
fn other_frames_are_one_line_each() {
    let view = &mut view();
    let mut renamed = frame("session_metadata_updated", json!({"sessionId": "s", "displayName": "Review"}));
    renamed.originator_client_id = Some("client_me".into());
    let plan =
        json!({"entries": [{"content": "look", "status": "completed"}, {"content": "fix", "status": "pending"}]});
    let frames = [
        renamed,
        frame("turn_error", json!({"message": "no provider", "code": "backend_failed", "promptId": "p"})),
        update("plan", plan),
        frame("replay_complete", json!({"replayedCount": 3})),
        frame("session_closed", json!({"sessionId": "s", "reason": "client_close", "closedBy": "ed"})),
    ];
    assert_eq!(
        printed(view, &frames),
        "you renamed the session to Review\nerror backend_failed: no provider\nplan 1/2: fix\n\
         the session was closed by ed\n"
    );
}

#[test]
fn a_repeated_turn_is_announced_and_starts_on_a_line_of_its_own() {
    let piece = |message: &str, text: &str| {
        let meta = json!({"ostler": {"messageId": message}});
        update("agent_message_chunk", json!({"content": {"type": "text", "text": text}, "_meta": meta}))
    };
    let mut restarted = text("agent_message_chunk", "[The turn was interrupted and starts again.]");
    restarted.data["update"]["_meta"] = json!({"ostler": {"phase": "attempt-restarted"}});
    // The same name twice: also then the texts are not joined.
    let frames = [piece("m", "Half a"), restarted, piece("m", "A whole"), piece("m", " reply.")];
    assert_eq!(
        printed(&mut view(), &frames),
        "Half a\nanother runner took the turn over; the reply starts again\nA whole reply."
    );
}

#[test]
fn a_prompt_that_waits_is_shown_when_its_turn_begins() {
    let waiting = |client: &str, prompt: &str| {
        let mut added = frame("pending_prompt_added", json!({"sessionId": "s", "promptId": prompt, "text": "next"}));
        (added.originator_client_id, added.prompt_id) = (Some(client.into()), Some(prompt.into()));
        added
    };
    let echo = |client: &str, prompt: &str| {
        let mut echo = text("user_message_chunk", "next");
        (echo.originator_client_id, echo.prompt_id) = (Some(client.into()), Some(prompt.into()));
        echo
    };
    let done = || frame("turn_complete", json!({"stopReason": "end_turn", "promptId": "p"}));
    let frames = [
        text("agent_message_chunk", "Work"),
        waiting("client_me", "mine"),
        waiting("client_0123456789abcdef", "theirs"),
        text("agent_message_chunk", "ing."),
        done(),
        echo("client_me", "mine"),
        done(),
        echo("client_0123456789abcdef", "theirs"),
    ];
    assert_eq!(
        printed(&mut view(), &frames),
        "Work\nclient_89abcdef waits for this turn with: next\ning.\nyou: next\nclient_89abcdef: next\n"
    );
}

#[test]
fn prompts_that_end_while_they_wait_are_forgotten() {
    let mut view = view();
    let wait = |view: &mut FrameView, prompt: &str| {
        let mut added = frame("pending_prompt_added", json!({"sessionId": "s", "promptId": prompt, "text": "next"}));
        (added.originator_client_id, added.prompt_id) = (Some("client_me".into()), Some(prompt.into()));
        view.apply(&added);
    };
    wait(&mut view, "cancelled");
    wait(&mut view, "failed");
    view.apply(&frame("turn_complete", json!({"stopReason": "cancelled", "promptId": "cancelled"})));
    let mut error = frame("turn_error", json!({"message": "no"}));
    error.prompt_id = Some("failed".into());
    view.apply(&error);
    assert!(view.waiting.is_empty(), "{:?}", view.waiting);
    for number in 0..=WAITING_MAX {
        wait(&mut view, &format!("prompt-{number}"));
    }
    assert_eq!(view.waiting.len(), WAITING_MAX);
}

#[test]
fn a_refused_vote_names_who_may_vote() {
    let refused = |reason: &str, voter: &str| {
        frame("permission_forbidden", json!({"requestId": "r", "reason": reason, "clientId": voter}))
    };
    let mut asked = request();
    asked.originator_client_id = Some("client_0123456789abcdef".into());
    let view = &mut view();
    printed(view, &[asked]);
    assert_eq!(
        printed(view, &[refused("designated_mismatch", "client_aaaaaaaa11111111")]),
        "a vote by client_11111111 was refused: only client_89abcdef may vote here, because it sent the prompt\n"
    );
    assert_eq!(printed(view, &[refused("designated_mismatch", "client_me")]), "", "the response reports it");
    assert_eq!(
        view.designated_voter("r").as_deref(),
        Some("only client_89abcdef may vote here, because it sent the prompt")
    );
    assert_eq!(view.designated_voter("unknown"), None);
    let mut outsider = refused("designated_mismatch", "client_aaaaaaaa11111111");
    outsider.data["_meta"] = json!({"ostler": {"reason": "not_a_voter"}});
    assert_eq!(
        printed(view, &[outsider]),
        "a vote by client_11111111 was refused: only clients that were attached when the agent asked may vote here\n"
    );
    let nameless = frame("permission_forbidden", json!({"requestId": "r", "reason": "remote_not_allowed"}));
    assert_eq!(
        printed(view, &[nameless]),
        "a vote was refused: only clients on the server's own machine may vote here\n"
    );
}
