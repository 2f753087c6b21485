//! The tables of the trust dialect.

use ostler_server::dialect::{
    Backup::Copied,
    Erasure::{OutlivesOwner, Untouched, WithOwner, WithSession},
    Holding,
    Retention::{self, Expires, Kept, Proof},
};

pub(crate) const HOLDINGS: &[Holding] = &[
    Holding::table("agents", Copied, Kept, OutlivesOwner),
    Holding::table("agent_tokens", Copied, Kept, OutlivesOwner),
    Holding::table("manifests", Copied, Kept, Untouched),
    Holding::table("relations", Copied, Kept, OutlivesOwner),
    // The ledger: what was granted and when, kept as evidence.
    Holding::table("receipts", Copied, Proof, Untouched),
    Holding::table("webhooks", Copied, Kept, WithOwner),
    // Those that describe a run are deleted with its session, the others expire.
    Holding::table("webhook_deliveries", Copied, Expires, WithSession),
    Holding::table("webhook_runs", Copied, Retention::WithSession, WithSession),
];
