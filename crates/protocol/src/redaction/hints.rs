//! A search for hints of credentials that most text passes quickly. An automaton takes a step per byte, and each step waits
//! for the one before. So every second pair of bytes is looked up in a table first, independently of the others; only around
//! the few pairs that are part of a hint does the automaton run.

use std::ops::Range;

use aho_corasick::AhoCorasick;

/// Three bytes of each hint that are rare in prose and in source code. A hint without one of them is recognised by its first
/// three bytes.
const RARE_PARTS: &[&str] = &[
    "sk-", "sk_", "k_l", "ghp", "gho", "ghs", "ghu", "ghr", "_pa", "lpa", "xox", "kia", "iza", "bea", "bas", "://",
    r":\/", "-be", "eyj", "st_", "pas", "_pw", "oki", "pm_", "ecr", "_ke", "ike", "-ke", "ske", "oke", "eke", r"\u0",
];

/// The bits of two bytes by which they are looked up. Without the others, letters of both cases are the same.
const FOLD: u16 = 0x1f1f;
const FOLDED_PAIRS: usize = FOLD as usize + 1;

const CHUNK_BYTES: usize = 16;

/// Finds out whether a text holds one of several words of at least three bytes, in lower or upper case.
pub(super) struct HintFinder {
    automaton: AhoCorasick,
    /// Not 0 for the two pairs of bytes of each rare part, folded. One of the two is at an even position wherever it occurs.
    pairs: Box<[u8; FOLDED_PAIRS]>,
    parts: Vec<[u8; 3]>,
    hint_bytes_max: usize,
}

impl HintFinder {
    /// `hints` are in lower case.
    #[expect(clippy::expect_used, reason = "the hints are a constant")]
    pub(super) fn new(hints: &[&str]) -> Self {
        let automaton = AhoCorasick::builder().ascii_case_insensitive(true).build(hints);
        let mut parts: Vec<[u8; 3]> = vec![];
        for hint in hints {
            let part = RARE_PARTS.iter().find(|part| hint.contains(**part)).unwrap_or(hint);
            let part = part.as_bytes().first_chunk::<3>().expect("a hint has three bytes");
            if !parts.contains(part) {
                parts.push(*part);
            }
        }
        let mut pairs = Box::new([0; FOLDED_PAIRS]);
        for [first, second, third] in &parts {
            pairs[folded([*first, *second])] = 1;
            pairs[folded([*second, *third])] = 1;
        }
        let hint_bytes_max = hints.iter().map(|hint| hint.len()).max().unwrap_or_default();
        Self { automaton: automaton.expect("the hints are a constant"), pairs, parts, hint_bytes_max }
    }

    pub(super) fn is_match(&self, text: &str) -> bool {
        let bytes = text.as_bytes();
        let (chunks, rest) = bytes.as_chunks::<CHUNK_BYTES>();
        for (index, chunk) in chunks.iter().enumerate() {
            let start = index * CHUNK_BYTES;
            if self.has_pair(chunk) && self.is_within(bytes, start..start + CHUNK_BYTES) {
                return true;
            }
        }
        self.is_within(bytes, bytes.len() - rest.len()..bytes.len())
    }

    /// Without a branch for each pair, so that the pairs are looked up side by side.
    fn has_pair(&self, chunk: &[u8; CHUNK_BYTES]) -> bool {
        let (pairs, _) = chunk.as_chunks::<2>();
        pairs.iter().fold(0, |found, pair| found | self.pairs[folded(*pair)]) != 0
    }

    /// Whether there is a hint around a pair of this range, which begins at an even position.
    fn is_within(&self, bytes: &[u8], range: Range<usize>) -> bool {
        range.step_by(2).any(|at| {
            let is_pair = bytes.get(at..at + 2).is_some_and(|pair| self.pairs[folded([pair[0], pair[1]])] != 0);
            is_pair && (self.is_around(bytes, at) || at > 0 && self.is_around(bytes, at - 1))
        })
    }

    /// Whether a rare part begins here, and it is that of a hint.
    fn is_around(&self, bytes: &[u8], start: usize) -> bool {
        let Some(part) = bytes.get(start..).and_then(|rest| rest.first_chunk::<3>()) else { return false };
        if !self.parts.contains(&part.map(|byte| byte.to_ascii_lowercase())) {
            return false;
        }
        let end = (start + self.hint_bytes_max).min(bytes.len());
        self.automaton.is_match(&bytes[start.saturating_sub(self.hint_bytes_max)..end])
    }
}

fn folded(pair: [u8; 2]) -> usize {
    usize::from(u16::from_le_bytes(pair) & FOLD)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::redaction::shapes::HINTS;

    fn automaton() -> AhoCorasick {
        AhoCorasick::builder().ascii_case_insensitive(true).build(HINTS).unwrap()
    }

    #[test]
    fn a_hint_is_found_at_every_position_and_in_every_case() {
        let finder = HintFinder::new(HINTS);
        for hint in HINTS {
            for before in 0..40 {
                for after in [0, 1, 2, 15, 16, 17] {
                    for hint in [hint.to_string(), hint.to_uppercase()] {
                        let text =
                            format!("{}{hint}{}", "é".repeat(before / 2) + &"n".repeat(before % 2), "n".repeat(after));
                        assert!(finder.is_match(&text), "{text}");
                    }
                }
            }
        }
    }

    #[test]
    fn prose_holds_no_hint() {
        let finder = HintFinder::new(HINTS);
        for text in [
            "",
            "a",
            "ab",
            "A durable event is a fact that nobody can lose or change afterwards.",
            "zoo, number, bastion",
        ] {
            assert!(!finder.is_match(text), "{text}");
        }
    }

    proptest! {
        #[test]
        fn the_table_decides_as_the_automaton_alone(
            parts in prop::collection::vec((".{0,9}", prop::sample::select(HINTS.to_vec()), 0_usize..12), 0..6)
        ) {
            // Beginnings of hints, whole ones among them.
            let text: String = parts.iter().map(|(noise, hint, bytes)| format!("{noise}{}", hint.get(..*bytes).unwrap_or(hint))).collect();
            prop_assert_eq!(HintFinder::new(HINTS).is_match(&text), automaton().is_match(&text));
        }
    }
}
