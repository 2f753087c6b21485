//! Streams that the server closes: because of their client, or because it stops. The terminal attaches again each time, and names
//! each reason once.

use std::collections::BTreeSet;

use ostler_client::daemon::ReceivedFrame;
use serde_json::Value;

use crate::{
    follow::Followed,
    terminal::{events::field, output::line},
};

/// How many reasons are remembered.
const REASONS_MAX: usize = 16;
const REASON_CHARS_MAX: usize = 100;

#[derive(Debug, Default)]
pub(crate) struct Evictions {
    /// The reasons that were printed.
    named: BTreeSet<String>,
    /// The server has closed the stream, and the next one is not open yet.
    is_current: bool,
    /// The server has reported that it stops, and the connection is not lost yet.
    is_stopping: bool,
}

impl Evictions {
    /// The line about a frame with which the server closes the stream. `None` for other frames, and for a reason that was named.
    pub(crate) fn apply(&mut self, frame: &ReceivedFrame) -> Option<String> {
        self.is_stopping |= frame.frame_type == "session_died" && field(&frame.data, "reason") == "daemon_shutdown";
        if frame.frame_type != "client_evicted" {
            return None;
        }
        self.is_current = true;
        let reason = line(&field(&frame.data, "reason"), REASON_CHARS_MAX);
        let is_new = self.named.len() < REASONS_MAX && self.named.insert(reason.clone());
        is_new.then(|| eviction_line(&reason, &frame.data))
    }

    /// Whether the server closed the stream itself, so that a lost and regained connection needs no line of its own. A server that
    /// stops explains only the loss.
    pub(crate) fn explains<E>(&mut self, change: &Followed<E>) -> bool {
        match change {
            Followed::Lost(_) => std::mem::take(&mut self.is_stopping) || self.is_current,
            Followed::Regained(_) => std::mem::take(&mut self.is_current),
            Followed::Event(_) | Followed::Over(_) => false,
        }
    }
}

fn eviction_line(reason: &str, data: &Value) -> String {
    let why = match (reason, data.get("timeoutMs").and_then(Value::as_u64)) {
        ("writer_idle_timeout", Some(timeout_ms)) => {
            format!("the server closes streams that are silent for {timeout_ms} ms (--writer-idle-timeout-ms)")
        }
        ("queue_overflow", _) => "the server closed the stream, because this terminal reads too slowly".to_owned(),
        _ => format!("the server closed the stream: {reason}"),
    };
    format!("{why}; attaching again each time\n")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ostler_protocol::{Failure, FailureKind};
    use serde_json::json;

    use super::*;

    fn frame(frame_type: &str, data: Value) -> ReceivedFrame {
        serde_json::from_value(json!({"v": 1, "type": frame_type, "data": data})).unwrap()
    }

    #[test]
    fn an_eviction_is_named_once_and_explains_the_lost_connection() {
        let mut evictions = Evictions::default();
        let lost = || Followed::<()>::Lost(Failure::new(FailureKind::InfraFailed, "the server closed the stream"));
        let regained = || Followed::<()>::Regained(Duration::from_secs(1));
        assert!(!evictions.explains(&lost()) && !evictions.explains(&regained()), "nothing was evicted");
        let idle = json!({"reason": "writer_idle_timeout", "idleForMs": 3_100, "timeoutMs": 3_000});
        let mut lines = vec![];
        for _ in 0..3 {
            lines.extend(evictions.apply(&frame("client_evicted", idle.clone())));
            assert!(evictions.explains(&lost()) && evictions.explains(&regained()));
        }
        assert_eq!(
            lines,
            [
                "the server closes streams that are silent for 3000 ms (--writer-idle-timeout-ms); attaching again each time\n"
            ]
        );
        assert!(!evictions.explains(&lost()), "the connection itself was lost");
        let slow = evictions.apply(&frame("client_evicted", json!({"reason": "queue_overflow", "droppedAfter": 7})));
        assert!(slow.is_some_and(|line| line.contains("reads too slowly")));
        assert_eq!(evictions.apply(&frame("replay_complete", json!({"replayedCount": 0}))), None);
    }

    #[test]
    fn a_server_that_stops_explains_the_loss_and_not_that_it_is_back() {
        let mut evictions = Evictions::default();
        let lost = || Followed::<()>::Lost(Failure::new(FailureKind::Draining, "the server is stopping"));
        let died = frame("session_died", json!({"sessionId": "s", "reason": "daemon_shutdown"}));
        assert_eq!(evictions.apply(&died), None, "the frame itself is shown");
        assert!(evictions.explains(&lost()));
        assert!(!evictions.explains(&Followed::<()>::Regained(Duration::from_secs(1))));
        assert!(!evictions.explains(&lost()), "the next loss has another reason");
    }
}
