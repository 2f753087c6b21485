//! Text of files: what of it is returned, how it is encoded, and how one place of it is replaced.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Failure, json::hex, sha256::sha256};

use super::failures::{FileError, file_failure};

const BOM: char = '\u{feff}';
const HASH_PREFIX: &str = "sha256:";

/// How lines end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LineEnding {
    Lf,
    Crlf,
}

/// How a text is encoded in its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileProfile {
    pub bom: bool,
    /// How its first line ends. `None` if it has no line break.
    pub line_ending: Option<LineEnding>,
}

impl FileProfile {
    /// The encoding of a text, and the text without its byte order mark.
    pub fn of(text: &str) -> (Self, &str) {
        let content = text.strip_prefix(BOM);
        let (bom, content) = (content.is_some(), content.unwrap_or(text));
        let line_ending = content.find('\n').map(|at| match content[..at].ends_with('\r') {
            true => LineEnding::Crlf,
            false => LineEnding::Lf,
        });
        (Self { bom, line_ending }, content)
    }

    /// As clients receive it.
    pub fn line_ending(self) -> LineEnding {
        self.line_ending.unwrap_or(LineEnding::Lf)
    }
}

/// What a request wants of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextRequest {
    pub max_bytes: Option<u64>,
    /// From 1.
    pub line: Option<u64>,
    pub limit: Option<u64>,
}

impl TextRequest {
    /// Whether only a part of the text is requested.
    pub fn is_part(&self) -> bool {
        self.max_bytes.is_some() || self.line.is_some() || self.limit.is_some()
    }
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextWindow<'a> {
    pub content: &'a str,
    /// Whether the text has more than this.
    pub truncated: bool,
    /// How many lines the whole text has, if only some were requested.
    pub line_count: Option<u64>,
}

/// The requested part of a text. It ends at a whole character.
pub fn text_window(text: &str, request: TextRequest) -> TextWindow<'_> {
    let by_line = request.line.is_some() || request.limit.is_some();
    let lines = if by_line { lines(text, request) } else { text };
    let most = request.max_bytes.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
    let content = &lines[..lines.floor_char_boundary(most)];
    let line_count = by_line.then(|| text.split_inclusive('\n').count() as u64);
    TextWindow { content, truncated: content.len() < text.len(), line_count }
}

fn lines(text: &str, request: TextRequest) -> &str {
    let after = |rest: &str, count: u64| -> usize {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        rest.split_inclusive('\n').take(count).map(str::len).sum()
    };
    let rest = &text[after(text, request.line.unwrap_or(1).saturating_sub(1))..];
    match request.limit {
        Some(limit) => &rest[..after(rest, limit)],
        None => rest,
    }
}

/// How a text is to be encoded. What is not given is as in the file that it replaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextWrite {
    pub bom: Option<bool>,
    pub line_ending: Option<LineEnding>,
}

/// The bytes of a text file, and their encoding. `existing` is that of the file that it replaces.
pub fn encode_text(content: &str, write: TextWrite, existing: FileProfile) -> (String, FileProfile) {
    let (own, content) = FileProfile::of(content);
    let bom = write.bom.unwrap_or(own.bom || existing.bom);
    let mut text = if bom { String::from(BOM) } else { String::new() };
    match write.line_ending.or(existing.line_ending) {
        Some(line_ending) => text.push_str(&with_line_ending(content, line_ending)),
        None => text.push_str(content),
    }
    let profile = FileProfile::of(&text).0;
    (text, profile)
}

/// The same text with every line ended this way. A carriage return without a line feed is no line's end.
fn with_line_ending(text: &str, line_ending: LineEnding) -> String {
    let text = text.replace("\r\n", "\n");
    match line_ending {
        LineEnding::Lf => text,
        LineEnding::Crlf => text.replace('\n', "\r\n"),
    }
}

/// A replacement of one place of a text.
#[derive(Clone, Copy, Debug)]
pub struct Edit<'a> {
    pub old_text: &'a str,
    pub new_text: &'a str,
}

/// Replaces the only occurrence of a text. In a file whose lines end with CRLF, the lines of the edit may end with LF.
pub fn replace_once(text: &str, edit: Edit<'_>) -> Result<String, Failure> {
    let is_crlf = FileProfile::of(text).0.line_ending == Some(LineEnding::Crlf);
    let in_file = |part: &str| match is_crlf {
        true => with_line_ending(part, LineEnding::Crlf),
        false => part.to_owned(),
    };
    let new_text = in_file(edit.new_text);
    let converted = in_file(edit.old_text);
    let old_text = if text.contains(edit.old_text) { edit.old_text } else { &converted };
    let Some(at) = text.find(old_text).filter(|_| !old_text.is_empty()) else {
        return Err(file_failure(FileError::TextNotFound, "oldText does not occur in the file"));
    };
    // The next occurrence may overlap the first one.
    let next = at + old_text.chars().next().map_or(1, char::len_utf8);
    if text[next..].contains(old_text) {
        return Err(file_failure(FileError::Ambiguous, "oldText occurs more than once in the file"));
    }
    Ok([&text[..at], &new_text, &text[at + old_text.len()..]].concat())
}

/// Whether the bytes are no text that clients can show and edit: they have a zero byte, or are not UTF-8.
pub fn is_binary(bytes: &[u8]) -> bool {
    memchr::memchr(0, bytes).is_some() || std::str::from_utf8(bytes).is_err()
}

