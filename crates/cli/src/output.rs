//! How things look: tables, times, JSON, and what may reach a terminal. Everything but the few functions at the top
//! takes data and returns text, so that it can be tested; those few are the only ones that write.

use std::io::{ErrorKind, IsTerminal, Write};

use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use ostler_protocol::{Timestamp, events::clip};
use serde::Serialize;

use crate::exit_codes;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON document.
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ListFormat {
    /// For people.
    Text,
    /// One JSON document.
    Json,
    /// One JSON object per line.
    Jsonl,
}

/// Writes data to stdout, at once.
pub fn data(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
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

/// The one place that reads the clock, for ages.
#[allow(clippy::disallowed_methods, reason = "a command line shows ages as of now; rendering takes the time from here")]
pub fn now() -> Timestamp {
    Timestamp::now()
}

/// The width to fit, if stdout is a terminal.
pub fn width() -> Option<usize> {
    let (width, _) = terminal_size::terminal_size_of(std::io::stdout())?;
    Some(width.0.into())
}

/// Colour, where it helps and is wanted. Nothing is said by colour alone.
#[derive(Clone, Copy, Debug)]
pub struct Paint(bool);

impl Paint {
    #[cfg(test)]
    pub const PLAIN: Self = Self(false);

    pub fn stdout() -> Self {
        Self(wanted(std::io::stdout().is_terminal()))
    }

    pub fn stderr() -> Self {
        Self(wanted(std::io::stderr().is_terminal()))
    }

    pub fn is_on(self) -> bool {
        self.0
    }

    pub fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    pub fn red(self, text: &str) -> String {
        self.with("1;31", text)
    }

    pub fn green(self, text: &str) -> String {
        self.with("32", text)
    }

    pub fn yellow(self, text: &str) -> String {
        self.with("33", text)
    }

    /// Paints by what the status means.
    pub fn status(self, status: &str) -> String {
        match status {
            "completed" => self.green(status),
            "failed" => self.red(status),
            "blocked" | "cancelled" => self.yellow(status),
            _ => self.bold(status),
        }
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

fn wanted(is_terminal: bool) -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    is_terminal && !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
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

fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `3s`, `5m`, `2h`, `4d`.
pub fn age(at: Timestamp, now: Timestamp) -> String {
    age_ms(now.as_millisecond() - at.as_millisecond())
}

pub fn age_ms(ms: i64) -> String {
    let seconds = ms.max(0) / 1_000;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..86_400 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// `3 runs`, `1 run`.
pub fn count(number: i64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

pub fn json<T: Serialize>(value: &T) -> String {
    let mut out = serde_json::to_string_pretty(value).expect("wire types serialise");
    out.push('\n');
    out
}

pub fn json_line<T: Serialize>(value: &T) -> String {
    let mut out = serde_json::to_string(value).expect("wire types serialise");
    out.push('\n');
    out
}

/// The narrowest a column may become.
const COLUMN_CHARS_MIN: usize = 8;
const GAP: u16 = 2;

/// A plain table. Where it must fit a width, the columns named in `shrink` give way, the first one first.
pub fn table(headers: &[&str], mut rows: Vec<Vec<String>>, shrink: &[usize], width: Option<usize>) -> String {
    if let Some(width) = width {
        fit(headers, &mut rows, shrink, width);
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headers.to_vec());
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, GAP));
    }
    let mut out = table.trim_fmt();
    out.push('\n');
    out
}

fn fit(headers: &[&str], rows: &mut [Vec<String>], shrink: &[usize], width: usize) {
    let chars = |text: &str| text.chars().count();
    let widest = |rows: &[Vec<String>], column: usize| {
        rows.iter().map(|row| chars(&row[column])).max().unwrap_or(0).max(chars(headers[column]))
    };
    let total: usize = (0..headers.len()).map(|column| widest(rows, column) + usize::from(GAP)).sum();
    let mut over = total.saturating_sub(width + usize::from(GAP));
    for &column in shrink {
        let wide = widest(rows, column);
        let narrow = wide.saturating_sub(over).max(COLUMN_CHARS_MIN.min(wide)).max(chars(headers[column]));
        if narrow < wide {
            rows.iter_mut().for_each(|row| row[column] = shorten(&row[column], narrow));
            over -= wide - narrow;
        }
    }
}

/// At most `max` characters, the mark included.
pub fn shorten(text: &str, max: usize) -> String {
    if text.chars().count() <= max { text.to_owned() } else { clip(text, max.saturating_sub(1)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_one_unit() {
        let ages = [-5, 0, 59_999, 60_000, 3_599_999, 3_600_000, 86_400_000 * 3].map(age_ms);
        assert_eq!(ages, ["0s", "0s", "59s", "1m", "59m", "1h", "3d"]);
    }

    #[test]
    fn a_table_aligns_and_ends_without_blanks() {
        let rows = vec![vec!["a".into(), "one".into()], vec!["long".into(), "2".into()]];
        assert_eq!(table(&["ID", "NAME"], rows, &[], None), "ID    NAME\na     one\nlong  2\n");
    }

    #[test]
    fn a_table_fits_the_terminal_where_it_may_shrink() {
        let rows = vec![vec!["run_1".into(), "a-very-long-project-name".into(), "3s".into()]];
        let text = table(&["ID", "PROJECT", "AGE"], rows.clone(), &[1], Some(24));
        assert_eq!(text, "ID     PROJECT       AGE\nrun_1  a-very-long…  3s\n");
        assert!(table(&["ID", "PROJECT", "AGE"], rows, &[1], Some(5)).contains("run_1  a-very-…  3s"));
    }

    #[test]
    fn escapes_do_not_reach_the_terminal() {
        assert_eq!(harmless("a\x1b[2Jb\r\n\tc\u{202e}d"), "a[2Jb\n\tcd");
        assert_eq!(line(" two\nlines\x07 ", 20), "two lines");
        assert_eq!(line("abcdef", 3), "abc…");
    }

    #[test]
    fn paint_off_changes_nothing() {
        assert_eq!(Paint::PLAIN.status("failed"), "failed");
        assert_eq!(Paint(true).status("failed"), "\x1b[1;31mfailed\x1b[0m");
    }

    #[test]
    fn counts_have_a_plural() {
        assert_eq!([count(0, "run"), count(1, "run"), count(2, "run")], ["0 runs", "1 run", "2 runs"]);
    }
}
