//! The backlog: unfinished commands the runner knows of and has not taken up, in the order they were submitted.

use std::collections::BTreeMap;

use ostler_protocol::{
    commands::{Command, CommandType},
    ids::CommandId,
};

#[derive(Default)]
pub struct Backlog {
    by_seq: BTreeMap<i64, Command>,
    /// The highest number seen; polls ask for what comes after it.
    pub after_seq: i64,
}

impl Backlog {
    pub fn add(&mut self, command: Command) {
        self.after_seq = self.after_seq.max(command.seq);
        self.by_seq.insert(command.seq, command);
    }

    pub fn is_empty(&self) -> bool {
        self.by_seq.is_empty()
    }

    /// Takes the next turn to work on.
    pub fn next_turn(&mut self) -> Option<Command> {
        let seq = self.by_seq.values().find(|c| c.command_type == CommandType::Turn)?.seq;
        self.by_seq.remove(&seq)
    }

    /// Takes the steers and interrupts meant for a turn.
    pub fn aimed_at(&mut self, turn: CommandId) -> Vec<Command> {
        self.by_seq.extract_if(.., |_, c| c.target_command_id == Some(turn)).map(|(_, c)| c).collect()
    }
}
