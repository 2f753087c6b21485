//! Where text may be cut. The server recognises a credential only when it sees it whole, so a piece of a streamed message never
//! ends inside a word, between a name and its value, or inside a key block: the rest waits for more.

/// A word longer than this is no credential that we recognise, so it is sent in pieces.
const WORD_BYTES_MAX: usize = 4 * 1024;
/// The same for a key block.
const BLOCK_BYTES_MAX: usize = 16 * 1024;
/// A line in the middle of a key block is at least this long.
const BLOCK_LINE_BYTES_MIN: usize = 32;
const BLOCK_BEGINS: &str = "-----BEGIN";
const BLOCK_ENDS: &str = "-----END";

/// The length of the prefix that can be sent without cutting a credential.
pub(crate) fn safe_prefix_len(text: &str) -> usize {
    let word = last_word(text);
    let safe = if names_a_value(&text[..word]) { last_word(text[..word].trim_end()) } else { word };
    let safe = if text.len() - safe > WORD_BYTES_MAX { text.len() } else { safe };
    match text.rfind(BLOCK_BEGINS) {
        Some(begin) if !text[begin..safe.max(begin)].contains(BLOCK_ENDS) && text.len() - begin <= BLOCK_BYTES_MAX => {
            safe.min(begin)
        }
        _ => safe,
    }
}

/// The length of the prefix that may be the rest of a credential whose beginning was missed: the first line, together with
/// the lines of a key block after it; the first word if the line has no end. `None` if more input is needed to decide.
pub(crate) fn doubtful_prefix_len(text: &str) -> Option<usize> {
    let Some(mut end) = text.find('\n').map(|at| at + 1) else {
        let first = text.find(|char: char| !char.is_ascii_graphic()).unwrap_or(text.len());
        return (text.len() > WORD_BYTES_MAX).then_some(first);
    };
    while end <= BLOCK_BYTES_MAX {
        let line = text[end..].split_inclusive('\n').next().unwrap_or_default();
        let body = line.trim_end_matches(['\n', '\r']);
        let in_block = body.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
        match line.ends_with('\n') {
            _ if !in_block => break,
            true if body.len() < BLOCK_LINE_BYTES_MIN => break,
            true => end += line.len(),
            false => return None,
        }
    }
    Some(end)
}

/// The length of the longest prefix that takes at most `bytes_max` bytes when escaped as JSON.
pub(crate) fn escaped_prefix_len(text: &str, bytes_max: usize) -> usize {
    if text.len() <= bytes_max / 6 {
        return text.len();
    }
    let mut bytes = 0;
    for (at, char) in text.char_indices() {
        bytes += match char {
            '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
            '\0'..='\u{1f}' => 6,
            char => char.len_utf8(),
        };
        if bytes > bytes_max {
            return at;
        }
    }
    text.len()
}

/// Where the last word begins. Credentials are printable ASCII; every other character separates words.
fn last_word(text: &str) -> usize {
    let boundary = text.char_indices().rev().find(|(_, char)| !char.is_ascii_graphic());
    boundary.map_or(0, |(at, char)| at + char.len_utf8())
}

/// Whether the text ends with the name of a value, as in `Authorization: Bearer …` or `password = …`.
fn names_a_value(before: &str) -> bool {
    let before = before.trim_end();
    let word = &before[last_word(before)..];
    word.ends_with([':', '=']) || ["bearer", "basic"].iter().any(|scheme| word.eq_ignore_ascii_case(scheme))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn safe_prefix(text: &str) -> &str {
        &text[..safe_prefix_len(text)]
    }

    #[test]
    fn a_word_is_held_back_until_it_ends() {
        assert_eq!(safe_prefix("the key is sk-12"), "the key is ");
        assert_eq!(safe_prefix("the key is sk-1234567890 "), "the key is sk-1234567890 ");
        assert_eq!(safe_prefix("half"), "");
        assert_eq!(safe_prefix(""), "");
    }

    #[test]
    fn a_name_and_its_value_stay_together() {
        assert_eq!(safe_prefix("so password: hun"), "so ");
        assert_eq!(safe_prefix("so password = hun"), "so password ", "the name alone reveals nothing");
        assert_eq!(safe_prefix("Authorization: Bearer abc"), "Authorization: ");
        assert_eq!(safe_prefix("so password: "), "so ");
    }

    #[test]
    fn text_without_spaces_is_not_held_back() {
        assert_eq!(safe_prefix("你好世界"), "你好世界");
        assert_eq!(safe_prefix("密钥是sk-12"), "密钥是");
    }

    #[test]
    fn a_key_block_is_held_back_until_it_ends() {
        let block = "see -----BEGIN PRIVATE KEY-----\nMIIE\nabcd\n";
        assert_eq!(safe_prefix(block), "see ");
        let whole = format!("{block}-----END PRIVATE KEY-----\nand ");
        assert_eq!(safe_prefix(&whole), whole);
        let endless = format!("-----BEGIN X-----\n{}", "abc\n".repeat(BLOCK_BYTES_MAX));
        assert_eq!(safe_prefix(&endless), endless);
    }

    #[test]
    fn doubtful_prefix_is_the_first_line_and_the_rest_of_a_key_block() {
        let beginning = |text: &'static str| doubtful_prefix_len(text).map(|end| &text[..end]);
        assert_eq!(beginning("rest of sk-12"), None);
        assert_eq!(beginning("678 more\n"), None, "the next line is not known");
        assert_eq!(beginning("678 more\nand so on"), Some("678 more\n"));
        assert_eq!(beginning("1\n2\n3\n"), Some("1\n"), "short lines are no key block");
        let block = "QAB\nMIIEvgIBADANBgkqhkiG9w0BAQEFAASCBKgwggSk\nMIIEvgIBADANBgkqhkiG9w0BAQEFAASCBKgwggSk\n-----END X-----\n";
        assert_eq!(beginning(block), block.strip_suffix("-----END X-----\n"));
        let endless = format!("word {}", "x ".repeat(WORD_BYTES_MAX));
        assert_eq!(doubtful_prefix_len(&endless), Some(4));
    }

    #[test]
    fn an_endless_word_is_sent_in_pieces() {
        let word = "x".repeat(WORD_BYTES_MAX + 1);
        assert_eq!(safe_prefix(&word), word);
    }
}
