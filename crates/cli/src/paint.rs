//! Colour, where it helps and is wanted. Nothing is said by colour alone, and nothing but a terminal gets any.

use std::io::IsTerminal;

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

    /// One of a few colours that can be told apart, the same for the same number.
    pub fn nth(self, number: usize, text: &str) -> String {
        const COLOURS: [&str; 6] = ["36", "33", "35", "32", "34", "31"];
        self.with(COLOURS[number % COLOURS.len()], text)
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
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    is_terminal && !refused && is_capable()
}

/// Whether a terminal, if it is one, can do more than print.
pub fn is_capable() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paint_off_changes_nothing() {
        assert_eq!(Paint::PLAIN.status("failed"), "failed");
        assert_eq!(Paint(true).status("failed"), "\x1b[1;31mfailed\x1b[0m");
    }
}
