//! Votes on permission requests: whose answer counts, and how many equal answers decide. The rule is the same for every
//! dialect. Who may vote is captured when a request is issued, so a change of the configuration affects later requests only.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{OptionKind, PermissionOption};

/// Whose answer to a permission request counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PermissionStrategy {
    /// The first valid answer decides.
    #[default]
    FirstResponder,
    /// The caller that submitted the command decides.
    Designated,
    /// As many equal votes of the session's participants as the quorum decide.
    Consensus,
    /// Callers on the server's own machine decide.
    LocalOnly,
}

enum_words!(PermissionStrategy {
    FirstResponder => "first-responder",
    Designated => "designated",
    Consensus => "consensus",
    LocalOnly => "local-only",
});

impl PermissionStrategy {
    pub fn is_first_responder(&self) -> bool {
        *self == Self::FirstResponder
    }
}

/// The configured strategy and quorum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VotingRules {
    pub strategy: PermissionStrategy,
    /// Equal votes that decide under [`PermissionStrategy::Consensus`]. `None`: more than half of the voters.
    pub quorum: Option<i64>,
}

impl VotingRules {
    /// The strategy for the requests of a run. A run has a choice only where the configured strategy is the widest one.
    pub fn strategy_of(&self, requested: Option<PermissionStrategy>) -> PermissionStrategy {
        if self.strategy.is_first_responder() { requested.unwrap_or_default() } else { self.strategy }
    }
}

/// The caller that votes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Voter {
    /// The name of its principal.
    pub principal: String,
    /// The client of that principal, where the dialect knows one.
    pub client: Option<String>,
    /// It called from the server's own machine.
    pub is_local: bool,
}

impl Voter {
    /// The name that its vote is recorded under.
    pub fn identity(&self) -> &str {
        self.client.as_deref().unwrap_or(&self.principal)
    }
}

/// What a voter chooses.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice {
    /// Abandons the request.
    Cancel,
    /// The option with this id.
    Option(String),
    /// The narrowest option that allows, or rejects.
    Allow(bool),
    /// The client's answer could not be read. It is rejected together with options that do not exist.
    Unreadable,
}

impl Choice {
    /// The option of the request that it selects.
    pub fn select<'a>(&self, options: &'a [PermissionOption]) -> Option<&'a PermissionOption> {
        match self {
            Self::Cancel | Self::Unreadable => None,
            Self::Option(id) => options.iter().find(|option| option.option_id == *id),
            Self::Allow(allows) => {
                let mut matching = options.iter().filter(|option| option.kind.allows() == *allows);
                let first = matching.clone().next();
                let once = |kind| matches!(kind, OptionKind::AllowOnce | OptionKind::RejectOnce);
                matching.find(|option| once(option.kind)).or(first)
            }
        }
    }
}

/// A caller that may vote. Both fields must match, if they are present.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EligibleVoter {
    /// The client, or the principal of a caller without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
}

impl EligibleVoter {
    fn is(&self, voter: &Voter) -> bool {
        self.client.as_deref().is_none_or(|client| client == voter.identity())
            && self.principal.as_deref().is_none_or(|principal| principal == voter.principal)
    }
}

/// A vote that was counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Vote {
    /// The client that voted, or the principal of a caller without one.
    pub voter: String,
    pub option_id: String,
    /// The session's sequence number of the event that records it.
    pub seq: i64,
}

/// Why a vote was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VoteRefusal {
    /// Another caller submitted the command.
    DesignatedMismatch,
    /// The voter was no participant of the session when the request was issued.
    NotAVoter,
    /// The vote came from another machine.
    RemoteNotAllowed,
}

impl VoteRefusal {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DesignatedMismatch => "designated_mismatch",
            Self::NotAVoter => "not_a_voter",
            Self::RemoteNotAllowed => "remote_not_allowed",
        }
    }

    pub fn message(self) -> &'static str {
        match self {
            Self::DesignatedMismatch => "only the caller that submitted the command may answer this request",
            Self::NotAVoter => "only participants of the session at the time of the request may answer it",
            Self::RemoteNotAllowed => "only callers on the server's own machine may answer this request",
        }
    }
}

/// How one permission request is decided, and the votes so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Ballot {
    /// Whose answer counts. Absent: the first valid one.
    #[serde(skip_serializing_if = "PermissionStrategy::is_first_responder")]
    #[schema(required = false)]
    pub strategy: PermissionStrategy,
    #[serde(skip)]
    pub voters: Vec<EligibleVoter>,
    /// Equal votes that decide.
    #[serde(skip)]
    pub quorum: Option<i64>,
    /// Votes that were counted, where several are needed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub votes: Vec<Vote>,
    /// Rejected votes that were recorded.
    #[serde(skip)]
    pub refusals: i64,
}

