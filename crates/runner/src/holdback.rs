//! How much of a streamed text may go out. The server recognises a credential only when it sees it whole, so a piece of a
//! message never ends inside a word, between a name and its value, or inside a key block: the rest waits for more.

/// A word longer than this is no credential we would know; it goes out in pieces.
const WORD_BYTES_MAX: usize = 4 * 1024;
/// Likewise a key block.
const BLOCK_BYTES_MAX: usize = 16 * 1024;
/// A line in the middle of a key block is at least as long.
const BLOCK_LINE_BYTES_MIN: usize = 32;
const BLOCK_BEGINS: &str = "-----BEGIN";
const BLOCK_ENDS: &str = "-----END";

/// The length of the part that can stand alone.
pub fn settled(text: &str) -> usize {
    let word = last_word(text);
    let settled = if names_a_value(&text[..word]) { last_word(text[..word].trim_end()) } else { word };
    let settled = if text.len() - settled > WORD_BYTES_MAX { text.len() } else { settled };
    match text.rfind(BLOCK_BEGINS) {
        Some(begin)
            if !text[begin..settled.max(begin)].contains(BLOCK_ENDS) && text.len() - begin <= BLOCK_BYTES_MAX =>
        {
            settled.min(begin)
        }
        _ => settled,
    }
}

/// The length of a beginning that may be the rest of something nobody heard: the first line, with the lines of a key block
/// after it; of a line without an end the first word. `None`: more of it may come.
pub fn opening(text: &str) -> Option<usize> {
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

/// The beginning of a text that is cut for being too long: between words too, because half a credential is not recognised.
pub fn clip(text: &str, chars_max: usize) -> String {
    let Some((end, _)) = text.char_indices().nth(chars_max) else { return text.to_owned() };
    format!("{}…", &text[..settled(&text[..end])])
}

/// Where the last word begins. Credentials are printable ASCII; everything else stands between words.
fn last_word(text: &str) -> usize {
    let boundary = text.char_indices().rev().find(|(_, char)| !char.is_ascii_graphic());
    boundary.map_or(0, |(at, char)| at + char.len_utf8())
}

/// Whether what follows belongs to what was just said, as in `Authorization: Bearer …` or `password = …`.
fn names_a_value(before: &str) -> bool {
    let before = before.trim_end();
    let word = &before[last_word(before)..];
    word.ends_with([':', '=']) || ["bearer", "basic"].iter().any(|scheme| word.eq_ignore_ascii_case(scheme))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> &str {
        &text[..settled(text)]
    }

    #[test]
    fn a_word_waits_for_its_end() {
        assert_eq!(shown("the key is sk-12"), "the key is ");
        assert_eq!(shown("the key is sk-1234567890 "), "the key is sk-1234567890 ");
        assert_eq!(shown("half"), "");
        assert_eq!(shown(""), "");
    }

    #[test]
    fn a_name_and_its_value_stay_together() {
        assert_eq!(shown("so password: hun"), "so ");
        assert_eq!(shown("so password = hun"), "so password ", "the name alone tells nothing");
        assert_eq!(shown("Authorization: Bearer abc"), "Authorization: ");
        assert_eq!(shown("so password: "), "so ");
    }

    #[test]
    fn languages_without_spaces_flow() {
        assert_eq!(shown("你好世界"), "你好世界");
        assert_eq!(shown("密钥是sk-12"), "密钥是");
    }

    #[test]
    fn a_key_block_waits_for_its_end() {
        let block = "see -----BEGIN PRIVATE KEY-----\nMIIE\nabcd\n";
        assert_eq!(shown(block), "see ");
        let whole = format!("{block}-----END PRIVATE KEY-----\nand ");
        assert_eq!(shown(&whole), whole);
        let endless = format!("-----BEGIN X-----\n{}", "abc\n".repeat(BLOCK_BYTES_MAX));
        assert_eq!(shown(&endless), endless);
    }

    #[test]
    fn a_beginning_is_the_first_line_and_what_may_be_the_rest_of_a_key() {
        let beginning = |text: &'static str| opening(text).map(|end| &text[..end]);
        assert_eq!(beginning("rest of sk-12"), None);
        assert_eq!(beginning("678 more\n"), None, "the next line is not known");
        assert_eq!(beginning("678 more\nand so on"), Some("678 more\n"));
        assert_eq!(beginning("1\n2\n3\n"), Some("1\n"), "counting is no key");
        let block = "QAB\nMIIEvgIBADANBgkqhkiG9w0BAQEFAASCBKgwggSk\nMIIEvgIBADANBgkqhkiG9w0BAQEFAASCBKgwggSk\n-----END X-----\n";
        assert_eq!(beginning(block), block.strip_suffix("-----END X-----\n"));
        let endless = format!("word {}", "x ".repeat(WORD_BYTES_MAX));
        assert_eq!(opening(&endless), Some(4));
    }

    #[test]
    fn what_is_too_long_is_cut_between_words() {
        assert_eq!(clip("login with sk-1234567890", 16), "login with …");
        assert_eq!(clip("short", 5), "short");
        assert_eq!(clip("onelongword", 5), "…");
    }

    #[test]
    fn an_endless_word_goes_out() {
        let word = "x".repeat(WORD_BYTES_MAX + 1);
        assert_eq!(shown(&word), word);
    }
}
