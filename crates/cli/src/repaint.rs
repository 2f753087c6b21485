//! Text that is shown again and again in the same place. Only a terminal has places; where there is none, there is no
//! [`Repaint`].

use std::io::IsTerminal;

use crate::{output, paint};

pub struct Repaint {
    /// Lines that the last text took.
    lines: usize,
}

impl Repaint {
    /// For stdout, if it is a terminal that can.
    pub fn stdout() -> Option<Self> {
        (std::io::stdout().is_terminal() && paint::is_capable()).then_some(Self { lines: 0 })
    }

    /// Shows the text in place of the last one, each line cut to the terminal: one that wrapped would be two lines to go up.
    pub fn paint(&mut self, text: &str) {
        let width = output::width().unwrap_or(80);
        let text: String = text.lines().map(|line| output::shorten(line, width) + "\n").collect();
        output::data(&over(self.lines, &text));
        self.lines = text.lines().count();
    }
}

/// Up to where the last text began, and down again over it; each line's end is cleared, so that nothing flickers.
fn over(lines: usize, text: &str) -> String {
    let up = if lines == 0 { String::new() } else { format!("\x1b[{lines}A") };
    let body: String = text.lines().map(|line| format!("{line}\x1b[K\n")).collect();
    format!("{up}{body}\x1b[J")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_text_takes_the_place_of_the_last() {
        assert_eq!(over(0, "a\nb\n"), "a\x1b[K\nb\x1b[K\n\x1b[J");
        assert_eq!(over(2, "c\n"), "\x1b[2Ac\x1b[K\n\x1b[J");
    }
}
