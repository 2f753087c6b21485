//! Values that sections share: the longest time, the range of a number, and secrets that are not shown.

use std::ops::RangeInclusive;

use ostler_protocol::{Failure, Rule};
use secrecy::SecretString;
use serde::Serialize;

use super::places;

/// Milliseconds of a day, the longest that most times may be.
pub const MS_MAX: u64 = 86_400_000;

/// Rejects a number out of range, with the name of its key.
pub fn check_range(key: &str, value: u64, range: RangeInclusive<u64>) -> Result<(), Failure> {
    if range.contains(&value) {
        return Ok(());
    }
    let message = format!("{key} must be {} to {}", range.start(), range.end());
    Err(Failure::invalid(Rule::Config, message).detail(places::KEY, key))
}

pub(super) fn hidden<S: serde::Serializer>(secret: &Option<SecretString>, output: S) -> Result<S::Ok, S::Error> {
    secret.as_ref().map(|_| "(hidden)").serialize(output)
}
