//! Unfinished commands that the runner has received and not started, in the order they were submitted.

use std::collections::BTreeMap;

use ostler_protocol::{
    ids::CommandId,
    kernel::commands::{Command, CommandType},
};

#[derive(Default)]
pub(crate) struct PendingCommands {
    by_seq: BTreeMap<i64, Command>,
    /// The highest sequence number received. Polls request the commands after it.
    pub(crate) after_seq: i64,
}

impl PendingCommands {
    pub(crate) fn add(&mut self, command: Command) {
        self.after_seq = self.after_seq.max(command.seq);
        self.by_seq.insert(command.seq, command);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_seq.is_empty()
    }

    /// Removes and returns the next turn to work on.
    pub(crate) fn take_next_turn(&mut self) -> Option<Command> {
        let seq = self.by_seq.values().find(|c| c.command_type == CommandType::Turn)?.seq;
        self.by_seq.remove(&seq)
    }

    /// Removes and returns the steers and interrupts whose target is this turn.
    pub(crate) fn take_targeting(&mut self, turn: CommandId) -> Vec<Command> {
        self.by_seq.extract_if(.., |_, c| c.target_command_id == Some(turn)).map(|(_, c)| c).collect()
    }
}
