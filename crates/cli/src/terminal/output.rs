//! What the program writes, and where: data to stdout, messages to stderr. Every command prints values through [`Output`],
//! so that `-o json`, `-o jsonl` and `--jq` work the same everywhere. Text from agents and peers cannot control the terminal.

use std::{
    cell::Cell,
    io::{ErrorKind, IsTerminal, Write},
};

use ostler_protocol::text::{clip, turns};
use serde::Serialize;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

pub(crate) use crate::terminal::output_flags::{Format, Output};

use crate::exit_codes;

/// The prefix of an id and 16 of its digits: the time in milliseconds and 16 bits more.
const SHORT_ID_CHARS: usize = 20;

/// The note below a page of a list that has more.
pub(crate) fn more_note(shown: usize) -> String {
    let these = if shown == 1 { "this one".to_owned() } else { format!("these {shown}") };
    format!("there are more than {these}; see `--limit`\n")
}

/// The beginning of an id, which every command takes: a command with two of them fits a line of 80 columns, so that it can be
/// copied whole.
pub(crate) fn short_id(id: &impl ToString) -> String {
    id.to_string().chars().take(SHORT_ID_CHARS).collect()
}

/// Writes data to stdout and flushes it.
pub(crate) fn data(text: &str) {
    bytes(text.as_bytes());
}

/// Writes bytes to stdout and flushes it. Exits if stdout cannot be written.
pub(crate) fn bytes(data: &[u8]) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(data).and_then(|()| out.flush()) {
        if error.kind() == ErrorKind::BrokenPipe {
            std::process::exit(exit_codes::READER_GONE.into());
        }
        message(&format!("error: cannot write to stdout: {error}\n"));
        std::process::exit(exit_codes::FAILED.into());
    }
}

/// Writes a message to stderr, its words wrapped at the margin of the terminal.
pub(crate) fn message(text: &str) {
    unwrapped(&folded(text, stderr_width()));
}

/// Writes to stderr without wrapping: cursor movements, and lines that are redrawn. Errors are ignored: there is no other
/// place to report them.
pub(crate) fn unwrapped(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// The width of the terminal that messages go to. `None` if stderr is not a terminal.
pub(crate) fn stderr_width() -> Option<usize> {
    terminal_size::terminal_size_of(std::io::stderr()).map(|(width, _)| width.0.into())
}

thread_local! {
    static WHOLE: Cell<bool> = const { Cell::new(false) };
}

/// Text that is made as if stdout were no terminal: nothing in it is shortened or left out.
pub(crate) fn whole(text: impl FnOnce() -> String) -> String {
    WHOLE.set(true);
    let text = text();
    WHOLE.set(false);
    text
}

/// The width of the terminal. `None` if stdout is not a terminal, or tables are printed whole.
pub(crate) fn width() -> Option<usize> {
    size().map(|(width, _)| width).filter(|_| !WHOLE.get())
}

/// Columns and lines of the terminal. `None` if stdout is not a terminal.
pub(crate) fn size() -> Option<(usize, usize)> {
    let (width, height) = terminal_size::terminal_size_of(std::io::stdout())?;
    Some((width.0.into(), height.0.into()))
}

/// Removes control characters: text from agents and peers must not move the cursor, rename the window or change the
/// reading direction. Line ends and tabs stay.
pub(crate) fn harmless(text: &str) -> String {
    text.chars().filter(|c| matches!(c, '\n' | '\t') || !is_control(*c)).collect()
}

/// The text without control characters, on one line, and bounded.
pub(crate) fn line(text: &str, chars_max: usize) -> String {
    let flat: String =
        text.chars().map(|c| if c.is_whitespace() { ' ' } else { c }).filter(|c| !is_control(*c)).collect();
    clip(flat.trim(), chars_max)
}

/// Wraps text to a width, between words; a word wider than that is broken. A command between backticks is one word, unless it
/// is wider than that.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    wrap(&words(text, width), width, |_| true)
}

/// As [`wrapped`], for text with commands to copy: a command between backticks is not broken, even if it is wider than `width`.
pub(crate) fn wrapped_around_commands(text: &str, width: usize) -> Vec<String> {
    wrap(&words(text, usize::MAX), width, |word| !word.contains('`'))
}

