//! What the program writes, and where: data to stdout, words to stderr. [`Output`] is the one way to show a thing or a list
//! of things, so that `-o json` and `-o jsonl` work everywhere alike. Nothing an agent or a peer wrote can drive a terminal.

use std::io::{ErrorKind, IsTerminal, Write};

use clap::ValueEnum;
use ostler_protocol::{kernel::events::clip, text::turns};
use serde::Serialize;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::exit_codes;

/// Flattened into the arguments of every command that shows something.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Output {
    /// How to print it: words for people, one JSON document, or one JSON object per line
    #[arg(
        short = 'o',
        long = "output",
        value_enum,
        default_value = "text",
        value_name = "FORMAT",
        hide_possible_values = true,
        help = "How to print it: text, json, or jsonl (one object per line)"
    )]
    pub format: Format,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON document.
    Json,
    /// One JSON object per line.
    Jsonl,
}

impl Output {
    /// Shows one thing.
    pub fn one<T: Serialize>(self, value: &T, text: impl FnOnce() -> String) {
        data(&match self.format {
            Format::Text => text(),
            Format::Json => json(value),
            Format::Jsonl => json_line(value),
        });
    }

    /// Shows a list. In text an empty one is silence on stdout, so whoever calls says in words that there is nothing.
    pub fn many<T: Serialize>(self, values: &[T], text: impl FnOnce() -> String) {
        match self.format {
            Format::Text if values.is_empty() => {}
            Format::Text => data(&text()),
            Format::Json => data(&json(&values)),
            Format::Jsonl => values.iter().for_each(|value| data(&json_line(value))),
        }
    }

    /// Shows a page of a list, and says in words what is not on it: that there is more, or, with what to do about it, that
    /// there is nothing.
    pub fn page<T: Serialize>(self, values: &[T], has_more: bool, nothing: &str, text: impl FnOnce() -> String) {
        self.many(values, text);
        if values.is_empty() {
            words(nothing);
        } else if has_more {
            words(&format!("there are more than these {}; see `--limit`\n", values.len()));
        }
    }

    pub fn is_text(self) -> bool {
        self.format == Format::Text
    }
}

/// Writes data to stdout, at once.
pub fn data(text: &str) {
    bytes(text.as_bytes());
}

/// Data that need not be text.
pub fn bytes(data: &[u8]) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(data).and_then(|()| out.flush()) {
        if error.kind() == ErrorKind::BrokenPipe {
            std::process::exit(exit_codes::READER_GONE.into());
        }
        words(&format!("error: cannot write to stdout: {error}\n"));
        std::process::exit(exit_codes::FAILED.into());
    }
}

/// Writes words to stderr. There is nobody to tell when that fails.
pub fn words(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// The width to fit, if stdout is a terminal.
pub fn width() -> Option<usize> {
    size().map(|(width, _)| width)
}

/// Columns and lines of stdout, if it is a terminal.
pub fn size() -> Option<(usize, usize)> {
    let (width, height) = terminal_size::terminal_size_of(std::io::stdout())?;
    Some((width.0.into(), height.0.into()))
}

/// Makes text harmless to a terminal: what agents and peers write must not move the cursor, rename the window or turn
/// the reading direction. Line ends and tabs stay.
pub fn harmless(text: &str) -> String {
    text.chars().filter(|c| matches!(c, '\n' | '\t') || !is_control(*c)).collect()
}

/// The same on one line, and bounded.
pub fn line(text: &str, chars_max: usize) -> String {
    let flat: String =
        text.chars().map(|c| if c.is_whitespace() { ' ' } else { c }).filter(|c| !is_control(*c)).collect();
    clip(flat.trim(), chars_max)
}

/// On as many lines as it needs to fit a width; a word that is wider than that is broken.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let (mut lines, mut wide) = (vec![String::new()], 0);
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        if wide > 0 && wide + 1 + word.width() > width {
            lines.push(String::new());
            wide = 0;
        } else if wide > 0 {
            lines.last_mut().expect("there is one").push(' ');
            wide += 1;
        }
        for c in word.chars() {
            let more = c.width().unwrap_or(0);
            if wide > 0 && wide + more > width {
                lines.push(String::new());
                wide = 0;
            }
            lines.last_mut().expect("there is one").push(c);
            wide += more;
        }
    }
    lines
}

/// All of a text, with what a terminal would obey or hide written out instead.
pub fn visible(text: &str) -> String {
    let write =
        |c: char| if is_control(c) && !"\n\t".contains(c) { c.escape_default().collect() } else { c.to_string() };
    text.chars().map(write).collect()
}

