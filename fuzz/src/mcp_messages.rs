//! Messages that MCP clients post, and the ids by which they resume a stream.

use ostler_protocol::{
    mcp_server::{
        arguments::{
            self, AnswerPermissionRequestArguments, FollowRunArguments, ListRunsArguments, SubmitRunArguments,
        },
        event_ids::WaitPoint,
        messages::{BATCH_MESSAGES_MAX, CallToolParams, Posted, read_params},
        resources::ServedResource,
        revisions::McpRevision,
    },
    rpc::RpcFrame,
};
use serde_json::json;

use crate::Target;

pub(crate) static MESSAGE: Target = Target {
    name: "mcp-message",
    seeds: messages,
    words: &[
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\\u0000",
        "\\ud800",
        "null",
        "-1",
        "1e999",
        "18446744073709551616",
        "\"jsonrpc\":\"2.0\"",
        "\"id\":1,",
        "\"method\":\"tools/call\"",
        "\"params\":",
        "\"arguments\":{}",
        "\"_meta\":{\"progressToken\":1}",
        "\"runId\":",
        "\"waitMs\":",
        "w1.",
        ".n1.-",
        "ostler://runs/",
        "/trace",
        "\u{feff}",
    ],
    attempt: message,
};

fn messages() -> Vec<Vec<u8>> {
    let run_id = format!("run_{:032x}", 7);
    let call = |name: &str, arguments: serde_json::Value| {
        let params = json!({"name": name, "arguments": arguments, "_meta": {"progressToken": "p"}});
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    };
    let bodies = [
        call("submit_run", json!({"profile": "scripted", "prompt": "x", "labels": {"a": "b"}, "waitMs": 1})),
        call("follow_run", json!({"runId": run_id, "afterSeq": 3, "until": "end", "limit": 200})),
        call("list_runs", json!({"state": "failed", "limit": 100})),
        json!([{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "a"}}]),
        json!({"jsonrpc": "2.0", "id": "a", "error": {"code": -32600, "message": "no"}}),
    ];
    let texts = [format!("w1.{run_id}.-.3.10.end.99.4.n1.tab%2Ec"), format!("ostler://runs/{run_id}/trace?afterSeq=3")];
    bodies.iter().map(|body| body.to_string().into_bytes()).chain(texts.map(String::into_bytes)).collect()
}

/// What is refused has a rule; what is accepted is within bounds, and an id is read back as it was written.
fn message(case: &[u8]) {
    for revision in McpRevision::ALL {
        let messages = match Posted::read(case, revision) {
            Ok(Posted::One(message)) => vec![message],
            Ok(Posted::Batch(messages)) => {
                assert!(revision.takes_batches() && (1..=BATCH_MESSAGES_MAX).contains(&messages.len()));
                messages
            }
            Err(failure) => {
                assert!(failure.broken_rule().is_some(), "{failure:?}");
                continue;
            }
        };
        messages.iter().for_each(arguments_of);
    }
    let Ok(text) = std::str::from_utf8(case) else { return };
    if let Ok(point) = WaitPoint::decode(text) {
        let again = point.encode().and_then(|id| WaitPoint::decode(&id).ok());
        assert!(again.is_none_or(|again| again == point));
    }
    if let Ok(ServedResource::Trace { after_seq, .. }) = ServedResource::parse(text) {
        assert!(after_seq >= 0);
    }
}

fn arguments_of(message: &RpcFrame) {
    let RpcFrame::Request { params, .. } = message else { return };
    let Ok(params) = read_params::<CallToolParams>(params) else { return };
    let arguments = params.arguments.as_ref();
    let refusals = [
        arguments::read::<SubmitRunArguments>(arguments).err(),
        arguments::read::<FollowRunArguments>(arguments).and_then(|read| read.events_max()).err(),
        arguments::read::<ListRunsArguments>(arguments).and_then(|read| read.runs_max()).err(),
        arguments::read::<AnswerPermissionRequestArguments>(arguments).err(),
    ];
    for failure in refusals.into_iter().flatten() {
        assert!(failure.broken_rule().is_some(), "{failure:?}");
    }
}
