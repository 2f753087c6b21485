//! The rules of server failures that a runner reacts to. A failure names its rule as a string; this is the only place in the
//! runner that knows the strings.

use ostler_protocol::Failure;

/// A rule by which the server rejects a write of a runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RejectionRule {
    RunCancelled,
    RunCancelling,
    RunTerminal,
    CommandCancelled,
    CommandTerminal,
    LeaseReleased,
}

impl RejectionRule {
    /// The rule of a failure. `None` if the runner does not treat it specially.
    pub(crate) fn of(failure: &Failure) -> Option<Self> {
        Some(match failure.rule_name()? {
            "run-cancelled" => Self::RunCancelled,
            "run-cancelling" => Self::RunCancelling,
            "run-terminal" => Self::RunTerminal,
            "command-cancelled" => Self::CommandCancelled,
            "command-terminal" => Self::CommandTerminal,
            "lease-released" => Self::LeaseReleased,
            _ => return None,
        })
    }

    /// Whether the run has ended or is about to.
    pub(crate) fn ends_run(self) -> bool {
        matches!(self, Self::RunCancelled | Self::RunCancelling | Self::RunTerminal)
    }

    /// Whether the command has ended.
    pub(crate) fn ends_command(self) -> bool {
        matches!(self, Self::CommandCancelled | Self::CommandTerminal)
    }
}
