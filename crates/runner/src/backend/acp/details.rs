//! Details of a call for front ends: the files that it concerns, how it changes them, and what it returned. Texts that are too long
//! are redacted and then cut with a mark, and characters that cannot be seen are replaced: what a permission would allow is
//! reported in full elsewhere.

use std::borrow::Cow;

use ostler_protocol::{
    RawJson,
    kernel::permissions::{CallDetails, CallLocation, FileDiff},
    text::{is_plain_lines, plain_lines},
};
use serde_json::{Map, Value};

use super::wire::AcpToolCall;
use crate::{text::safe_prefix_len, text_cutter::TextCutter};

/// The most that an event holds of a call's details.
pub(super) const DETAILS_BYTES_MAX: usize = 32 * 1024;
pub(super) const FILES_MAX: usize = 50;
const PATH_CHARS_MAX: usize = 1_024;
const NAME_CHARS_MAX: usize = 100;
/// What the name of a member and the signs around its value take, at most.
const MEMBER_BYTES: usize = 32;
/// A text is cut to half of its length until all fit, but not further than to this length.
const TEXT_BYTES_MIN: usize = 64;
const REST_LEFT_OUT: &str = "\n[The rest of the text is left out.]";

/// The details of a call that needs permission, in at most `bytes_max` bytes. `None` if not even the names of its files fit.
pub(super) fn call_details(
    cutter: &TextCutter,
    call: &AcpToolCall,
    name: Option<&str>,
    content: &Value,
    bytes_max: usize,
) -> Option<CallDetails> {
    let bytes_max = bytes_max.min(DETAILS_BYTES_MAX);
    let mut details = CallDetails {
        kind: call.tool_kind.as_deref().map(|kind| plain(cutter, kind, NAME_CHARS_MAX)),
        name: name.map(|name| plain(cutter, name, NAME_CHARS_MAX)),
        locations: locations(cutter, &call.locations),
        ..CallDetails::default()
    };
    let mut room = bytes_max.checked_sub(RawJson::of(&details).size() + MEMBER_BYTES)?;
    // A part of the input would look like all of it, so it is left out if it does not fit.
    let input = call.raw_input.as_ref().filter(|input| !input.is_null() && has_plain_texts(input));
    if let Some(input) = input
        && let Some(rest) = room.checked_sub(RawJson::of(input).size() + MEMBER_BYTES)
    {
        details.input = Some(input.clone());
        room = rest;
    }
    details.diffs = file_diffs(cutter, content, room);
    Some(details)
}

/// The files that a call concerns, as the backend lists them.
pub(super) fn locations(cutter: &TextCutter, listed: &Value) -> Vec<CallLocation> {
    let location = |entry: &Value| {
        let path = entry["path"].as_str().filter(|path| !path.is_empty())?;
        Some(CallLocation { path: plain(cutter, path, PATH_CHARS_MAX), line: entry["line"].as_u64() })
    };
    listed.as_array().into_iter().flatten().filter_map(location).take(FILES_MAX).collect()
}

/// The changes of files among the outputs of a call, in at most `bytes_max` bytes. None if their paths alone are longer.
pub(super) fn file_diffs(cutter: &TextCutter, content: &Value, bytes_max: usize) -> Vec<FileDiff> {
    let parts = content.as_array().into_iter().flatten().filter(|part| part["type"] == "diff").take(FILES_MAX);
    let parts: Vec<RedactedDiff<'_>> = parts.map(|part| RedactedDiff::of(cutter, part, bytes_max)).collect();
    let mut text_bytes_max = bytes_max;
    while text_bytes_max >= TEXT_BYTES_MIN {
        let diffs: Vec<FileDiff> = parts.iter().map(|part| part.cut(text_bytes_max)).collect();
        if RawJson::of(&diffs).size() <= bytes_max {
            return diffs;
        }
        text_bytes_max /= 2;
    }
    vec![]
}

/// The change of a file, redacted before it is cut.
struct RedactedDiff<'a> {
    path: String,
    old_text: Option<Cow<'a, str>>,
    new_text: Cow<'a, str>,
}

impl<'a> RedactedDiff<'a> {
    /// `bytes_max`: the most that its texts are cut to.
    fn of(cutter: &TextCutter, part: &'a Value, bytes_max: usize) -> Self {
        let path = plain(cutter, part["path"].as_str().unwrap_or_default(), PATH_CHARS_MAX);
        let old_text = part["oldText"].as_str().map(|text| cutter.redact_beginning(text, bytes_max));
        let new_text = cutter.redact_beginning(part["newText"].as_str().unwrap_or_default(), bytes_max);
        Self { path, old_text, new_text }
    }

    fn cut(&self, text_bytes_max: usize) -> FileDiff {
        let (old_text, old_is_cut) = self.old_text.as_deref().map(|text| cut(text, text_bytes_max)).unzip();
        let (new_text, new_is_cut) = cut(&self.new_text, text_bytes_max);
        let truncated = new_is_cut || old_is_cut.unwrap_or_default();
        FileDiff { path: self.path.clone(), old_text, new_text, truncated }
    }
}

/// The value with its texts cut until it takes at most `bytes_max` bytes as JSON. `None` if that is not enough.
pub(super) fn shortened(cutter: &TextCutter, value: &Value, bytes_max: usize) -> Option<Value> {
    if value.to_string().len() <= bytes_max {
        return Some(value.clone());
    }
    let clean = cutter.redact_value(value);
    let mut text_bytes_max = bytes_max;
    while text_bytes_max >= TEXT_BYTES_MIN {
        let short = with_cut_texts(&clean, text_bytes_max);
        if short.to_string().len() <= bytes_max {
            return Some(short);
        }
        text_bytes_max /= 2;
    }
    None
}

