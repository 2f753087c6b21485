//! Text that people judge by: what they see must be all there is.

use unicode_general_category::{GeneralCategory, get_general_category};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Whether a character turns the direction that the text around it is read in.
pub fn turns(c: char) -> bool {
    matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether text has something visible in it, and nothing invisible: no control characters, no line ends, nothing that
/// turns the direction, joins or has no width, and no character that only some readers know. Joiners and the variation
/// selector for emoji are allowed where they change how the text is drawn ([`shapes`]).
pub fn is_plain(text: &str) -> bool {
    text.chars().any(is_visible) && has_nothing_hidden(text)
}

/// As [`is_plain`], for text of several lines, such as a script: it may hold line ends and tabs, and may be empty.
pub fn is_plain_lines(text: &str) -> bool {
    text.split(['\n', '\t']).map(|part| part.strip_suffix('\r').unwrap_or(part)).all(has_nothing_hidden)
}

/// The text with a replacement character (U+FFFD) in place of each character that [`is_plain_lines`] rejects.
pub fn plain_lines(text: &str) -> String {
    if is_plain_lines(text) {
        return text.to_owned();
    }
    let shown: Vec<char> = text.chars().collect();
    let is_seen = |at: usize| match shown[at] {
        '\n' | '\t' => true,
        '\r' => matches!(shown.get(at + 1), None | Some('\n' | '\t')),
        c => !is_hidden(c) || shapes(&shown[..at], c, &shown[at + 1..]),
    };
    (0..shown.len()).map(|at| if is_seen(at) { shown[at] } else { char::REPLACEMENT_CHARACTER }).collect()
}

/// The text in one line: line ends and tabs become spaces.
pub fn one_line(text: &str) -> String {
    text.split(['\n', '\r', '\t']).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

fn has_nothing_hidden(text: &str) -> bool {
    let shown: Vec<char> = text.chars().collect();
    let is_seen = |at: usize| !is_hidden(shown[at]) || shapes(&shown[..at], shown[at], &shown[at + 1..]);
    (0..shown.len()).all(is_seen)
}

/// Whether text is empty or has only spaces, line ends, control characters and characters without a width.
pub fn is_blank_text(text: &str) -> bool {
    use GeneralCategory::{Control, Format};
    let is_empty = |c: char| {
        c.is_whitespace() || is_blank(c) || !is_visible(c) || matches!(get_general_category(c), Control | Format)
    };
    text.chars().all(is_empty)
}

const NOT_JOINED: char = '\u{200c}';
const JOINED: char = '\u{200d}';
const AS_PICTURE: char = '\u{fe0f}';

/// Whether an invisible character changes how its neighbours are drawn: a joiner after the virama of an Indic script,
/// between letters of Arabic script that would join (RFC 5892, A.1 and A.2) or between two emoji; or the emoji
/// variation selector after a character that is drawn as text by default. Anywhere else it would only make two texts
/// that look the same.
fn shapes(before: &[char], sign: char, after: &[char]) -> bool {
    let Some(&last) = before.last() else { return false };
    if sign == AS_PICTURE {
        return becomes_picture(last);
    }
    let Some(&next) = after.first() else { return false };
    let is_letter = |c| get_general_category(c) == GeneralCategory::OtherLetter;
    let is_mark = |c: &&char| get_general_category(**c) == GeneralCategory::NonspacingMark;
    match sign {
        // These scripts have 128 places each.
        NOT_JOINED | JOINED if joins_letters(last) => is_letter(next) && u32::from(last) >> 7 == u32::from(next) >> 7,
        NOT_JOINED => {
            let last = before.iter().rev().find(|c| !is_mark(c));
            let next = after.iter().find(|c| !is_mark(c));
            last.is_some_and(|c| joins_both(*c)) && next.is_some_and(|c| joins_both(*c) || joins_before(*c))
        }
        JOINED => (is_picture(last) || is_skin(last) || last == AS_PICTURE) && is_picture(next) && !is_skin(next),
        _ => false,
    }
}

/// The viramas of the scripts from Devanagari to Sinhala.
fn joins_letters(c: char) -> bool {
    let indian = matches!(c, '\u{0900}'..='\u{0d7f}') && u32::from(c) & 0x7f == 0x4d;
    (indian && get_general_category(c) == GeneralCategory::NonspacingMark) || c == '\u{0dca}'
}

/// Arabic letters that join on both sides (Joining_Type D).
fn joins_both(c: char) -> bool {
    matches!(c, '\u{0620}' | '\u{0626}' | '\u{0628}' | '\u{062a}'..='\u{062e}' | '\u{0633}'..='\u{063f}'
        | '\u{0641}'..='\u{0647}' | '\u{0649}'..='\u{064a}' | '\u{066e}'..='\u{066f}' | '\u{0678}'..='\u{0687}'
        | '\u{069a}'..='\u{06bf}' | '\u{06c1}'..='\u{06c2}' | '\u{06cc}' | '\u{06ce}' | '\u{06d0}'..='\u{06d1}'
        | '\u{06fa}'..='\u{06fc}' | '\u{06ff}')
}

/// Arabic letters that join to the one before only (Joining_Type R).
fn joins_before(c: char) -> bool {
    matches!(c, '\u{0622}'..='\u{0625}' | '\u{0627}' | '\u{0629}' | '\u{062f}'..='\u{0632}' | '\u{0648}'
        | '\u{0671}'..='\u{0673}' | '\u{0675}'..='\u{0677}' | '\u{0688}'..='\u{0699}' | '\u{06c0}'
        | '\u{06c3}'..='\u{06cb}' | '\u{06cd}' | '\u{06cf}' | '\u{06d2}'..='\u{06d3}' | '\u{06d5}'
        | '\u{06ee}'..='\u{06ef}')
}

fn is_picture(c: char) -> bool {
    matches!(c, '\u{2194}'..='\u{2195}' | '\u{2600}'..='\u{27bf}' | '\u{2b1b}' | '\u{1f300}'..='\u{1f64f}'
        | '\u{1f680}'..='\u{1f6ff}' | '\u{1f900}'..='\u{1faff}')
}

/// Whether the character is drawn as text unless a variation selector makes it an emoji, which is twice as wide.
fn becomes_picture(c: char) -> bool {
    c.width() == Some(1) && String::from_iter([c, AS_PICTURE]).width() == 2
}

fn is_skin(c: char) -> bool {
    matches!(c, '\u{1f3fb}'..='\u{1f3ff}')
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

/// At most `max` characters of a text.
pub fn clip(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
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
    fn joiners_and_picture_signs_stand_where_they_are_seen_and_nowhere_else() {
        for text in [
            "می\u{200c}خواهم",
            "کتاب\u{200c}ها",
            "نامه\u{64c}\u{200c}ای",
            "क्\u{200d}ष",
            "क्\u{200c}ष",
            "ශ්\u{200d}රී",
            "👩\u{200d}💻",
            "👨\u{200d}👩\u{200d}👧 family",
            "🧑🏽\u{200d}🚀",
            "🐈\u{200d}⬛",
            "⚠\u{fe0f} Deletes files",
            "🗂\u{fe0f}",
            "ℹ\u{fe0f}",
            "❤\u{fe0f}\u{200d}🔥",
        ] {
            assert!(is_plain(text), "{text:?}");
        }
        for text in [
            "ad\u{200c}min",
            "ad\u{200d}min",
            "读\u{200d}取",
            "می\u{200c} خواهم",
            "می \u{200c}خواهم",
            "می\u{200c}\u{200c}خواهم",
            "می\u{200d}خواهم",
            "کار\u{200c}ها",
            "می\u{200c}a",
            "\u{200c}می",
            "می\u{200c}",
            "क\u{200d}ष",
            "क्\u{200d}",
            "क्\u{200d}a",
            "क्\u{200d}ష",
            "क्\u{200d}\u{200d}ष",
            "👩\u{200d}",
            "\u{200d}👩",
            "👩\u{200d}a",
            "a\u{200d}👩",
            "👩\u{200c}👩",
            "👩\u{200d}\u{200d}👩",
            "👩\u{200d}🏽",
            "a\u{fe0f}",
            "读\u{fe0f}",
            "\u{fe0f}a",
            "😀\u{fe0f}",
            "✓\u{fe0f}",
            "★\u{fe0f}",
            "é\u{fe0f}",
            "⚠\u{fe0f}\u{fe0f}",
            "a\u{fe0f}\u{200d}👩",
        ] {
            assert!(!is_plain(text), "{text:?}");
        }
    }

    #[test]
    fn hidden_characters_are_replaced_and_the_rest_stays() {
        assert_eq!(plain_lines("a\r\n\tb ⚠\u{fe0f}\n"), "a\r\n\tb ⚠\u{fe0f}\n");
        assert_eq!(plain_lines("a\u{202e}b\u{1b}[2J\rc\n"), "a\u{fffd}b\u{fffd}[2J\u{fffd}c\n");
        assert!(is_plain_lines(&plain_lines("\u{200d}x\u{feff}")));
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

    #[test]
    fn lines_are_joined_and_may_stand_in_a_script() {
        assert_eq!(one_line("Run\n\tcat a\r\n"), "Run cat a");
        assert!(
            is_plain_lines("")
                && is_plain_lines("a\r\n\tb\n")
                && !is_plain_lines("a\rb")
                && !is_plain_lines("a\u{85}b")
        );
    }
}
