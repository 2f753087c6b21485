//! Redaction at the boundary: what looks like a credential, or is one of ours, never reaches the log of events, the
//! log of the process, an error or a health answer.
//!
//! It works on text, JSON or not, and only ever replaces characters that need no escaping, so JSON stays JSON. It does
//! not promise to know every secret's shape; the values this process knows are given to [`Redactor::new`].

use std::borrow::Cow;

use aho_corasick::AhoCorasick;
use regex::Regex;

const MASK: &str = "[redacted]";

/// Cheap hints; a text without any of them holds nothing the patterns could match.
const HINTS: &[&str] = &[
    "sk-",
    "ghp_",
    "gho_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "akia",
    "aiza",
    "bearer ",
    "basic ",
    "://",
    "-----begin",
    "eyj",
    "ost_",
    "password",
    "passwd",
    "secret",
    "api_key",
    "apikey",
    "api-key",
    "access_token",
    "refresh_token",
    "auth_token",
    "authorization",
    "private_key",
    "id_token",
];

const PATTERNS: &[(&str, &str)] = &[
    (r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)", MASK),
    (r"\b(sk-|ghp_|gho_|ghs_|github_pat_|glpat-|xoxb-|xoxp-)[A-Za-z0-9_\-]{10,}", MASK),
    (r"\b(AKIA[0-9A-Z]{16}|AIza[0-9A-Za-z_\-]{30,})\b", MASK),
    (r"\bost_[a-z]*_?[A-Za-z0-9]{20,}", MASK),
    (r"\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*", MASK),
    (r"(?i)\b(bearer|basic) +[A-Za-z0-9._~+/\-]{8,}=*", "$1 [redacted]"),
    (r"(?i)([a-z][a-z0-9+.\-]*://)[^\s/@:\x22'\\]*:[^\s/@\x22'\\]+@", "$1[redacted]@"),
    (
        r"(?i)([a-z0-9_\-]*(?:password|passwd|secret|api_?-?key|access_token|refresh_token|auth_token|id_token|private_key|authorization)(?:\\?\x22|')?\s*[:=]\s*\\?\x22)(?:[^\x22\\]|\\[^\x22])+",
        "$1[redacted]",
    ),
    (
        r"(?i)\b((?:[a-z0-9]+_)*(?:password|passwd|secret|api_?key|access_token|refresh_token|auth_token|private_key))=([^\s\x22'\\&]+)",
        "$1=[redacted]",
    ),
];

pub struct Redactor {
    hints: AhoCorasick,
    known: Option<AhoCorasick>,
    patterns: Vec<(Regex, &'static str)>,
}

impl Redactor {
    /// `known`: secret values of this process, replaced wherever they stand.
    pub fn new(known: &[&str]) -> Self {
        let known: Vec<_> = known.iter().filter(|value| value.len() >= 6).collect();
        let build = |list: &[&str]| AhoCorasick::builder().ascii_case_insensitive(true).build(list);
        Self {
            hints: build(HINTS).expect("the hints are a constant"),
            known: (!known.is_empty()).then(|| AhoCorasick::new(known).expect("a handful of values")),
            patterns: PATTERNS
                .iter()
                .map(|(pattern, mask)| (Regex::new(pattern).expect("the patterns are constants"), *mask))
                .collect(),
        }
    }

    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut text = Cow::Borrowed(text);
        if let Some(known) = &self.known
            && known.is_match(text.as_ref())
        {
            let masks = vec![MASK; known.patterns_len()];
            text = Cow::Owned(known.replace_all(&text, &masks));
        }
        if !self.hints.is_match(text.as_ref()) {
            return text;
        }
        for (pattern, mask) in &self.patterns {
            if let Cow::Owned(changed) = pattern.replace_all(&text, *mask) {
                text = Cow::Owned(changed);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_disappear_and_json_stays_json() {
        let redactor = Redactor::new(&["hunter2-known"]);
        for secret in [
            r#"{"text":"key sk-abcdefghij0123456789 end"}"#,
            r#"{"url":"postgres://me:hunter2pw@db/x"}"#,
            r#"{"api_key":"hunter2pw","n":1}"#,
            r#"{"text":"Authorization: Bearer hunter2pw.abc"}"#,
            r#"{"text":"export OPENAI_API_KEY=hunter2pw"}"#,
            r#"{"text":"{\"password\": \"hunter2pw\"}"}"#,
            r#"{"text":"it is hunter2-known"}"#,
            r#"{"text":"-----BEGIN PRIVATE KEY-----\nhunter2pw\n-----END PRIVATE KEY-----"}"#,
            r#"{"jwt":"eyJhbGciOiJI.eyJzdWIiOiIx.hunter2pwxx"}"#,
        ] {
            let clean = redactor.redact(secret);
            assert!(!clean.contains("hunter2") && !clean.contains("abcdefghij"), "{clean}");
            assert!(clean.contains("[redacted]"), "{clean}");
            serde_json::from_str::<serde_json::Value>(&clean).unwrap_or_else(|e| panic!("{clean}: {e}"));
        }
    }

    #[test]
    fn ordinary_text_is_left_alone() {
        let redactor = Redactor::new(&[]);
        for text in ["the secret of good soup", "see https://example.org/a:b", "ask-me-anything", "tokens: 12"] {
            assert_eq!(redactor.redact(text), text);
        }
    }
}
