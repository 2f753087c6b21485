//! Asking before something is ended for good. Only a person at a terminal can be asked; everybody else says `--yes`.

use std::io::IsTerminal;

use ostler_protocol::Failure;

use crate::{errors, output};

/// Flattened into the arguments of every command that ends or removes something.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Confirm {
    /// Do it without asking
    #[arg(short = 'y', long)]
    yes: bool,
    /// Show what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
}

impl Confirm {
    /// Whether to go on with what the question names, for good. `false`: it was a dry run, or the answer was no.
    pub fn ask(self, question: &str) -> Result<bool, Failure> {
        self.decide(question, "nothing was done", "this cannot be undone, and nobody is here to ask")
    }

    /// The same about what can be done otherwise later, in words of its own for a no.
    pub fn ask_or_say(self, question: &str, nothing_done: &str) -> Result<bool, Failure> {
        self.decide(question, nothing_done, "nobody is here to ask")
    }

    fn decide(self, question: &str, nothing_done: &str, unasked: &str) -> Result<bool, Failure> {
        if self.dry_run {
            output::words(&format!("dry run; {nothing_done}\n"));
            return Ok(false);
        }
        if self.yes {
            return Ok(true);
        }
        if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
            let message = format!("{unasked}: {question}");
            return Err(errors::usage(message, "say `--yes` to do it, or `--dry-run` to see what would be done"));
        }
        output::words(&format!("{question} [y/N] "));
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer).map_err(Failure::internal)?;
        let agreed = is_yes(&answer);
        if !agreed {
            output::words(&format!("{nothing_done}\n"));
        }
        Ok(agreed)
    }
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_is_yes() {
        assert!(is_yes("y\n") && is_yes(" YES "));
        assert!(!is_yes("") && !is_yes("\n") && !is_yes("yess") && !is_yes("no"));
    }

    #[test]
    fn a_dry_run_does_nothing_even_with_yes() {
        assert!(!Confirm { yes: true, dry_run: true }.ask("?").unwrap());
        assert!(Confirm { yes: true, dry_run: false }.ask("?").unwrap());
    }
}
