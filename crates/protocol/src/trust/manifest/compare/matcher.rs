//! Whether a pattern of `patternProperties` may match a property name, for every validator.
//!
//! Validators read patterns as ECMA-262 does, or as their language does. A pattern counts as missing a name only where all
//! of these readings agree: the name is printable ASCII, and the pattern has nothing that is read in two ways.

use regex::{Regex, RegexBuilder};

use crate::trust::manifest::schema::PATTERN_PROGRAM_BYTES_MAX;

/// Text that Rust's `regex` reads differently from ECMA-262: set operations in classes, flags and named groups, and a
/// repetition without a lower bound.
const AMBIGUOUS: [&str; 5] = ["&&", "--", "~~", "(?", "{,"];
/// Letters and digits after a backslash that mean the same in both for ASCII text.
const ESCAPES: &str = "dDwWsSbBtnrfv";

/// `None` if the pattern is ambiguous: it may match anything.
pub(super) struct Matcher(Option<Regex>);

impl Matcher {
    pub(super) fn new(pattern: &str) -> Self {
        let build = || RegexBuilder::new(pattern).size_limit(PATTERN_PROGRAM_BYTES_MAX).build().ok();
        Self(if is_unambiguous(pattern) { build() } else { None })
    }

    pub(super) fn may_match(&self, name: &str) -> bool {
        let is_plain = name.chars().all(|c| c == ' ' || c.is_ascii_graphic());
        match &self.0 {
            Some(regex) if is_plain => regex.is_match(name),
            _ => true,
        }
    }
}

fn is_unambiguous(pattern: &str) -> bool {
    if !pattern.is_ascii() || AMBIGUOUS.iter().any(|text| pattern.contains(text)) {
        return false;
    }
    let (mut chars, mut in_class) = (pattern.chars(), false);
    while let Some(char) = chars.next() {
        match char {
            '\\' => match chars.next() {
                Some(escaped) if escaped.is_ascii_alphanumeric() && !ESCAPES.contains(escaped) => return false,
                // Word boundaries in newer versions of `regex`.
                Some('<' | '>') | None => return false,
                Some(_) => {}
            },
            // A class inside a class.
            '[' if in_class => return false,
            '[' => in_class = true,
            // An empty class, and one that begins with its own end, are read in two ways.
            ']' if in_class => in_class = false,
            _ => {}
        }
    }
    !pattern.contains("[]") && !pattern.contains("[^]")
}

#[cfg(test)]
mod tests {
    use super::Matcher;

    #[test]
    fn a_pattern_misses_a_name_only_where_every_reading_agrees() {
        for (pattern, name) in [("^x-", "a"), ("^[a-c]$", "d"), (r"^\d+$", "a"), ("b$", "ba"), (r"^a\.b$", "axb")] {
            assert!(!Matcher::new(pattern).may_match(name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("^x-", "x-a"),
            ("x", "axa"),
            // ECMA-262 reads a class with the characters `a`, `&` and `b`.
            ("^[a&&b]$", "a"),
            ("^[a--b]$", "a"),
            ("^[[a]]$", "["),
            // ECMA-262 reads these as letters.
            (r"^\Aa", "Aa"),
            (r"a\z", "az"),
            (r"^\p{L}$", "pppp"),
            ("^(?i)A$", "a"),
            ("^x{,2}$", "x{,2}"),
            ("^[]a]$", "a]"),
            ("^[^]$", "a"),
            ("(", "a"),
            ("^a$", "\u{e4}"),
        ] {
            assert!(Matcher::new(pattern).may_match(name), "{pattern} {name}");
        }
    }
}
