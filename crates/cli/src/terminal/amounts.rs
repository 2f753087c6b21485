//! Amounts for people: cost, tokens and time, each short enough for a column.

/// `$0.0012`, `$1.50`, `$1200`.
pub(crate) fn cost(usd: f64) -> String {
    match usd {
        0.0 => "$0".to_owned(),
        usd if usd < 0.000_05 => "<$0.0001".to_owned(),
        usd if usd < 1.0 => format!("${usd:.4}"),
        usd if usd < 1_000.0 => format!("${usd:.2}"),
        usd => format!("${usd:.0}"),
    }
}

/// `999`, `1.2k`, `3.4M`.
pub(crate) fn count(number: i64) -> String {
    let units = [(1_000_000_000_000, "T"), (1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")];
    match units.into_iter().find(|(unit, _)| number >= *unit) {
        // Rounded down, so that 999,999 is not a thousand thousands.
        Some((unit, name)) => format!("{}.{}{name}", number / unit, number % unit * 10 / unit),
        None => number.to_string(),
    }
}

/// `0.4s`, `12s`, `1m30s`, `2h05m`.
pub(crate) fn duration(ms: i64) -> String {
    let seconds = ms.max(0) / 1_000;
    match seconds {
        _ if ms <= 0 => "0s".to_owned(),
        0 => format!("0.{}s", ms / 100),
        1..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_short() {
        let costs = [0.0, 0.000_000_1, 0.001_2, 0.5, 1.5, 999.0, 1_234.5].map(cost);
        assert_eq!(costs, ["$0", "<$0.0001", "$0.0012", "$0.5000", "$1.50", "$999.00", "$1234"]);
        let counts = [0, 999, 1_000, 1_250, 999_999, 3_400_000, i64::MAX].map(count);
        assert_eq!(counts, ["0", "999", "1.0k", "1.2k", "999.9k", "3.4M", "9223372.0T"]);
        let times = [0, 450, 12_000, 90_000, 7_500_000].map(duration);
        assert_eq!(times, ["0s", "0.4s", "12s", "1m30s", "2h05m"]);
    }
}