fn wrap(words: &[&str], width: usize, may_break: impl Fn(&str) -> bool) -> Vec<String> {
    let (mut lines, mut line, mut wide) = (vec![], String::new(), 0);
    for word in words.iter().map(|word| word.trim_end_matches(' ')).filter(|word| !word.is_empty()) {
        if wide > 0 && wide + 1 + word.width() > width {
            lines.push(std::mem::take(&mut line));
            wide = 0;
        } else if wide > 0 {
            line.push(' ');
            wide += 1;
        }
        for c in word.chars() {
            let more = c.width().unwrap_or(0);
            if wide > 0 && wide + more > width && may_break(word) {
                lines.push(std::mem::take(&mut line));
                wide = 0;
            }
            line.push(c);
            wide += more;
        }
    }
    lines.push(line);
    lines
}

/// The whole text, with control characters written as escapes.
pub(crate) fn visible(text: &str) -> String {
    let write =
        |c: char| if is_control(c) && !"\n\t".contains(c) { c.escape_default().collect() } else { c.to_string() };
    text.chars().map(write).collect()
}

fn is_control(c: char) -> bool {
    c.is_control() || turns(c)
}

/// `3 runs`, `1 run`.
pub(crate) fn count(number: i64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

pub(crate) fn json<T: Serialize>(value: &T) -> String {
    for_stdout(serialised(serde_json::to_string_pretty(value))) + "\n"
}

pub(crate) fn json_line<T: Serialize>(value: &T) -> String {
    for_stdout(serialised(serde_json::to_string(value))) + "\n"
}

#[expect(clippy::expect_used, reason = "wire types have string keys and no serializer that fails")]
fn serialised(json: serde_json::Result<String>) -> String {
    json.expect("wire types serialise")
}

/// The JSON unchanged, or for a terminal the same JSON without control characters.
fn for_stdout(json: String) -> String {
    if std::io::stdout().is_terminal() { escape_json(&json) } else { json }
}

/// The same JSON with control characters, and those that change the reading direction, written as `\u` escapes. JSON allows
/// such characters only within strings, so the escapes are always valid.
pub(crate) fn escape_json(json: &str) -> String {
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

/// The change of a value, each side bounded: `"low" → "high"`, `+ 1` if it was added, `- 1` if it was removed.
pub(crate) fn value_change(old: &serde_json::Value, new: &serde_json::Value, chars_max: usize) -> String {
    let text = |value: &serde_json::Value| line(&json_line(value), chars_max);
    match (old.is_null(), new.is_null()) {
        (true, true) => String::new(),
        (true, false) => format!("+ {}", text(new)),
        (false, true) => format!("- {}", text(old)),
        (false, false) => format!("{} → {}", text(old), text(new)),
    }
}

/// Shortens text to at most `max` columns of a terminal, including the mark.
pub(crate) fn shorten(text: &str, max: usize) -> String {
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

/// The number of terminal columns that the text takes. Colour takes none.
pub(crate) fn columns(text: &str) -> usize {
    let mut parts = text.split("\x1b[");
    let first = parts.next().unwrap_or_default().width();
    first + parts.map(|part| part.split_once('m').map_or(part, |(_, rest)| rest).width()).sum::<usize>()
}

/// The text with every line that is too wide wrapped between words. Later lines are indented like the first, and below the
/// value of a label such as `hint:`. A command to copy is not broken; it is put on a line of its own.
pub(crate) fn folded(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else { return text.to_owned() };
    let fold = |line: &str| {
        if columns(line) <= width {
            return line.to_owned();
        }
        let margin = line.len() - line.trim_start_matches(' ').len() + 2;
        if let Some((before, command)) = split_command(line) {
            let is_label = before.starts_with(' ') && !before.trim().contains(' ');
            return match before.trim().is_empty() || is_label {
                true => line.to_owned(),
                false => format!("{}\n{:margin$}{command}", folded(before.trim_end(), Some(width)), ""),
            };
        }
        let (mut lines, mut wide) = (String::new(), 0);
        for word in words(line, usize::MAX) {
            let own = columns(word.trim_end_matches(' '));
            if own > 0 && wide > margin && wide + own > width {
                lines.truncate(lines.trim_end_matches(' ').len());
                lines.push_str(&format!("\n{:margin$}", ""));
                wide = margin;
            }
            lines.push_str(word);
            wide += columns(word);
        }
        lines
    };
    let lines: Vec<_> = text.split('\n').map(fold).collect();
    lines.join("\n")
}

/// Splits a line that is, or ends with, a command of this program. `None` if words of a sentence follow the command. Names in single
/// quotes are a part of the command, whatever they contain.
pub(crate) fn split_command(line: &str) -> Option<(&str, &str)> {
    let is_start = |at: &usize| line[..*at].trim_end().is_empty() || line[..*at].trim_end().ends_with(':');
    let at = line.match_indices("ostler ").map(|(at, _)| at).find(is_start)?;
    let (before, command) = line.split_at(at);
    // One of an odd number is the apostrophe of a sentence.
    let has_apostrophe = command.matches('\'').count() % 2 == 1;
    let mut outside = command.split(|c: char| !has_apostrophe && c == '\'').step_by(2);
    let is_in_sentence = outside.any(|part| [", ", "; ", " ("].iter().any(|mark| part.contains(mark)));
    (!is_in_sentence).then_some((before, command))
}

/// The words of a line, each with the space behind it. A command between backticks is one word, unless it is wider than
/// `max`.
fn words(line: &str, max: usize) -> Vec<&str> {
    let (mut words, mut rest) = (vec![], line);
    while !rest.is_empty() {
        let end_of_word = |from: usize| rest[from..].find(' ').map_or(rest.len(), |at| from + at + 1);
        let mut end = end_of_word(0);
        // The word opens a command that it does not close.
        if rest[..end].matches('`').count() % 2 == 1 {
            let close = rest[end..].find('`').map(|at| end_of_word(end + at));
            end = close.filter(|close| columns(rest[..*close].trim_end_matches(' ')) <= max).unwrap_or(end);
        }
        let (word, after) = rest.split_at(end);
        words.push(word);
        rest = after;
    }
    words
}

/// A single line is a sentence, and is wrapped. Several lines have a layout of their own.
pub(crate) fn fold_sentence(text: String, width: Option<usize>) -> String {
    if text.trim_end().contains('\n') { text } else { folded(&text, width) }
}

/// The text with line ends and an indent inserted so that no line is wider than `width`. A line breaks behind a blank, or
/// within a word that is wider than a line. Every character stays, so that nothing of a command is hidden. `first` columns
/// of the first line are taken.
pub(crate) fn wrap_command(text: &str, first: usize, indent: usize, width: Option<usize>) -> String {
    let Some(width) = width.filter(|width| *width > indent) else { return text.to_owned() };
    let (mut out, mut rest, mut room) = (String::new(), text, width.saturating_sub(first).max(1));
    while columns(rest) > room {
        let (mut wide, mut end, mut blank) = (0, 0, None);
        for (at, c) in rest.char_indices() {
            wide += c.width().unwrap_or(0);
            if wide > room && at > 0 {
                break;
            }
            end = at + c.len_utf8();
            blank = if c == ' ' { Some(end) } else { blank };
        }
        let (line, after) = rest.split_at(blank.unwrap_or(end));
        out.push_str(&format!("{line}\n{:indent$}", ""));
        (rest, room) = (after, width - indent);
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_between_words_or_within_a_word_that_is_too_wide() {
        assert_eq!(wrapped("one two  three", 7), ["one two", "three"]);
        assert_eq!(wrapped("abcdefgh i", 3), ["abc", "def", "gh", "i"]);
        assert_eq!(wrapped("读取本地文件", 5), ["读取", "本地", "文件"]);
        assert_eq!(wrapped("", 5), [""]);
        assert_eq!(wrapped("see `ostler ps` now", 11), ["see", "`ostler ps`", "now"]);
        assert_eq!(wrapped("see `ostler ps` now", 9), ["see", "`ostler", "ps` now"]);
    }

    #[test]
    fn a_message_is_folded_at_the_margin() {
        let hint = "hint: check the id; `ostler ps` lists them\n";
        assert_eq!(folded(hint, Some(24)), "hint: check the id;\n  `ostler ps` lists them\n");
        let commands = "check it; `ostler ps --all` lists them, or `ostler runs list`\n";
        assert_eq!(
            folded(commands, Some(24)),
            "check it;\n  `ostler ps --all`\n  lists them, or\n  `ostler runs list`\n"
        );
        assert_eq!(folded("an open ` and more words\n", Some(12)), "an open `\n  and more\n  words\n");
        let outcome = "its outcome is here: ostler webhooks show agt_1 2\n";
        assert_eq!(folded(outcome, Some(24)), "its outcome is here:\n  ostler webhooks show agt_1 2\n");
        for whole in ["  ostler webhooks show agt_1 2\n", "  approve: ostler approve run_1 prm_1\n"] {
            assert_eq!(folded(whole, Some(24)), whole);
        }
        assert_eq!(
            folded("start it: ostler run, or wait a moment\n", Some(24)),
            "start it: ostler run, or\n  wait a moment\n"
        );
        let quoted = "its outcome is here: ostler trace 'a; b, c (d)'\n";
        assert_eq!(folded(quoted, Some(24)), "its outcome is here:\n  ostler trace 'a; b, c (d)'\n");
        assert_eq!(split_command("ostler trace 'a b', or wait"), None);
        assert_eq!(folded("  next:  one two three\n", Some(15)), "  next:  one\n    two three\n");
        assert_eq!((folded(hint, None), folded(hint, Some(80))), (hint.to_owned(), hint.to_owned()));
        assert_eq!(columns("\x1b[1;31mfailed\x1b[0m"), 6);
    }

    #[test]
    fn a_command_between_backticks_is_not_broken_even_if_it_is_wider_than_the_terminal() {
        let login = crate::foreign_words::command_for("login").unwrap();
        let command = "`ostler contexts add NAME --server URL --token-file FILE`";
        for width in [20, 40, 60, 80] {
            let text = folded(&format!("hint: {login}\n"), Some(width));
            assert!(text.lines().any(|line| line.contains(command)), "{width}: {text}");
            let lines = wrapped_around_commands(login, width);
            assert!(lines.iter().any(|line| line.contains(command)), "{width}: {lines:?}");
            let others = text.lines().filter(|line| !line.contains('`'));
            assert!(others.map(columns).max().unwrap_or(0) <= width, "{width}: {text}");
        }
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(harmless("a\x1b[2Jb\r\n\tc\u{202e}d"), "a[2Jb\n\tcd");
        assert_eq!(line(" two\nlines\x07 ", 20), "two lines");
        assert_eq!(line("abcdef", 3), "abc…");
    }

    #[test]
    fn json_for_a_terminal_is_equal_and_has_no_control_characters() {
        let value = serde_json::json!({"a\u{202e}": "\u{1b}[2J \u{85} \u{9b}31m \u{7f} \u{2066}x\u{2069} \u{2028} é 日本 🐎\n\t"});
        for written in [serde_json::to_string(&value).unwrap(), serde_json::to_string_pretty(&value).unwrap()] {
            let escaped = escape_json(&written);
            assert!(!escaped.chars().any(|c| is_control(c) && c != '\n'), "{escaped:?}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
            assert!(escaped.contains("é 日本 🐎") && escaped.contains("\\u0085") && escaped.contains("\\u202e"));
        }
    }

    #[test]
    fn a_single_line_of_a_result_is_wrapped() {
        assert_eq!(fold_sentence("r has the labels a=1, b=2\n".into(), Some(20)), "r has the labels\n  a=1, b=2\n");
        let several = "name     a value that is long\nother    value\n";
        assert_eq!(fold_sentence(several.into(), Some(20)), several);
    }

    #[test]
    fn a_wrapped_command_keeps_every_character() {
        let text = "gh pr create --fill  --base main";
        assert_eq!(wrap_command(text, 2, 4, Some(18)), "gh pr create \n    --fill  \n    --base main");
        for width in 5..40 {
            for text in [text, "abcdefghijklmnopqrstuvwxyz ab", "读取本地文件 读取本地文件", "a          b           c"]
            {
                let wrapped = wrap_command(text, 2, 4, Some(width));
                assert_eq!(wrapped.replace("\n    ", ""), text);
                let lines = wrapped.lines().enumerate().map(|(n, line)| columns(line) + if n == 0 { 2 } else { 0 });
                assert!(lines.max().unwrap() <= width.max(6), "{width}: {wrapped}");
            }
        }
        assert_eq!(wrap_command(text, 2, 4, None), text);
    }

    #[test]
    fn a_line_is_shortened_by_columns() {
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
