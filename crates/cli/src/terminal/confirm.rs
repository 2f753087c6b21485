//! Asks before something is ended or removed permanently. Only a person at a terminal can be asked; scripts pass `--yes`.

use std::io::IsTerminal;

use ostler_protocol::Failure;

use crate::{errors, terminal::output};

/// Flattened into the arguments of every command that ends or removes something.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct Confirm {
    /// Do it without asking
    #[arg(short = 'y', long)]
    yes: bool,
    /// Show what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
}

impl Confirm {
    /// Asks about something that cannot be undone. `false` if it is a dry run, or the answer was no.
    pub(crate) fn ask(self, question: &str) -> Result<bool, Failure> {
        self.decide(question, "nothing was done", "this cannot be undone, and there is no terminal to ask at")
    }

    /// Asks about something that can be changed later. `nothing_done` is the message after a no.
    pub(crate) fn ask_reversible(self, question: &str, nothing_done: &str) -> Result<bool, Failure> {
        self.decide(question, nothing_done, "there is no terminal to ask at")
    }

    fn decide(self, question: &str, nothing_done: &str, without_terminal: &str) -> Result<bool, Failure> {
        if self.dry_run {
            output::message(&format!("dry run; {nothing_done}\n"));
            return Ok(false);
        }
        if self.yes {
            return Ok(true);
        }
        if !can_ask() {
            let message = format!("{without_terminal}: {question}");
            return Err(errors::usage(message, "pass `--yes` to do it, or `--dry-run` to see what would be done"));
        }
        output::message(&format!("{question} [y/N] "));
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer).map_err(Failure::internal)?;
        let agreed = is_yes(&answer);
        if !agreed {
            output::message(&format!("{nothing_done}\n"));
        }
        Ok(agreed)
    }
}

/// Whether there is a person at a terminal who can be asked.
pub(crate) fn can_ask() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Prints a question and reads the answer, without white space and in lower case. Empty at the end of the input.
pub(crate) fn ask_line(question: &str) -> Result<String, Failure> {
    output::message(&format!("{question} "));
    let mut answer = String::new();
    if std::io::stdin().read_line(&mut answer).map_err(Failure::internal)? == 0 {
        output::message("\n");
    }
    Ok(answer.trim().to_ascii_lowercase())
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_confirms() {
        assert!(is_yes("y\n") && is_yes(" YES "));
        assert!(!is_yes("") && !is_yes("\n") && !is_yes("yess") && !is_yes("no"));
    }

    #[test]
    fn a_dry_run_does_nothing_even_with_yes() {
        assert!(!Confirm { yes: true, dry_run: true }.ask("?").unwrap());
        assert!(Confirm { yes: true, dry_run: false }.ask("?").unwrap());
    }
}
