//! Votes on permission requests: who may vote, how many equal votes decide, and what the log records of it.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::{
    kernel::permissions::{PermissionRequest, PermissionStatus, PermissionStrategy},
    limits::PERMISSION_REFUSALS_MAX,
};

struct VoteScene {
    scene: Scene,
    run: RunId,
    turn: CommandId,
    permission: PermissionId,
}

/// A run whose agent has asked, in a session with these participants. Client `editor` of `me` has submitted the command.
fn with_request(voting: VotingRules, participants: &[&str]) -> VoteScene {
    asked_by(voting, participants, Some("editor"), Some("me"))
}

fn asked_by(voting: VotingRules, participants: &[&str], origin: Option<&str>, principal: Option<&str>) -> VoteScene {
    let mut scene = Scene::new();
    let run = scene.run();
    for participant in participants {
        join(&mut scene, participant).unwrap();
    }
    let Op::CreateCommand(mut op) = scene.new_command(run, CommandType::Turn, None) else { panic!("a command") };
    op.command.origin = origin.map(str::to_owned);
    op.command.submitted_by = principal.map(str::to_owned);
    let turn = op.command.command_id;
    scene.apply(run, Op::CreateCommand(op)).unwrap();
    scene.claim(run, "runner");
    let permission = PermissionId::new(scene.body());
    let asked = ask(&mut scene, run, voting, asks(turn, permission));
    asked.unwrap();
    VoteScene { scene, run, turn, permission }
}

fn ask(scene: &mut Scene, run: RunId, voting: VotingRules, event: NewEvent) -> Result<Reply, Failure> {
    let Op::Append(op) = Scene::append_op("runner", 1, None, vec![event]) else { panic!("an append") };
    scene.apply(run, Op::Append(AppendOp { voting, ..op }))
}

fn change(scene: &mut Scene, change: SessionChange) -> Result<Reply, Failure> {
    let (session, now) = (scene.desk.session.session, scene.now);
    let op = Op::ChangeSession(ChangeSessionOp { change, by: "me".into() });
    apply(&mut scene.desk, Request { session, run_id: None, op }, now)
}

fn join(scene: &mut Scene, participant: &str) -> Result<Reply, Failure> {
    change(scene, SessionChange::Join { participant: participant.to_owned() })
}

fn rules(strategy: PermissionStrategy) -> VotingRules {
    VotingRules { strategy, quorum: None }
}

impl VoteScene {
    fn choose(&mut self, choice: Choice, voter: Voter) -> Result<PermissionRequest, Failure> {
        let op = AnswerPermissionOp { permission_id: self.permission, choice, digest: None, voter };
        match self.scene.apply(self.run, Op::AnswerPermission(Box::new(op)))? {
            Reply::Permission(request) => Ok(*request),
            other => panic!("a vote was answered with {other:?}"),
        }
    }

    fn vote(&mut self, client: &str, option: &str) -> Result<PermissionRequest, Failure> {
        self.choose(Choice::Option(option.into()), voter(Some(client)))
    }

    /// The reason for which a vote is rejected.
    fn forbidden(&mut self, voter: Voter) -> String {
        let failure = self.choose(Choice::Option("yes".into()), voter).expect_err("the vote is rejected");
        assert_eq!((failure.rule_name(), failure.kind), (Some("permission-forbidden"), FailureKind::Forbidden));
        failure.details.unwrap()["reason"].as_str().unwrap().to_owned()
    }

    fn request(&self) -> &PermissionRequest {
        &self.scene.rows(self.run).permissions[&self.permission]
    }

    /// The events of this action.
    fn audits(&self, action: &str) -> Vec<Value> {
        self.scene.facts(EventType::Audit).into_iter().filter(|fact| fact["action"] == action).collect()
    }

    /// Where the rows differ from what the events determine.
    fn differences(&self) -> Vec<String> {
        let mut replay = Replay::default();
        self.scene.desk.events.iter().for_each(|event| replay.apply(event));
        let rows = self.scene.rows(self.run);
        let permissions: Vec<_> = rows.permissions.values().map(|request| (**request).clone()).collect();
        replay.differences_of_derived_rows(&DerivedRows {
            session: &self.scene.desk.session,
            runs: &[(*rows.run).clone()],
            commands: &[],
            permissions: &permissions,
            jobs: &[],
            reply_seqs: &[],
        })
    }
}

