//! The strategies, votes and rejected votes of permission requests, as the server's own events record them.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{
    RawJson,
    ids::{PermissionId, RunId},
    kernel::{
        events::Event,
        operations::permission::{ACTION_FORBIDDEN, ACTION_STRATEGY, ACTION_VOTED},
        permissions::{Ballot, EligibleVoter, PermissionRequest, PermissionStrategy, Vote},
    },
};

/// Only the server writes events of the types that have these fields.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct VoteFields {
    action: Option<String>,
    permission_id: Option<PermissionId>,
    strategy: PermissionStrategy,
    voters: Vec<EligibleVoter>,
    quorum: Option<i64>,
    voter: Option<String>,
    option_id: Option<String>,
}

/// Takes an `audit` event, or one that resolves a request: that one records the vote that decided.
pub(super) fn apply(
    permissions: &mut BTreeMap<(RunId, PermissionId), PermissionRequest>,
    run_id: RunId,
    event: &Event,
    payload: &RawJson,
) {
    let fields = payload.view::<VoteFields>().unwrap_or_default();
    let Some(permission_id) = fields.permission_id else { return };
    let Some(request) = permissions.get_mut(&(run_id, permission_id)) else { return };
    let ballot = &mut request.ballot;
    match fields.action.as_deref() {
        Some(ACTION_STRATEGY) => {
            let VoteFields { strategy, voters, quorum, .. } = fields;
            *ballot = Ballot { strategy, voters, quorum, ..Ballot::default() };
        }
        Some(ACTION_FORBIDDEN) => ballot.refusals += 1,
        Some(ACTION_VOTED) | None if ballot.strategy == PermissionStrategy::Consensus => {
            if let (Some(voter), Some(option_id)) = (fields.voter, fields.option_id) {
                ballot.votes.push(Vote { voter, option_id, seq: event.session_seq });
            }
        }
        _ => {}
    }
}
