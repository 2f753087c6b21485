//! Names and paths of a caller in commands to copy. A pasted command must not run a part of a name as another command.

use crate::terminal::output::line;

/// Characters of one word. No path or name is longer.
const WORD_CHARS_MAX: usize = 4_096;

/// The text as one word of a shell's command line. Characters that a terminal does not show are written as escapes, which bash and zsh
/// read: without them the word would be another name.
pub(crate) fn quoted(text: &str) -> String {
    if line(text, WORD_CHARS_MAX) != text {
        return format!("$'{}'", text.chars().take(WORD_CHARS_MAX).map(escaped).collect::<String>());
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "/.:-_@%+=,".contains(c);
    // Some shells replace `=NAME` with the path of a program.
    let is_plain = !text.is_empty() && !text.starts_with('=') && text.chars().all(plain);
    if is_plain { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// A character between `$'` and `'`.
fn escaped(c: char) -> String {
    match c {
        '\'' | '\\' => format!("\\{c}"),
        ' '..='~' => c.to_string(),
        _ => format!("\\U{:08x}", u32::from(c)),
    }
}

/// The text as an argument without a flag, behind all flags: a text that begins like a flag is not read as one.
pub(crate) fn positional(text: &str) -> String {
    let word = quoted(text);
    if text.starts_with('-') { format!("-- {word}") } else { word }
}

/// The flag with the text as its value, also if the text begins like a flag.
pub(crate) fn flag(name: &str, text: &str) -> String {
    let mark = if text.starts_with('-') { '=' } else { ' ' };
    format!("{name}{mark}{}", quoted(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_quoted_if_a_shell_would_change_it() {
        for plain in ["chat", "review-2", "/srv/ostler/data", "a=b", "https://lab.example.org:8443"] {
            assert_eq!(quoted(plain), plain);
        }
        for special in [
            "x;id",
            "x y",
            "$(id)",
            "`id`",
            "a&b",
            "a|b",
            "a>b",
            "~root",
            "*",
            "[ab]",
            "http://[::1]:9",
            "=ls",
            "\"",
            "a\\b",
            "#1",
            "é",
        ] {
            assert_eq!(quoted(special), format!("'{special}'"));
        }
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted("a\nid"), r"$'a\U0000000aid'", "a pasted line end would run the command");
        assert_eq!(quoted("a\x1b[2Jb"), r"$'a\U0000001b[2Jb'");
        assert_eq!(quoted("it's\u{202e}"), r"$'it\'s\U0000202e'", "another name than `it's`");
        assert_eq!(quoted("n\u{a0}b"), r"$'n\U000000a0b'", "another name than `n b`");
    }

    #[test]
    fn a_name_that_begins_like_a_flag_is_not_read_as_one() {
        assert_eq!((positional("chat"), positional("-x y")), ("chat".into(), "-- '-x y'".into()));
        assert_eq!(flag("--session", "chat"), "--session chat");
        assert_eq!(flag("--session", "--yes"), "--session=--yes");
    }
}
