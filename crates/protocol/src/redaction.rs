//! Redaction at the boundary: what looks like a credential, or is one of ours, never reaches the log of events, the
//! log of the process, an error or a health answer.
//!
//! Text is searched for shapes; in JSON every string is decoded first, and the value of a field named like a secret is
//! removed whatever it looks like, so JSON stays JSON and no escape hides anything. It does not promise to know every
//! secret's shape; the values this process knows, and those it learns, are replaced wherever they occur.

mod hints;
mod shapes;
#[cfg(test)]
mod tests;

use std::{borrow::Cow, sync::LazyLock};

use aho_corasick::{AhoCorasick, MatchKind};
use parking_lot::RwLock;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use hints::HintFinder;
use shapes::{HINTS, PASS_OWNERS, PATTERNS};

const MASK: &str = "[redacted]";

/// Names of JSON fields that hold a secret, without separators.
const SECRET_FIELDS: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "secret",
    "apikey",
    "secretkey",
    "secretaccesskey",
    "accesstoken",
    "refreshtoken",
    "authtoken",
    "idtoken",
    "privatekey",
    "authorization",
    "cookie",
];

/// The last letters of these names, of `token` and of `pass`.
const SECRET_ENDS: [char; 6] = ['d', 'e', 'n', 's', 't', 'y'];

/// Other fields named like a token are taken for one when their value is of this length and one word.
const TOKEN_BYTES_MIN: usize = 16;
/// Tokens that only mark a position to continue from.
const PLACE_TOKENS: &[&str] = &["page", "next", "cursor", "continu"];

/// Headers whose value is a secret. Their name and value may be two strings of a list.
const SECRET_HEADERS: &[&str] =
    &["cookie", "set-cookie", "authorization", "proxy-authorization", "x-api-key", "x-auth-token", "private-token"];

/// Bytes of a name of a field that is ours.
const FIELD_NAME_BYTES_MAX: usize = 40;

/// A shorter value would be found everywhere.
const KNOWN_BYTES_MIN: usize = 6;

pub struct Redactor {
    known: RwLock<KnownValues>,
}

static FINDER: LazyLock<HintFinder> = LazyLock::new(|| HintFinder::new(HINTS));

/// Learnt values that are remembered. One that is no longer in use may still be held by a process that got it.
const LEARNT_MAX: usize = 20_000;

/// Values that are secret whatever they look like: first the process's own, then those it has learnt, in their order.
#[derive(Default)]
struct KnownValues {
    values: Vec<String>,
    own: usize,
    /// `None`: there are none.
    finder: Option<AhoCorasick>,
}

impl Redactor {
    /// `known`: secret values of this process, replaced wherever they occur.
    pub fn new(known: &[&str]) -> Self {
        let redactor = Self { known: RwLock::default() };
        redactor.learn(known.iter().copied());
        {
            let mut known = redactor.known.write();
            known.own = known.values.len();
        }
        redactor
    }

