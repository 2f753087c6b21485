//! Plays a script against a real store: each process has a runtime of its own, so that a crash can cut it off anywhere.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::future::join_all;
use ostler_protocol::{
    Failure,
    ids::SessionId,
    kernel::{
        commands::CommandState,
        events::Event,
        operations::{self, Replay, Reply},
        runner_jobs::RunnerJob,
    },
};
use ostler_store::{
    Db, StoreError,
    kernel::{commands, leases, permissions, runner_jobs, runs, sessions, usage},
    lane::{Host, LaneError, Lanes},
};
use tokio::runtime::{Builder, Runtime};

use crate::{
    build::{LAUNCHER, RunRef, TENANT},
    host::TestHost,
    invariants,
    model::{Fate, Memo, Model, Prepared, Seen},
    rows::{Rows, Witness},
    script::{Ask, Step},
    test_store::{Engine, TestStore},
};

/// How often something happened, by name.
pub(crate) type Tally = BTreeMap<String, u64>;

pub(crate) struct ScriptRunner {
    test_store: TestStore,
    process: Option<Process>,
    host: Arc<TestHost>,
    watching: Runtime,
    witness: Witness,
    pub model: Model,
    pub tally: Tally,
    pub rows: Rows,
}

/// One process that has the store open.
struct Process {
    runtime: Runtime,
    db: Db,
    lanes: Lanes,
}

enum Outcome {
    Replied(Result<Reply, LaneError>),
    Jobs(Vec<RunnerJob>),
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// The process before may be about to let go.
async fn open(test_store: &TestStore, host: &TestHost) -> Db {
    for _ in 0..1_000 {
        match Db::open(&test_store.config(), host.now()).await {
            Err(StoreError::Locked(_)) => tokio::time::sleep(Duration::from_millis(1)).await,
            opened => return opened.unwrap(),
        }
    }
    panic!("the process before never let go of the store");
}

impl Process {
    fn start(test_store: &TestStore, host: &Arc<TestHost>) -> Self {
        let runtime = runtime();
        let (db, lanes) = runtime.block_on(async {
            let db = open(test_store, host).await;
            let lanes = Lanes::start(&db, host.clone()).await.unwrap();
            (db, lanes)
        });
        Self { runtime, db, lanes }
    }

    async fn ask(&self, prepared: &Prepared, host: &TestHost) -> Outcome {
        match prepared {
            Prepared::Submit(request, _) => Outcome::Replied(self.lanes.submit((**request).clone()).await),
            Prepared::ClaimJobs { owner, limit } => Outcome::Jobs(
                runner_jobs::claim(
                    &self.db,
                    LAUNCHER,
                    owner,
                    host.now(),
                    *limit,
                    &[],
                    ostler_store::kernel::runner_jobs::LaunchableJobs::default(),
                )
                .await
                .unwrap(),
            ),
        }
    }

    async fn ask_all(&self, asks: &[Prepared], host: &TestHost) -> Vec<Outcome> {
        join_all(asks.iter().map(|prepared| self.ask(prepared, host))).await
    }
}

/// The rows are those that the events alone determine.
async fn replayed(db: &Db, log: &BTreeMap<SessionId, Vec<Event>>) -> Result<(), String> {
    for (session, events) in log {
        let mut replay = Replay::default();
        events.iter().for_each(|event| replay.apply(event));
        let (mut of_runs, mut of_commands, mut of_leases, mut of_usage) = (vec![], vec![], vec![], vec![]);
        for run_id in replay.run_ids() {
            of_runs.extend(runs::get(db, run_id).await.unwrap());
            of_commands.extend(commands::list_by_run(db, run_id).await.unwrap());
            of_leases.extend(leases::get(db, run_id).await.unwrap());
            of_usage.extend(usage::list_by_run(db, run_id).await.unwrap());
        }
        let row = sessions::get(db, *session).await.unwrap().expect("it has events");
        let rows = operations::Rows {
            session: &row,
            runs: &of_runs,
            commands: &of_commands,
            leases: &of_leases,
            usage: &of_usage,
        };
        let mut differences = replay.differences(&rows);
        let (mut of_permissions, mut of_jobs, mut reply_seqs) = (vec![], vec![], vec![]);
        for run_id in replay.run_ids() {
            of_permissions.extend(permissions::list_by_run(db, run_id).await.unwrap());
            of_jobs.extend(runner_jobs::list_by_run(db, run_id).await.unwrap());
            reply_seqs.extend(commands::list_reply_seqs(db, run_id).await.unwrap());
        }
        differences.extend(replay.differences_of_derived_rows(&operations::DerivedRows {
            session: &row,
            runs: &of_runs,
            commands: &of_commands,
            permissions: &of_permissions,
            jobs: &of_jobs,
            reply_seqs: &reply_seqs,
        }));
        invariants::ensure(differences.is_empty(), || format!("{session}: {differences:?}"))?;
    }
    Ok(())
}

impl ScriptRunner {
    pub(crate) fn new(test_store: &TestStore) -> Self {
        let host = Arc::new(TestHost::default());
        let process = Process::start(test_store, &host);
        let watching = runtime();
        let witness = watching.block_on(Witness::of(test_store));
        Self {
            test_store: test_store.clone(),
            process: Some(process),
            host,
            watching,
            witness,
            model: Model::default(),
            tally: Tally::new(),
            rows: Rows::default(),
        }
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("between two processes nobody asks")
    }

