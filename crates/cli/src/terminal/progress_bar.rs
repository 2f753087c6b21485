//! Two lines on stderr: what a long piece of work does, and how far it is. The second one goes away at its end, so that the result
//! follows the first. Only a terminal gets them.

use std::io::IsTerminal;

use tokio::time::{Duration, Instant};

use crate::terminal::{output, paint};

const CELLS: u64 = 24;
/// Two paths.
const WORK_CHARS_MAX: usize = 2_000;
/// More often than this a person sees no difference.
const INTERVAL: Duration = Duration::from_millis(100);

pub(crate) struct ProgressBar {
    is_shown: bool,
    painted: Option<Instant>,
    label: String,
}

impl ProgressBar {
    /// Prints what the work does.
    pub(crate) fn stderr(work: &str) -> Self {
        let is_shown = std::io::stderr().is_terminal() && paint::is_capable();
        if is_shown {
            output::message(&format!("{}\n", output::line(work, WORK_CHARS_MAX)));
        }
        Self { is_shown, painted: None, label: String::new() }
    }

    /// Paints how much of this step is done.
    pub(crate) fn show(&mut self, label: &str, done: u64, total: u64) {
        let is_due = self.label != label || self.painted.is_none_or(|at| at.elapsed() >= INTERVAL);
        if self.is_shown && is_due {
            output::unwrapped(&format!("\r{}\x1b[K", bar(label, done, total)));
            self.painted = Some(Instant::now());
            label.clone_into(&mut self.label);
        }
    }
}

/// The line goes away when the work has ended, well or not.
impl Drop for ProgressBar {
    fn drop(&mut self) {
        if self.painted.is_some() {
            output::unwrapped("\r\x1b[K");
        }
    }
}

fn bar(label: &str, done: u64, total: u64) -> String {
    let share = |of: u64| if total == 0 { 0 } else { (done.min(total) as u128 * of as u128 / total as u128) as u64 };
    let full = share(CELLS) as usize;
    format!("{label:<13} {}{} {:>3} %", "█".repeat(full), "░".repeat(CELLS as usize - full), share(100))
}

/// `29.7 MB`: sizes as people read them.
pub(crate) fn size(bytes: u64) -> String {
    let units = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    let unit = units.iter().find(|(_, unit)| bytes as f64 >= *unit);
    unit.map_or_else(
        || output::count(bytes as i64, "byte"),
        |(name, unit)| format!("{:.1} {name}", bytes as f64 / unit),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_the_share() {
        assert_eq!(bar("files", 0, 0), format!("files         {}   0 %", "░".repeat(24)));
        assert_eq!(bar("files", 1, 2), format!("files         {}{}  50 %", "█".repeat(12), "░".repeat(12)));
        assert_eq!(bar("store", 9, 2), format!("store         {} 100 %", "█".repeat(24)));
    }

    #[test]
    fn sizes_have_a_unit() {
        assert_eq!([size(1), size(999), size(1_500), size(29_700_000)], ["1 byte", "999 bytes", "1.5 kB", "29.7 MB"]);
    }
}
