//! Errors of the store as callers see them.

use ostler_protocol::{Failure, FailureKind, kernel::launching::STORE_CORRUPT};

use crate::{StoreError, StoreFault};

/// A store that fails seldom works again sooner.
const RETRY_MS: i64 = 2_000;

/// The store is our infrastructure. The caller learns the reason as far as it is known; the error itself, which may name hosts
/// and paths, is for the log only.
impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let mut failure = match StoreFault::of(&error) {
            Some(fault) => {
                Self::rule(FailureKind::InfraFailed, rule(fault), fault.message()).detail("retryAfterMs", RETRY_MS)
            }
            None if error.is_corrupt() => Self::rule(
                FailureKind::InfraFailed,
                STORE_CORRUPT,
                "a stored row cannot be read; hint: ask the operator to run `ostler verify`",
            ),
            None => Self::rule(FailureKind::InfraFailed, "store-failed", "the store did not answer"),
        };
        failure.cause = Some(error.to_string().into());
        failure
    }
}

fn rule(fault: StoreFault) -> &'static str {
    match fault {
        StoreFault::DiskFull => "store-disk-full",
        StoreFault::DiskFailed => "store-disk-failed",
        StoreFault::ReadOnly => "store-read-only",
        StoreFault::OutOfMemory => "store-out-of-memory",
        StoreFault::NoFreeConnection => "store-no-free-connection",
        StoreFault::Starting => "store-starting",
        StoreFault::Unreachable => "store-unreachable",
        StoreFault::Denied => "store-denied",
        StoreFault::Silent => "store-silent",
    }
}

/// Whether this failure came from the store, and the same call may succeed once the store works again.
pub fn is_of_store(failure: &Failure) -> bool {
    failure.kind == FailureKind::InfraFailed
        && failure.rule_name().is_some_and(|rule| rule.starts_with("store-") && rule != STORE_CORRUPT)
}
