//! Permission requests, the votes on them, and how they were resolved.

use serde_json::{Value, json};

use super::{
    context::{TranslationContext, named, picked},
    tools,
};
use crate::daemon::clients::CLIENT_ID_PREFIX;
use crate::kernel::{
    events::{Event, EventType},
    facts::Facts,
    permissions::{AskPermission, ParsedPermission, resolved_by},
};

pub(super) fn request(event: &Event, payload: &Value, context: TranslationContext<'_>) -> (&'static str, Value) {
    let Facts::Permission(ParsedPermission::Valid(ask)) = event.facts() else {
        // A malformed request is denied at once, and no vote on it is possible: the notice of the denial follows.
        return context.notice(EventType::PermissionRequest, picked(payload, &["permissionId", "title"]));
    };
    let id = ask.permission_id.to_string();
    let call = requested_call(&ask, &id);
    let mut data = json!({"requestId": id, "sessionId": context.session_id, "toolCall": call, "options": ask.options});
    if let Some(deadline) = ask.deadline {
        data["_meta"] = json!({"ostler": {"deadline": deadline}});
    }
    ("permission_request", data)
}

/// The call, as editors show it. Its input is always all of what will run: where the input itself is not known, the text of it.
fn requested_call(ask: &AskPermission, id: &str) -> Value {
    let mut call = json!({"toolCallId": ask.tool_call_id.as_deref().unwrap_or(id), "title": ask.title,
        "status": "pending"});
    let details = ask.call_details.as_ref();
    let command = ask.command.as_deref();
    match (details.and_then(|details| details.input.clone()), command) {
        (Some(input), command) => {
            call["rawInput"] = input;
            // Terminals show it in place of the input.
            call["_meta"] = json!({"ostler": {"command": command}});
        }
        (None, Some(command)) => call["rawInput"] = json!({"command": command}),
        (None, None) => {}
    }
    let Some(details) = details else { return call };
    if let Some(kind) = &details.kind {
        call["kind"] = tools::known_kind(kind).into();
    }
    if let Some(name) = &details.name {
        call["_meta"]["toolName"] = named(name).into();
    }
    call["locations"] = json!(details.locations);
    call["content"] = details.diffs.iter().map(tools::diff_part).collect();
    call
}

pub(super) fn resolved(payload: &Value, context: TranslationContext<'_>) -> (&'static str, Value) {
    if payload["resolvedBy"] == resolved_by::SERVER {
        // The request was never announced, so that its outcome would look like that of another one.
        let names = ["permissionId", "status", "resolvedBy", "reason"];
        return context.notice(EventType::PermissionResolved, picked(payload, &names));
    }
    let outcome = match (payload["status"].as_str(), payload["optionId"].as_str()) {
        (Some("allowed" | "denied"), Some(option_id)) => json!({"outcome": "selected", "optionId": option_id}),
        _ => json!({"outcome": "cancelled"}),
    };
    let mut data = json!({"requestId": payload["permissionId"], "outcome": outcome});
    if let Some(voter) = payload["voter"].as_str() {
        data["voterClientId"] = voter.into();
    }
    ("permission_resolved", data)
}

/// A vote that did not decide. `votesNeeded` is how many more the leading option needs.
pub(super) fn voted(payload: &Value, context: TranslationContext<'_>) -> (&'static str, Value) {
    let tallies = payload["optionTallies"].as_object();
    let leading = tallies.and_then(|tallies| tallies.values().filter_map(Value::as_i64).max()).unwrap_or_default();
    let votes_needed = payload["quorum"].as_i64().map(|quorum| (quorum - leading).max(1));
    let data = json!({"requestId": payload["permissionId"], "sessionId": context.session_id,
        "votesReceived": payload["votesReceived"], "votesNeeded": votes_needed,
        "quorum": payload["quorum"], "optionTallies": payload["optionTallies"]});
    ("permission_partial_vote", data)
}

pub(super) fn forbidden(payload: &Value, context: TranslationContext<'_>) -> (&'static str, Value) {
    // Clients know two reasons, and ignore a frame with another one.
    let reason = match payload["reason"].as_str() {
        Some("not_a_voter") => "designated_mismatch",
        reason => reason.unwrap_or_default(),
    };
    let mut data = json!({"requestId": payload["permissionId"], "sessionId": context.session_id, "reason": reason});
    if payload["reason"].as_str().is_some_and(|own| own != reason) {
        data["_meta"] = json!({"ostler": {"reason": payload["reason"]}});
    }
    if let Some(client) = client_of(payload) {
        data["clientId"] = client.into();
    }
    ("permission_forbidden", data)
}

/// The client whose vote caused the event. Other events of a prompt are caused by the client that submitted it.
pub(super) fn voter(event_type: EventType, payload: &Value) -> Option<String> {
    let is_of_votes = matches!(event_type, EventType::PermissionResolved | EventType::Audit);
    client_of(payload).filter(|_| is_of_votes).map(str::to_owned)
}

/// The client that voted. `None` for a caller without a client, which is recorded by the name of its principal.
fn client_of(payload: &Value) -> Option<&str> {
    payload["voter"].as_str().filter(|voter| voter.starts_with(CLIENT_ID_PREFIX))
}
