//! Faults on demand, and the count of calls.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What happens to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubeFault {
    /// 429 with `Retry-After`. The request is not executed.
    TooManyRequests { retry_after_s: u32 },
    /// 403, as for an object that exceeds a ResourceQuota. The request is not executed.
    QuotaExceeded,
    /// 500. The request is not executed.
    InternalError,
    /// The connection is cut. The request is not executed.
    CutBefore,
    /// The request is executed, then the connection is cut before the response.
    LostAnswer,
    /// The request waits for this long before it is executed.
    Delay(Duration),
    /// 410: the watch starts, and its first event reports that its version is too old.
    Expired,
}

struct ArmedFault {
    fault: KubeFault,
    verb: String,
    resource: String,
    /// How many more requests it applies to.
    left: u32,
}

/// Matches any verb or any resource.
pub const ANY: &str = "*";

#[derive(Default)]
pub(super) struct FaultPlan {
    armed: Vec<ArmedFault>,
    /// Verb and resource that the client may not use.
    denied: BTreeSet<(String, String)>,
    calls: BTreeMap<(String, String), u64>,
}

impl FaultPlan {
    pub(super) fn arm(&mut self, fault: KubeFault, verb: &str, resource: &str, times: u32) {
        self.armed.push(ArmedFault { fault, verb: verb.to_owned(), resource: resource.to_owned(), left: times });
    }

    pub(super) fn heal(&mut self) {
        self.armed.clear();
        self.denied.clear();
    }

    /// How many requests armed faults still wait for.
    pub(super) fn waiting(&self) -> u32 {
        self.armed.iter().map(|armed| armed.left).sum()
    }

    /// The fault of the next request of this kind, which uses it up.
    pub(super) fn take(&mut self, verb: &str, resource: &str) -> Option<KubeFault> {
        let matches = |pattern: &str, actual: &str| pattern == ANY || pattern == actual;
        let is_for = |armed: &&mut ArmedFault| {
            armed.left > 0 && matches(&armed.verb, verb) && matches(&armed.resource, resource)
        };
        let armed = self.armed.iter_mut().find(is_for)?;
        armed.left -= 1;
        Some(armed.fault.clone())
    }

    pub(super) fn deny(&mut self, verb: &str, resource: &str) {
        self.denied.insert((verb.to_owned(), resource.to_owned()));
    }

    pub(super) fn is_denied(&self, verb: &str, resource: &str) -> bool {
        [verb, ANY].iter().any(|verb| self.denied.contains(&((*verb).to_owned(), resource.to_owned())))
    }

    pub(super) fn count(&mut self, verb: &str, resource: &str) {
        *self.calls.entry((verb.to_owned(), resource.to_owned())).or_default() += 1;
    }

    pub(super) fn calls(&self) -> BTreeMap<(String, String), u64> {
        self.calls.clone()
    }

    pub(super) fn reset_calls(&mut self) {
        self.calls.clear();
    }
}
