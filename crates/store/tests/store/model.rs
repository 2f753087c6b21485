//! What the callers of a script know: the runs they made, the epochs they were given, the appends they sent, and what
//! they last read of the store. It turns a script's picks into requests.

use std::collections::{HashMap, HashSet};

use ostler_protocol::{
    Timestamp,
    ids::{CommandId, PermissionId, RunId, RunnerJobId, SessionId},
    json::canonical_hash,
    kernel::{
        commands::CommandType,
        events::{Appended, EventType, NewEvent},
        labels::LabelPatch,
        operations::{
            AckOp, AnswerPermissionOp, AppendOp, CancelCommandOp, CancelRunOp, ClaimOp, CreateRunOp, DismissOp,
            FinishJobOp, LabelRunOp, Op, PatchLeaseOp, Request, SessionChange, SweepOp,
        },
        permissions::{Choice, Voter, VotingRules},
        sessions::Session,
    },
};
use serde_json::{Value, json};

use crate::{
    build::{Mint, RunRef, change_session, create_run, create_session, event},
    rows::{Row, Rows},
    script::{Ask, Pick, Say, Who},
};

/// What became of an append, as far as its sender can tell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fate {
    /// There was no reply.
    Unknown,
    Refused,
    Appended(Appended),
}

#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub run: RunRef,
    pub op: AppendOp,
    /// Numbers in the payloads that are in no other.
    pub marks: Vec<u64>,
    pub asked: Vec<PermissionId>,
    pub fate: Fate,
}

/// A request on its way, with what its answer will be noted under.
pub(crate) enum Prepared {
    Submit(Box<Request>, Memo),
    ClaimJobs { owner: String, limit: u32 },
}

fn submission(request: Request, memo: Memo) -> Prepared {
    Prepared::Submit(Box::new(request), memo)
}

