//! The exit codes of `ostler`. A failed call gets its code from the table of failure kinds; the codes here are those of
//! outcomes and of the program itself. A test compares them with `docs/exit-codes.md`.

use ostler_protocol::{Failure, Rule, kernel::runs::TerminalStatus};

pub(crate) const OK: u8 = 0;
/// `ostler verify` or `ostler restore` found an event that does not fit or a damaged backup, `ostler doctor` a check that failed, `ostler agents check`
/// a manifest that would be rejected. The answer "no" of `ostler can-i`.
pub(crate) const BROKEN: u8 = 1;
/// The server sent no response, or an incomplete one, or it does not know what a tool did. Unlike a failure, this reveals nothing
/// about the work.
pub(crate) const UNREACHABLE: u8 = 7;
/// `ostler result` of a command that has not ended.
pub(crate) const UNFINISHED: u8 = 9;
pub(crate) const FAILED: u8 = 10;
pub(crate) const CANCELLED: u8 = 11;
pub(crate) const BLOCKED: u8 = 12;
/// A second Ctrl-C: this program has exited, the run continues.
pub(crate) const LEFT: u8 = 130;
/// The reader of stdout has closed the pipe, as in `ostler trace … | head`.
pub(crate) const READER_GONE: u8 = 141;

const MEANINGS: [(u8, &str); 15] = [
    (OK, "done; for `run` and `result`: completed"),
    (
        BROKEN,
        "`verify`, `doctor`, `restore` or `agents check` found something wrong; `wait`: completed, but not as expected; `can-i`: no",
    ),
    (2, "the command line or the request is invalid"),
    (3, "no valid token, or not allowed"),
    (4, "not found, or past its retention"),
    (5, "conflict with the current state"),
    (6, "too busy; try again shortly"),
    (UNREACHABLE, "the server cannot be reached, or `tools call` of unknown outcome; the work may continue"),
    (UNFINISHED, "`result`: not finished yet; `wait`: not finished in time"),
    (FAILED, "failed"),
    (CANCELLED, "cancelled"),
    (BLOCKED, "blocked: a budget, a credential or a permission is missing"),
    (70, "a fault inside the server"),
    (LEFT, "left by a second Ctrl-C; the run continues"),
    (READER_GONE, "the reader of the output closed the pipe"),
];

/// A failed call exits with the code of its kind, unless no server responded, a backup is damaged or an outcome is unknown.
pub(crate) fn of_failure(failure: &Failure) -> u8 {
    match failure.broken_rule() {
        _ if ostler_client::is_unreachable(failure) => UNREACHABLE,
        Some(Rule::BackupDamaged) => BROKEN,
        Some(Rule::ToolOutcomeUnknown) => UNREACHABLE,
        _ => failure.kind.row().exit_code,
    }
}

/// Zero only for `completed`.
pub(crate) fn of_outcome(outcome: Option<TerminalStatus>) -> u8 {
    match outcome {
        Some(TerminalStatus::Completed) => OK,
        Some(TerminalStatus::Failed) => FAILED,
        Some(TerminalStatus::Cancelled) => CANCELLED,
        Some(TerminalStatus::Blocked) => BLOCKED,
        None => UNFINISHED,
    }
}

pub(crate) fn after_help() -> String {
    let mut out = String::from(
        "Examples:\n  ostler serve\n  ostler run \"say hello\"\n  ostler ps -w\n  ostler trace -f RUN\n  ostler doctor\n\n\
         A RUN is a run's id, the beginning of one, or a session, which means its active or latest run.\n\nExit codes:\n",
    );
    for (code, meaning) in MEANINGS {
        out.push_str(&format!("  {code:>3}  {meaning}\n"));
    }
    out.push_str(
        "\nData goes to stdout, messages go to stderr. Colour is off when NO_COLOR is set or output is piped.",
    );
    out
}

#[cfg(test)]
mod tests {
    use ostler_protocol::FailureKind;

    use super::*;

    #[test]
    fn every_failure_kind_has_a_documented_exit_code() {
        for row in FailureKind::ALL {
            assert!(MEANINGS.iter().any(|(code, _)| *code == row.exit_code), "{} has code {}", row.name, row.exit_code);
        }
    }

    #[test]
    fn the_document_lists_the_same_codes() {
        let document = include_str!("../../../docs/exit-codes.md");
        for (code, meaning) in MEANINGS {
            assert!(document.contains(&format!("| {code} | {meaning} |")), "code {code}");
        }
        for row in FailureKind::ALL {
            assert!(document.contains(&format!("| `{}` | {} |", row.name, row.exit_code)), "kind {}", row.name);
        }
    }

    #[test]
    fn only_completed_exits_with_zero() {
        use TerminalStatus::*;
        let codes = [Some(Completed), Some(Failed), Some(Cancelled), Some(Blocked), None].map(of_outcome);
        assert_eq!(codes, [0, 10, 11, 12, 9]);
    }
}
