//! The shapes of credentials: hints that are cheap to look for, and the patterns behind them.

use std::sync::{LazyLock, OnceLock};

use regex::{Captures, Regex};

use super::{MASK, TOKEN_BYTES_MIN, is_place_token};

/// Cheap hints; a text without any of them holds nothing the patterns could match.
pub(super) const HINTS: &[&str] = &[
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
    // The end of a name without separators, such as `DBPASS`.
    "pass\"",
    "pass'",
    "pass=",
    "pass =",
    "pass:",
    "pass :",
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
const NAMES: &str = "password|passwd|passphrase|secret(?:[_-]?key(?:[_-]?base)?)?|api[_-]?key|\
    secret[_-]?access[_-]?key|access[_-]?token|refresh[_-]?token|auth[_-]?token|id[_-]?token|private[_-]?key|PASS";

/// Names that end with `pass` or `pwd`, as a pattern: `DB_PASS` and `DBPASS`, but neither `COMPASS` nor a test's `pass`.
const PASS_NAMES: &str = "[a-z0-9][_-](?:pass|pwd)|(?:\\b|_)(?:OWNERS)pass";

/// What a password belongs to in a name without separators, such as `DBPASS` and `smtppass`.
pub(super) const PASS_OWNERS: &[&str] = &[
    "admin",
    "amqp",
    "api",
    "app",
    "auth",
    "basic",
    "client",
    "db",
    "email",
    "ftp",
    "http",
    "imap",
    "keystore",
    "ldap",
    "login",
    "mail",
    "mongo",
    "my",
    "mysql",
    "pg",
    "postgres",
    "proxy",
    "rabbitmq",
    "redis",
    "root",
    "service",
    "sftp",
    "smtp",
    "ssh",
    "ssl",
    "sudo",
    "truststore",
    "user",
    "vault",
    "wifi",
];

/// Headers whose value is a secret, as a pattern. Cookies have one of their own.
const HEADERS: &str = "x-api-key|x-auth-token|private-token|(?:proxy-)?authorization";

/// The separator of a name and its value in configuration files and source code.
const ASSIGNS: &str = r"(?::=|=>|[:=])";

/// Decides whether a match holds a secret, by its groups `name` and `value`.
type Judge = fn(&Captures<'_>) -> bool;

pub(super) struct Pattern {
    source: &'static str,
    /// Compiled when a text with a hint is first searched: all of them take milliseconds and megabytes.
    compiled: OnceLock<Regex>,
    /// What a match becomes; the value alone becomes [`MASK`] where there is a judge.
    mask: &'static str,
    judge: Option<Judge>,
}

impl Pattern {
    fn new(source: &'static str, mask: &'static str) -> Self {
        Self { source, compiled: OnceLock::new(), mask, judge: None }
    }

    /// A pattern whose group `value` is masked if the judge takes it for a secret.
    fn judged(source: &'static str, judge: Judge) -> Self {
        Self { judge: Some(judge), ..Self::new(source, "") }
    }

    #[expect(clippy::expect_used, reason = "the patterns are constants")]
    fn regex(&self) -> &Regex {
        self.compiled.get_or_init(|| {
            let owners = PASS_OWNERS.join("|");
            let pattern = self.source.replace("NAMES", NAMES).replace("HEADERS", HEADERS).replace("ASSIGNS", ASSIGNS);
            let pattern = pattern.replace("PASS", PASS_NAMES).replace("OWNERS", &owners);
            Regex::new(&pattern).expect("the patterns are constants")
        })
    }

    /// The text without what matches. `None` if nothing does.
    pub(super) fn replace(&self, text: &str) -> Option<String> {
        let Some(judge) = self.judge else {
            let replaced = self.regex().replace_all(text, self.mask);
            return matches!(replaced, std::borrow::Cow::Owned(_)).then(|| replaced.into_owned());
        };
        if !self.regex().captures_iter(text).any(|found| judge(&found)) {
            return None;
        }
        let replaced = self.regex().replace_all(text, |found: &Captures<'_>| {
            let value = found.name("value").map_or(0..0, |value| value.range());
            let start = found.get(0).map_or(0, |whole| whole.start());
            let before = &text[start..value.start];
            if judge(found) { format!("{before}{MASK}") } else { found[0].to_owned() }
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

/// First words behind `password:` that a description begins with. A passphrase of several words cannot be distinguished
/// from prose otherwise.
const DESCRIPTIONS: &[&str] = &[
    "must",
    "should",
    "may",
    "can",
    "cannot",
    "not",
    "is",
    "was",
    "are",
    "required",
    "optional",
    "invalid",
    "incorrect",
    "wrong",
    "missing",
    "expired",
    "try",
    "at",
    "between",
    "minimum",
    "maximum",
    "impl",
    "dyn",
];

/// How messages about a file begin: those of the system, and those of the daemon dialect. What follows the colon of
/// `password: No such file or directory` is no passphrase. A path before the name proves nothing: `grep -r` writes the path of a
/// file before each of its lines.
const FILE_MESSAGES: &[&str] = &[
    "no such file",
    "permission denied",
    "file exists",
    "cannot open",
    "the file is ",
    "the file exists",
    "this is a directory",
    "this is not a regular file",
    "a part of the path is not a directory",
    "a symbolic link leads out of",
    "symbolic links are not written through",
    "the system denies access",
    "the system cannot open",
];

/// Whether what follows `password:` on its line is one: a word that looks like one, or several words that are neither a
/// description nor a message about a file of that name.
fn is_password_line(found: &Captures<'_>) -> bool {
    let value = &found["value"];
    let first = value.split_whitespace().next().unwrap_or_default();
    if is_password(first) {
        return true;
    }
    if found.name("phrase").is_none_or(|phrase| phrase.as_str().trim().is_empty()) {
        return false;
    }
    let word = first.trim_end_matches(|c: char| !c.is_alphanumeric()).to_ascii_lowercase();
    let value = value.to_ascii_lowercase();
    !DESCRIPTIONS.contains(&word.as_str()) && !FILE_MESSAGES.iter().any(|message| value.starts_with(message))
}

/// Whether the value assigned to a name such as `password` is one: it is neither an expression nor a word for "none".
fn is_assigned(found: &Captures<'_>) -> bool {
    let value = &found["value"];
    let is_call = value.split_once('(').is_some_and(|(callee, _)| {
        !callee.is_empty() && callee.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | ':'))
    });
    let word = value.trim_end_matches([';', ',']);
    !is_call && !["none", "null", "nil", "true", "false", "undefined", MASK].contains(&&*word.to_ascii_lowercase())
}

/// Whether a variable or field named like a token holds one. The name of an environment variable suffices; other names are
/// used for the words of a language and for places in a list as well.
fn is_assigned_token(found: &Captures<'_>) -> bool {
    let (name, value) = (&found["name"], &found["value"]);
    if value.starts_with(MASK) || is_place_token(&name.to_ascii_lowercase()) {
        return false;
    }
    let is_variable = !name.contains(|c: char| c.is_ascii_lowercase()) && found["assign"].contains('=');
    is_variable || value.len() >= TOKEN_BYTES_MIN && is_password(value)
}

/// How npm's own names continue: it sets variables such as `npm_config_registry` and `npm_execpath`.
const NPM_NAMES: &[&str] = &[
    "audit",
    "bin",
    "cache",
    "ci",
    "command",
    "config",
    "debug",
    "execpath",
    "install",
    "lifecycle",
    "modules",
    "node",
    "package",
    "path",
    "prefix",
    "registry",
    "root",
    "run",
    "script",
    "scripts",
    "token",
    "user",
    "version",
];

/// Whether what follows `npm_` is a token, whatever its length, and no name: names are words in lower case, joined by
/// underscores.
fn is_npm_token(rest: &str) -> bool {
    let is_lower = rest.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let is_name = rest.contains('_') || NPM_NAMES.contains(&rest);
    let is_setting = rest.starts_with("config_") || rest.starts_with("package_");
    !(is_setting || is_lower && is_name)
}

/// The patterns of every redactor of the process.
pub(super) static PATTERNS: LazyLock<Vec<Pattern>> = LazyLock::new(patterns);

fn patterns() -> Vec<Pattern> {
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
        (r"(?i)\b((?:HEADERS): *)(?:(?:bearer|basic|token|digest) +)?[^\s\x22',]{8,}", "$1[redacted]"),
        // A header's name and value as two strings of a list.
        (r#"(?i)\b((?:HEADERS)\\*["']\s*,\s*\\*["'])[^"'\\]{8,}"#, "$1[redacted]"),
        (r#"(?i)\b((?:set-)?cookie2?\\*["']\s*[,:]\s*\\*["'])[^"'=\\]+=[^"'\\]*"#, "$1[redacted]"),
        (
            // A quoted value ends at the next quote that is escaped as the first one is.
            r#"(?i)((?:NAMES|authorization)(?:\\*["'])?\s*ASSIGNS\s*)(?:"(?:[^"\\]|\\.)*(?:"|\z)|\\+"(?:[^"\\]|\\[^"\\])*(?:\\*"|\z)|'[^']*(?:'|\z))"#,
            r#"$1"[redacted]""#,
        ),
        (r#"(?i)(NAMES)=((?:[^\s"'\\&]|\\[^nrt"'\\])+)"#, "$1=[redacted]"),
        (r#"(?i)\b((?:set-)?cookie2?\s*:\s*)[^\s=;,"']+=[^\r\n"']*"#, "$1[redacted]"),
    ];
    let judged: [(_, Judge); 5] = [
        // A password of several words extends to the end of its line.
        (
            r#"(?i)(?:password|passwd|passphrase|PASS)[ \t]*(?::|:?=[ \t]|[ \t]:?=)[ \t]*(?<value>[^\s"',;=~>{}()\[\]<][^\s"',;{}()\[\]<>]*(?<phrase>[ \t]+[^\r\n"]*))"#,
            is_password_line,
        ),
        (r#"(?i)(?:NAMES)\s*:\s*(?<value>[^\s"',;{}()\[\]<>]{6,})"#, is_password_line),
        (r#"(?i)(?:NAMES)(?:[ \t]+:?=[ \t]*|:?=[ \t]+)(?<value>[^\s"'\\&=~>][^\s"'\\&]*)"#, is_assigned),
        (
            r#"(?i)\b(?<name>[a-z0-9_.\-]*token)(?:\\*["'])?\s*(?<assign>ASSIGNS)\s*\\*["']?(?<value>[^\s"'\\&,;(){}<>]{6,})"#,
            is_assigned_token,
        ),
        (r"\b(?<value>npm_[A-Za-z0-9_]+)", |found| is_npm_token(&found["value"]["npm_".len()..])),
    ];
    let plain = plain.into_iter().map(|(pattern, mask)| Pattern::new(pattern, mask));
    plain.chain(judged.into_iter().map(|(pattern, judge)| Pattern::judged(pattern, judge))).collect()
}
