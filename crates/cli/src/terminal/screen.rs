//! Writes the reply to stdout and notes to stderr. Where both go to the same place, a note never starts in the middle of a
//! line of the reply. On a terminal the reply is wrapped between words, and a status line is drawn below both while nothing
//! happens, and erased before anything is written.

use std::{io::IsTerminal, os::fd::AsFd};

use rustix::fs::fstat;

use crate::terminal::{output, paint, turn_view::Piece};

/// How far apart a terminal's tab stops are.
const TAB_COLUMNS: usize = 8;
/// What words end with.
const BLANKS: [char; 3] = [' ', '\n', '\t'];

pub(crate) struct Screen {
    shows_reply: bool,
    is_terminal: bool,
    /// Both streams go to the same terminal, pipe or file.
    is_shared: bool,
    /// The reply's last character was not a line end.
    reply_open: bool,
    /// The cursor is after the reply's last character.
    mid_line: bool,
    /// The columns of the reply's unfinished line.
    columns: usize,
    /// The reply's last character belongs to a word that may go on.
    is_in_word: bool,
    status: StatusLine,
}

impl Screen {
    pub(crate) fn new(shows_reply: bool) -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        // One terminal may have two device names.
        let both_terminals = is_terminal && std::io::stderr().is_terminal();
        let is_shared = both_terminals || is_same(&std::io::stdout(), &std::io::stderr());
        let status = StatusLine::stderr();
        let (reply_open, mid_line, columns, is_in_word) = (false, false, 0, false);
        Self { shows_reply, is_terminal, is_shared, reply_open, mid_line, columns, is_in_word, status }
    }

    pub(crate) fn show(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            match piece {
                Piece::Note(text) => self.note(&text),
                Piece::Reply(text) if self.shows_reply => {
                    self.status.clear();
                    let before = if self.mid_line { self.columns } else { 0 };
                    let (printed, columns) = if self.is_terminal {
                        wrap_reply(&output::harmless(&text), before, self.is_in_word, terminal_width())
                    } else {
                        (text.clone(), columns_after(before, &text))
                    };
                    output::data(&printed);
                    self.columns = columns;
                    self.is_in_word = !text.ends_with(BLANKS);
                    self.reply_open = !text.ends_with('\n');
                    self.mid_line = self.reply_open;
                }
                // A note may have ended the line, but only if both streams go to the same place.
                Piece::NextMessage if self.shows_reply && (self.mid_line || !self.is_shared) => {
                    self.status.clear();
                    output::data("\n");
                    (self.reply_open, self.mid_line) = (false, false);
                }
                Piece::NextMessage | Piece::Reply(_) => {}
            }
        }
    }

    /// Prints data other than the reply, such as an event as JSON.
    pub(crate) fn data(&mut self, text: &str) {
        self.status.clear();
        output::data(text);
    }

    pub(crate) fn note(&mut self, text: &str) {
        self.status.clear();
        if self.mid_line && self.is_shared {
            output::unwrapped("\n");
            self.mid_line = false;
        }
        output::message(text);
    }

    /// Whether a status line can be drawn.
    pub(crate) fn has_status(&self) -> bool {
        self.status.is_possible
    }

    /// Draws the status line. Below an unfinished line of the reply it is drawn only if nothing has arrived for a while, so
    /// that a streaming reply does not flicker.
    pub(crate) fn status(&mut self, text: &str, is_quiet: bool) {
        let unfinished = self.mid_line && self.is_shared;
        if !unfinished {
            self.status.draw(text, None);
        } else if is_quiet {
            self.status.draw(text, Some(self.columns));
        }
    }

    /// Ends the reply's last line.
    pub(crate) fn close(&mut self) {
        self.status.clear();
        if self.reply_open && (self.mid_line || !self.is_shared) {
            output::data("\n");
        }
        self.reply_open = false;
        self.mid_line = false;
    }
}

/// A line on stderr that is redrawn. Only on a terminal, and not if `CI` is set.
struct StatusLine {
    is_possible: bool,
    is_drawn: bool,
    /// If it is drawn below an unfinished line: the column of that line to which the cursor returns.
    below: Option<usize>,
}

impl StatusLine {
    fn stderr() -> Self {
        let ci = std::env::var_os("CI").is_some_and(|value| !value.is_empty());
        let is_possible = std::io::stderr().is_terminal() && paint::is_capable() && !ci;
        Self { is_possible, is_drawn: false, below: None }
    }

