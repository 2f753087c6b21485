//! Votes on permission requests, as clients of the daemon send them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    Failure, Rule,
    kernel::permissions::{Choice, PermissionOption},
};

/// `POST /session/{sessionId}/permission/{requestId}` and `POST /permission/{requestId}`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CastVote {
    pub outcome: Option<VoteOutcome>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct VoteOutcome {
    /// `selected` or `cancelled`.
    pub outcome: String,
    /// The option, if one was selected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub option_id: Option<String>,
}

/// The vote was counted.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct VoteAccepted {}

impl CastVote {
    /// What the vote is for, whichever the request is. Fails if it is neither a selection nor a cancel.
    pub fn outcome(&self) -> Result<&VoteOutcome, Failure> {
        let is_known = |outcome: &&VoteOutcome| match outcome.outcome.as_str() {
            "cancelled" => outcome.option_id.is_none(),
            name => name == "selected",
        };
        self.outcome.as_ref().filter(is_known).ok_or_else(|| {
            let message =
                "outcome must be {\"outcome\": \"selected\", \"optionId\": …} or {\"outcome\": \"cancelled\"}";
            Failure::invalid(Rule::InvalidOutcome, message)
        })
    }

    /// The choice among the request's options.
    pub fn choice(&self, options: &[PermissionOption]) -> Result<Choice, Failure> {
        let outcome = self.outcome()?;
        if outcome.outcome == "cancelled" {
            return Ok(Choice::Cancel);
        }
        match outcome.option_id.as_deref() {
            Some(id) if options.iter().any(|option| option.option_id == id) => Ok(Choice::Option(id.to_owned())),
            selected => {
                let ids: Vec<&str> = options.iter().map(|option| option.option_id.as_str()).collect();
                let message = "the permission request has no such option";
                let failure = Failure::invalid(Rule::InvalidOptionId, message).detail("allowed", ids);
                Err(failure.detail("optionId", selected.unwrap_or_default()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kernel::permissions::OptionKind;

    #[test]
    fn a_vote_selects_an_option_of_the_request_or_cancels_it() {
        let options = [PermissionOption { option_id: "yes".into(), name: "Yes".into(), kind: OptionKind::AllowOnce }];
        let choice = |body: serde_json::Value| {
            let vote: CastVote = serde_json::from_value(body).unwrap();
            vote.choice(&options).map_err(|failure| failure.broken_rule())
        };
        let selected = |id: &str| json!({"outcome": {"outcome": "selected", "optionId": id}});
        assert_eq!(choice(selected("yes")), Ok(Choice::Option("yes".into())));
        assert_eq!(choice(json!({"outcome": {"outcome": "cancelled"}})), Ok(Choice::Cancel));
        for unknown in ["no", "", "__cancelled__"] {
            assert_eq!(choice(selected(unknown)), Err(Some(Rule::InvalidOptionId)), "{unknown}");
        }
        assert_eq!(choice(json!({"outcome": {"outcome": "selected"}})), Err(Some(Rule::InvalidOptionId)));
        assert_eq!(choice(json!({"outcome": {"outcome": "maybe"}})), Err(Some(Rule::InvalidOutcome)));
        assert_eq!(choice(json!({})), Err(Some(Rule::InvalidOutcome)));
    }
}
