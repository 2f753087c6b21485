//! Cuts the text of agents to the limits of events. A secret is recognised only as a whole, so a text is redacted before it is cut:
//! otherwise a secret that crosses the limit would leave its first half in the log. Everything that is cut for an event or a
//! message goes through here, except pieces of streamed messages and output, which are cut between words as they arrive.

use std::{
    borrow::Cow,
    sync::{Arc, LazyLock},
};

use ostler_protocol::redaction::Redactor;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::text::{escaped_prefix_len, safe_prefix_len};

/// Knows the shapes of credentials, and no values.
static SHAPES: LazyLock<Arc<Redactor>> = LazyLock::new(|| Arc::new(Redactor::new(&[])));

/// A text that is cut to a limit is redacted as far as this many times the limit, and the margin twice.
const WINDOW_FACTOR: usize = 4;
/// More than a secret takes. One that the end of the window has cut begins after the limit by so much that no part of it is left.
const MARGIN_BYTES: usize = 64 * 1024;

/// Redacts texts and cuts them. A text within its limit stays as it is: it is redacted on its way into the log.
#[derive(Clone)]
pub(crate) struct TextCutter {
    redactor: Arc<Redactor>,
}

impl Default for TextCutter {
    fn default() -> Self {
        Self { redactor: SHAPES.clone() }
    }
}

impl TextCutter {
    pub(crate) fn new(redactor: Redactor) -> Self {
        Self { redactor: Arc::new(redactor) }
    }

    pub(crate) fn redactor(&self) -> &Redactor {
        &self.redactor
    }

    /// The whole text without secrets. A JSON text stays one.
    pub(crate) fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if is_json(text) { self.redactor.redact_json(text) } else { self.redactor.redact(text) }
    }

    /// The text without secrets, to be cut to at most `bytes_max` bytes. Only the beginning of a text that is far longer, which is
    /// still too long. JSON is redacted whole: the fields that hold secrets are found only in a complete text.
    pub(crate) fn redact_beginning<'a>(&self, text: &'a str, bytes_max: usize) -> Cow<'a, str> {
        if is_json(text) {
            return self.redactor.redact_json(text);
        }
        let window = bytes_max.saturating_mul(WINDOW_FACTOR).saturating_add(2 * MARGIN_BYTES);
        if text.len() > window {
            let clean = self.redactor.redact(&text[..text.floor_char_boundary(window)]);
            if clean.len() >= bytes_max.saturating_add(MARGIN_BYTES) {
                return clean;
            }
        }
        self.redactor.redact(text)
    }

    /// The value without secrets in its texts.
    pub(crate) fn redact_value(&self, value: &Value) -> Value {
        let text = value.to_string();
        match self.redactor.redact_json(&text) {
            Cow::Borrowed(_) => value.clone(),
            // What is no JSON after it was redacted must not be sent as it was.
            Cow::Owned(clean) => serde_json::from_str(&clean).unwrap_or_default(),
        }
    }

    /// At most `chars_max` characters of the text, and a mark if something was cut off. It is cut between words, because half of a
    /// credential that is not known here would not be recognised later.
    pub(crate) fn cut(&self, text: &str, chars_max: usize) -> String {
        self.cut_with(text, chars_max, safe_prefix_len)
    }

    /// As [`TextCutter::cut`], for a name or a path. It is cut within a word if nothing would be left of it otherwise.
    pub(crate) fn cut_name(&self, name: &str, chars_max: usize) -> String {
        self.cut_with(name, chars_max, |prefix| match safe_prefix_len(prefix) {
            0 => prefix.len(),
            end => end,
        })
    }

    fn cut_with(&self, text: &str, chars_max: usize, end: impl Fn(&str) -> usize) -> String {
        if char_prefix(text, chars_max).is_none() {
            return text.to_owned();
        }
        // A character takes at most four bytes.
        let clean = self.redact_beginning(text, chars_max.saturating_mul(4));
        match char_prefix(&clean, chars_max) {
            Some(prefix) => format!("{}…", &prefix[..end(prefix)]),
            None => clean.into_owned(),
        }
    }

    /// At most `bytes_max` bytes of the text, cut between words, and whether something was cut off.
    pub(crate) fn cut_bytes<'a>(&self, text: &'a str, bytes_max: usize) -> (Cow<'a, str>, bool) {
        self.cut_at(text, bytes_max, |text| text.floor_char_boundary(bytes_max))
    }

    /// The beginning of the text that takes at most `bytes_max` bytes when escaped as JSON, cut between words, and whether
    /// something was cut off.
    pub(crate) fn cut_escaped<'a>(&self, text: &'a str, bytes_max: usize) -> (Cow<'a, str>, bool) {
        self.cut_at(text, bytes_max, |text| escaped_prefix_len(text, bytes_max))
    }

    /// `fits`: the length of the beginning of a text that is within the limit, which is at most `bytes_max`.
    fn cut_at<'a>(&self, text: &'a str, bytes_max: usize, fits: impl Fn(&str) -> usize) -> (Cow<'a, str>, bool) {
        if fits(text) == text.len() {
            return (Cow::Borrowed(text), false);
        }
        let clean = self.redact_beginning(text, bytes_max);
        let end = fits(&clean);
        if end == clean.len() {
            return (clean, false);
        }
        let end = safe_prefix_len(&clean[..end]);
        let cut = match clean {
            Cow::Borrowed(clean) => Cow::Borrowed(&clean[..end]),
            Cow::Owned(mut clean) => {
                clean.truncate(end);
                Cow::Owned(clean)
            }
        };
        (cut, true)
    }
}