fn is_control(c: char) -> bool {
    c.is_control() || turns(c)
}

/// `3 runs`, `1 run`.
pub fn count(number: i64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

pub fn json<T: Serialize>(value: &T) -> String {
    let out = serde_json::to_string_pretty(value).expect("wire types serialise");
    for_stdout(out) + "\n"
}

pub fn json_line<T: Serialize>(value: &T) -> String {
    let out = serde_json::to_string(value).expect("wire types serialise");
    for_stdout(out) + "\n"
}

/// JSON as it is, or for a terminal the same JSON in which nothing can drive the terminal.
fn for_stdout(json: String) -> String {
    if std::io::stdout().is_terminal() { escape_json(&json) } else { json }
}

/// The same JSON with characters written as `\u` escapes that a terminal would obey or that turn the reading direction. JSON
/// allows such characters only within strings, so the escapes are always valid.
pub fn escape_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        // Spaces and line ends between values stay.
        let is_harmful = is_control(c) && !c.is_ascii_whitespace() || matches!(c, '\u{2028}' | '\u{2029}');
        match is_harmful {
            // All of them are in the basic plane.
            true => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => out.push(c),
        }
    }
    out
}

/// What became of a value, each side bounded: `"low" → "high"`, `+ 1` for what is new, `- 1` for what is gone.
pub fn moved(old: &serde_json::Value, new: &serde_json::Value, chars_max: usize) -> String {
    let shown = |value: &serde_json::Value| line(&json_line(value), chars_max);
    match (old.is_null(), new.is_null()) {
        (true, true) => String::new(),
        (true, false) => format!("+ {}", shown(new)),
        (false, true) => format!("- {}", shown(old)),
        (false, false) => format!("{} → {}", shown(old), shown(new)),
    }
}

/// At most `max` columns of a terminal, the mark included.
pub fn shorten(text: &str, max: usize) -> String {
    if columns(text) <= max {
        return text.to_owned();
    }
    let mut left = max.saturating_sub(1);
    let fits = |c: &char| {
        let wide = c.width().unwrap_or(0);
        let fits = wide <= left;
        left = if fits { left - wide } else { 0 };
        fits
    };
    let mut out: String = text.chars().take_while(fits).collect();
    out.push('…');
    out
}

/// How many columns of a terminal it takes.
pub fn columns(text: &str) -> usize {
    text.width()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_wrapped_between_words_or_within_one_that_is_too_wide() {
        assert_eq!(wrapped("one two  three", 7), ["one two", "three"]);
        assert_eq!(wrapped("abcdefgh i", 3), ["abc", "def", "gh", "i"]);
        assert_eq!(wrapped("读取本地文件", 5), ["读取", "本地", "文件"]);
        assert_eq!(wrapped("", 5), [""]);
    }

    #[test]
    fn escapes_do_not_reach_the_terminal() {
        assert_eq!(harmless("a\x1b[2Jb\r\n\tc\u{202e}d"), "a[2Jb\n\tcd");
        assert_eq!(line(" two\nlines\x07 ", 20), "two lines");
        assert_eq!(line("abcdef", 3), "abc…");
    }

    #[test]
    fn json_for_a_terminal_is_the_same_json_and_drives_nothing() {
        let value = serde_json::json!({"a\u{202e}": "\u{1b}[2J \u{85} \u{9b}31m \u{7f} \u{2066}x\u{2069} \u{2028} é 日本 🐎\n\t"});
        for written in [serde_json::to_string(&value).unwrap(), serde_json::to_string_pretty(&value).unwrap()] {
            let escaped = escape_json(&written);
            assert!(!escaped.chars().any(|c| is_control(c) && c != '\n'), "{escaped:?}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
            assert!(escaped.contains("é 日本 🐎") && escaped.contains("\\u0085") && escaped.contains("\\u202e"));
        }
    }

    #[test]
    fn a_line_is_cut_by_the_columns_it_takes() {
        assert_eq!(shorten("abcdef", 6), "abcdef");
        assert_eq!(shorten("abcdef", 5), "abcd…");
        assert_eq!(shorten("日本語", 5), "日本…");
        assert_eq!(shorten("日本語", 4), "日…");
    }

    #[test]
    fn counts_have_a_plural() {
        assert_eq!([count(0, "run"), count(1, "run"), count(2, "run")], ["0 runs", "1 run", "2 runs"]);
    }
}