/// The digest of a file's bytes, as it is on the wire.
pub fn content_hash(bytes: &[u8]) -> String {
    format!("{HASH_PREFIX}{}", hex(&sha256(bytes)))
}

/// Checks the form of a digest.
pub fn check_content_hash(text: &str) -> Result<(), Failure> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let digits = text.strip_prefix(HASH_PREFIX).filter(|digits| digits.len() == 64 && digits.bytes().all(is_digit));
    match digits {
        Some(_) => Ok(()),
        None => Err(file_failure(FileError::Parse, "expectedHash must be sha256: and 64 lowercase hexadecimal digits")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn window(text: &str, line: u64, limit: Option<u64>) -> (&str, bool) {
        let found = text_window(text, TextRequest { max_bytes: None, line: Some(line), limit });
        (found.content, found.truncated)
    }

    #[test]
    fn a_window_has_the_requested_lines() {
        let text = "one\ntwo\r\nthree";
        assert_eq!(window(text, 1, None), (text, false));
        assert_eq!(window(text, 2, Some(1)), ("two\r\n", true));
        assert_eq!(window(text, 3, Some(9)), ("three", true));
        assert_eq!(window(text, 4, None), ("", true));
        assert_eq!(window(text, u64::MAX, Some(u64::MAX)), ("", true));
        let short = text_window("aé", TextRequest { max_bytes: Some(2), ..TextRequest::default() });
        assert_eq!((short.content, short.truncated, short.line_count), ("a", true, None));
    }

    #[test]
    fn a_replaced_file_keeps_its_encoding_unless_the_request_has_another() {
        let existing = FileProfile { bom: true, line_ending: Some(LineEnding::Crlf) };
        let (text, profile) = encode_text("a\nb\r\n", TextWrite::default(), existing);
        assert_eq!((text.as_str(), profile), ("\u{feff}a\r\nb\r\n", existing));
        let plain = TextWrite { bom: Some(false), line_ending: Some(LineEnding::Lf) };
        assert_eq!(encode_text("\u{feff}a\r\n", plain, existing).0, "a\n");
        assert_eq!(encode_text("a\r\nb\n", TextWrite::default(), FileProfile::default()).0, "a\r\nb\n");
    }

    #[test]
    fn only_a_text_that_occurs_once_is_replaced() {
        let replace = |text, old_text, new_text| {
            let kind = |failure: Failure| failure.details.unwrap()["errorKind"].as_str().unwrap().to_owned();
            replace_once(text, Edit { old_text, new_text }).map_err(kind)
        };
        assert_eq!(replace("a b c", "b", "x").unwrap(), "a x c");
        assert_eq!(replace("a b b", "b", "x").unwrap_err(), "ambiguous_text_match");
        assert_eq!(replace("aaa", "aa", "x").unwrap_err(), "ambiguous_text_match");
        assert_eq!(replace("éé", "é", "x").unwrap_err(), "ambiguous_text_match");
        assert_eq!(replace("a", "b", "x").unwrap_err(), "text_not_found");
        assert_eq!(replace("a", "", "x").unwrap_err(), "text_not_found");
        assert_eq!(replace("a\r\nb\r\nc", "a\nb", "x\ny").unwrap(), "x\r\ny\r\nc");
    }

    #[test]
    fn text_is_what_is_utf_8_without_zero_bytes() {
        assert!(!is_binary("é\r\n".as_bytes()) && !is_binary(b""));
        assert!(is_binary(b"a\0b") && is_binary(b"\xff\xfe") && is_binary(b"\x89PNG"));
    }

    #[test]
    fn digests_have_one_form() {
        check_content_hash(&content_hash(b"x")).unwrap();
        let good = content_hash(b"x");
        for bad in ["", "sha256:", &good[7..], &good.to_uppercase(), &good[..70], &format!("{good}0")] {
            assert!(check_content_hash(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn windows_of_all_lines_make_the_whole_text(text in "[a\r\né]{0,30}", limit in 1_u64..4) {
            let mut whole = String::new();
            let lines = text.split_inclusive('\n').count() as u64;
            let mut line = 1;
            while line <= lines {
                whole.push_str(text_window(&text, TextRequest { max_bytes: None, line: Some(line), limit: Some(limit) }).content);
                line += limit;
            }
            prop_assert_eq!(whole, text);
        }

        #[test]
        fn an_encoded_text_has_the_requested_encoding(text in "[a\r\n\u{feff}]{0,20}", bom: bool, crlf: bool) {
            let line_ending = if crlf { LineEnding::Crlf } else { LineEnding::Lf };
            let (encoded, profile) = encode_text(&text, TextWrite { bom: Some(bom), line_ending: Some(line_ending) }, FileProfile::default());
            prop_assert!(profile.bom || !bom);
            prop_assert!(profile.line_ending.is_none_or(|found| found == line_ending || !crlf));
            prop_assert_eq!(encoded.matches('\n').count(), text.matches('\n').count());
        }

        #[test]
        fn an_edit_changes_one_place(before in "[ab]{0,8}", after in "[ab]{0,8}", new_text in "[abX]{0,4}") {
            let text = format!("{before}X{after}");
            let edited = replace_once(&text, Edit { old_text: "X", new_text: &new_text }).unwrap();
            prop_assert_eq!(edited, format!("{before}{new_text}{after}"));
        }
    }
}
