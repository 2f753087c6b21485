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
    /// The choice among the request's options.
    pub fn choice(&self, options: &[PermissionOption]) -> Result<Choice, Failure> {
        let invalid = || {
            let message =
                "outcome must be {\"outcome\": \"selected\", \"optionId\": …} or {\"outcome\": \"cancelled\"}";
            Failure::invalid(Rule::InvalidOutcome, message)
        };
        let outcome = self.outcome.as_ref().ok_or_else(invalid)?;
        match (outcome.outcome.as_str(), outcome.option_id.as_deref()) {
            ("cancelled", None) => Ok(Choice::Cancel),
            ("selected", Some(id)) if options.iter().any(|option| option.option_id == id) => {
                Ok(Choice::Option(id.to_owned()))
            }
            ("selected", _) => {
                let ids: Vec<&str> = options.iter().map(|option| option.option_id.as_str()).collect();
                let message = "the permission request has no such option";
                Err(Failure::invalid(Rule::InvalidOptionId, message).detail("allowed", ids))
            }
            _ => Err(invalid()),
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
