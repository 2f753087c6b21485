//! Counts the attempts to connect a server again after its connection was lost.

use std::time::Duration;

/// How many attempts count when a connection is lost after `tried` ones. A connection that lasted starts the count again.
pub(super) fn attempts_after(tried: u32, lasted: Duration, drain: Duration) -> u32 {
    if lasted > drain { 0 } else { tried }
}

#[cfg(test)]
mod tests {
    use ostler_protocol::mcp::{config::McpTransport, states::reconnect_pause_ms};

    use super::*;

    #[test]
    fn a_program_that_ends_by_itself_is_started_again_a_few_times_only() {
        let drain = Duration::from_secs(30);
        let starts = |lasted: Duration| {
            let (mut tried, mut starts) = (0, 1);
            while starts < 100 {
                tried = attempts_after(tried, lasted, drain);
                if reconnect_pause_ms(McpTransport::Stdio, tried, 1).is_none() {
                    break;
                }
                (tried, starts) = (tried + 1, starts + 1);
            }
            starts
        };
        assert_eq!(starts(Duration::from_secs(1)), 4);
        assert_eq!(starts(drain), 4, "a connection has to last longer than the drain time");
        assert_eq!(starts(Duration::from_secs(31)), 100, "until it is idle");
    }
}