    /// `after`: the columns of the unfinished line above it.
    fn draw(&mut self, text: &str, after: Option<usize>) {
        let width = terminal_size::terminal_size_of(std::io::stderr()).map_or(80, |(width, _)| width.0.into());
        // At the edge of a terminal it is unknown whether the cursor has already wrapped.
        let at_edge = after.is_some_and(|columns| columns % width == 0);
        if !self.is_possible || at_edge {
            return;
        }
        if !self.is_drawn && after.is_some() {
            output::unwrapped("\n");
            self.below = after.map(|columns| columns % width);
        }
        // One column stays free: a wrapped line could not be erased.
        output::unwrapped(&format!("\r\x1b[K{}", output::shorten(text, width - 1)));
        self.is_drawn = true;
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            output::unwrapped("\r\x1b[K");
            if let Some(column) = self.below.take() {
                output::unwrapped(&format!("\x1b[A\x1b[{column}C"));
            }
        }
    }
}

/// Whether both are the same terminal, pipe or file.
fn is_same(one: &impl AsFd, other: &impl AsFd) -> bool {
    match (fstat(one), fstat(other)) {
        (Ok(one), Ok(other)) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
        _ => false,
    }
}

/// The width of the terminal that the reply is written to. `None` if the terminal does not know it.
fn terminal_width() -> Option<usize> {
    output::size().map(|(width, _)| width).filter(|width| *width > 0)
}

/// The text with a line end before each word that does not fit the line, and the columns of its last line. The text begins behind
/// `columns`; if `is_in_word`, it begins with the rest of a word. The terminal breaks words that are wider than a line, the rest of
/// a word that has begun, and wide characters, which it may break anywhere.
fn wrap_reply(text: &str, columns: usize, is_in_word: bool, width: Option<usize>) -> (String, usize) {
    let Some(width) = width else { return (text.to_owned(), columns_after(columns, text)) };
    let (mut out, mut columns, mut is_in_word) = (String::new(), columns, is_in_word);
    for piece in text.split_inclusive(BLANKS) {
        let word = piece.trim_end_matches(BLANKS);
        let wide = output::columns(word);
        let is_movable = !is_in_word && wide <= width && wide <= word.chars().count();
        if is_movable && columns > 0 && columns + wide > width {
            out.truncate(out.trim_end_matches(' ').len());
            out.push('\n');
            columns = 0;
        }
        out.push_str(word);
        columns += wide;
        if columns > width {
            columns = (columns - 1) % width + 1;
        }
        let blank = &piece[word.len()..];
        // At the margin a space would begin the next line.
        if blank != " " || columns < width {
            out.push_str(blank);
            columns = columns_after(columns, blank).min(width);
        }
        is_in_word = blank.is_empty();
    }
    (out, columns)
}

/// The columns of the last line after the text was written behind `before` columns.
fn columns_after(before: usize, text: &str) -> usize {
    let (start, last) = match text.rsplit_once('\n') {
        Some((_, last)) => (0, last),
        None => (before, text),
    };
    last.split_inclusive('\t').fold(start, |columns, piece| match piece.strip_suffix('\t') {
        Some(words) => (columns + output::columns(words)) / TAB_COLUMNS * TAB_COLUMNS + TAB_COLUMNS,
        None => columns + output::columns(piece),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unfinished_line_is_measured() {
        assert_eq!(columns_after(3, "abc"), 6);
        assert_eq!(columns_after(3, "abc\nde"), 2);
        assert_eq!(columns_after(3, "abc\n"), 0);
        assert_eq!(columns_after(0, "日本\tx"), 9);
    }

    #[test]
    fn a_reply_is_wrapped_between_words() {
        let wrap = |text: &str, columns| wrap_reply(text, columns, false, Some(12));
        assert_eq!(wrap("Ostler keeps narrow text whole", 0), ("Ostler keeps\nnarrow text\nwhole".into(), 5));
        assert_eq!(wrap("keeps it", 8), ("\nkeeps it".into(), 8));
        assert_eq!(wrap("  let x = 1;\n\tgo", 0), ("  let x = 1;\n\tgo".into(), 10));
        assert_eq!(wrap("see https://a.example/b", 0), ("see https://a.example/b".into(), 11), "it fits no line");
        assert_eq!(wrap("ab 读取本地文件", 0), ("ab 读取本地文件".into(), 3), "it breaks anywhere");
        assert_eq!(wrap_reply("ow text", 10, true, Some(12)), ("ow\ntext".into(), 4), "the rest of a word");
        assert_eq!(wrap_reply("narrow text", 10, false, None), ("narrow text".into(), 21));
    }

    #[test]
    fn two_ends_of_one_pipe_are_the_same_file() {
        let (reader, writer) = std::io::pipe().unwrap();
        assert!(is_same(&writer, &writer.try_clone().unwrap()) && is_same(&reader, &writer));
        assert!(!is_same(&writer, &std::io::pipe().unwrap().1));
    }
}
