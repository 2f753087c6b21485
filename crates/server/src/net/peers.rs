//! The other end of a request.

use std::net::SocketAddr;

/// Marks a request that was made inside this process. Nothing from a socket can carry it.
#[derive(Clone, Copy)]
pub struct InProcess;

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);
