//! Verifying the store offline: every session's chain is walked from its beginning, and its end compared with the head
//! that is stored apart. The first event that does not fit is named, and so is every event that belongs to no session. Then
//! the rows that are served beside the events (the session, its runs, commands, leases and permission
//! requests) are compared with the events, and every column that differs is named. Payloads may be missing only where the
//! log itself ends with the erasure of its session, and where the record of retention lists their removal.

use ostler_protocol::{
    Failure, Rule,
    ids::SessionId,
    kernel::{
        chain::{self, Hash},
        commands::Command,
        events::{Event, EventType},
        operations::{DerivedRows, Replay, Rows},
        runs::Run,
        sessions::Session,
        whole_payloads::WholePayload,
    },
};
use ostler_store::{
    self as store, Db, StoreConfig, StoreError,
    kernel::{payload_removals::PayloadRemoval, session_payloads::SessionPayloadRemoval},
};

use crate::{
    clock::{Clock, SystemClock},
    config::Config,
    restore_marker,
    server::not_opened,
};

const PAGE: u32 = 1_000;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    pub sessions: u64,
    pub events: u64,
    /// Events whose payload was erased; their digests still match.
    pub erased: u64,
    /// Events whose payload retention has removed; their digests still match.
    pub removed: u64,
    pub broken: Vec<BrokenRow>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct BrokenRow {
    pub session_id: String,
    pub session_seq: i64,
    pub reason: String,
}

/// Checks every session, or the one named (by our id, or a caller's).
pub async fn verify(config: &Config, session: Option<&str>) -> Result<Report, Failure> {
    restore_marker::check(&config.data_dir()?)?;
    let store = config.store()?;
    if let StoreConfig::Sqlite { file, .. } = &store
        && !file.exists()
    {
        // Opening it would create an empty store, in which nothing is wrong.
        let message = format!("there is no store at {}", file.display());
        return Err(Failure::rule(Rule::StoreAbsent, message));
    }
    let db = Db::open(&store, SystemClock.now()).await.map_err(|error| match error {
        StoreError::Locked(_) => Failure::rule(Rule::StoreServed, "the server of this store is running"),
        error => not_opened(error, &store),
    })?;
    let report = verify_store(&db, session).await;
    db.close().await;
    report
}

/// [`verify`] on a store that is already open.
pub async fn verify_store(db: &Db, wanted: Option<&str>) -> Result<Report, Failure> {
    let mut report = Report::default();
    let mut after: Option<SessionId> = None;
    loop {
        let sessions = store::kernel::sessions::list_after(db, after, PAGE).await?;
        let Some(last) = sessions.last() else { break };
        after = Some(last.session);
        let fits =
            |s: &&Session| wanted.is_none_or(|w| s.session.to_string() == w || s.external_id.as_deref() == Some(w));
        for session in sessions.iter().filter(fits) {
            report.sessions += 1;
            let broken = check(db, session, &mut report).await?;
            report.broken.extend(broken);
        }
    }
    find_orphans(db, wanted, &mut report).await?;
    find_runs_without_events(db, wanted, &mut report).await?;
    if wanted.is_some() && report.sessions == 0 {
        return Err(Failure::not_found("session"));
    }
    Ok(report)
}

/// Events without a session: inserted from outside, or left behind when the session's row was removed.
async fn find_orphans(db: &Db, wanted: Option<&str>, report: &mut Report) -> Result<(), Failure> {
    let mut after: Option<String> = None;
    loop {
        let orphans = store::kernel::events::list_orphans(db, after.as_deref(), PAGE).await?;
        let Some(last) = orphans.last() else { return Ok(()) };
        after = Some(last.session_id.clone());
        for orphans in orphans.into_iter().filter(|o| wanted.is_none_or(|w| o.session_id == w)) {
            report.sessions += 1;
            report.events += orphans.events as u64;
            let reason = format!("there is no such session, and {} of its events", orphans.events);
            report.broken.push(BrokenRow { session_id: orphans.session_id, session_seq: orphans.first_seq, reason });
        }
    }
}

