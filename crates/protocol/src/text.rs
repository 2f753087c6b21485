//! Text that people judge by: what they see must be all there is.

use unicode_general_category::{GeneralCategory, get_general_category};

/// Whether a character turns the direction that the text around it is read in.
pub fn turns(c: char) -> bool {
    matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether text has something to see in it, and nothing that cannot be seen: no control characters, no line ends, nothing
/// that turns the direction, joins or has no width, and no character that only some readers know.
pub fn is_plain(text: &str) -> bool {
    text.chars().any(is_visible) && !text.chars().any(is_hidden)
}

/// Whether a character leaves a mark of its own. Spaces do not; accents need another to sit on.
fn is_visible(c: char) -> bool {
    use GeneralCategory::{EnclosingMark, NonspacingMark, SpaceSeparator, SpacingMark};
    !matches!(get_general_category(c), SpaceSeparator | NonspacingMark | SpacingMark | EnclosingMark)
}

fn is_hidden(c: char) -> bool {
    use GeneralCategory::{Control, Format, LineSeparator, ParagraphSeparator, PrivateUse, Surrogate, Unassigned};
    let by_category = matches!(
        get_general_category(c),
        Control | Format | LineSeparator | ParagraphSeparator | PrivateUse | Surrogate | Unassigned
    );
    by_category || is_blank(c)
}

/// Letters, marks and signs that are drawn as nothing.
fn is_blank(c: char) -> bool {
    matches!(
        c,
        '\u{034f}' // joins graphemes
        | '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}' // Hangul fillers
        | '\u{17b4}' | '\u{17b5}' // Khmer vowels that are not written
        | '\u{180b}'..='\u{180f}' | '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}' // variation selectors
        | '\u{2800}' // Braille without dots
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_seen_is_plain_in_any_script() {
        for text in
            ["Read files", "读取本地文件", "Прочитать «файл»", "قراءة الملفات", "naïve e\u{301}", "⚠ 3 €", "a\u{a0}b"]
        {
            assert!(is_plain(text), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_seen_is_not() {
        for text in ["", " ", "\u{a0}\u{3000}", "\u{301}", "a\tb", "a\nb", "a\u{1b}[2J", "a\u{2028}b"] {
            assert!(!is_plain(text), "{text:?}");
        }
        for hidden in [
            '\0',
            '\u{7f}',
            '\u{ad}',
            '\u{34f}',
            '\u{61c}',
            '\u{115f}',
            '\u{1160}',
            '\u{17b4}',
            '\u{180e}',
            '\u{200b}',
            '\u{200c}',
            '\u{200d}',
            '\u{200e}',
            '\u{202e}',
            '\u{2060}',
            '\u{2066}',
            '\u{2069}',
            '\u{206a}',
            '\u{2800}',
            '\u{3164}',
            '\u{fe0f}',
            '\u{feff}',
            '\u{ffa0}',
            '\u{fff9}',
            '\u{e000}',
            '\u{e0041}',
            '\u{e01ef}',
            '\u{378}',
            '\u{10ffff}',
        ] {
            assert!(!is_plain(&format!("a{hidden}b")), "{hidden:?}");
        }
        assert!(('\0'..=char::MAX).filter(|c| turns(*c)).all(is_hidden));
    }
}