    /// Takes more secret values in; from now on they are replaced too.
    #[expect(clippy::expect_used, reason = "a bounded number of bounded values")]
    pub fn learn<'a>(&self, values: impl IntoIterator<Item = &'a str>) {
        let mut known = self.known.write();
        let mut news = false;
        for value in values.into_iter().filter(|value| value.len() >= KNOWN_BYTES_MIN) {
            let quoted = serde_json::to_string(value).expect("a string serialises");
            // As it is written in a JSON text that has not been decoded.
            for form in [value, &quoted[1..quoted.len() - 1]] {
                if !known.values.iter().any(|known| known == form) {
                    known.values.push(form.to_owned());
                    news = true;
                }
            }
        }
        if news {
            let (own, over) = (known.own, (known.values.len() - known.own).saturating_sub(LEARNT_MAX));
            known.values.drain(own..own + over);
            // Where one value begins another, the longer one is replaced as a whole.
            let finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&known.values);
            known.finder = Some(finder.expect("a bounded number of bounded values"));
        }
    }

    fn knows(&self, text: &str) -> bool {
        self.known.read().finder.as_ref().is_some_and(|finder| finder.is_match(text))
    }

    fn without_known(&self, text: &str) -> Option<String> {
        let known = self.known.read();
        let finder = known.finder.as_ref().filter(|finder| finder.is_match(text))?;
        Some(finder.replace_all(text, &vec![MASK; finder.patterns_len()]))
    }

    /// Redacts text that is not JSON.
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.redact_escaped(text, ESCAPE_LEVELS_MAX, SearchNeeds::ALL)
    }

    /// As [`Redactor::redact`], following escapes of escapes this far.
    fn redact_escaped<'a>(&self, text: &'a str, levels: usize, needs: SearchNeeds) -> Cow<'a, str> {
        let decoded = if needs.escapes { self.without_escaped(text, levels) } else { None };
        let text = decoded.map_or(Cow::Borrowed(text), Cow::Owned);
        // Decoding may have completed a known value.
        let is_searched = needs.known || matches!(text, Cow::Owned(_));
        let masked = if is_searched { self.without_known(&text) } else { None };
        let mut text = masked.map_or(text, Cow::Owned);
        if !FINDER.is_match(&text) {
            return text;
        }
        for pattern in PATTERNS.iter() {
            if let Some(changed) = pattern.replace(&text) {
                text = Cow::Owned(changed);
            }
        }
        text
    }

    /// The text without words that hold a secret only once their percent escapes are decoded, as a path or a query may. Such a
    /// word is replaced by what is left of the decoded one, escaped again. `None` if there are none.
    fn without_escaped(&self, text: &str, levels: usize) -> Option<String> {
        if levels == 0 || !has_escape(text) {
            return None;
        }
        let mut out = String::new();
        let mut copied = 0;
        for word in text.split([' ', '\t', '\r', '\n', '"', '\'', '<', '>']).filter(|word| has_escape(word)) {
            // Bytes that are no text cannot be part of a secret that we know.
            let decoded = percent_decode_str(word).decode_utf8_lossy();
            let Cow::Owned(clean) = self.redact_escaped(&decoded, levels - 1, SearchNeeds::ALL) else { continue };
            let start = word.as_ptr() as usize - text.as_ptr() as usize;
            out.push_str(&text[copied..start]);
            out.extend(utf8_percent_encode(&clean, ESCAPED));
            copied = start + word.len();
        }
        (copied > 0).then(|| out + &text[copied..])
    }

    /// Redacts a JSON text, which stays one; everything else in it stays as it was written.
    pub fn redact_json<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.redact_json_except(text, UnredactedKeys::None)
    }

    /// Redacts a JSON text whose top-level fields are ours and whose other content is a caller's. Names of these fields stay, so that it
    /// can be read back even if a known value is part of such a name.
    pub fn redact_json_payload<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.redact_json_except(text, UnredactedKeys::TopLevelNames)
    }

    /// Redacts a JSON text all of whose keys are ours: only its values change.
    pub fn redact_json_values<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.redact_json_except(text, UnredactedKeys::All)
    }

    fn redact_json_except<'a>(&self, text: &'a str, unredacted_keys: UnredactedKeys) -> Cow<'a, str> {
        let found = SearchNeeds { known: self.knows(text), escapes: has_escape(text) };
        if !found.known && !found.escapes && !FINDER.is_match(text) {
            return Cow::Borrowed(text);
        }
        // Without a backslash, the strings are parts of the text as it is.
        let needs = if text.contains('\\') { SearchNeeds::ALL } else { found };
        let out = String::new();
        let mut walk =
            JsonWalk { redactor: self, text, needs, unredacted_keys, depth: 0, out, copied: 0, mask_until: 0 };
        walk.run();
        if walk.copied == 0 {
            return Cow::Borrowed(text);
        }
        walk.out.push_str(&text[walk.copied..]);
        Cow::Owned(walk.out)
    }

    /// A string of JSON, decoded; it may be JSON itself.
    fn redact_string<'a>(&self, text: &'a str, needs: SearchNeeds) -> Cow<'a, str> {
        let nested =
            text.trim_start().starts_with(['{', '[']) && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
        if nested { self.redact_json(text) } else { self.redact_escaped(text, ESCAPE_LEVELS_MAX, needs) }
    }
}

