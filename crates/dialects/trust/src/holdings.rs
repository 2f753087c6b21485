//! The tables of the trust dialect.

use ostler_server::dialect::{
    Backup::Copied,
    Erasure::{Untouched, WithOwner},
    Holding,
    Retention::{Expires, Kept, Proof},
};

pub(crate) const HOLDINGS: &[Holding] = &[
    Holding::table("agents", Copied, Kept, WithOwner),
    Holding::table("agent_tokens", Copied, Kept, WithOwner),
    Holding::table("manifests", Copied, Kept, Untouched),
    Holding::table("relations", Copied, Kept, WithOwner),
    // The ledger: what was granted and when, kept as evidence.
    Holding::table("receipts", Copied, Proof, Untouched),
    Holding::table("webhooks", Copied, Kept, WithOwner),
    Holding::table("webhook_deliveries", Copied, Expires, WithOwner),
];
