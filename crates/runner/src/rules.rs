//! The rules of server failures that a runner reacts to.

use ostler_protocol::Rule;

/// Whether the run has ended or is about to.
pub(crate) fn ends_run(rule: Rule) -> bool {
    matches!(rule, Rule::RunCancelled | Rule::RunCancelling | Rule::RunTerminal)
}

/// Whether the command has ended.
pub(crate) fn ends_command(rule: Rule) -> bool {
    matches!(rule, Rule::CommandCancelled | Rule::CommandTerminal)
}
