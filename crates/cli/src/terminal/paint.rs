//! Colour for terminals. Colour never carries information of its own, and only a terminal gets any.

use std::io::IsTerminal;

use ostler_protocol::kernel::runs::RunState;

/// Whether text is coloured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint(bool);

impl Paint {
    #[cfg(test)]
    pub(crate) const PLAIN: Self = Self(false);
    #[cfg(test)]
    pub(crate) const COLOURED: Self = Self(true);

    pub(crate) fn stdout() -> Self {
        Self(is_enabled(std::io::stdout().is_terminal()))
    }

    pub(crate) fn stderr() -> Self {
        Self(is_enabled(std::io::stderr().is_terminal()))
    }

    pub(crate) fn is_on(self) -> bool {
        self.0
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.with("1;31", text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.with("32", text)
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.with("33", text)
    }

    /// One of a few distinguishable colours, the same for the same number.
    pub(crate) fn nth(self, number: usize, text: &str) -> String {
        const COLOURS: [&str; 6] = ["36", "33", "35", "32", "34", "31"];
        self.with(COLOURS[number % COLOURS.len()], text)
    }

    /// Words about a state, in its colour.
    pub(crate) fn state(self, state: RunState, words: &str) -> String {
        match state {
            RunState::Completed => self.green(words),
            RunState::Failed => self.red(words),
            RunState::Waiting | RunState::Blocked | RunState::Cancelled => self.yellow(words),
            RunState::Running => self.bold(words),
        }
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

fn is_enabled(is_terminal: bool) -> bool {
    let disabled = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    is_terminal && !disabled && is_capable()
}

/// Whether a terminal can move the cursor and show colour.
pub(crate) fn is_capable() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_unchanged_without_colour() {
        assert_eq!(Paint::PLAIN.state(RunState::Failed, "failed"), "failed");
        assert_eq!(Paint(true).state(RunState::Failed, "failed"), "\x1b[1;31mfailed\x1b[0m");
    }
}
