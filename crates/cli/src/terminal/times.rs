//! Times for people: relative by default, exact with `--time iso`. Exact times are in UTC.

use clap::ValueEnum;
use ostler_protocol::Timestamp;

/// Flattened into the arguments of every command that prints times.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    #[arg(
        long = "time",
        value_enum,
        default_value = "relative",
        value_name = "STYLE",
        hide_possible_values = true,
        help = "How to show times: relative or iso"
    )]
    style: Style,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Style {
    /// `3m ago`.
    #[default]
    Relative,
    /// `2030-01-02T03:04:05.678Z`.
    Iso,
}

impl Times {
    /// `3m ago`, or the exact time.
    pub(crate) fn ago(self, at: Timestamp, now: Timestamp) -> String {
        match self.style {
            Style::Relative => format!("{} ago", age(at, now)),
            Style::Iso => iso(at),
        }
    }

    /// `+1.234s` after the first of a series, `+2m14s` or `+7d03h` if it was longer ago, or the exact time.
    pub(crate) fn since(self, at: Timestamp, first: Timestamp) -> String {
        match self.style {
            Style::Relative => {
                let ms = (at.as_millisecond() - first.as_millisecond()).max(0);
                let (seconds, minutes, hours) = (ms / 1_000, ms / 60_000, ms / 3_600_000);
                match ms {
                    0..60_000 => format!("+{seconds}.{:03}s", ms % 1_000),
                    60_000..3_600_000 => format!("+{minutes}m{:02}s", seconds % 60),
                    3_600_000..86_400_000 => format!("+{hours}h{:02}m", minutes % 60),
                    _ => format!("+{}d{:02}h", hours / 24, hours % 24),
                }
            }
            Style::Iso => iso(at),
        }
    }
}

/// To the millisecond, with a fixed width.
pub(crate) fn iso(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

/// The only place that reads the clock, for ages.
#[expect(
    clippy::disallowed_methods,
    reason = "a command line prints ages; rendering takes the current time as an argument"
)]
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

/// `3s`, `5m`, `2h`, `4d`.
pub(crate) fn age(at: Timestamp, now: Timestamp) -> String {
    age_ms(now.as_millisecond() - at.as_millisecond())
}

pub(crate) fn age_ms(ms: i64) -> String {
    let seconds = ms.max(0) / 1_000;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..86_400 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A time as it is given on the command line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Since {
    Time(Timestamp),
    Ago { ms: i64 },
}

impl Since {
    pub(crate) fn time(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Time(time) => time,
            Self::Ago { ms } => {
                let ms = now.as_millisecond().saturating_sub(ms).max(0);
                Timestamp::from_millisecond(ms).unwrap_or(Timestamp::UNIX_EPOCH)
            }
        }
    }
}

/// `2026-11-01`, which begins at midnight UTC, `2026-11-01T08:00:00Z`, or `90s`, `15m`, `12h`, `30d` ago.
pub(crate) fn parse_since(text: &str) -> Result<Since, String> {
    let midnight = || text.parse::<jiff::civil::Date>().ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok();
    let is_date = text.len() == 10;
    let time = if is_date { midnight().map(|day| day.timestamp()) } else { text.parse().ok() };
    let since = time.map(Since::Time).or_else(|| parse_ms(text).ok().map(|ms| Since::Ago { ms }));
    since.ok_or_else(|| {
        "write a date (2026-11-01), a time with its zone (2026-11-01T08:00:00Z), or how long ago: 90s, 15m, 12h or 30d"
            .to_owned()
    })
}

/// `90s`, `15m`, `12h`, `30d`, in milliseconds.
pub(crate) fn parse_ms(text: &str) -> Result<i64, String> {
    let units = [('s', 1_000), ('m', 60_000), ('h', 3_600_000), ('d', 86_400_000)];
    let parsed = units.into_iter().find_map(|(unit, ms)| {
        let number: i64 = text.strip_suffix(unit)?.parse().ok()?;
        number.checked_mul(ms).filter(|ms| *ms > 0)
    });
    parsed.ok_or_else(|| "write a whole number and its unit, s, m, h or d: `90s`, `15m`, `12h` or `30d`".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_number_and_a_unit() {
        assert_eq!(parse_ms("90s"), Ok(90_000));
        assert_eq!(parse_ms("30d"), Ok(2_592_000_000));
        for bad in ["", "90", "s", "-1d", "0h", "1.5h", "1w", "9223372036854775807d"] {
            assert!(parse_ms(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn since_is_a_date_a_time_or_an_age() {
        let now: Timestamp = "2026-11-17T12:00:00Z".parse().unwrap();
        let time = |text: &str| parse_since(text).map(|since| since.time(now).to_string());
        assert_eq!(time("2026-11-01"), Ok("2026-11-01T00:00:00Z".into()));
        assert_eq!(time("2026-11-01T08:00:00Z"), Ok("2026-11-01T08:00:00Z".into()));
        assert_eq!(time("2026-11-01T08:00:00.5+02:00"), Ok("2026-11-01T06:00:00.5Z".into()));
        assert_eq!(time("1d"), Ok("2026-11-16T12:00:00Z".into()));
        assert!(time("99999999d").is_ok());
        for bad in ["", "yesterday", "2026-11-31", "2026-11-1", "2026-11-01T08:00:00", "30"] {
            assert!(time(bad).unwrap_err().contains("2026-11-01"), "{bad}");
        }
    }

    #[test]
    fn ages_have_one_unit() {
        let ages = [-5, 0, 59_999, 60_000, 3_599_999, 3_600_000, 86_400_000 * 3].map(age_ms);
        assert_eq!(ages, ["0s", "0s", "59s", "1m", "59m", "1h", "3d"]);
    }

    #[test]
    fn a_time_is_relative_unless_iso_is_requested() {
        let (first, at): (Timestamp, Timestamp) =
            ("2030-01-02T03:04:05Z".parse().unwrap(), "2030-01-02T03:04:06.07Z".parse().unwrap());
        let (relative, exact) = (Times { style: Style::Relative }, Times { style: Style::Iso });
        assert_eq!((relative.ago(first, at), relative.since(at, first)), ("1s ago".into(), "+1.070s".into()));
        let later = |seconds: i64| relative.since(first + jiff::SignedDuration::from_secs(seconds), first);
        assert_eq!([later(134), later(3_720), later(604_800)], ["+2m14s", "+1h02m", "+7d00h"]);
        assert_eq!((exact.ago(at, at), exact.since(at, first)), ("2030-01-02T03:04:06.070Z".into(), iso(at)));
    }
}
