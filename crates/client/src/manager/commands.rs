//! Commands: submitted by callers; polled, acknowledged and reported by runners.

use ostler_protocol::{
    Failure,
    kernel::{
        commands::{AckCommand, Command, CommandPage, CreateCommand, PatchStatus, PollCommands},
        results::RunResult,
        runs::Cancel,
        whole_payloads::CommandPayload,
        workspaces::CommandDiff,
    },
};

use crate::{client::Client, path::Path};

impl Client {
    /// The changes that a command made in its workspace.
    pub async fn command_diff(&self, run_id: &str, command_id: &str) -> Result<CommandDiff, Failure> {
        self.get(Path::api(&["runs", run_id, "commands", command_id, "diff"])).await
    }

    pub async fn create_command(&self, run_id: &str, command: &CreateCommand) -> Result<Command, Failure> {
        self.post(Path::api(&["runs", run_id, "commands"]), command).await
    }

    pub async fn get_command(&self, run_id: &str, command_id: &str) -> Result<Command, Failure> {
        self.get(Path::api(&["runs", run_id, "commands", command_id])).await
    }

    pub async fn command_result(&self, run_id: &str, command_id: &str) -> Result<RunResult, Failure> {
        self.get(Path::api(&["runs", run_id, "commands", command_id, "result"])).await
    }

    /// Idempotent in every state.
    pub async fn cancel_command(&self, command_id: &str, cancel: &Cancel) -> Result<Command, Failure> {
        self.post(Path::api(&["commands", command_id, "cancel"]), cancel).await
    }

    /// The news for a runner. With `waitMs`, waits until there is some.
    pub async fn poll_commands(&self, run_id: &str, query: &PollCommands) -> Result<CommandPage, Failure> {
        self.get(Path::api(&["runs", run_id, "commands"]).query(query)?).await
    }

    /// The whole payload of a command whose own is a short form.
    pub async fn command_payload(&self, run_id: &str, command_id: &str) -> Result<CommandPayload, Failure> {
        self.get(Path::api(&["runs", run_id, "commands", command_id, "payload"])).await
    }

    pub async fn ack_command(&self, command_id: &str, ack: &AckCommand) -> Result<Command, Failure> {
        self.post(Path::api(&["commands", command_id, "ack"]), ack).await
    }

    pub async fn patch_command_status(&self, command_id: &str, status: &PatchStatus) -> Result<Command, Failure> {
        self.patch(Path::api(&["commands", command_id, "status"]), status).await
    }
}