#[test]
fn the_first_responder_decides_and_nothing_more_is_recorded() {
    let mut asked = with_request(rules(PermissionStrategy::FirstResponder), &["a", "b"]);
    assert_eq!(asked.audits(ACTION_STRATEGY), Vec::<Value>::new());
    let request = asked.vote("stranger", "yes").unwrap();
    assert_eq!((request.status, request.ballot.votes.len()), (PermissionStatus::Allowed, 0));
    let fact = asked.scene.facts(EventType::PermissionResolved).pop().unwrap();
    assert_eq!((&fact["resolvedBy"], &fact["voter"]), (&json!("me"), &json!("stranger")));
    assert_eq!(asked.differences(), Vec::<String>::new());
}

#[test]
fn the_client_that_submitted_the_command_decides() {
    let mut asked = with_request(rules(PermissionStrategy::Designated), &["editor", "phone"]);
    assert_eq!(asked.forbidden(voter(Some("phone"))), "designated_mismatch");
    assert_eq!(asked.forbidden(voter(None)), "designated_mismatch");
    assert_eq!(asked.forbidden(Voter { principal: "eve".into(), ..voter(Some("editor")) }), "designated_mismatch");
    let forbidden = &asked.audits(ACTION_FORBIDDEN)[0];
    let expected = json!({"action": ACTION_FORBIDDEN, "permissionId": asked.permission, "voter": "phone",
        "reason": "designated_mismatch"});
    assert_eq!(*forbidden, expected);
    assert_eq!(asked.vote("editor", "no").unwrap().status, PermissionStatus::Denied);
    assert_eq!(asked.differences(), Vec::<String>::new());
}

#[test]
fn the_principal_that_submitted_a_command_without_a_client_decides() {
    let mut asked = asked_by(rules(PermissionStrategy::Designated), &[], None, Some("me"));
    assert_eq!(asked.forbidden(Voter { principal: "eve".into(), ..voter(None) }), "designated_mismatch");
    assert_eq!(asked.vote("any client of the same principal", "yes").unwrap().status, PermissionStatus::Allowed);
}

#[test]
fn a_command_without_an_originator_is_decided_by_the_first_responder() {
    let mut asked = asked_by(rules(PermissionStrategy::Designated), &["a"], None, None);
    assert_eq!(asked.request().ballot.strategy, PermissionStrategy::FirstResponder);
    assert_eq!(asked.vote("stranger", "yes").unwrap().status, PermissionStatus::Allowed);
}

#[test]
fn callers_of_the_same_machine_decide() {
    let mut asked = with_request(rules(PermissionStrategy::LocalOnly), &[]);
    assert_eq!(asked.forbidden(voter(Some("editor"))), "remote_not_allowed");
    let local = Voter { is_local: true, ..voter(None) };
    assert_eq!(asked.choose(Choice::Allow(true), local).unwrap().status, PermissionStatus::Allowed);
}

#[test]
fn more_than_half_of_the_participants_decide() {
    let mut asked = with_request(rules(PermissionStrategy::Consensus), &["a", "b", "c"]);
    let issued = &asked.audits(ACTION_STRATEGY)[0];
    assert_eq!((&issued["strategy"], &issued["quorum"]), (&json!("consensus"), &json!(2)));
    assert_eq!(asked.vote("a", "yes").unwrap().status, PermissionStatus::Pending);
    let voted = json!({"action": ACTION_VOTED, "permissionId": asked.permission, "optionId": "yes", "voter": "a",
        "votesReceived": 1, "votesNeeded": 2, "quorum": 2, "optionTallies": {"yes": 1}});
    assert_eq!(asked.audits(ACTION_VOTED), [voted]);
    assert_eq!(asked.forbidden(voter(Some("d"))), "not_a_voter");
    assert_eq!(asked.vote("b", "no").unwrap().status, PermissionStatus::Pending);
    let events = asked.scene.desk.events.len();
    let again = asked.vote("b", "no").unwrap();
    assert_eq!((again.status, asked.scene.desk.events.len()), (PermissionStatus::Pending, events), "one vote each");
    assert_eq!(asked.vote("b", "yes").unwrap_err().broken_rule(), Some(crate::Rule::PermissionVoted));
    assert_eq!(asked.scene.desk.events.len(), events, "a vote cannot be changed");
    let decided = asked.vote("c", "yes").unwrap();
    assert_eq!((decided.status, decided.option_id.as_deref()), (PermissionStatus::Allowed, Some("yes")));
    assert_eq!((decided.ballot.votes.len(), asked.scene.rows(asked.run).run.open_permissions), (3, 0));
    assert_eq!(asked.differences(), Vec::<String>::new());
}

#[test]
fn votes_that_cannot_decide_any_more_leave_the_request_open_until_its_deadline() {
    let mut asked = with_request(rules(PermissionStrategy::Consensus), &["a", "b"]);
    asked.vote("a", "yes").unwrap();
    assert_eq!(asked.vote("b", "no").unwrap().status, PermissionStatus::Pending);
    asked.scene.advance_ms(5_000);
    asked.scene.sweep(asked.run);
    assert_eq!(asked.request().status, PermissionStatus::Cancelled);
    assert_eq!(asked.differences(), Vec::<String>::new());
}