impl Ballot {
    /// The ballot of a new request. Without anyone who could vote, the first valid answer decides.
    pub fn issue(
        strategy: PermissionStrategy,
        quorum: Option<i64>,
        originator: EligibleVoter,
        participants: &[String],
    ) -> Self {
        let (voters, quorum) = match strategy {
            PermissionStrategy::FirstResponder => return Self::default(),
            PermissionStrategy::LocalOnly => (vec![], None),
            PermissionStrategy::Designated if originator == EligibleVoter::default() => return Self::default(),
            PermissionStrategy::Designated => (vec![originator], None),
            PermissionStrategy::Consensus if participants.is_empty() => return Self::default(),
            PermissionStrategy::Consensus => {
                let voter = |client: &String| EligibleVoter { client: Some(client.clone()), principal: None };
                let majority = participants.len() as i64 / 2 + 1;
                (participants.iter().map(voter).collect(), Some(quorum.unwrap_or(majority)))
            }
        };
        Self { strategy, voters, quorum, ..Self::default() }
    }

    /// Checks whether the voter may vote.
    pub fn check(&self, voter: &Voter) -> Result<(), VoteRefusal> {
        let is_eligible = || self.voters.iter().any(|eligible| eligible.is(voter));
        match self.strategy {
            PermissionStrategy::Designated if !is_eligible() => Err(VoteRefusal::DesignatedMismatch),
            PermissionStrategy::Consensus if !is_eligible() => Err(VoteRefusal::NotAVoter),
            PermissionStrategy::LocalOnly if !voter.is_local => Err(VoteRefusal::RemoteNotAllowed),
            _ => Ok(()),
        }
    }

    /// The vote of this voter, if it was counted already.
    pub fn vote_of(&self, voter: &Voter) -> Option<&Vote> {
        self.votes.iter().find(|vote| vote.voter == voter.identity())
    }

    /// Votes for each option.
    pub fn tallies(&self) -> BTreeMap<&str, i64> {
        let mut tallies = BTreeMap::new();
        self.votes.iter().for_each(|vote| *tallies.entry(vote.option_id.as_str()).or_default() += 1);
        tallies
    }

    /// Whether one more vote for this option decides.
    pub fn decides(&self, option_id: &str) -> bool {
        let votes = self.tallies().get(option_id).copied().unwrap_or(0);
        self.quorum.is_none_or(|quorum| votes + 1 >= quorum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voter(principal: &str, client: Option<&str>) -> Voter {
        Voter { principal: principal.into(), client: client.map(str::to_owned), is_local: false }
    }

    #[test]
    fn a_strategy_without_voters_is_that_of_the_first_responder() {
        let unknown = EligibleVoter::default();
        for strategy in [PermissionStrategy::Designated, PermissionStrategy::Consensus] {
            assert_eq!(Ballot::issue(strategy, Some(3), unknown.clone(), &[]), Ballot::default());
        }
    }

    #[test]
    fn the_quorum_is_configured_or_more_than_half() {
        let quorum = |configured, participants: usize| {
            let participants: Vec<_> = (0..participants).map(|n| n.to_string()).collect();
            let ballot =
                Ballot::issue(PermissionStrategy::Consensus, configured, EligibleVoter::default(), &participants);
            ballot.quorum.unwrap()
        };
        assert_eq!([1, 2, 3, 4, 5].map(|participants| quorum(None, participants)), [1, 2, 2, 3, 3]);
        assert_eq!(quorum(Some(5), 3), 5, "a configured quorum is never lowered");
    }

    #[test]
    fn a_client_of_another_principal_is_not_the_originator() {
        let originator = EligibleVoter { client: Some("editor".into()), principal: Some("ada".into()) };
        let ballot = Ballot::issue(PermissionStrategy::Designated, None, originator, &[]);
        assert_eq!(ballot.check(&voter("ada", Some("editor"))), Ok(()));
        for other in [voter("eve", Some("editor")), voter("ada", Some("phone")), voter("ada", None)] {
            assert_eq!(ballot.check(&other), Err(VoteRefusal::DesignatedMismatch), "{other:?}");
        }
    }

    #[test]
    fn a_run_chooses_only_where_the_first_responder_is_configured() {
        let configured = |strategy| VotingRules { strategy, quorum: None };
        let (first, local) = (PermissionStrategy::FirstResponder, PermissionStrategy::LocalOnly);
        assert_eq!(configured(first).strategy_of(Some(local)), local);
        assert_eq!(configured(first).strategy_of(None), first);
        assert_eq!(configured(local).strategy_of(Some(first)), local);
    }

    #[test]
    fn names_are_those_on_the_wire() {
        for name in ["first-responder", "designated", "consensus", "local-only"] {
            let strategy = PermissionStrategy::parse(name).unwrap();
            assert_eq!((strategy.as_str(), serde_json::to_value(strategy).unwrap()), (name, name.into()));
        }
    }
}
