//! Aliases: ids that clients choose for the commands they submit, unique in their session. A dialect whose clients name
//! their own requests finds the command, and the request that is repeated, by them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    Failure, Rule, Timestamp,
    ids::{CommandId, SessionId},
};

#[derive(Clone, Debug, PartialEq)]
pub struct CommandAlias {
    pub session: SessionId,
    /// Chosen by the client, unique in its session.
    pub alias: String,
    pub command_id: CommandId,
    /// Digest of the request: the same request again gets the same reply, another one is rejected.
    pub request_hash: String,
    /// The session's sequence number after which the events of this submission come.
    pub after_seq: i64,
    /// The alias of the submission that this one follows from, by the client's own account.
    pub parent: Option<String>,
    pub created_at: Timestamp,
}

impl CommandAlias {
    /// Rejects another request under the same alias.
    pub fn check_same(&self, request_hash: &str) -> Result<(), Failure> {
        if self.request_hash == request_hash {
            return Ok(());
        }
        let message = "this id was used in the session before, with another body";
        Err(Failure::rule(Rule::PayloadHash, message))
    }
}

/// What happens to a turn that is submitted while the session works on an earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnBusy {
    /// The new turn is rejected.
    #[default]
    Reject,
    /// The new turn is queued.
    Enqueue,
    /// The earlier turn is cancelled.
    Interrupt,
    /// The earlier turn is cancelled and withdrawn: history and context leave it out.
    Rollback,
}