#[test]
fn clients_that_join_or_leave_later_do_not_change_the_voters() {
    let mut asked = with_request(rules(PermissionStrategy::Consensus), &["a", "b"]);
    join(&mut asked.scene, "late").unwrap();
    change(&mut asked.scene, SessionChange::Leave { participant: "b".into() }).unwrap();
    assert_eq!(asked.forbidden(voter(Some("late"))), "not_a_voter");
    asked.vote("b", "yes").unwrap();
    assert_eq!(asked.vote("a", "yes").unwrap().status, PermissionStatus::Allowed);
}

#[test]
fn anyone_who_controls_the_session_may_cancel_a_request() {
    use PermissionStrategy::*;
    for strategy in [FirstResponder, Designated, Consensus, LocalOnly] {
        let mut asked = with_request(rules(strategy), &["a", "b"]);
        let cancelled = asked.choose(Choice::Cancel, voter(Some("stranger"))).unwrap();
        assert_eq!((cancelled.status, cancelled.ballot.votes.len()), (PermissionStatus::Cancelled, 0));
        assert_eq!(asked.choose(Choice::Cancel, voter(None)).unwrap(), cancelled, "the same answer again is fine");
        assert_eq!(asked.differences(), Vec::<String>::new());
        let mut other = self::with_request(rules(strategy), &["a", "b"]);
        let turn = other.turn;
        other.scene.cancel(other.run, turn);
        assert_eq!(other.request().status, PermissionStatus::Cancelled);
    }
}

#[test]
fn rejected_votes_do_not_fill_the_log() {
    let mut asked = with_request(rules(PermissionStrategy::LocalOnly), &[]);
    for _ in 0..PERMISSION_REFUSALS_MAX + 5 {
        asked.forbidden(voter(None));
    }
    assert_eq!(asked.audits(ACTION_FORBIDDEN).len() as i64, PERMISSION_REFUSALS_MAX);
    assert_eq!(asked.differences(), Vec::<String>::new());
}

#[test]
fn a_run_chooses_its_strategy_only_where_the_first_responder_is_configured() {
    use PermissionStrategy::{Designated, FirstResponder, LocalOnly};
    for (configured, expected) in [(FirstResponder, Designated), (LocalOnly, LocalOnly)] {
        let mut asked = with_request(rules(configured), &[]);
        asked.scene.desk.run_mut(asked.run).run.execution_policy.permission_strategy = Some(Designated);
        let second = PermissionId::new(asked.scene.body());
        ask(&mut asked.scene, asked.run, rules(configured), asks(asked.turn, second)).unwrap();
        assert_eq!(asked.scene.rows(asked.run).permissions[&second].ballot.strategy, expected);
    }
}

#[test]
fn a_changed_vote_is_found() {
    let mut asked = with_request(rules(PermissionStrategy::Consensus), &["a", "b", "c"]);
    asked.vote("a", "no").unwrap();
    assert_eq!(asked.differences(), Vec::<String>::new());
    let found = |change: fn(&mut PermissionRequest)| {
        let mut changed = VoteScene { scene: asked.scene.clone(), ..asked };
        change(changed.scene.desk.run_mut(asked.run).permissions.get_mut(&asked.permission).unwrap());
        changed.differences().join("; ")
    };
    assert!(found(|request| request.ballot.votes[0].option_id = "yes".into()).contains("votes differs"));
    assert!(found(|request| request.ballot.votes.clear()).contains("votes differs"));
    assert!(found(|request| drop(request.ballot.voters.pop())).contains("voters differs"));
    assert!(found(|request| request.ballot.quorum = Some(1)).contains("quorum differs"));
    assert!(found(|request| request.ballot.strategy = PermissionStrategy::LocalOnly).contains("strategy differs"));
    assert!(found(|request| request.ballot.refusals = 9).contains("refusals differs"));
}

#[test]
fn a_client_joins_once_and_a_session_has_a_bound() {
    let mut scene = Scene::new();
    scene.run();
    join(&mut scene, "a").unwrap();
    let events = scene.desk.events.len();
    join(&mut scene, "a").unwrap();
    change(&mut scene, SessionChange::Leave { participant: "b".into() }).unwrap();
    assert_eq!(scene.desk.events.len(), events);
    assert_eq!(join(&mut scene, " ").unwrap_err().rule_name(), Some("name-shape"));
    for n in 1..crate::limits::SESSION_PARTICIPANTS_MAX {
        join(&mut scene, &n.to_string()).unwrap();
    }
    assert_eq!(join(&mut scene, "one more").unwrap_err().rule_name(), Some("session-participants"));
    change(&mut scene, SessionChange::Leave { participant: "a".into() }).unwrap();
    join(&mut scene, "one more").unwrap();
    let left = scene.facts(EventType::Session).into_iter().find(|fact| fact["change"] == "left").unwrap();
    assert_eq!(left, json!({"change": "left", "participant": "a", "by": "me"}));
}