/// Whether a text is a JSON object or array.
fn is_json(text: &str) -> bool {
    text.trim_start().starts_with(['{', '[']) && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// The first characters of a text. `None` if it has no more than these.
fn char_prefix(text: &str, chars_max: usize) -> Option<&str> {
    text.char_indices().nth(chars_max).map(|(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Has spaces, so that a cut between words would leave its first words.
    const SECRET: &str = "correct horse battery staple";

    fn cutter() -> TextCutter {
        TextCutter::new(Redactor::new(&[SECRET]))
    }

    #[test]
    fn a_secret_across_the_limit_leaves_no_prefix() {
        let text = format!("log in with {SECRET}, and then go on");
        for limit in 0..text.len() {
            let texts = [
                cutter().cut(&text, limit),
                cutter().cut_name(&text, limit),
                cutter().cut_bytes(&text, limit).0.into_owned(),
                cutter().cut_escaped(&text, limit).0.into_owned(),
            ];
            for cut in texts {
                assert!(!cut.contains("corr"), "{limit}: {cut}");
            }
        }
        assert_eq!(cutter().cut(&text, 25), "log in with [redacted], …");
        assert_eq!(cutter().cut_bytes(&text, 25), ("log in with [redacted], ".into(), true));
    }

    #[test]
    fn a_secret_inside_json_leaves_no_prefix_either() {
        let quoted = "a \"quoted\" pass";
        let cutter = TextCutter::new(Redactor::new(&[quoted]));
        let text = json!({"path": "/w/a", "content": format!("{quoted} and more")}).to_string();
        for limit in 0..text.chars().count() {
            let cut = cutter.cut(&text, limit);
            assert!(!cut.contains("quoted"), "{limit}: {cut}");
        }
        let value = json!({"content": format!("{quoted} and more")});
        assert_eq!(cutter.redact_value(&value), json!({"content": "[redacted] and more"}));
    }

    #[test]
    fn a_limit_inside_a_character_cuts_before_it() {
        let text = "é你🐴 ".repeat(3);
        for limit in 0..text.len() {
            let (bytes, is_cut) = cutter().cut_bytes(&text, limit);
            assert!(is_cut && bytes.len() <= limit && text.starts_with(&*bytes), "{limit}: {bytes}");
            let (escaped, is_cut) = cutter().cut_escaped(&text, limit);
            assert!(is_cut && escaped.len() <= limit && text.starts_with(&*escaped), "{limit}: {escaped}");
        }
        assert_eq!(cutter().cut_bytes(&text, text.len()), (text.as_str().into(), false));
        assert_eq!(cutter().cut_name(&text, 2), "é你…", "characters are counted, not bytes");
        let secret = "пароль 你好";
        let cutter = TextCutter::new(Redactor::new(&[secret]));
        let text = format!("é {secret} é");
        for limit in 0..text.len() {
            assert!(!cutter.cut_bytes(&text, limit).0.contains('п'), "{limit}");
        }
    }

    #[test]
    fn a_text_within_its_limit_is_not_changed() {
        assert_eq!(cutter().cut(SECRET, SECRET.len()), SECRET, "it is redacted as a whole later");
        assert_eq!(cutter().cut_escaped("a\nb", 4), ("a\nb".into(), false));
    }

    #[test]
    fn a_text_that_fits_once_it_is_redacted_is_not_cut() {
        let text = format!("{SECRET} {SECRET}");
        assert_eq!(cutter().cut(&text, 30), "[redacted] [redacted]");
        assert_eq!(cutter().cut_bytes(&text, 30), ("[redacted] [redacted]".into(), false));
    }

    #[test]
    fn only_the_beginning_of_a_far_longer_text_is_redacted() {
        let text = format!("{SECRET} {}", "word ".repeat(8 * MARGIN_BYTES / 5));
        let clean = cutter().redact_beginning(&text, 100);
        assert!(clean.starts_with("[redacted] word ") && clean.len() < 3 * MARGIN_BYTES, "{}", clean.len());
        assert_eq!(cutter().cut(&text, 16), "[redacted] word …");
        let json = json!({"a": "word ".repeat(8 * MARGIN_BYTES / 5), "b": SECRET}).to_string();
        assert!(cutter().redact_beginning(&json, 100).ends_with(r#""b":"[redacted]"}"#), "JSON is redacted whole");
    }

    #[test]
    fn a_text_that_is_short_once_it_is_redacted_is_redacted_whole() {
        let secrets = format!("{SECRET} ").repeat(8 * MARGIN_BYTES / SECRET.len());
        let clean = cutter().redact_beginning(&secrets, 100);
        assert_eq!(clean.len(), "[redacted] ".len() * (8 * MARGIN_BYTES / SECRET.len()));
    }

    #[test]
    fn a_long_text_is_cut_between_words_and_a_name_of_one_word_within_it() {
        assert_eq!(cutter().cut("login with sk-1234567890", 16), "login with …");
        assert_eq!(cutter().cut("short", 5), "short");
        assert_eq!(cutter().cut("onelongword", 5), "…");
        assert_eq!(cutter().cut_name("onelongword", 5), "onelo…");
        assert_eq!(cutter().cut_name("agent sk-1234567890", 12), "agent …");
    }
}
