//! Limits on event streams and uploads that are open at once: one for the whole server, and one per caller, so that no caller
//! can use all of them.

use std::{collections::HashMap, sync::Arc};

use ostler_protocol::{Failure, Rule};
use parking_lot::Mutex;

use crate::auth::Principal;

/// A rejected caller may try again after this long.
const RETRY_AFTER_MS: u64 = 1_000;

pub struct Places {
    kind: PlaceKind,
    open: Mutex<OpenPlaces>,
}

/// What a limit is for, as its failures name it.
#[derive(Clone, Copy)]
pub struct PlaceKind {
    pub rule: Rule,
    pub per_caller_rule: Rule,
    pub plural: &'static str,
}

pub const STREAMS: PlaceKind =
    PlaceKind { rule: Rule::Followers, per_caller_rule: Rule::FollowersPerCaller, plural: "event streams are open" };
pub const UPLOADS: PlaceKind =
    PlaceKind { rule: Rule::Uploads, per_caller_rule: Rule::UploadsPerCaller, plural: "files are being uploaded" };

#[derive(Default)]
struct OpenPlaces {
    all: usize,
    /// Only callers that have one open.
    by_caller: HashMap<String, usize>,
}

/// One open stream or upload. Dropping it frees the place.
pub struct Place {
    places: Arc<Places>,
    caller: String,
}

impl Places {
    pub fn new(kind: PlaceKind) -> Arc<Self> {
        Arc::new(Self { kind, open: Mutex::default() })
    }

    pub fn count(&self) -> usize {
        self.open.lock().all
    }

    pub fn admit(self: &Arc<Self>, caller: &Principal, max: usize, per_caller_max: usize) -> Result<Place, Failure> {
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
        Ok(Place { places: self.clone(), caller })
    }
}

fn refused(rule: Rule, message: &str, max: usize) -> Failure {
    Failure::rule(rule, message).detail("max", max).detail("retryAfterMs", RETRY_AFTER_MS)
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.places.open.lock();
        open.all -= 1;
        if let Some(own) = open.by_caller.get_mut(&self.caller) {
            *own -= 1;
            if *own == 0 {
                open.by_caller.remove(&self.caller);
            }
        }
    }
}
