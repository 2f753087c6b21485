//! What the exit code of `ostler` means. A failed call takes its code from the one table of failure kinds; the codes
//! here are those of outcomes and of the program itself. `docs/exit-codes.md` says the same, and a test compares them.

use ostler_protocol::{Failure, kernel::runs::TerminalStatus};

pub const OK: u8 = 0;
/// `ostler verify` found an event that does not fit, `ostler doctor` a check that failed.
pub const BROKEN: u8 = 1;
/// No answer, or none that was whole: unlike a failure, this says nothing about the work.
pub const UNREACHABLE: u8 = 7;
/// `ostler result` of something that has not ended.
pub const UNFINISHED: u8 = 9;
pub const FAILED: u8 = 10;
pub const CANCELLED: u8 = 11;
pub const BLOCKED: u8 = 12;
/// A second Ctrl-C: we left, the run goes on.
pub const LEFT: u8 = 130;
/// Whoever read our output stopped reading, as in `ostler trace … | head`.
pub const READER_GONE: u8 = 141;

const MEANINGS: [(u8, &str); 15] = [
    (OK, "done; for `run` and `result`: completed"),
    (BROKEN, "`verify` or `doctor` found something wrong"),
    (2, "the command line or the request makes no sense"),
    (3, "no valid token, or not allowed"),
    (4, "no such thing, or kept no longer"),
    (5, "conflict with what is there"),
    (6, "too busy; try again shortly"),
    (UNREACHABLE, "the server cannot be reached; the work may go on"),
    (UNFINISHED, "`result`: not finished yet"),
    (FAILED, "failed"),
    (CANCELLED, "cancelled"),
    (BLOCKED, "blocked: a budget, a credential or a permission is missing"),
    (70, "a fault inside the server"),
    (LEFT, "left by a second Ctrl-C; the run goes on"),
    (READER_GONE, "the reader of our output went away"),
];

/// A failed call ends with the code of its kind, unless there was nobody to answer.
pub fn of_failure(failure: &Failure) -> u8 {
    if ostler_client::is_unreachable(failure) { UNREACHABLE } else { failure.kind.row().exit_code }
}

/// Zero only for `completed`.
pub fn of_outcome(outcome: Option<TerminalStatus>) -> u8 {
    match outcome {
        Some(TerminalStatus::Completed) => OK,
        Some(TerminalStatus::Failed) => FAILED,
        Some(TerminalStatus::Cancelled) => CANCELLED,
        Some(TerminalStatus::Blocked) => BLOCKED,
        None => UNFINISHED,
    }
}

pub fn after_help() -> String {
    let mut out = String::from(
        "Examples:\n  ostler serve\n  ostler run \"say hello\"\n  ostler ps -w\n  ostler trace -f RUN\n  ostler doctor\n\n\
         A RUN is a run's id, the beginning of one, or a session, which stands for its active or latest run.\n\nExit codes:\n",
    );
    for (code, meaning) in MEANINGS {
        out.push_str(&format!("  {code:>3}  {meaning}\n"));
    }
    out.push_str("\nData goes to stdout, words go to stderr. Colour is off when NO_COLOR is set or output is piped.");
    out
}

#[cfg(test)]
mod tests {
    use ostler_protocol::FailureKind;

    use super::*;

    #[test]
    fn every_failure_kind_has_an_explained_code() {
        for row in FailureKind::ALL {
            assert!(MEANINGS.iter().any(|(code, _)| *code == row.exit_code), "{} has code {}", row.name, row.exit_code);
        }
    }

    #[test]
    fn the_document_says_the_same() {
        let document = include_str!("../../../docs/exit-codes.md");
        for (code, meaning) in MEANINGS {
            assert!(document.contains(&format!("| {code} | {meaning} |")), "code {code}");
        }
        for row in FailureKind::ALL {
            assert!(document.contains(&format!("| `{}` | {} |", row.name, row.exit_code)), "kind {}", row.name);
        }
    }

    #[test]
    fn only_completed_is_zero() {
        use TerminalStatus::*;
        let codes = [Some(Completed), Some(Failed), Some(Cancelled), Some(Blocked), None].map(of_outcome);
        assert_eq!(codes, [0, 10, 11, 12, 9]);
    }
}
