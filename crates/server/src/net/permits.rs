//! Limits on event streams, uploads and side queries that are open at once: one for the whole server, and one per caller, so that no caller
//! can use all of them.

use std::{collections::HashMap, sync::Arc};

use ostler_protocol::{Failure, Rule};
use parking_lot::Mutex;

use crate::auth::Principal;

/// A rejected caller may try again after this long.
const RETRY_AFTER_MS: u64 = 1_000;

pub struct PermitPool {
    kind: PermitKind,
    open: Mutex<OpenPermits>,
}

/// What a limit is for, as its failures name it.
#[derive(Clone, Copy)]
pub struct PermitKind {
    pub rule: Rule,
    pub per_caller_rule: Rule,
    pub plural: &'static str,
}

pub const STREAMS: PermitKind =
    PermitKind { rule: Rule::Followers, per_caller_rule: Rule::FollowersPerCaller, plural: "event streams are open" };
pub const UPLOADS: PermitKind =
    PermitKind { rule: Rule::Uploads, per_caller_rule: Rule::UploadsPerCaller, plural: "files are being uploaded" };
pub const SIDE_QUERIES: PermitKind = PermitKind {
    rule: Rule::SideQueries,
    per_caller_rule: Rule::SideQueriesPerCaller,
    plural: "side questions are being answered",
};

#[derive(Default)]
struct OpenPermits {
    all: usize,
    /// Only callers that have one open.
    by_caller: HashMap<String, usize>,
}

/// One open stream or upload. Dropping it frees it for another caller.
pub struct Permit {
    pool: Arc<PermitPool>,
    caller: String,
}

impl PermitPool {
    pub fn new(kind: PermitKind) -> Arc<Self> {
        Arc::new(Self { kind, open: Mutex::default() })
    }

    pub fn count(&self) -> usize {
        self.open.lock().all
    }

    pub fn admit(self: &Arc<Self>, caller: &Principal, max: usize, per_caller_max: usize) -> Result<Permit, Failure> {
        let caller = caller.name();
        let mut open = self.open.lock();
        if open.all >= max {
            return Err(refused(self.kind.rule, &format!("too many {}", self.kind.plural), max));
        }
        let own = open.by_caller.entry(caller.clone()).or_default();
        if *own >= per_caller_max {
            let message = format!("too many {} by this caller", self.kind.plural);
            return Err(refused(self.kind.per_caller_rule, &message, per_caller_max));
        }
        *own += 1;
        open.all += 1;
        Ok(Permit { pool: self.clone(), caller })
    }
}

fn refused(rule: Rule, message: &str, max: usize) -> Failure {
    Failure::rule(rule, message).detail("max", max).detail("retryAfterMs", RETRY_AFTER_MS)
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut open = self.pool.open.lock();
        open.all -= 1;
        if let Some(own) = open.by_caller.get_mut(&self.caller) {
            *own -= 1;
            if *own == 0 {
                open.by_caller.remove(&self.caller);
            }
        }
    }
}