/// Runs that no event mentions.
async fn find_runs_without_events(db: &Db, wanted: Option<&str>, report: &mut Report) -> Result<(), Failure> {
    let mut after = None;
    loop {
        let runs = store::kernel::runs::list_without_events(db, after, PAGE).await?;
        let Some(last) = runs.last() else { return Ok(()) };
        after = Some(last.run_id);
        let fits = |run: &Run| wanted.is_none_or(|w| run.session.to_string() == w || run.session_id == w);
        for run in runs.into_iter().filter(fits) {
            // A session whose chain is broken is already in the report, with the reason.
            if report.broken.iter().any(|broken| broken.session_id == run.session_id) {
                continue;
            }
            let reason = format!("run {}: there is no event of it", run.run_id);
            report.broken.push(BrokenRow { session_id: run.session_id, session_seq: 0, reason });
        }
    }
}

/// Verifies one chain. `Some` is the first mismatch.
async fn check(db: &Db, session: &Session, report: &mut Report) -> Result<Option<BrokenRow>, Failure> {
    let broken = |session_seq: i64, reason: &str| {
        Some(BrokenRow { session_id: session.public_id(), session_seq, reason: reason.to_owned() })
    };
    let (mut head, mut seq) = (chain::GENESIS, 0);
    let mut replay = Replay::default();
    let removals = Removals {
        runs: store::kernel::payload_removals::list_by_session(db, session.session).await?,
        session: store::kernel::session_payloads::get(db, session.session).await?,
    };
    // Starts below the first number, because a row that was inserted there is not part of the log either.
    let mut after = i64::MIN;
    loop {
        let page = store::kernel::events::list_by_session(db, session.session, after, PAGE).await;
        let page = match page {
            Ok(page) => page,
            Err(error) if error.is_corrupt() => {
                let (seq, reason) = find_unreadable(db, session, seq, head).await?;
                return Ok(broken(seq, &reason));
            }
            Err(error) => return Err(error.into()),
        };
        for event in &page.events {
            report.events += 1;
            let is_missing = event.payload.is_none();
            report.erased += u64::from(is_missing && session.erased_at.is_some());
            report.removed += u64::from(is_missing && session.erased_at.is_none());
            if !(1..=session.last_seq).contains(&event.session_seq) && event.session_seq <= seq + 1 {
                return Ok(broken(
                    event.session_seq,
                    "the event is not part of the log: its number is outside the log's range",
                ));
            }
            if let Err(reason) = check_event(&head, seq, event) {
                return Ok(broken(seq + 1, reason));
            }
            if is_missing && session.erased_at.is_none() && !removals.cover(event) {
                return Ok(broken(seq + 1, "the payload is missing, and neither erasure nor retention removed it"));
            }
            replay.apply(event);
            head = event.hash;
            seq = event.session_seq;
            after = seq;
        }
        if !page.has_more {
            break;
        }
    }
    if seq != session.last_seq {
        return Ok(broken(seq + 1, "the log ends before its head"));
    }
    if head != session.chain_head {
        return Ok(broken(seq, "the last event is not the head"));
    }
    let differences = compare(db, session, &replay).await?;
    Ok(if differences.is_empty() { None } else { broken(seq, &differences.join("; ")) })
}

/// What retention has removed of a session and its runs.
struct Removals {
    runs: Vec<PayloadRemoval>,
    session: Option<SessionPayloadRemoval>,
}

impl Removals {
    /// Whether retention has removed the payload of this event.
    fn cover(&self, event: &Event) -> bool {
        match event.run {
            Some((run_id, seq)) => {
                self.runs.iter().any(|removal| removal.run_id == run_id && seq <= removal.through_seq)
            }
            // Which fact it was is not known without its payload. A fact that changed the session is missed by the replay.
            None => {
                let is_before = |removal: &SessionPayloadRemoval| event.session_seq <= removal.through_seq;
                event.event_type == EventType::Session && self.session.as_ref().is_some_and(is_before)
            }
        }
    }
}

