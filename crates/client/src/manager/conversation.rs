//! Conversations: the messages before a command.

use ostler_protocol::{Failure, kernel::conversation::Conversation};

use crate::{client::Client, path::Path};

impl Client {
    pub async fn conversation(&self, run_id: &str, command_id: &str) -> Result<Conversation, Failure> {
        self.get(Path::api(&["runs", run_id, "commands", command_id, "conversation"])).await
    }
}
