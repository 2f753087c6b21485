//! What callers may have open at once, and how long they are waited for.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsSection {
    /// Event streams open at once.
    pub followers_max: usize,
    /// Event streams open at once by one caller.
    pub followers_per_caller_max: usize,
    /// A stream whose caller would not be let in any more ends; this is how often that is asked. A token that was revoked
    /// may be remembered for 5 s beside it.
    pub readmit_ms: u64,
    /// A connection that takes nothing for this long is dropped.
    pub slow_reader_ms: u64,
    /// The head of a request must arrive within this time from its first byte; on a new connection, from its start.
    pub head_ms: u64,
    /// A connection without a request is closed after this time.
    pub idle_ms: u64,
    /// A request's body must have come within this time.
    pub body_ms: u64,
    /// A heartbeat comment on every silent event stream.
    pub heartbeat_ms: u64,
    /// Connections open at once.
    pub connections_max: usize,
    /// Of those, from one address, that have not sent a request yet. A further one closes the oldest of them. Behind a proxy
    /// all come from its address.
    pub silent_per_address_max: usize,
    /// Bytes of request bodies that are worked on at once.
    pub work_bytes_max: usize,
    /// … of one caller, or of one address where the caller is not known. A request that exceeds it waits for up to 2 s, then it
    /// is refused. Bodies up to 16 KiB are not counted.
    pub work_per_caller_bytes_max: usize,
    /// WebSockets open at once; each is one of the connections.
    pub sockets_max: usize,
    /// WebSockets whose peer has not said yet who it is, at once. One of the mesh may take half a minute, and 5 s while half of
    /// them are taken. A further one closes the oldest silent one of the address that has the most.
    pub sockets_fresh_max: usize,
    /// Of those, from one address. Behind a proxy all come from its address.
    pub sockets_fresh_per_address_max: usize,
    /// WebSockets open at once by one caller.
    pub sockets_per_caller_max: usize,
    /// Who opens a WebSocket must say within this time who they are.
    pub socket_auth_ms: u64,
    /// How often the other end of a WebSocket is asked whether it is there.
    pub socket_ping_ms: u64,
    /// A WebSocket whose other end was not heard of for this long is closed.
    pub socket_dead_ms: u64,
    /// The same while somebody else wants its place: an agent of the mesh that comes back to where it was connected.
    pub socket_probe_ms: u64,
    /// A WebSocket whose caller would not be let in any more is closed; this is how often that is asked.
    pub socket_readmit_ms: u64,
    /// What waits for whoever is at the other end of a WebSocket is read this often even without a wake-up.
    pub socket_reread_ms: u64,
    /// A wake-up is a hint: whoever waits reads the store this often even without one.
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
