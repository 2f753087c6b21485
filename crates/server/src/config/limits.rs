//! Limits on what callers may have open at once, and on how long the server waits for them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsSection {
    /// Maximum number of open event streams.
    pub followers_max: usize,
    /// Maximum number of open event streams of one caller.
    pub followers_per_caller_max: usize,
    /// How often the caller of an open stream is authenticated again; the stream ends if that fails. A revoked
    /// token may be cached for another 5 s.
    pub readmit_ms: u64,
    /// A connection whose client reads nothing for this long is closed.
    pub slow_reader_ms: u64,
    /// Time limit for the head of a request, from its first byte; on a new connection, from its start.
    pub head_ms: u64,
    /// A connection without a request is closed after this time.
    pub idle_ms: u64,
    /// Time limit for the body of a request.
    pub body_ms: u64,
    /// Interval of heartbeat comments on silent event streams.
    pub heartbeat_ms: u64,
    /// Maximum number of open connections.
    pub connections_max: usize,
    /// Maximum number of open connections from one address that have not sent a request yet. A further one
    /// closes the oldest of them. Behind a proxy, all connections have the proxy's address.
    pub silent_per_address_max: usize,
    /// Maximum total bytes of request bodies in progress.
    pub work_bytes_max: usize,
    /// Maximum bytes of request bodies in progress of one caller, or of one address if the caller is unknown. A
    /// request that exceeds it waits for up to 2 s and is then rejected. Bodies up to 16 KiB are not counted.
    pub work_per_caller_bytes_max: usize,
    /// Maximum number of open WebSockets; each also counts as a connection.
    pub sockets_max: usize,
    /// Maximum number of WebSockets that have not authenticated yet. While half of this number is in use, each
    /// has 5 s to do so. A further connection closes the oldest silent one of the address that has the most.
    pub sockets_fresh_max: usize,
    /// Maximum number of WebSockets from one address that have not authenticated yet. Behind a proxy, all
    /// connections have the proxy's address.
    pub sockets_fresh_per_address_max: usize,
    /// Maximum number of open WebSockets of one caller.
    pub sockets_per_caller_max: usize,
    /// Time within which a client must authenticate on a WebSocket.
    pub socket_auth_ms: u64,
    /// Interval of pings on WebSockets.
    pub socket_ping_ms: u64,
    /// A WebSocket is closed when nothing was received from its client for this long.
    pub socket_dead_ms: u64,
    /// Time for a connection to respond to a probe when a new connection arrives for its place; otherwise it is
    /// closed.
    pub socket_probe_ms: u64,
    /// How often the caller of an open WebSocket is authenticated again; the WebSocket is closed if that fails.
    pub socket_readmit_ms: u64,
    /// How often pending notifications of a WebSocket are read from the store, even without a wake-up.
    pub socket_reread_ms: u64,
    /// How often waiting requests read the store, even without a wake-up.
    pub recheck_ms: u64,
}

impl Default for LimitsSection {
    fn default() -> Self {
        Self {
            followers_max: 2_048,
            followers_per_caller_max: 1_024,
            readmit_ms: 5_000,
            slow_reader_ms: 30_000,
            head_ms: 10_000,
            idle_ms: 60_000,
            body_ms: 60_000,
            heartbeat_ms: 15_000,
            connections_max: 16_384,
            silent_per_address_max: 512,
            work_bytes_max: 256 * 1024 * 1024,
            work_per_caller_bytes_max: 32 * 1024 * 1024,
            sockets_max: 12_288,
            sockets_fresh_max: 1_024,
            sockets_fresh_per_address_max: 256,
            sockets_per_caller_max: 16,
            socket_auth_ms: 5_000,
            socket_ping_ms: 30_000,
            socket_dead_ms: 90_000,
            socket_probe_ms: 4_000,
            socket_readmit_ms: 30_000,
            socket_reread_ms: 60_000,
            recheck_ms: 2_000,
        }
    }
}