/// Which searches a string needs. Computed once for the JSON text that contains it.
#[derive(Clone, Copy)]
struct SearchNeeds {
    known: bool,
    escapes: bool,
}

impl SearchNeeds {
    const ALL: Self = Self { known: true, escapes: true };
}

/// Which keys of a JSON text are not redacted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UnredactedKeys {
    None,
    /// Those of the outermost object, if they are names of letters.
    TopLevelNames,
    All,
}

/// Goes through a JSON text string by string and writes down what changes.
struct JsonWalk<'a> {
    redactor: &'a Redactor,
    text: &'a str,
    /// Of its strings.
    needs: SearchNeeds,
    unredacted_keys: UnredactedKeys,
    /// Objects and arrays that are open.
    depth: usize,
    out: String,
    /// Everything before this is in `out`.
    copied: usize,
    /// Strings that begin before this are the value of a secret field.
    mask_until: usize,
}

impl JsonWalk<'_> {
    fn run(&mut self) {
        let text = self.text;
        let mut at = 0;
        while let Some(start) = text[at..].find('"').map(|found| at + found) {
            let end = string_end(text, start);
            let Some(content) = string_content(&text[start..end]) else { return };
            self.count_depth(&text[at..start]);
            let after = end + blanks(&text[end..]);
            let is_key = text[after..].starts_with(':');
            if !is_key && start < self.mask_until {
                self.replace(start, end, MASK);
            } else if is_key && self.keeps_key(&content) {
                // As it is.
            } else if let Cow::Owned(clean) = self.redactor.redact_string(&content, self.needs) {
                self.replace(start, end, &clean);
            }
            at = end;
            if is_key {
                self.enter_field(&content, after + 1);
            } else if is_secret_header(&content) {
                self.enter_pair(&content, after);
            }
        }
    }

    /// `between`: the text between two strings.
    fn count_depth(&mut self, between: &str) {
        if self.unredacted_keys != UnredactedKeys::TopLevelNames {
            return;
        }
        for byte in between.bytes() {
            match byte {
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
    }

    fn keeps_key(&self, key: &str) -> bool {
        match self.unredacted_keys {
            UnredactedKeys::None => false,
            UnredactedKeys::TopLevelNames => {
                let is_name = key.len() <= FIELD_NAME_BYTES_MAX && key.bytes().all(|b| b.is_ascii_alphabetic());
                self.depth == 1 && is_name
            }
            UnredactedKeys::All => true,
        }
    }

    /// Decides about the value that begins behind the colon.
    fn enter_field(&mut self, key: &str, colon: usize) {
        let start = colon + blanks(&self.text[colon..]);
        let value = &self.text[start..];
        let end = match value.as_bytes().first() {
            Some(b'"') => start + string_end(value, 0),
            Some(b'[') => start + array_end(value),
            // Its own fields are judged by their own names.
            Some(b'{') => return,
            _ => start + value.find([',', '}', ']']).unwrap_or(value.len()),
        };
        if !is_secret_field(key, &self.text[start..end]) {
            return;
        }
        if value.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
            self.replace(start, start + value[..end - start].trim_end().len(), MASK);
        } else {
            self.mask_until = self.mask_until.max(end);
        }
    }

    /// Decides about the string behind a header's name: the next one of a list, or a field `value`.
    fn enter_pair(&mut self, header: &str, after: usize) {
        let Some(rest) = self.text[after..].strip_prefix(',') else { return };
        let rest = rest.trim_start();
        let is_field = |key: &str| key.eq_ignore_ascii_case("\"value\"");
        let value = match rest[..string_end(rest, 0).min(rest.len())].trim_end() {
            key if is_field(key) => match rest[key.len()..].trim_start().strip_prefix(':') {
                Some(value) => value.trim_start(),
                None => rest,
            },
            _ => rest,
        };
        if !value.starts_with('"') {
            return;
        }
        let start = self.text.len() - value.len();
        let end = string_end(self.text, start);
        let is_name = value[1..end - start].bytes().all(|b| b.is_ascii_lowercase() || matches!(b, b'-' | b'"'));
        let is_cookie = header.to_ascii_lowercase().contains("cookie");
        if !is_name && (!is_cookie || self.text[start..end].contains('=')) {
            self.mask_until = self.mask_until.max(end);
        }
    }

    #[expect(clippy::expect_used, reason = "a string serialises")]
    fn replace(&mut self, start: usize, end: usize, with: &str) {
        self.out.push_str(&self.text[self.copied..start]);
        self.out.push_str(&serde_json::to_string(with).expect("a string serialises"));
        self.copied = end;
    }
}