    pub(crate) fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::AdvanceMs(ms) => self.host.advance_ms(*ms),
            Step::Together(asks) => self.together(asks)?,
            Step::Crash(asks, after_us) => self.crash(asks, *after_us),
        }
        self.look(matches!(step, Step::Crash(..)))
    }

    fn prepare(&mut self, asks: &[Ask]) -> Vec<Prepared> {
        let now = self.host.now();
        asks.iter().filter_map(|ask| self.model.prepare(ask, now)).collect()
    }

    fn together(&mut self, asks: &[Ask]) -> Result<(), String> {
        let prepared = self.prepare(asks);
        let process = self.process();
        let outcomes = process.runtime.block_on(process.ask_all(&prepared, &self.host));
        if let ([Prepared::Submit(..)], [Outcome::Replied(Err(error))]) = (&*prepared, &*outcomes) {
            self.refused_alone(error)?;
        }
        for (prepared, outcome) in prepared.into_iter().zip(outcomes) {
            self.note(prepared, outcome)?;
        }
        Ok(())
    }

    /// A refused request leaves no trace, except that a runner waits.
    fn refused_alone(&mut self, error: &LaneError) -> Result<(), String> {
        let after = self.watching.block_on(self.witness.rows());
        if after == self.rows {
            return Ok(());
        }
        let held = matches!(error, LaneError::Refused(failure) if rule(failure) == "lease-held");
        let waits = held && {
            let fresh = after.of("events").len() - self.rows.of("events").len();
            let waiting = |rows: &Rows| {
                rows.of("events").iter().filter(|e| e.text("payload").contains(r#""state":"claim-waiting""#)).count()
            };
            fresh == 1 && waiting(&after) == waiting(&self.rows) + 1
        };
        if waits { Ok(()) } else { Err(format!("a refused request changed something: {error:?}")) }
    }

    /// Cuts the process off while it works, and starts another one on the same store.
    fn crash(&mut self, asks: &[Ask], after_us: u16) {
        let prepared = self.prepare(asks);
        let process = self.process.take().expect("between two processes nobody asks");
        let answered = process.runtime.block_on(async {
            tokio::time::timeout(Duration::from_micros(after_us.into()), process.ask_all(&prepared, &self.host)).await
        });
        drop(process);
        self.wait_for_the_end();
        self.count("crash");
        if answered.is_err() {
            self.count("crash at work");
        }
        // What was answered in time dies with who asked: all that the next process knows is in the store.
        self.model.nobody_answered(&prepared);
        self.host = Arc::new(TestHost::after(&self.host));
        self.process = Some(Process::start(&self.test_store, &self.host));
    }

    /// A process that was cut off is gone once nothing holds its host, and its last commit has arrived or never will.
    fn wait_for_the_end(&mut self) {
        for _ in 0..5_000 {
            if Arc::strong_count(&self.host) == 1 {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(Arc::strong_count(&self.host), 1, "the lanes end once nobody holds them");
        self.watching.block_on(self.witness.alone());
    }

    /// Reads everything and checks it.
    fn look(&mut self, crashed: bool) -> Result<(), String> {
        self.rows = self.watching.block_on(self.witness.rows());
        self.model.seen = Seen::of(&self.rows);
        let (stored, published) = (self.rows.events(), self.host.published());
        if crashed && self.test_store.engine() == Engine::Postgres {
            for (session, events) in &published {
                let known = stored.get(session).is_some_and(|log| log.starts_with(events));
                invariants::ensure(known, || format!("{session} published what is not stored"))?;
            }
            self.host.catch_up(stored);
        } else {
            invariants::ensure(stored == published, || "published and stored events differ".into())?;
        }
        invariants::check(&self.rows, &self.model, self.host.now())?;
        let (process, log) = (self.process(), self.rows.events());
        process.runtime.block_on(replayed(&process.db, &log))
    }

    fn count(&mut self, what: impl Into<String>) {
        *self.tally.entry(what.into()).or_default() += 1;
    }

    /// Lets the callers learn from an answer, and checks what an answer promises.
    fn note(&mut self, prepared: Prepared, outcome: Outcome) -> Result<(), String> {
        let (memo, reply) = match (prepared, outcome) {
            (Prepared::ClaimJobs { owner, .. }, Outcome::Jobs(jobs)) => {
                for job in jobs {
                    self.model.owners.insert(job.runner_job_id, (owner.clone(), job.heartbeat_at));
                    self.count("job claimed");
                }
                return Ok(());
            }
            (Prepared::Submit(_, memo), Outcome::Replied(reply)) => (memo, reply),
            _ => unreachable!("each has its own outcome"),
        };
        match (memo, reply) {
            (Memo::Append { sent, retried, kinds }, reply) => self.note_append(sent, retried, &kinds, reply),
            (memo, Ok(reply)) => {
                self.note_reply(memo, reply);
                Ok(())
            }
            (Memo::Session { session }, Err(LaneError::Taken)) => {
                self.count("session taken");
                self.learn_session(session.external_id.as_deref());
                Ok(())
            }
            (Memo::Run { session, key, .. }, Err(LaneError::Taken)) => {
                self.count("taken");
                self.learn(session.external_id.as_deref(), key.as_deref());
                Ok(())
            }
            (_, Err(LaneError::Refused(failure))) => {
                self.count(format!("refused {}", rule(&failure)));
                Ok(())
            }
            (memo, Err(error)) => Err(format!("{memo:?} failed: {error:?}")),
        }
    }

    fn note_reply(&mut self, memo: Memo, reply: Reply) {
        match (memo, reply) {
            (Memo::Run { run, session, known_session, key, start }, Reply::Run(created)) => {
                self.count(if known_session { "run in a known session" } else { "run" });
                if start {
                    self.count("run with its start");
                }
                self.model.runs.push(run);
                self.model.commands.extend(created.command.map(|command| (run, command.command_id)));
                self.model.jobs.extend(created.runner_job.map(|job| (run, job.runner_job_id)));
                self.model.run_keys.extend(key.map(|key| (key, run)));
                self.model.sessions.extend(session.external_id.clone().map(|name| (name, *session)));
            }
            (Memo::Session { session }, Reply::Session(_)) => {
                self.count("session");
                self.model.sessions.extend(session.external_id.clone().map(|name| (name, *session)));
            }
            (Memo::Command { run }, Reply::Command(command, created)) => {
                let kind = command.command_type.as_str();
                self.count(match (created, command.target_command_id.is_some(), command.terminal.is_some()) {
                    (false, ..) => "same command".to_owned(),
                    (true, false, true) => format!("{kind} without a turn"),
                    (true, ..) => kind.to_owned(),
                });
                if created {
                    self.model.commands.push((run, command.command_id));
                }
            }
            (Memo::Job { run }, Reply::Job(job, created)) => {
                self.count(if created { "job" } else { "same job" });
                if created {
                    self.model.jobs.push((run, job.runner_job_id));
                }
            }
            (Memo::Claim { run, runner, take_up }, Reply::Claimed(claimed)) => {
                self.count("claim");
                if take_up {
                    let taken = claimed
                        .commands
                        .iter()
                        .any(|c| c.state == CommandState::Acked && c.attempt_id == Some(claimed.attempt_id));
                    self.count(if taken { "turn taken up" } else { "nothing to take up" });
                }
                self.model.promised.insert((run.run_id, claimed.lease_epoch), claimed.lease_expires_at);
                self.model.claims.entry(run.run_id).or_default().push((runner, claimed.lease_epoch));
            }
            (Memo::Lease { run, epoch }, Reply::Lease(state)) => {
                self.count(if state.released { "release" } else { "heartbeat" });
                self.model.promised.insert((run.run_id, epoch), state.lease_expires_at);
            }
            (Memo::Other(kind), _) => self.count(kind),
            (memo, reply) => panic!("{memo:?} was answered with {reply:?}"),
        }
    }

    fn note_append(
        &mut self,
        index: usize,
        retried: bool,
        kinds: &[&'static str],
        reply: Result<Reply, LaneError>,
    ) -> Result<(), String> {
        let appended = match reply {
            Ok(Reply::Appended(appended)) => appended,
            Err(LaneError::Refused(failure)) => {
                self.count(format!("refused {}", rule(&failure)));
                let sent = &mut self.model.sent[index];
                if !retried && sent.fate == Fate::Unknown {
                    sent.fate = Fate::Refused;
                }
                return Ok(());
            }
            other => return Err(format!("an append was answered with {other:?}")),
        };
        self.count(if retried { "append retried" } else { "append" });
        if self.model.sent[index].op.release_if_idle {
            self.count(if appended.released { "given back with an append" } else { "kept after an append" });
        }
        kinds.iter().for_each(|kind| self.count(*kind));
        let sent = &mut self.model.sent[index];
        if let Fate::Appended(before) = sent.fate {
            // Batches of earlier epochs are forgotten; an end that was stated under one is still found, by itself.
            let restated = sent.marks.is_empty()
                && sent.op.events.len() == 1
                && (before.first_seq..=before.last_seq).contains(&appended.first_seq);
            return invariants::ensure(before == appended || restated, || {
                format!("a retried batch was answered {appended:?}, first {before:?}")
            });
        }
        self.model.permissions.extend(sent.asked.iter().map(|id| (sent.run, *id)));
        sent.fate = Fate::Appended(appended);
        Ok(())
    }

    /// A session whose name or key was taken: of that name there is one, or the key has another name.
    fn learn_session(&mut self, name: Option<&str>) {
        let process = self.process.as_ref().expect("between two processes nobody asks");
        let found = name.map(|name| process.runtime.block_on(sessions::find_by_name(&process.db, TENANT, name)));
        let known = found.and_then(Result::unwrap);
        self.model.sessions.extend(known.and_then(|s| s.external_id.clone().map(|name| (name, s))));
    }

    /// A create that lost a race is decided again after reading the winner.
    fn learn(&mut self, name: Option<&str>, key: Option<&str>) {
        let process = self.process.as_ref().expect("between two processes nobody asks");
        let (session, run) = process.runtime.block_on(async {
            let session = match name {
                Some(name) => sessions::find_by_name(&process.db, TENANT, name).await.unwrap(),
                None => None,
            };
            let run = match key {
                Some(key) => runs::find_by_key(&process.db, TENANT, key).await.unwrap(),
                None => None,
            };
            (session, run)
        });
        assert!(session.is_some() || run.is_some(), "a create lost a race that nobody won");
        self.model.sessions.extend(session.and_then(|s| s.external_id.clone().map(|name| (name, s))));
        let keyed = run.map(|run| RunRef { run_id: run.run_id, session: run.session });
        self.model.run_keys.extend(key.map(str::to_owned).zip(keyed));
    }

    /// Ends the process as an operator would, and adds to the tally what the rows tell.
    pub(crate) fn finish(mut self) -> Tally {
        let rows = std::mem::take(&mut self.rows);
        for event in rows.of("events").iter().filter(|event| event.text("type") == "lease") {
            self.count(format!("lease {}", event.json("payload")["state"].as_str().unwrap()));
        }
        for row in rows.of("permissions") {
            self.count(format!("permission {}", row.text("status")));
            if row.opt_text("resolved_by") == Some("deadline") {
                self.count("permission past its deadline");
            }
        }
        rows.of("runner_jobs").iter().for_each(|row| self.count(format!("job {}", row.text("phase"))));
        for (table, noun) in [("commands", "command"), ("runs", "run")] {
            for row in rows.of(table).iter().filter(|row| row.opt_text("terminal").is_some()) {
                let terminal = row.json("terminal");
                let (status, source) = (terminal["status"].as_str().unwrap(), terminal["source"].as_str().unwrap());
                self.count(format!("{noun} {status}"));
                self.count(format!("{noun} ended by {source}"));
            }
        }
        let flush = self.host.largest_flush();
        if flush > 1 {
            self.count("flush with many");
        }
        let process = self.process.take().expect("between two processes nobody asks");
        process.runtime.block_on(process.db.close());
        drop(process);
        self.wait_for_the_end();
        self.tally
    }
}

/// The exact rule a failure names, else its kind.
fn rule(failure: &Failure) -> &str {
    failure.rule_name().unwrap_or(failure.kind.as_str())
}
