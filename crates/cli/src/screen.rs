//! The two streams as one terminal shows them. The reply goes to stdout and notes to stderr; a note never starts in the
//! middle of the reply's line, and a status line stands below both while nothing happens, gone before anything is written.

use std::io::IsTerminal;

use crate::{live::Piece, output, paint};

pub struct Screen {
    shows_reply: bool,
    is_terminal: bool,
    /// The reply's last character was no line end.
    reply_open: bool,
    /// The terminal's cursor stands after the reply's last character.
    mid_line: bool,
    status: Status,
}

impl Screen {
    pub fn new(shows_reply: bool) -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        Self { shows_reply, is_terminal, reply_open: false, mid_line: false, status: Status::stderr() }
    }

    pub fn show(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            match piece {
                Piece::Note(text) => self.note(&text),
                Piece::Reply(text) if self.shows_reply => {
                    self.status.clear();
                    output::data(&if self.is_terminal { output::harmless(&text) } else { text.clone() });
                    self.reply_open = !text.ends_with('\n');
                    self.mid_line = self.reply_open;
                }
                // A note may have ended the line on the terminal, but never in a pipe.
                Piece::NextMessage if self.shows_reply && (self.mid_line || !self.is_terminal) => {
                    self.status.clear();
                    output::data("\n");
                    (self.reply_open, self.mid_line) = (false, false);
                }
                Piece::NextMessage | Piece::Reply(_) => {}
            }
        }
    }

    /// Data that is no reply, such as an event as JSON.
    pub fn data(&mut self, text: &str) {
        self.status.clear();
        output::data(text);
    }

    pub fn note(&mut self, text: &str) {
        self.status.clear();
        if self.mid_line && self.is_terminal {
            output::words("\n");
        }
        self.mid_line = false;
        output::words(text);
    }

    /// Whether there is anybody to show a status line to.
    pub fn has_status(&self) -> bool {
        self.status.is_possible
    }

    /// Says what is being waited for; not while the reply's line is unfinished, which it would tear.
    pub fn status(&mut self, text: &str) {
        if !(self.mid_line && self.is_terminal) {
            self.status.draw(text);
        }
    }

    /// Ends the reply's last line.
    pub fn close(&mut self) {
        self.status.clear();
        if self.reply_open && (self.mid_line || !self.is_terminal) {
            output::data("\n");
        }
        self.reply_open = false;
        self.mid_line = false;
    }
}

/// One line on stderr that is drawn over and over. Only a terminal has it, and not where a machine reads it (`CI`).
struct Status {
    is_possible: bool,
    is_drawn: bool,
}

impl Status {
    fn stderr() -> Self {
        let ci = std::env::var_os("CI").is_some_and(|value| !value.is_empty());
        let is_possible = std::io::stderr().is_terminal() && paint::is_capable() && !ci;
        Self { is_possible, is_drawn: false }
    }

    fn draw(&mut self, text: &str) {
        if self.is_possible {
            // One column stays free, or the terminal would wrap, and the line could not be taken back.
            let width = terminal_size::terminal_size_of(std::io::stderr()).map_or(80, |(width, _)| width.0.into());
            output::words(&format!("\r\x1b[K{}", output::shorten(text, width - 1)));
            self.is_drawn = true;
        }
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            output::words("\r\x1b[K");
        }
    }
}