pub(crate) fn is_secret_field(key: &str, value: &str) -> bool {
    // Most keys end otherwise than all that is looked for below.
    let last = key.chars().rev().find(|c| c.is_alphanumeric());
    if !last.is_some_and(|last| SECRET_ENDS.contains(&last.to_ascii_lowercase())) {
        return false;
    }
    let name: String = key.chars().filter(|c| c.is_alphanumeric()).map(|c| c.to_ascii_lowercase()).collect();
    if SECRET_FIELDS.iter().any(|field| name.ends_with(field)) {
        return true;
    }
    // `db_pass`, `dbPass` and `dbpass`, but neither `bypass` nor a test's `pass`.
    let is_pass = ["_pass", "-pass", "_PASS", "-PASS", "Pass"].iter().any(|end| key.ends_with(end))
        || name.strip_suffix("pass").is_some_and(|owner| PASS_OWNERS.contains(&owner));
    if value.starts_with('"') && is_pass {
        return key.len() > "Pass".len();
    }
    let one_word = value.starts_with('"') && value.len() >= TOKEN_BYTES_MIN + 2 && !value.contains(char::is_whitespace);
    name.ends_with("token") && one_word && !is_place_token(&name)
}

/// Whether a name in lower case is that of a token that only marks a position to continue from.
fn is_place_token(name: &str) -> bool {
    PLACE_TOKENS.iter().any(|place| name.contains(place))
}

/// Whether a string is the name of a header whose value is a secret.
fn is_secret_header(text: &str) -> bool {
    SECRET_HEADERS.iter().any(|header| text.eq_ignore_ascii_case(header))
}

/// What is escaped again in a word that was decoded.
const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'\'').add(b'<').add(b'>').add(b'%');
/// Escapes of escapes that are followed.
const ESCAPE_LEVELS_MAX: usize = 3;

/// Whether the text holds a percent sign with two hexadecimal digits.
fn has_escape(text: &str) -> bool {
    let bytes = text.as_bytes();
    memchr::memchr_iter(b'%', bytes)
        .any(|at| bytes.get(at + 1..at + 3).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)))
}

fn blanks(text: &str) -> usize {
    text.len() - text.trim_start_matches([' ', '\t', '\n', '\r']).len()
}

/// Where the string that begins at `start` is over, its quote included.
fn string_end(text: &str, start: usize) -> usize {
    let bytes = text.as_bytes();
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// What a string of JSON holds, with its quotes. `None` if it is not a JSON string.
fn string_content(quoted: &str) -> Option<Cow<'_, str>> {
    match quoted[1..].strip_suffix('"') {
        Some(plain) if !plain.contains('\\') => Some(Cow::Borrowed(plain)),
        _ => serde_json::from_str(quoted).ok(),
    }
}

/// Where the array that begins the text is over.
fn array_end(text: &str) -> usize {
    let bytes = text.as_bytes();
    let (mut at, mut depth) = (0, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at = string_end(text, at) - 1,
            b'[' => depth += 1,
            b']' => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            break;
        }
    }
    at
}