#[test]
fn the_last_participant_that_is_absent_stays_the_voter_under_consensus() {
    let mut asked = with_request(rules(PermissionStrategy::Consensus), &["a", "b"]);
    for participant in ["a", "b"] {
        change(&mut asked.scene, SessionChange::LeaveUnlessLast { participant: participant.into() }).unwrap();
    }
    assert_eq!(asked.scene.desk.session.participants, ["b"]);
    let second = PermissionId::new(asked.scene.body());
    let event = asks(asked.turn, second);
    ask(&mut asked.scene, asked.run, rules(PermissionStrategy::Consensus), event).unwrap();
    let ballot = &asked.scene.rows(asked.run).permissions[&second].ballot;
    assert_eq!((ballot.strategy, ballot.voters.len(), ballot.quorum), (PermissionStrategy::Consensus, 1, Some(1)));
    assert!(ballot.check(&voter(Some("stranger"))).is_err());
    assert_eq!(ballot.check(&voter(Some("b"))), Ok(()));
    assert_eq!(asked.differences(), Vec::<String>::new());
}

#[test]
fn answers_of_a_thread_are_votes_like_any_other() {
    let mut asked = with_request(rules(PermissionStrategy::Consensus), &["me", "phone"]);
    let resume = |asked: &mut VoteScene, alias: &str, choice: Choice| {
        let (session, now, run) = (asked.scene.desk.session.session, asked.scene.now, asked.run);
        let answers = vec![PermissionAnswer { permission_id: asked.permission, choice, edited: None }];
        let work = Submission::Answers { answers, voter: voter(None) };
        let op = SubmitOp { alias: alias.into(), parent: None, request_hash: alias.into(), work, by: "me".into() };
        let op = Op::Submit(Box::new(op));
        match apply(&mut asked.scene.desk, Request { session, run_id: Some(run), op }, now) {
            Ok(Reply::Submitted(submitted)) => submitted.alias.after_seq,
            other => panic!("answers were answered with {other:?}"),
        }
    };
    let before = asked.scene.desk.session.last_seq;
    assert_eq!(resume(&mut asked, "one", Choice::Allow(true)), before);
    assert_eq!(asked.request().status, PermissionStatus::Pending);
    assert_eq!(resume(&mut asked, "two", Choice::Allow(false)), before, "a second vote begins with the recorded one");
    asked.vote("phone", "yes").unwrap();
    assert_eq!(asked.request().status, PermissionStatus::Allowed);
    assert_eq!(asked.differences(), Vec::<String>::new());
}

proptest! {
    /// Whatever the order of votes, the request is resolved by the vote with which an option reaches the quorum, and the rows
    /// are what the events determine.
    #[test]
    fn the_quorum_decides_and_the_log_determines_the_rows(
        voters in 1_usize..6,
        quorum in prop::option::of(1_i64..7),
        votes in prop::collection::vec((0_usize..7, any::<bool>()), 0..20),
    ) {
        let names: Vec<String> = (0..voters).map(|n| format!("client-{n}")).collect();
        let participants: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut asked = with_request(VotingRules { strategy: PermissionStrategy::Consensus, quorum }, &participants);
        let needed = quorum.unwrap_or(voters as i64 / 2 + 1);
        let (mut counted, mut tallies, mut decided) = (BTreeMap::new(), [0, 0], None);
        for (n, allows) in votes {
            let outcome = asked.vote(&format!("client-{n}"), if allows { "yes" } else { "no" });
            if decided.is_none() && n < voters && !counted.contains_key(&n) {
                counted.insert(n, allows);
                tallies[usize::from(allows)] += 1;
                decided = (tallies[usize::from(allows)] >= needed).then_some(allows);
            } else if decided.is_none() {
                prop_assert_eq!(outcome.is_err(), counted.get(&n) != Some(&allows));
            }
            let expected = match decided {
                None => PermissionStatus::Pending,
                Some(true) => PermissionStatus::Allowed,
                Some(false) => PermissionStatus::Denied,
            };
            prop_assert_eq!(asked.request().status, expected);
            prop_assert_eq!(asked.request().ballot.votes.len(), counted.len());
        }
        prop_assert_eq!(asked.differences(), Vec::<String>::new());
    }
}
