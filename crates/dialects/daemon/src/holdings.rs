//! The tables and files of the daemon dialect. The conversations are sessions of the kernel.

use ostler_server::dialect::{
    Backup::{Copied, LeftOut},
    Erasure, Holding, Retention,
};

pub(crate) const HOLDINGS: &[Holding] = &[
    Holding::table("daemon_sessions", Copied, Retention::WithSession, Erasure::OfSession),
    Holding::table("daemon_clients", Copied, Retention::WithSession, Erasure::OfSession),
    // Locks that expire by themselves.
    Holding::table("daemon_restores", LeftOut, Retention::Expires, Erasure::OfSession),
    // What clients chose for new sessions in a workspace.
    Holding::table("daemon_workspaces", Copied, Retention::Kept, Erasure::Untouched),
    // The server's own memory, for every workspace that it is bound to.
    Holding::path("memory", Copied, Retention::Kept, Erasure::Untouched),
];
