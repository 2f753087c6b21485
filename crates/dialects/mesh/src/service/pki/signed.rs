//! Signed responses that are cached.

use std::sync::Arc;

use ostler_crypto::ocsp;
use ostler_protocol::Timestamp;

/// A revocation list, and the last revocation that it includes.
#[derive(Clone)]
pub(crate) struct SignedList {
    pub(super) last_revocation: i64,
    pub(super) made_at: Timestamp,
    pub der: Arc<[u8]>,
}

/// A signed response about one certificate.
#[derive(Clone)]
pub(crate) struct StatusResponse {
    pub(super) status: ocsp::OcspStatus,
    pub(super) made_at: Timestamp,
    pub(super) der: Arc<[u8]>,
}
