//! The tables of the trust dialect.

use ostler_server::dialect::{
    Backup::Copied,
    Erasure::{Untouched, WithOwner, WithSession},
    Holding,
    Retention::{self, Expires, Kept, Proof},
};

pub(crate) const HOLDINGS: &[Holding] = &[
    Holding::table("agents", Copied, Kept, WithOwner),
    Holding::table("agent_tokens", Copied, Kept, WithOwner),
    Holding::table("manifests", Copied, Kept, Untouched),
    Holding::table("relations", Copied, Kept, WithOwner),
    // The ledger: what was granted and when, kept as evidence.
    Holding::table("receipts", Copied, Proof, Untouched),
    Holding::table("webhooks", Copied, Kept, WithOwner),
    // One that describes a run is also deleted when the run's session is erased.
    Holding::table("webhook_deliveries", Copied, Expires, WithOwner),
    Holding::table("webhook_runs", Copied, Retention::WithSession, WithSession),
];
