//! The shapes of credentials: hints that are cheap to look for, and the patterns behind them.

use regex::{Captures, Regex};

use super::MASK;

/// Cheap hints; a text without any of them holds nothing the patterns could match.
pub const HINTS: &[&str] = &[
    "sk-",
    "sk_live_",
    "rk_live_",
    "ghp_",
    "gho_",
    "ghs_",
    "ghu_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "xox",
    "akia",
    "aiza",
    "bearer ",
    "basic ",
    "://",
    // As some encoders write it in JSON.
    r":\/\/",
    "-----begin",
    "eyj",
    "ost_",
    "passw",
    "_pass",
    "-pass",
    // The end of a field's name.
    "pass\"",
    "_pwd",
    "cookie",
    "npm_",
    "passphrase",
    "secret",
    "api_key",
    "apikey",
    "api-key",
    "access_key",
    "accesskey",
    "token",
    "authorization",
    "private_key",
    "privatekey",
    "private-key",
    // A character that need not be escaped, and is: what it hides is only known once it is decoded.
    r"\u00",
];

/// Names of fields and variables that hold a secret, as a pattern.
const NAMES: &str = "password|passwd|passphrase|secret|api[_-]?key|secret[_-]?access[_-]?key|access[_-]?token|\
    refresh[_-]?token|auth[_-]?token|id[_-]?token|private[_-]?key";

/// A value behind a name that prose uses as well is judged by itself.
type Judge = fn(&str) -> bool;

pub struct Pattern {
    regex: Regex,
    /// What a match becomes; the value alone becomes [`MASK`] where there is a judge.
    mask: &'static str,
    judge: Option<Judge>,
}

impl Pattern {
    fn new(pattern: &str, mask: &'static str) -> Self {
        let pattern = pattern.replace("NAMES", NAMES);
        Self { regex: Regex::new(&pattern).expect("the patterns are constants"), mask, judge: None }
    }

    /// A pattern whose group `value` is masked if the judge takes it for a secret.
    fn judged(pattern: &str, judge: Judge) -> Self {
        Self { judge: Some(judge), ..Self::new(pattern, "") }
    }

    /// The text without what matches. `None` if nothing does.
    pub fn replace(&self, text: &str) -> Option<String> {
        let Some(judge) = self.judge else {
            let replaced = self.regex.replace_all(text, self.mask);
            return matches!(replaced, std::borrow::Cow::Owned(_)).then(|| replaced.into_owned());
        };
        let is_secret = |found: &Captures<'_>| judge(&found["value"]);
        if !self.regex.captures_iter(text).any(|found| is_secret(&found)) {
            return None;
        }
        let replaced = self.regex.replace_all(text, |found: &Captures<'_>| {
            let value = found.name("value").map_or(0..0, |value| value.range());
            let start = found.get(0).map_or(0, |whole| whole.start());
            let before = &text[start..value.start];
            if is_secret(found) { format!("{before}{MASK}") } else { found[0].to_owned() }
        });
        Some(replaced.into_owned())
    }
}

/// Whether the word behind `password:` is one, and not prose or a type: letters and digits mixed, a sign that prose does not
/// use, or letters beyond the length of a word.
fn is_password(word: &str) -> bool {
    let word = word.trim_end_matches(['.', ':', '!', '?']);
    let has = |judge: fn(&u8) -> bool| word.bytes().any(|byte| judge(&byte));
    let is_mixed = has(u8::is_ascii_digit) && has(u8::is_ascii_alphabetic) && word.len() >= 6;
    let is_long = word.len() >= 20 && word.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_mixed
        || is_long
        || word.len() >= 6
            && word.contains(['@', '#', '$', '%', '^', '&', '*', '+', '=', '~', '!'])
            && word != MASK
            && !word.bytes().all(|byte| byte == b'*')
}

/// Whether what follows `npm_` is a token: the variables that npm sets are words in lower case, joined by underscores.
fn is_npm_token(rest: &str) -> bool {
    let is_word = rest.contains('_') || rest.bytes().all(|byte| byte.is_ascii_lowercase());
    !is_word || rest.len() >= 20 && !rest.contains('_')
}

pub fn patterns() -> Vec<Pattern> {
    let plain = [
        (r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\z)", MASK),
        (r"\b(sk-|sk_live_|rk_live_|gh[opsur]_|github_pat_|glpat-|xox[abeprs]-)[A-Za-z0-9_\-]{10,}", MASK),
        (r"\b(AKIA[0-9A-Z]{16}|AIza[0-9A-Za-z_\-]{30,})\b", MASK),
        (r"\bost_[a-z]*_?[A-Za-z0-9]{20,}", MASK),
        (r"\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*", MASK),
        (
            // A word of prose has no digit in it and is not that long.
            r"(?i)\b(bearer|basic) +(?:[a-z._~+/\-]*[0-9][a-z0-9._~+/\-]{3,}|[a-z0-9._~+/\-]{20,})=*",
            "$1 [redacted]",
        ),
        (r#"(?i)([a-z][a-z0-9+.\-]*://)[^\s/@:"'\\]*:[^\s/"'\\]+@"#, "$1[redacted]@"),
        (r#"(?i)(https?://)[^\s/@:"'\\]{16,}@"#, "$1[redacted]@"),
        (
            r"(?i)\b(x-api-key|x-auth-token|private-token|authorization)(: *)(?:(?:bearer|basic|token|digest) +)?[^\s\x22',]{8,}",
            "$1$2[redacted]",
        ),
        (
            r#"(?i)((?:NAMES|authorization)(?:\\?["'])?\s*[:=]\s*)(?:\\?"(?:[^"\\]|\\[^"])*(?:\\?"|\z)|'[^']*(?:'|\z))"#,
            r#"$1"[redacted]""#,
        ),
        (r#"(?i)((?:NAMES|[a-z0-9][_-](?:pass|pwd)))=([^\s"'\\&]+)"#, "$1=[redacted]"),
        (r#"(?i)\b((?:set-)?cookie2?\s*:\s*)[^\s=;,"']+=[^\r\n"']*"#, "$1[redacted]"),
    ];
    let judged: [(_, Judge); 2] = [
        (r#"(?i)(?:NAMES|[a-z0-9][_-](?:pass|pwd))\s*:\s*(?<value>[^\s"',;{}()\[\]<>]{6,})"#, is_password),
        (r"\b(?<value>npm_[A-Za-z0-9_]+)", |token| is_npm_token(&token["npm_".len()..])),
    ];
    let plain = plain.into_iter().map(|(pattern, mask)| Pattern::new(pattern, mask));
    plain.chain(judged.into_iter().map(|(pattern, judge)| Pattern::judged(pattern, judge))).collect()
}
