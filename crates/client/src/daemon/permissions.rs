//! Votes on permission requests.

use http::Method;
use ostler_protocol::{
    Failure,
    daemon::votes::{CastVote, VoteOutcome},
};

use crate::daemon::SessionClient;

impl SessionClient {
    /// Votes on a permission request: for one of its options, or for none, which cancels it. Whether one vote decides depends
    /// on the strategy of the server.
    pub async fn vote(&self, request_id: &str, option_id: Option<&str>) -> Result<(), Failure> {
        let path = self.path(&["permission", request_id]);
        self.call(Method::POST, path, Some(&vote(option_id))).await.map(drop)
    }
}

fn vote(option_id: Option<&str>) -> CastVote {
    let outcome = if option_id.is_some() { "selected" } else { "cancelled" };
    CastVote { outcome: Some(VoteOutcome { outcome: outcome.into(), option_id: option_id.map(str::to_owned) }) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_vote_names_an_option_or_none() {
        let body = |option| serde_json::to_value(vote(option)).unwrap();
        assert_eq!(body(Some("allow")), json!({"outcome": {"outcome": "selected", "optionId": "allow"}}));
        assert_eq!(body(None), json!({"outcome": {"outcome": "cancelled"}}));
    }
}
