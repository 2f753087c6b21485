//! Lines of a pod's log. Pure.

use jiff::{SignedDuration, Timestamp};
use ostler_protocol::kernel::runner_jobs::is_log_position;

/// Lines without their times, and the time of the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLines {
    pub lines: Vec<String>,
    /// The time of the last line, with as many digits as the cluster gives. `None` if no line has one.
    pub last_at: Option<String>,
    /// A line was left out because it is longer than the bound.
    pub has_gap: bool,
}

/// The lines of a log that were written after a time, the oldest first, of at most `bytes_max` bytes. Each line of the log begins
/// with its time; the cluster itself compares whole seconds only. Times of one log have the same form, so that they are compared
/// as text once they are equally long.
///
/// A line without a time continues the line before it, or is the cluster's own message. It is returned with the line before it. If
/// there is none, it is returned only without `after`: otherwise each response would repeat it.
///
/// A line that alone is longer than `bytes_max` is left out. A part of it could contain half of a secret, which is not recognised.
pub fn later_lines(log: &str, after: Option<&str>, bytes_max: usize) -> LogLines {
    let mut found = LogLines { lines: vec![], last_at: after.map(str::to_owned), has_gap: false };
    let (mut is_later, mut bytes) = (after.is_none(), 0);
    for line in log.lines() {
        let (at, text) = match line.split_once(' ').filter(|(at, _)| is_log_position(at)) {
            Some((at, text)) => (Some(at), text),
            None => (None, line),
        };
        if let Some(at) = at {
            is_later = after.is_none_or(|after| sortable(at) > sortable(after));
        }
        if !is_later {
            continue;
        }
        let size = text.len() + 1;
        if size > bytes_max {
            found.has_gap = true;
        } else if bytes + size > bytes_max {
            break;
        } else {
            bytes += size;
            found.lines.push(text.to_owned());
        }
        found.last_at = at.map(str::to_owned).or(found.last_at);
    }
    found
}

/// The whole second after a time of a log. `None` if this is no time.
pub fn next_second(time: &str) -> Option<String> {
    let seconds = time.parse::<Timestamp>().ok()?.as_second();
    Timestamp::from_second(seconds).ok()?.checked_add(SignedDuration::from_secs(1)).ok().map(|time| time.to_string())
}

/// The seconds, and the digits after them padded to nanoseconds.
fn sortable(time: &str) -> (String, String) {
    let time = time.trim_end_matches('Z');
    let (seconds, digits) = time.split_once('.').unwrap_or((time, ""));
    (seconds.to_owned(), format!("{digits:0<9}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES_MAX: usize = 1_000;
    const LOG: &str = "2030-01-01T00:00:00.1Z one\n2030-01-01T00:00:00.12Z two words\n2030-01-01T00:00:01Z \n";

    #[test]
    fn only_lines_after_the_position_are_returned() {
        let all = later_lines(LOG, None, BYTES_MAX);
        assert_eq!(all.lines, ["one", "two words", ""]);
        assert_eq!(all.last_at.as_deref(), Some("2030-01-01T00:00:01Z"));
        let rest = later_lines(LOG, Some("2030-01-01T00:00:00.100000000Z"), BYTES_MAX);
        assert_eq!(rest.lines, ["two words", ""]);
        let nothing = later_lines(LOG, Some("2030-01-01T00:00:01Z"), BYTES_MAX);
        assert_eq!((nothing.lines.len(), nothing.last_at.as_deref()), (0, Some("2030-01-01T00:00:01Z")));
    }

    #[test]
    fn a_line_without_a_time_is_returned_once() {
        let message = "unable to retrieve container logs";
        let lines = later_lines(message, None, BYTES_MAX);
        assert_eq!((lines.lines.len(), lines.last_at), (1, None));
        let (first, last) = ("2030-01-01T00:00:00.1Z", "2030-01-01T00:00:00.2Z");
        let log = format!("{message}\n{first} one\nof one\n{last} two\nof two\n");
        assert_eq!(later_lines(&log, None, BYTES_MAX).lines, [message, "one", "of one", "two", "of two"]);
        assert_eq!(later_lines(&log, Some(first), BYTES_MAX).lines, ["two", "of two"]);
        assert_eq!(later_lines(&log, Some(last), BYTES_MAX).lines, [""; 0]);
    }

    #[test]
    fn a_bounded_response_is_continued_at_its_last_line() {
        // "two words" is longer than any response may be.
        let first = later_lines(LOG, None, 4);
        assert_eq!((first.lines.join("|").as_str(), first.has_gap), ("one", true));
        assert_eq!(first.last_at.as_deref(), Some("2030-01-01T00:00:00.12Z"));
        let rest = later_lines(LOG, first.last_at.as_deref(), 4);
        assert_eq!((rest.lines.len(), rest.has_gap), (1, false));
        assert_eq!(rest.last_at.as_deref(), Some("2030-01-01T00:00:01Z"));
        assert_eq!(next_second("2030-01-01T00:00:00.9Z").as_deref(), Some("2030-01-01T00:00:01Z"));
        assert_eq!(next_second("now"), None);
    }
}