/// The columns of the session's rows that its events contradict.
async fn compare(db: &Db, session: &Session, replay: &Replay) -> Result<Vec<String>, Failure> {
    let read = async {
        let (mut runs, mut commands, mut leases) = (vec![], vec![], vec![]);
        let (mut permissions, mut jobs, mut reply_seqs, mut usage) = (vec![], vec![], vec![], vec![]);
        for run_id in replay.run_ids() {
            runs.extend(store::kernel::runs::get(db, run_id).await?);
            commands.extend(store::kernel::commands::list_by_run(db, run_id).await?);
            leases.extend(store::kernel::leases::get(db, run_id).await?);
            permissions.extend(store::kernel::permissions::list_by_run(db, run_id).await?);
            jobs.extend(store::kernel::runner_jobs::list_by_run(db, run_id).await?);
            usage.extend(store::kernel::usage::list_by_run(db, run_id).await?);
            reply_seqs.extend(store::kernel::commands::list_reply_seqs(db, run_id).await?);
        }
        let rows = Rows { session, runs: &runs, commands: &commands, leases: &leases, usage: &usage };
        let mut differences = replay.differences(&rows);
        let (runs, commands, permissions) = (&runs, &commands, &permissions);
        let beside = DerivedRows { session, runs, commands, permissions, jobs: &jobs, reply_seqs: &reply_seqs };
        differences.extend(replay.differences_of_derived_rows(&beside));
        differences.extend(whole_payload_differences(db, commands).await?);
        Ok::<_, store::StoreError>(differences)
    };
    match read.await {
        Ok(differences) => Ok(differences),
        Err(error) if error.is_corrupt() => Ok(vec![format!("a row does not read back: {error}")]),
        Err(error) => Err(error.into()),
    }
}

/// The commands whose stored payload is not the one that their short form describes.
async fn whole_payload_differences(db: &Db, commands: &[Command]) -> Result<Vec<String>, StoreError> {
    let mut differences = vec![];
    for command in commands {
        let Some(described) = WholePayload::of(&command.payload) else { continue };
        let id = command.command_id;
        match store::kernel::whole_payloads::get(db, id).await? {
            Some(whole) if WholePayload::describe(&whole) == described => {}
            Some(_) => differences.push(format!("command {id}: the whole payload is not the one that was written")),
            None => differences.push(format!("command {id}: the whole payload is missing")),
        }
    }
    Ok(differences)
}

/// One of the next events cannot be read. Reads them one by one, to name it or an earlier mismatch.
async fn find_unreadable(db: &Db, session: &Session, after: i64, mut head: Hash) -> Result<(i64, String), Failure> {
    let mut seq = after;
    loop {
        match store::kernel::events::get(db, session.session, seq + 1).await {
            Ok(Some(event)) => {
                if let Err(reason) = check_event(&head, seq, &event) {
                    return Ok((seq + 1, reason.to_owned()));
                }
                head = event.hash;
                seq += 1;
            }
            Ok(None) => return Ok((seq + 1, "an event is missing".into())),
            Err(error) if error.is_corrupt() => return Ok((seq + 1, format!("does not read back: {error}"))),
            Err(error) => return Err(error.into()),
        }
    }
}

fn check_event(head: &Hash, seq: i64, event: &Event) -> Result<(), &'static str> {
    if event.session_seq != seq + 1 {
        return Err("an event is missing");
    }
    if event.payload.as_deref().is_some_and(|payload| chain::payload_digest(payload) != event.digest) {
        return Err("the payload is not the one that was written");
    }
    if chain::next(head, &event.link()) != event.hash {
        return Err("the event does not fit the chain");
    }
    Ok(())
}
