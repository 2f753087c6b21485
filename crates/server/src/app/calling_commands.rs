//! Commands whose runners call tools. A call of a command that made one before needs nothing that only the store has: neither the run
//! and the command, whose parts that matter do not change, nor the log, because this server knows which calls are in it. The kernel
//! checks that there are no others when it records that a call starts.

use std::{collections::HashSet, sync::Arc};

use ostler_protocol::{
    ids::{CommandId, RunId, SessionId},
    kernel::{commands::Command, fold::KnownCalls, runs::Run},
};
use parking_lot::Mutex;
use quick_cache::sync::Cache;

const COMMANDS_REMEMBERED: usize = 256;
/// Commands with more bytes of payload are read again for each call.
const PAYLOAD_BYTES_MAX: usize = 64 * 1024;
/// Calls of a command that are remembered. The log is searched for each call of a command that makes more.
const CALLS_MAX: usize = 2_048;

/// The commands that have called a tool of this server recently.
pub struct CallingCommands(Cache<CommandId, Arc<CallingCommand>>);

/// A command that calls tools, as it was when it was read: its state and its fold may have changed since.
pub struct CallingCommand {
    pub run: Arc<Run>,
    pub command: Arc<Command>,
    /// Shared with what replaces this when the command is read again.
    calls: Arc<Mutex<CallIds>>,
}

#[derive(Default)]
struct CallIds {
    /// Calls that are in the command's log, also those of its agent's own tools.
    recorded: HashSet<String>,
    /// Calls whose start this server is recording.
    pending: Vec<String>,
}

/// A call whose start is being recorded.
pub struct StartingCall {
    calls: Arc<Mutex<CallIds>>,
    call_id: String,
    /// The other calls of the command.
    pub known: KnownCalls,
}

impl Default for CallingCommands {
    fn default() -> Self {
        Self(Cache::new(COMMANDS_REMEMBERED))
    }
}

impl CallingCommands {
    /// The command, if a call of this id is not known to be in its log. `None` if the command has to be read. `lease_epoch` is that of
    /// the runner that makes the call.
    pub fn get(
        &self,
        run_id: RunId,
        command_id: CommandId,
        lease_epoch: i64,
        call_id: &str,
    ) -> Option<Arc<CallingCommand>> {
        let found = self.0.get(&command_id)?;
        let is_same = found.run.run_id == run_id && found.run.lease_epoch == lease_epoch;
        let is_recorded = found.calls.lock().has(call_id);
        (is_same && !is_recorded).then_some(found)
    }

    /// Remembers a command that was just read. `None` if that is of no use: it is large or was not acknowledged, or it has calls whose
    /// ids are not known.
    pub fn remember(&self, run: Arc<Run>, command: Arc<Command>) -> Option<Arc<CallingCommand>> {
        let command_id = command.command_id;
        let calls = self.0.get(&command_id).map(|earlier| earlier.calls.clone()).unwrap_or_default();
        let tools = &command.fold.tools;
        let recorded = {
            let mut calls = calls.lock();
            tools.items.iter().for_each(|item| calls.add(item.tool_call_id.as_deref().unwrap_or_default()));
            calls.recorded.len() as i64
        };
        let is_useful = recorded >= tools.count
            && command.acked_at.is_some()
            && command.payload.as_str().len() <= PAYLOAD_BYTES_MAX;
        if !is_useful {
            self.0.remove(&command_id);
            return None;
        }
        let calling = Arc::new(CallingCommand { run, command, calls });
        self.0.insert(command_id, calling.clone());
        Some(calling)
    }

    /// Calls that a runner has recorded itself.
    pub fn recorded<'a>(&self, calls: impl IntoIterator<Item = &'a (CommandId, String)>) {
        for (command_id, call_id) in calls {
            if let Some(calling) = self.0.get(command_id) {
                calling.calls.lock().add(call_id);
            }
        }
    }

    pub fn forget_session(&self, session: SessionId) {
        self.0.retain(|_, calling| calling.run.session != session);
    }
}

impl CallIds {
    fn has(&self, call_id: &str) -> bool {
        self.recorded.contains(call_id) || self.pending.iter().any(|pending| pending == call_id)
    }

    fn add(&mut self, call_id: &str) {
        if self.recorded.len() < CALLS_MAX && !self.recorded.contains(call_id) {
            self.recorded.insert(call_id.to_owned());
        }
    }
}

impl CallingCommand {
    /// Notes that the start of a call is being recorded.
    pub fn begin(&self, call_id: &str) -> StartingCall {
        let mut calls = self.calls.lock();
        let pending = calls.pending.iter().filter(|pending| !calls.recorded.contains(*pending)).cloned().collect();
        let known = KnownCalls {
            recorded: calls.recorded.len() as i64,
            pending,
            unknown_outcomes: self.command.fold.tools.unknown_outcomes(),
        };
        calls.pending.push(call_id.to_owned());
        StartingCall { calls: self.calls.clone(), call_id: call_id.to_owned(), known }
    }
}

impl StartingCall {
    /// The start is in the log.
    pub fn recorded(self) {
        self.calls.lock().add(&self.call_id);
    }
}

impl Drop for StartingCall {
    fn drop(&mut self) {
        let mut calls = self.calls.lock();
        if let Some(at) = calls.pending.iter().position(|pending| *pending == self.call_id) {
            calls.pending.swap_remove(at);
        }
    }
}
