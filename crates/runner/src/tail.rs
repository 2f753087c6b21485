//! The end of what a process wrote to its log: a runner's, or an agent's. Bounded however much it writes; redacted before
//! anybody sees it.

use std::collections::VecDeque;

use ostler_protocol::redaction::Redactor;
use tokio::io::{AsyncRead, AsyncReadExt};

/// What is kept to be redacted: more than is shown, so that a secret of several lines is seen whole.
const KEPT_BYTES_MAX: usize = 64 * 1024;
/// What is shown.
const SHOWN_BYTES_MAX: usize = 4 * 1024;

#[derive(Default)]
pub struct Tail {
    bytes: VecDeque<u8>,
    /// The beginning is missing.
    cut: bool,
}

impl Tail {
    /// Reads to the end.
    pub async fn read(mut from: impl AsyncRead + Unpin) -> Self {
        let mut tail = Self::default();
        let mut buffer = [0; 4 * 1024];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            tail.push(&buffer[..read]);
        }
        tail
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        let over = self.bytes.len().saturating_sub(KEPT_BYTES_MAX);
        self.bytes.drain(..over);
        self.cut |= over > 0;
    }

    /// The last lines, whole ones only: half a secret is not recognised as one.
    pub fn shown(&self, redactor: &Redactor) -> String {
        let (first, second) = self.bytes.as_slices();
        let kept = String::from_utf8_lossy(&[first, second].concat()).into_owned();
        let kept = if self.cut { after_first_line(&kept) } else { &kept };
        let clean = redactor.redact(kept);
        let clean = clean.trim_end();
        if clean.len() <= SHOWN_BYTES_MAX {
            return clean.to_owned();
        }
        let from = clean.ceil_char_boundary(clean.len() - SHOWN_BYTES_MAX);
        after_first_line(&clean[from..]).to_owned()
    }
}

fn after_first_line(text: &str) -> &str {
    text.split_once('\n').map_or("", |(_, rest)| rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(parts: &[&str]) -> String {
        let mut tail = Tail::default();
        parts.iter().for_each(|part| tail.push(part.as_bytes()));
        tail.shown(&Redactor::new(&["hunter2"]))
    }

    #[test]
    fn a_short_log_is_shown_whole() {
        assert_eq!(shown(&["first\nsec", "ond\n"]), "first\nsecond");
    }

    #[test]
    fn of_a_long_log_the_last_whole_lines_are_shown() {
        let lines: Vec<_> = (0..100_000).map(|n| format!("line {n}\n")).collect();
        let text = shown(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(text.len() <= SHOWN_BYTES_MAX && text.starts_with("line ") && text.ends_with("\nline 99999"), "{text}");
    }

    #[test]
    fn a_secret_is_not_shown_not_even_cut_in_half() {
        for length in 0..40 {
            let text = shown(&["password hunter2\n", &"x".repeat(KEPT_BYTES_MAX - length), "\nend\n"]);
            assert!(!text.contains("unter2"), "{text}");
            assert!(text.ends_with("end"));
        }
        let key = format!("-----BEGIN PRIVATE KEY-----\n{}-----END PRIVATE KEY-----\nend\n", "c2VjcmV0\n".repeat(900));
        assert_eq!(shown(&[&key]).matches("c2VjcmV0").count(), 0);
    }

    #[test]
    fn a_line_without_an_end_shows_nothing_rather_than_half_of_it() {
        assert_eq!(shown(&[&"x".repeat(2 * KEPT_BYTES_MAX)]), "");
    }
}
