//! States of the connection to an MCP server, and when a lost one is made again.

use super::config::McpTransport;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionState {
    /// Not started yet, drained after its last use, or stopped.
    #[default]
    Disconnected,
    Connecting,
    Connected,
    /// It could not be connected, or was lost and could not be connected again.
    Failed,
}

impl ConnectionState {
    /// Whether a task maintains the connection. It then holds a slot of the budget.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Connecting | Self::Connected)
    }
}

/// How often a process that ended is started again.
const PROCESS_ATTEMPTS: u32 = 3;
/// How often a lost connection to a server elsewhere is made again.
const HTTP_ATTEMPTS: u32 = 5;
/// The first pause before a connection to a server elsewhere is made again. It doubles each time.
const HTTP_PAUSE_MS: u64 = 1_000;

/// The pause before a lost connection is made again for the `attempt`th time, from 0. `None` after the last attempt.
/// `process_pause_ms`: the pause before a process is started again.
pub fn reconnect_pause_ms(transport: McpTransport, attempt: u32, process_pause_ms: u64) -> Option<u64> {
    match transport {
        McpTransport::Stdio => (attempt < PROCESS_ATTEMPTS).then_some(process_pause_ms),
        McpTransport::Http => (attempt < HTTP_ATTEMPTS).then(|| HTTP_PAUSE_MS << attempt),
    }
}

/// The pause after the first failed attempt to connect a server. It doubles with each further one.
const RETRY_PAUSE_MS: u64 = 1_000;
const RETRY_PAUSE_MS_MAX: u64 = 300_000;

/// The pause after `failures` attempts in a row to connect a server, before lists of tools connect it again.
pub fn retry_pause_ms(failures: u32) -> u64 {
    let doubled = failures.checked_sub(1).map_or(0, |doublings| RETRY_PAUSE_MS << doublings.min(16));
    doubled.min(RETRY_PAUSE_MS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_connection_is_made_again_a_few_times() {
        let pauses = |transport| -> Vec<u64> {
            (0..10).map_while(|attempt| reconnect_pause_ms(transport, attempt, 5_000)).collect()
        };
        assert_eq!(pauses(McpTransport::Stdio), [5_000; 3]);
        assert_eq!(pauses(McpTransport::Http), [1_000, 2_000, 4_000, 8_000, 16_000]);
    }

    #[test]
    fn the_pause_after_failed_attempts_doubles_up_to_five_minutes() {
        let pauses: Vec<_> = [0, 1, 2, 3, 9, 10, u32::MAX].into_iter().map(retry_pause_ms).collect();
        assert_eq!(pauses, [0, 1_000, 2_000, 4_000, 256_000, 300_000, 300_000]);
    }
}
