//! A table and a line below it that are redrawn in the same place on a terminal.

use std::io::IsTerminal;

use crate::terminal::{output, paint};

#[derive(Default)]
pub(crate) struct Repaint {
    /// The number of lines of the last text.
    lines: usize,
    /// The last table.
    table: String,
}

impl Repaint {
    /// `None` if stdout is not a terminal that can move the cursor.
    pub(crate) fn stdout() -> Option<Self> {
        (std::io::stdout().is_terminal() && paint::is_capable()).then(Self::default)
    }

    /// Replaces the last table and the text below it. Each line is shortened to the terminal: a wrapped line would take two
    /// lines.
    pub(crate) fn paint(&mut self, table: String, below: &str) {
        self.table = table;
        self.paint_below(below);
    }

    /// Replaces the text below the last table, which stays.
    pub(crate) fn paint_below(&mut self, below: &str) {
        let width = output::width().unwrap_or(80);
        let shown = self.table.lines().chain(below.lines());
        let text: String = shown.map(|line| output::shorten(line, width) + "\n").collect();
        output::data(&overwrite(self.lines, &text));
        self.lines = text.lines().count();
    }
}

/// Moves up to the start of the last text and overwrites it; the end of each line is cleared, so that nothing flickers.
fn overwrite(lines: usize, text: &str) -> String {
    let up = if lines == 0 { String::new() } else { format!("\x1b[{lines}A") };
    let body: String = text.lines().map(|line| format!("{line}\x1b[K\n")).collect();
    format!("{up}{body}\x1b[J")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_text_replaces_the_last() {
        assert_eq!(overwrite(0, "a\nb\n"), "a\x1b[K\nb\x1b[K\n\x1b[J");
        assert_eq!(overwrite(2, "c\n"), "\x1b[2Ac\x1b[K\n\x1b[J");
    }
}