fn with_cut_texts(value: &Value, bytes_max: usize) -> Value {
    match value {
        Value::String(text) if text.len() > bytes_max => cut(text, bytes_max).0.into(),
        Value::Array(items) => items.iter().map(|item| with_cut_texts(item, bytes_max)).collect(),
        Value::Object(members) => {
            let members = members.iter().map(|(name, member)| (name.clone(), with_cut_texts(member, bytes_max)));
            Value::Object(members.collect::<Map<_, _>>())
        }
        other => other.clone(),
    }
}

/// A redacted text, and whether something was cut off. It is cut between words, because half a credential is not recognised.
fn cut(text: &str, bytes_max: usize) -> (String, bool) {
    if text.len() <= bytes_max {
        return (plain_lines(text), false);
    }
    let prefix = &text[..text.floor_char_boundary(bytes_max)];
    let shown = plain_lines(&prefix[..safe_prefix_len(prefix)]);
    (format!("{shown}{REST_LEFT_OUT}"), true)
}

fn plain(cutter: &TextCutter, text: &str, chars_max: usize) -> String {
    plain_lines(&cutter.cut(text, chars_max))
}

/// Whether every text in the value, also the name of each member, can be seen as it is.
fn has_plain_texts(value: &Value) -> bool {
    match value {
        Value::String(text) => is_plain_lines(text),
        Value::Array(items) => items.iter().all(has_plain_texts),
        Value::Object(members) => members.iter().all(|(name, member)| is_plain_lines(name) && has_plain_texts(member)),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SECRET: &str = "correct horse battery staple";

    fn cutter() -> TextCutter {
        TextCutter::new(ostler_protocol::redaction::Redactor::new(&[SECRET]))
    }

    fn call(input: Value) -> AcpToolCall {
        let call = json!({"kind": "edit", "locations": [{"path": "/w/a", "line": 3}, {"line": 1}], "rawInput": input});
        serde_json::from_value(call).unwrap()
    }

    fn diff(old: &str, new: &str) -> Value {
        json!([{"type": "diff", "path": "/w/a", "oldText": old, "newText": new},
            {"type": "content", "content": {"type": "text", "text": "done"}}])
    }

    #[test]
    fn a_small_call_has_all_of_its_details() {
        let input = json!({"file_path": "/w/a", "content": "b"});
        let content = diff("a", "b");
        let details = call_details(&cutter(), &call(input.clone()), Some("write_file"), &content, 4_096).unwrap();
        let diffs =
            vec![FileDiff { path: "/w/a".into(), old_text: Some("a".into()), new_text: "b".into(), truncated: false }];
        let locations = vec![CallLocation { path: "/w/a".into(), line: Some(3) }];
        let (kind, name) = (Some("edit".into()), Some("write_file".into()));
        assert_eq!(details, CallDetails { kind, name, locations, diffs, input: Some(input) });
    }

    #[test]
    fn long_texts_of_a_diff_are_cut_with_a_mark() {
        let long = "some words ".repeat(10_000);
        let content = diff("a", &long);
        let details = call_details(&cutter(), &call(json!({"content": long})), None, &content, 8_192).unwrap();
        assert_eq!(details.input, None, "a part of the input would look like all of it");
        let diff = &details.diffs[0];
        assert!(diff.truncated && diff.new_text.ends_with(REST_LEFT_OUT), "{diff:?}");
        assert!(diff.new_text.len() > 2_048 && RawJson::of(&details).size() <= 8_192);
        assert_eq!(diff.old_text.as_deref(), Some("a"));
        assert_eq!(call_details(&cutter(), &call(json!({})), None, &Value::Null, 40), None);
    }

    #[test]
    fn characters_that_cannot_be_seen_are_replaced_or_leave_the_input_out() {
        let (call, content) = (call(json!({"a": ["\u{202e}"]})), diff("\u{1b}", "b"));
        let details = call_details(&cutter(), &call, None, &content, 4_096).unwrap();
        assert_eq!((details.input, details.diffs[0].old_text.as_deref()), (None, Some("\u{fffd}")));
    }

    #[test]
    fn a_long_value_stays_json() {
        let value = json!({"file_path": "/w/a", "content": "word ".repeat(2_000), "lines": [1, 2]});
        let short = shortened(&cutter(), &value, 2_000).unwrap();
        assert_eq!((&short["file_path"], &short["lines"]), (&json!("/w/a"), &json!([1, 2])));
        assert!(short["content"].as_str().unwrap().ends_with(REST_LEFT_OUT), "{short}");
        assert_eq!(shortened(&cutter(), &json!({"a": 1}), 100), Some(json!({"a": 1})));
        assert_eq!(shortened(&cutter(), &json!((0..5_000).collect::<Vec<_>>()), 2_000), None);
    }

    #[test]
    fn a_secret_across_the_limit_of_a_text_leaves_no_prefix() {
        for left in 0..SECRET.len() {
            let text = format!("{}{SECRET}{}", "w ".repeat(100) + &"x".repeat(left), " more".repeat(200));
            for bytes_max in [300, 500] {
                let diffs = file_diffs(&cutter(), &diff("a", &text), bytes_max);
                assert!(diffs[0].truncated && !diffs[0].new_text.contains("corr"), "{left}: {diffs:?}");
                let short = shortened(&cutter(), &json!({"content": text}), bytes_max).unwrap();
                assert!(!short.to_string().contains("corr"), "{left}: {short}");
            }
        }
    }
}