#[derive(Clone, Debug)]
pub(crate) enum Memo {
    Session { session: Box<Session> },
    Run { run: RunRef, session: Box<Session>, known_session: bool, key: Option<String>, start: bool },
    Command { run: RunRef },
    Job { run: RunRef },
    Claim { run: RunRef, runner: String, take_up: bool },
    Lease { run: RunRef, epoch: i64 },
    Append { sent: usize, retried: bool, kinds: Vec<&'static str> },
    Other(&'static str),
}

/// What was last read of the store, so that most requests are about something that can still happen.
#[derive(Default)]
pub(crate) struct Seen {
    open_runs: HashSet<RunId>,
    held_runs: HashSet<RunId>,
    unfinished: HashSet<CommandId>,
    asking: HashSet<(RunId, PermissionId)>,
}

impl Seen {
    pub(crate) fn of(rows: &Rows) -> Self {
        let unfinished = |row: &&Row| row.opt_text("terminal").is_none();
        Self {
            open_runs: rows.of("runs").iter().filter(unfinished).map(|row| row.id("run_id")).collect(),
            held_runs: rows.of("leases").iter().filter(|l| l.int("ended") == 0).map(|row| row.id("run_id")).collect(),
            unfinished: rows.of("commands").iter().filter(unfinished).map(|row| row.id("command_id")).collect(),
            asking: (rows.of("permissions").iter().filter(|row| row.text("status") == "pending"))
                .map(|row| (row.id("run_id"), row.id("permission_id")))
                .collect(),
        }
    }
}

#[derive(Default)]
pub(crate) struct Model {
    pub seen: Seen,
    pub mint: Mint,
    pub runs: Vec<RunRef>,
    pub sessions: HashMap<String, Session>,
    pub run_keys: HashMap<String, RunRef>,
    pub commands: Vec<(RunRef, CommandId)>,
    pub jobs: Vec<(RunRef, RunnerJobId)>,
    pub owners: HashMap<RunnerJobId, (String, Option<Timestamp>)>,
    pub permissions: Vec<(RunRef, PermissionId)>,
    /// Claims that were granted, oldest first.
    pub claims: HashMap<RunId, Vec<(String, i64)>>,
    /// Until when each epoch was promised.
    pub promised: HashMap<(RunId, i64), Timestamp>,
    pub sent: Vec<Sent>,
    marks: u64,
    batches: i64,
}

/// Counted back from the newest.
fn pick<T>(list: &[T], pick: Pick) -> Option<&T> {
    let back = usize::from(pick) % list.len().max(1);
    list.iter().rev().nth(back)
}

/// From this pick on, whatever there is; below it, only what can still happen, if anything can.
const ANYTHING: Pick = 4;

fn pick_likely<T>(list: &[T], number: Pick, likely: impl Fn(&T) -> bool) -> Option<&T> {
    let good: Vec<&T> = list.iter().filter(|item| likely(item)).collect();
    if number >= ANYTHING || good.is_empty() { pick(list, number) } else { pick(&good, number).copied() }
}

fn numbered_title(number: u8) -> Option<String> {
    (number > 0).then(|| format!("title {number}"))
}

fn runner(number: u8) -> String {
    format!("runner-{number}")
}

pub(crate) fn digest(id: PermissionId) -> String {
    canonical_hash(&json!(id))
}

impl Model {
    /// The current request of an ask. `None` if there is nothing yet that it could be about.
    pub(crate) fn prepare(&mut self, ask: &Ask, now: Timestamp) -> Option<Prepared> {
        let submit = |run: RunRef, op: Op, memo: Memo| Some(submission(run.request(op), memo));
        match ask {
            Ask::CreateRun { name, key, start, blindly } => self.create_run((*name, *key), *start, *blindly, now),
            Ask::CreateSession { name, key, title } => {
                let session = Session {
                    idempotency_key: key.map(|key| format!("session-{key}")),
                    request_hash: Some("hash".into()),
                    title: numbered_title(*title),
                    ..self.mint.session(Some(&format!("session-{name}")), now)
                };
                let memo = Memo::Session { session: Box::new(session.clone()) };
                Some(submission(create_session(session), memo))
            }
            Ask::Rename { session, title } => {
                let session = self.known_session(*session)?;
                let change = SessionChange::Rename { title: numbered_title(*title), origin: None };
                Some(submission(change_session(session, change), Memo::Other("rename session")))
            }
            Ask::Label { run, number } => {
                let run = self.open_run(*run)?;
                let value = (number % 2 == 1).then(|| number.to_string());
                let patch = LabelPatch::from_iter([("team".to_owned(), value)]);
                if *number < 2 {
                    let change = SessionChange::Label { labels: patch, title: None };
                    return Some(submission(change_session(run.session, change), Memo::Other("label session")));
                }
                submit(run, Op::LabelRun(LabelRunOp { patch, by: "test".into() }), Memo::Other("label run"))
            }
            Ask::Close { session } => {
                let session = self.known_session(*session)?;
                Some(submission(change_session(session, SessionChange::Close), Memo::Other("close session")))
            }
            Ask::CreateCommand { run, kind, key, text } => {
                let run = self.open_run(*run)?;
                let kind = match kind {
                    4 => CommandType::Steer,
                    5 => CommandType::Interrupt,
                    _ => CommandType::Turn,
                };
                let key = key.map(|key| format!("command-{key}"));
                let op = self.mint.command(&run, kind, &format!("text {text}"), key, now);
                submit(run, Op::CreateCommand(Box::new(op)), Memo::Command { run })
            }
            Ask::CreateJob { run, command, key, standing } => {
                let run = self.open_run(*run)?;
                let command = command.and_then(|command| self.command_of(run, command));
                let key = key.map(|key| format!("job-{key}"));
                let op = self.mint.job(&run, command, *standing, key, now);
                submit(run, Op::CreateJob(Box::new(op)), Memo::Job { run })
            }
            Ask::ClaimJobs { owner, limit } => {
                Some(Prepared::ClaimJobs { owner: format!("launcher-{owner}"), limit: u32::from(*limit) })
            }
            Ask::FinishJob { job, wrong_owner, end } => {
                let (run, runner_job_id) = *pick(&self.jobs, *job)?;
                let owner = self.owners.get(&runner_job_id).filter(|_| !wrong_owner);
                let (owner, heartbeat_at) = owner.cloned().unwrap_or_else(|| ("another launcher".into(), None));
                let summary = ostler_protocol::RawJson::of(&json!({"status": "over"}));
                let op = FinishJobOp { runner_job_id, owner, end: *end, heartbeat_at, summary };
                submit(run, Op::FinishJob(op), Memo::Other("finish job"))
            }
            Ask::Claim { run, runner: number, lease_ms, take_up } => {
                let (run, runner, attempt_id) = (self.open_run(*run)?, runner(*number), self.mint.attempt());
                let op = ClaimOp { runner_id: runner.clone(), lease_ms: *lease_ms, attempt_id, take_up: *take_up };
                submit(run, Op::Claim(op), Memo::Claim { run, runner, take_up: *take_up })
            }
            Ask::Heartbeat { run, who, lease_ms } => self.patch(*run, *who, *lease_ms, None),
            Ask::Release { run, who, only_if_idle } => self.patch(*run, *who, None, Some(*only_if_idle)),
            Ask::Ack { run, command, who } => {
                let run = self.held_run(*run)?;
                let command_id = self.command_of(run, *command)?;
                let (runner_id, lease_epoch) = self.writer(run, *who)?;
                let op = AckOp { command_id, runner_id, lease_epoch, attempt_id: None };
                submit(run, Op::Ack(op), Memo::Other("ack"))
            }
            Ask::Append { run, who, batch, release_if_idle, events } => {
                self.append(*run, *who, (*batch, *release_if_idle), events)
            }
            Ask::Retry { append } => {
                let named: Vec<_> = (0..self.sent.len()).filter(|i| self.sent[*i].op.batch_no.is_some()).collect();
                let sent = *pick(&named, *append)?;
                let (run, op) = (self.sent[sent].run, self.sent[sent].op.clone());
                submit(run, Op::Append(op), Memo::Append { sent, retried: true, kinds: vec![] })
            }
            Ask::CancelRun { run } => {
                let run = self.open_run(*run)?;
                submit(run, Op::CancelRun(CancelRunOp { by: "test".into(), reason: None }), Memo::Other("cancel run"))
            }
            Ask::CancelCommand { command } => {
                let (run, command_id) =
                    *pick_likely(&self.commands, *command, |(_, id)| self.seen.unfinished.contains(id))?;
                let op =
                    CancelCommandOp { command_id, by: "test".into(), reason: None, origin: None, with_jobs: false };
                submit(run, Op::CancelCommand(op), Memo::Other("cancel command"))
            }
            Ask::Answer { permission, right_digest, option } => {
                let likely = |(run, id): &(RunRef, PermissionId)| self.seen.asking.contains(&(run.run_id, *id));
                let (run, permission_id) = *pick_likely(&self.permissions, *permission, likely)?;
                let digest = if *right_digest { digest(permission_id) } else { "0".repeat(64) };
                let choice = Choice::Option(["allow", "deny", "nonsense"][usize::from(*option)].to_owned());
                let voter = Voter { principal: "test".into(), client: None, is_local: true };
                let op = AnswerPermissionOp { permission_id, choice, digest: Some(digest), voter };
                submit(run, Op::AnswerPermission(Box::new(op)), Memo::Other("answer"))
            }
            Ask::Dismiss { run, only_if_idle } => {
                let run = self.open_run(*run)?;
                submit(run, Op::Dismiss(DismissOp { only_if_idle: *only_if_idle }), Memo::Other("dismiss"))
            }
            Ask::Sweep { run, orphaned } => {
                let run = self.open_run(*run)?;
                submit(run, Op::Sweep(SweepOp { orphaned: *orphaned }), Memo::Other("sweep"))
            }
        }
    }

    fn create_run(
        &mut self,
        (name, key): (Option<u8>, Option<u8>),
        start: bool,
        blindly: bool,
        now: Timestamp,
    ) -> Option<Prepared> {
        let name = name.map(|name| format!("session-{name}"));
        let key = key.map(|key| format!("run-{key}"));
        if !blindly && key.as_ref().is_some_and(|key| self.run_keys.contains_key(key)) {
            return None;
        }
        let known = name.as_ref().filter(|_| !blindly).and_then(|name| self.sessions.get(name)).cloned();
        let known_session = known.is_some();
        let session = known.unwrap_or_else(|| self.mint.session(name.as_deref(), now));
        let op = self.mint.run(&session, !known_session, key.clone(), now);
        let run = RunRef::of(&op);
        let start_with = start.then(|| {
            let command = self.mint.command(&run, CommandType::Turn, "first", None, now);
            (Box::new(command), Box::new(self.mint.job(&run, None, true, None, now)))
        });
        let op = CreateRunOp { start: start_with, ..op };
        let memo = Memo::Run { run, session: Box::new(session), known_session, key, start };
        Some(submission(create_run(op), memo))
    }

    fn patch(&mut self, run: Pick, who: Who, lease_ms: Option<i64>, release: Option<bool>) -> Option<Prepared> {
        let run = self.held_run(run)?;
        let (runner_id, lease_epoch) = self.writer(run, who)?;
        let op = PatchLeaseOp {
            runner_id,
            lease_epoch,
            lease_ms,
            release: release.is_some(),
            only_if_idle: release.unwrap_or(false),
        };
        Some(submission(run.request(Op::PatchLease(op)), Memo::Lease { run, epoch: lease_epoch }))
    }

    /// The runner and the epoch of a write.
    fn writer(&self, run: RunRef, who: Who) -> Option<(String, i64)> {
        let claims = self.claims.get(&run.run_id)?;
        let (owner, epoch) = claims.last()?.clone();
        Some(match who {
            Who::Owner => (owner, epoch),
            Who::Stale => claims.iter().rev().nth(1).cloned().unwrap_or((owner, epoch - 1)),
            Who::Runner(number) => (runner(number), epoch),
        })
    }

    /// In the order of their ids, which is that of their making.
    fn known_session(&self, session: Pick) -> Option<SessionId> {
        let mut known: Vec<_> = self.sessions.values().map(|session| session.session).collect();
        known.sort_unstable();
        pick(&known, session).copied()
    }

    fn open_run(&self, run: Pick) -> Option<RunRef> {
        pick_likely(&self.runs, run, |run| self.seen.open_runs.contains(&run.run_id)).copied()
    }

    fn held_run(&self, run: Pick) -> Option<RunRef> {
        pick_likely(&self.runs, run, |run| self.seen.held_runs.contains(&run.run_id)).copied()
    }

    fn command_of(&self, run: RunRef, command: Pick) -> Option<CommandId> {
        let of_run: Vec<_> = self.commands.iter().filter(|(of, _)| *of == run).map(|(_, id)| *id).collect();
        pick_likely(&of_run, command, |id| self.seen.unfinished.contains(id)).copied()
    }

    fn append(
        &mut self,
        run: Pick,
        who: Who,
        (batch, release_if_idle): (bool, bool),
        says: &[Say],
    ) -> Option<Prepared> {
        let run = self.held_run(run)?;
        let (runner_id, lease_epoch) = self.writer(run, who)?;
        let (mut events, mut marks, mut kinds) = (vec![], vec![], vec![]);
        for say in says {
            let Some((event, kind)) = self.say(run, lease_epoch, say) else { continue };
            // An end may be stated already; every other fact must be found again.
            if event.event_type != EventType::TerminalStatus {
                marks.push(self.marks);
            }
            events.push(event);
            kinds.push(kind);
        }
        if events.is_empty() {
            return None;
        }
        self.batches += 1;
        let op = AppendOp {
            runner_id,
            lease_epoch,
            attempt_id: None,
            batch_no: batch.then_some(self.batches),
            release_if_idle,
            ends_job: None,
            voting: VotingRules::default(),
            known_calls: None,
            events: events.clone(),
        };
        let asked = op.events.iter().filter_map(NewEvent::asks).collect();
        self.sent.push(Sent { run, op: op.clone(), marks, asked, fate: Fate::Unknown });
        let memo = Memo::Append { sent: self.sent.len() - 1, retried: false, kinds };
        Some(submission(run.request(Op::Append(op)), memo))
    }

    /// A crash took the answers: what was refused before may now have been written, and a lease may be shorter.
    pub(crate) fn nobody_answered(&mut self, lost: &[Prepared]) {
        for prepared in lost {
            match prepared {
                Prepared::Submit(_, Memo::Append { sent, .. }) if self.sent[*sent].fate == Fate::Refused => {
                    self.sent[*sent].fate = Fate::Unknown;
                }
                Prepared::Submit(_, Memo::Lease { run, epoch }) => drop(self.promised.remove(&(run.run_id, *epoch))),
                _ => {}
            }
        }
    }

    fn say(&mut self, run: RunRef, epoch: i64, say: &Say) -> Option<(NewEvent, &'static str)> {
        self.marks += 1;
        let number = self.marks;
        let mark = |mut payload: Value| {
            payload["mark"] = number.into();
            payload["epoch"] = epoch.into();
            payload
        };
        let of = |command: &Pick| self.command_of(run, *command);
        let (event_type, command, payload, kind) = match say {
            Say::Message { command, is_final } => {
                let payload = json!({"text": format!("said {number}"), "final": is_final, "replyAuthority": is_final});
                (EventType::AssistantMessage, Some(of(command)?), payload, "message")
            }
            Say::Tool { command, call, status } => {
                let status = ["started", "completed", "failed", "outcome-unknown"][usize::from(*status)];
                let payload = json!({"toolCallId": format!("call-{call}"), "name": "shell", "status": status,
                    "exitCode": number % 3});
                (EventType::ToolCall, Some(of(command)?), payload, "tool")
            }
            Say::Output { command } => {
                (EventType::CommandOutput, Some(of(command)?), json!({"text": "grüße"}), "output")
            }
            Say::Usage { command, cents } => {
                let payload = json!({"totalTokens": cents, "costUsd": f64::from(*cents) / 1_000.0 + 0.1});
                (EventType::Usage, Some(of(command)?), payload, "usage")
            }
            Say::Phase { command, phase } => {
                let names = ["turn/steer:completed", "transport-disconnected", "waiting-provider", "thinking"];
                let payload = json!({"phase": names[usize::from(*phase)]});
                (EventType::BackendStatus, Some(of(command)?), payload, "phase")
            }
            Say::Error { command } => {
                let payload = json!({"failureKind": "backend-failed", "message": "oh"});
                (EventType::Error, Some(of(command)?), payload, "error")
            }
            Say::Thread => (EventType::Session, None, json!({"threadId": format!("thread-{number}")}), "thread"),
            Say::Ask { command, wait_ms, reuse, well_formed } => {
                let command = of(command)?;
                let used = self.permissions.last().filter(|_| *reuse && *well_formed).map(|(_, id)| *id);
                let id = used.unwrap_or_else(|| self.mint.permission());
                let options = json!([{"optionId": "allow", "name": "Yes", "kind": "allow_once"},
                    {"optionId": "deny", "name": "No", "kind": "reject_once"}]);
                let title = if *well_formed { "may I?" } else { "" };
                let payload = json!({"permissionId": id, "title": title, "options": options, "digest": digest(id),
                    "waitMs": wait_ms});
                (EventType::PermissionRequest, Some(command), payload, "ask")
            }
            Say::EndCommand { command, status } => {
                (EventType::TerminalStatus, Some(of(command)?), json!({"status": ended(*status)}), "end command")
            }
            Say::EndRun { status } => (EventType::TerminalStatus, None, json!({"status": ended(*status)}), "end run"),
        };
        Some((event(event_type, command, mark(payload)), kind))
    }
}

fn ended(status: u8) -> &'static str {
    ["completed", "failed", "blocked", "cancelled"][usize::from(status)]
}
