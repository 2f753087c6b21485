//! The tool calls of a turn that have not ended: those that the backend reports, and those that it makes through the gateway.

use std::collections::HashSet;

use ostler_protocol::{RawJson, kernel::front_end::FRONT_END_METHOD};
use serde::Deserialize;

/// Reported calls that are tracked at once. Further ones are not waited for.
const REPORTED_MAX: usize = 1_024;

#[derive(Default)]
pub(super) struct OpenCalls {
    /// The ids of the calls that the backend reported as started.
    reported: HashSet<String>,
    gateway: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolCallView {
    tool_call_id: String,
    status: Option<String>,
    method: Option<String>,
}

impl OpenCalls {
    /// Whether no call is open.
    pub(super) fn is_empty(&self) -> bool {
        self.reported.is_empty() && self.gateway == 0
    }

    /// Takes a `tool_call` event. A call of a front end's tool stays pending when the turn ends, so it is not waited for.
    pub(super) fn observe(&mut self, payload: &RawJson) {
        let Some(call) = payload.view::<ToolCallView>() else { return };
        let is_waited_for = call.method.as_deref() != Some(FRONT_END_METHOD) && self.reported.len() < REPORTED_MAX;
        match call.status.as_deref() {
            Some("started") if is_waited_for => {
                self.reported.insert(call.tool_call_id);
            }
            Some("completed" | "failed" | "declined" | "outcome-unknown") => {
                self.reported.remove(&call.tool_call_id);
            }
            _ => {}
        }
    }

    pub(super) fn begin_gateway_call(&mut self) {
        self.gateway += 1;
    }

    pub(super) fn end_gateway_call(&mut self) {
        self.gateway = self.gateway.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_call_is_open_from_its_start_to_its_end_unless_the_front_end_runs_it() {
        let mut calls = OpenCalls::default();
        let mut observe = |id: &str, status: &str, method: &str| {
            calls.observe(&RawJson::of(&json!({"toolCallId": id, "status": status, "method": method})));
            calls.is_empty()
        };
        assert!(observe("a", "started", FRONT_END_METHOD));
        assert!(!observe("b", "started", "shell"));
        assert!(!observe("b", "in-progress", "shell"));
        assert!(!observe("c", "started", "shell"));
        assert!(!observe("b", "failed", "shell"));
        assert!(observe("c", "outcome-unknown", "shell"));
        calls.begin_gateway_call();
        assert!(!calls.is_empty());
        calls.end_gateway_call();
        assert!(calls.is_empty());
    }
}
