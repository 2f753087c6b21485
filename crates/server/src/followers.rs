//! Places for event streams: so many for the server, and so many for one caller, so that nobody can take them all.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use ostler_protocol::{Failure, FailureKind};

use crate::auth::Principal;

/// Somebody who was refused may try again after this long.
const RETRY_AFTER_MS: u64 = 1_000;

#[derive(Default)]
pub struct Followers {
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    all: usize,
    /// Only callers who have one open.
    by_caller: HashMap<String, usize>,
}

/// A stream's place, given back when it is dropped.
pub struct Place {
    followers: Arc<Followers>,
    caller: String,
}

impl Followers {
    pub fn count(&self) -> usize {
        self.open.lock().expect("never poisoned").all
    }

    pub fn admit(self: &Arc<Self>, caller: &Principal, max: usize, per_caller_max: usize) -> Result<Place, Failure> {
        let caller = caller.name();
        let mut open = self.open.lock().expect("never poisoned");
        if open.all >= max {
            return Err(refused("followers", "too many event streams are open", max));
        }
        let own = open.by_caller.entry(caller.clone()).or_default();
        if *own >= per_caller_max {
            let message = "this caller has too many event streams open";
            return Err(refused("followers-per-caller", message, per_caller_max));
        }
        *own += 1;
        open.all += 1;
        Ok(Place { followers: self.clone(), caller })
    }
}

fn refused(rule: &'static str, message: &str, max: usize) -> Failure {
    Failure::rule(FailureKind::RateLimited, rule, message).detail("max", max).detail("retryAfterMs", RETRY_AFTER_MS)
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.followers.open.lock().expect("never poisoned");
        open.all -= 1;
        if let Some(own) = open.by_caller.get_mut(&self.caller) {
            *own -= 1;
            if *own == 0 {
                open.by_caller.remove(&self.caller);
            }
        }
    }
}
