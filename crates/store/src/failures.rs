//! Errors of the store as callers see them.

use ostler_protocol::{Failure, FailureKind, Rule};

use crate::error::{StoreError, StoreFault};

/// A store that fails seldom works again sooner.
const RETRY_MS: i64 = 2_000;

/// The store is our infrastructure. The caller learns the reason as far as it is known; the error itself, which may name hosts
/// and paths, is for the log only.
impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let mut failure = match StoreFault::of(&error) {
            Some(fault) => Self::rule(rule(fault), fault.message()).detail("retryAfterMs", RETRY_MS),
            None if error.is_corrupt() => Self::rule(
                Rule::StoreCorrupt,
                "a stored row cannot be read; hint: ask the operator to run `ostler verify`",
            ),
            None => Self::rule(Rule::StoreFailed, "the store did not answer"),
        };
        failure.cause = Some(error.to_string().into());
        failure
    }
}

fn rule(fault: StoreFault) -> Rule {
    match fault {
        StoreFault::DiskFull => Rule::StoreDiskFull,
        StoreFault::DiskFailed => Rule::StoreDiskFailed,
        StoreFault::ReadOnly => Rule::StoreReadOnly,
        StoreFault::OutOfMemory => Rule::StoreOutOfMemory,
        StoreFault::NoFreeConnection => Rule::StoreNoFreeConnection,
        StoreFault::Starting => Rule::StoreStarting,
        StoreFault::Unreachable => Rule::StoreUnreachable,
        StoreFault::Denied => Rule::StoreDenied,
        StoreFault::Silent => Rule::StoreSilent,
    }
}

/// Whether this failure came from the store, and the same call may succeed once the store works again.
pub fn is_of_store(failure: &Failure) -> bool {
    failure.kind == FailureKind::InfraFailed && failure.broken_rule().is_some_and(|rule| rule.row().is_store_fault)
}
