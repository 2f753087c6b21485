//! The last lines of a process's log: a runner's, or a backend's. Bounded however much the process writes, and redacted
//! before it is displayed.

use std::collections::VecDeque;

use ostler_protocol::redaction::Redactor;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes that are stored. More than are displayed, so that the redactor sees a secret of several lines whole.
const STORED_BYTES_MAX: usize = 64 * 1024;
/// Bytes that are displayed.
const DISPLAYED_BYTES_MAX: usize = 4 * 1024;

#[derive(Default)]
pub struct LogTail {
    bytes: VecDeque<u8>,
    /// Whether the beginning was dropped.
    is_cut: bool,
}

impl LogTail {
    /// Reads a log to its end.
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
        let over = self.bytes.len().saturating_sub(STORED_BYTES_MAX);
        self.bytes.drain(..over);
        self.is_cut |= over > 0;
    }

    /// The last lines, redacted. Only whole lines, because half a secret is not recognised.
    pub fn redacted(&self, redactor: &Redactor) -> String {
        let (first, second) = self.bytes.as_slices();
        let stored = String::from_utf8_lossy(&[first, second].concat()).into_owned();
        let stored = if self.is_cut { after_first_line(&stored) } else { &stored };
        let clean = redactor.redact(stored);
        let clean = clean.trim_end();
        if clean.len() <= DISPLAYED_BYTES_MAX {
            return clean.to_owned();
        }
        let from = clean.ceil_char_boundary(clean.len() - DISPLAYED_BYTES_MAX);
        after_first_line(&clean[from..]).to_owned()
    }
}

fn after_first_line(text: &str) -> &str {
    text.split_once('\n').map_or("", |(_, rest)| rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redacted(parts: &[&str]) -> String {
        let mut tail = LogTail::default();
        parts.iter().for_each(|part| tail.push(part.as_bytes()));
        tail.redacted(&Redactor::new(&["hunter2"]))
    }

    #[test]
    fn a_short_log_is_displayed_whole() {
        assert_eq!(redacted(&["first\nsec", "ond\n"]), "first\nsecond");
    }

    #[test]
    fn only_the_last_whole_lines_of_a_long_log_are_displayed() {
        let lines: Vec<_> = (0..100_000).map(|n| format!("line {n}\n")).collect();
        let text = redacted(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(
            text.len() <= DISPLAYED_BYTES_MAX && text.starts_with("line ") && text.ends_with("\nline 99999"),
            "{text}"
        );
    }

    #[test]
    fn a_secret_is_never_displayed_even_when_cut_in_half() {
        for length in 0..40 {
            let text = redacted(&["password hunter2\n", &"x".repeat(STORED_BYTES_MAX - length), "\nend\n"]);
            assert!(!text.contains("unter2"), "{text}");
            assert!(text.ends_with("end"));
        }
        let key = format!("-----BEGIN PRIVATE KEY-----\n{}-----END PRIVATE KEY-----\nend\n", "c2VjcmV0\n".repeat(900));
        assert_eq!(redacted(&[&key]).matches("c2VjcmV0").count(), 0);
    }

    #[test]
    fn a_line_without_an_end_is_not_displayed() {
        assert_eq!(redacted(&[&"x".repeat(2 * STORED_BYTES_MAX)]), "");
    }
}
