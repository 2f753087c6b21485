//! What must hold of the stored rows at any time, whatever was asked, retried, refused or cut off before.

use std::collections::BTreeMap;

use ostler_protocol::{
    Timestamp,
    ids::SessionId,
    kernel::{
        chain,
        events::{Event, EventType},
        fold::CommandFold,
    },
};
use serde_json::Value;

use crate::{
    model::{Fate, Model},
    rows::{Row, Rows},
};

pub(crate) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

macro_rules! must {
    ($holds:expr, $($words:tt)*) => { ensure($holds, || format!($($words)*))? };
}

const UNFINISHED: [&str; 3] = ["pending", "acked", "running"];
const OPEN: [&str; 3] = ["pending", "claimed", "running"];

/// An event with its payload parsed.
struct Read {
    event: Event,
    payload: Value,
}

impl std::ops::Deref for Read {
    type Target = Event;

    fn deref(&self) -> &Event {
        &self.event
    }
}

impl From<Event> for Read {
    fn from(event: Event) -> Self {
        let payload = serde_json::from_str(event.payload.as_deref().expect("nothing is erased here")).unwrap();
        Self { event, payload }
    }
}

/// The rows and the log read from them once.
struct Scan<'a> {
    rows: &'a Rows,
    log: BTreeMap<SessionId, Vec<Read>>,
    now: Timestamp,
}

pub(crate) fn check(rows: &Rows, model: &Model, now: Timestamp) -> Result<(), String> {
    let log = rows.events().into_iter().map(|(id, events)| (id, events.into_iter().map(Read::from).collect()));
    let scan = Scan { rows, log: log.collect(), now };
    for session in rows.of("sessions") {
        scan.session(session)?;
        scan.projection(session)?;
    }
    for run in rows.of("runs") {
        scan.run(run)?;
        scan.commands_of(run)?;
        scan.ownership(run, model)?;
        scan.standing_job(run)?;
    }
    for command in rows.of("commands") {
        scan.command(command)?;
        scan.cancel_and_target(command)?;
    }
    scan.permissions()?;
    scan.sent(model)
}

impl Scan<'_> {
    fn events(&self, session: &Row) -> &[Read] {
        self.log.get(&session.id::<SessionId>("session_id")).map_or(&[], Vec::as_slice)
    }

    fn events_of_run(&self, run: &Row) -> impl Iterator<Item = &Read> {
        let run_id = run.id("run_id");
        self.events(run).iter().filter(move |e| e.run.is_some_and(|(id, _)| id == run_id))
    }

    fn unfinished(&self, run_id: &str) -> Vec<&Row> {
        let open = |c: &&Row| c.text("run_id") == run_id && UNFINISHED.contains(&c.text("state"));
        let mut list: Vec<_> = self.rows.of("commands").iter().filter(open).collect();
        list.sort_by_key(|c| c.int("seq"));
        list
    }

    /// The lease that was not ended yet, live or expired.
    fn held(&self, run_id: &str) -> Option<&Row> {
        self.rows.find("leases", "run_id", run_id).filter(|lease| lease.int("ended") == 0)
    }

    /// Numbers without gap, a chain that ends at the head, and a version that counts the ends.
    fn session(&self, session: &Row) -> Result<(), String> {
        let (id, events) = (session.text("session_id"), self.events(session));
        let mut head = chain::GENESIS;
        for (index, event) in events.iter().enumerate() {
            must!(event.session_seq == index as i64 + 1, "{id} has {} at {}", event.session_seq, index + 1);
            let text = event.event.payload.as_deref().unwrap_or_default();
            must!(chain::payload_digest(text) == event.digest, "{id} {}: another payload", event.session_seq);
            head = chain::next(&head, &event.link());
            must!(head == event.hash, "{id} {}: does not fit the chain", event.session_seq);
        }
        must!(session.int("last_seq") == events.len() as i64, "{id} has {} events", events.len());
        must!(session.hash("chain_head") == head, "{id}: the chain does not end at the head");
        self.changes(session)?;
        let ends = events.iter().filter(|e| e.event_type == EventType::TerminalStatus).count() as i64;
        must!(session.int("version") == ends, "{id}: version {} after {ends} ends", session.int("version"));
        Ok(())
    }

    /// The title and the close are those that the session's own facts say; no work was taken after it.
    fn changes(&self, session: &Row) -> Result<(), String> {
        let id = session.text("session_id");
        let (mut title, mut closed_at) = (None, None);
        for event in self.events(session) {
            let fact = &event.payload;
            if event.event_type == EventType::Session && event.run.is_none() {
                let change = fact["change"].as_str();
                // Labels may change at any time; the replay compares them.
                if matches!(change, Some("labelled" | "run-labelled")) {
                    continue;
                }
                must!(closed_at.is_none(), "{id} {}: changed after it was closed", event.session_seq);
                match change {
                    Some("created" | "renamed") => title = fact["title"].as_str(),
                    Some("closed") => closed_at = Some(event.created_at.as_microsecond()),
                    other => return Err(format!("{id} {}: an unknown change {other:?}", event.session_seq)),
                }
            } else {
                must!(event.run.is_some(), "{id} {}: a {:?} of no run", event.session_seq, event.event_type);
                let asks = matches!(event.event_type, EventType::UserMessage);
                must!(!asks || closed_at.is_none(), "{id} {}: work after the close", event.session_seq);
            }
        }
        must!(session.opt_text("title") == title, "{id}: the title is not {title:?}");
        must!(session.opt_int("closed_at") == closed_at, "{id}: closed_at is not {closed_at:?}");
        Ok(())
    }

    /// At most one run is active, and the session's row names it.
    fn projection(&self, session: &Row) -> Result<(), String> {
        let id = session.text("session_id");
        let runs = || self.rows.of("runs").iter().filter(|run| run.text("session_id") == id).map(|r| r.text("run_id"));
        let live = |lease: &Row| lease.int("expires_at") > self.now.as_microsecond();
        let active: Vec<_> =
            runs().filter(|run| !self.unfinished(run).is_empty() || self.held(run).is_some_and(live)).collect();
        must!(active.len() <= 1, "{id} has {} active runs", active.len());
        let named = session.opt_text("active_run_id");
        match active.first() {
            Some(run) => must!(named == Some(*run), "{id}: {run} is active, the row has {named:?}"),
            None => must!(named.is_none_or(|run| self.held(run).is_some()), "{id}: {named:?} is not active"),
        }
        let unfinished = named.map(|run| self.unfinished(run)).unwrap_or_default();
        let count = unfinished.len() as i64;
        must!(session.int("active_unfinished") == count, "{id}: active_unfinished is not {count}");
        let first = unfinished.first().map(|c| c.text("command_id"));
        must!(session.opt_text("active_command_id") == first, "{id}: active_command_id is not {first:?}");
        let until = named.and_then(|run| self.held(run)).map(|lease| lease.int("expires_at"));
        must!(session.opt_int("active_lease_until") == until, "{id}: active_lease_until is not {until:?}");
        let state = match (count > 0, session.int("version") > 0) {
            (true, _) => "running",
            (false, true) => "terminal",
            (false, false) => "idle",
        };
        must!(session.text("execution_state") == state, "{id}: execution_state is not {state}");
        Ok(())
    }

    /// Numbers without gap, one end or none, nothing after it.
    fn run(&self, run: &Row) -> Result<(), String> {
        let id = run.text("run_id");
        let mut count = 0;
        let mut ends = vec![];
        for event in self.events_of_run(run) {
            count += 1;
            must!(event.seq() == count, "{id} has {} at {count}", event.seq());
            if event.event_type == EventType::TerminalStatus && event.command_id.is_none() {
                ends.push(event);
            }
        }
        must!(run.int("last_seq") == count, "{id} has {count} events, the row has {}", run.int("last_seq"));
        one_end(run, "status", &OPEN, &ends)?;
        if let Some(end) = ends.first() {
            must!(end.seq() == count, "{id}: something follows its end");
            must!(self.held(id).is_none(), "{id} has ended and is still held");
            must!(self.unfinished(id).is_empty(), "{id} has ended with work unfinished");
        } else {
            let working = self.unfinished(id).iter().any(|c| c.text("state") == "running");
            let status = match (self.held(id).is_some(), working) {
                (true, true) => "running",
                (true, false) => "claimed",
                (false, _) => "pending",
            };
            must!(run.text("status") == status, "{id} is {}, not {status}", run.text("status"));
        }
        Ok(())
    }

    fn commands_of(&self, run: &Row) -> Result<(), String> {
        let id = run.text("run_id");
        let mut numbers: Vec<_> =
            self.rows.of("commands").iter().filter(|c| c.text("run_id") == id).map(|c| c.int("seq")).collect();
        numbers.sort_unstable();
        must!(numbers.iter().copied().eq(1..=run.int("command_count")), "{id} has commands {numbers:?}");
        let unfinished = self.unfinished(id).len() as i64;
        must!(run.int("unfinished_commands") == unfinished, "{id} has {unfinished} unfinished commands");
        let open = self.rows.of("permissions").iter();
        let open = open.filter(|p| p.text("run_id") == id && p.text("status") == "pending").count() as i64;
        must!(run.int("open_permissions") == open, "{id} has {open} open permission requests");
        Ok(())
    }

    /// Epochs rise; only their holder writes, between its claim and its end; no runner takes a lease that is promised.
    fn ownership(&self, run: &Row, model: &Model) -> Result<(), String> {
        let (id, run_id) = (run.text("run_id"), run.id("run_id"));
        let mut holder: Option<(String, i64)> = None;
        let mut epoch = 0;
        for event in self.events_of_run(run) {
            let fact = &event.payload;
            if event.event_type == EventType::Lease {
                let (state, of) = (fact["state"].as_str().unwrap(), fact["leaseEpoch"].as_i64().unwrap());
                match state {
                    "claimed" | "recovered" => {
                        must!(of == epoch + 1, "{id}: epoch {of} after {epoch}");
                        let runner = fact["runnerId"].as_str().unwrap();
                        if let Some((_, before)) = holder.filter(|(owner, _)| owner != runner) {
                            let promised = model.promised.get(&(run_id, before));
                            let taken = promised.is_some_and(|until| event.created_at < *until);
                            must!(!taken, "{id}: epoch {of} took what epoch {before} was promised");
                        }
                        holder = Some((runner.to_owned(), of));
                        epoch = of;
                    }
                    "released" | "expired" => {
                        must!(of == epoch && holder.is_some(), "{id}: epoch {of} {state} without being held");
                        holder = None;
                    }
                    _ => must!(of == epoch && holder.is_some(), "{id}: waits for a lease nobody holds"),
                }
            } else if let Some(of) = fact["epoch"].as_i64() {
                must!(of == epoch && holder.is_some(), "{id} {}: epoch {of} wrote in epoch {epoch}", event.seq());
            }
        }
        must!(run.int("lease_epoch") == epoch, "{id}: lease_epoch is not {epoch}");
        let lease = self.rows.find("leases", "run_id", id);
        must!(lease.map_or(0, |lease| lease.int("epoch")) == epoch, "{id}: its lease is not of epoch {epoch}");
        Ok(())
    }

    /// Work that waits without a lease has a job that will start a runner, if the run's job is a standing one.
    fn standing_job(&self, run: &Row) -> Result<(), String> {
        let id = run.text("run_id");
        let Some(job) = run.opt_text("standing_job_id") else { return Ok(()) };
        let job = self.rows.find("runner_jobs", "runner_job_id", job).ok_or("a standing job is gone")?;
        let waits = !self.unfinished(id).is_empty() && self.held(id).is_none();
        let phase = job.text("phase");
        must!(!waits || ["pending", "running"].contains(&phase), "{id} waits, its standing job is {phase}");
        Ok(())
    }

    /// One end or none, nothing after it, and the stored fold is that of a full scan.
    fn command(&self, command: &Row) -> Result<(), String> {
        let (id, command_id) = (command.text("command_id"), command.id("command_id"));
        let mut fold = CommandFold::default();
        let (mut ends, mut last) = (vec![], 0);
        for event in self.events(command).iter().filter(|e| e.command_id == Some(command_id)) {
            fold.apply(event, &event.facts());
            last = event.seq();
            if event.event_type == EventType::TerminalStatus {
                ends.push(event);
            }
        }
        one_end(command, "state", &UNFINISHED, &ends)?;
        must!(ends.first().is_none_or(|end| end.seq() == last), "{id}: something follows its end");
        let stored: CommandFold = serde_json::from_str(command.text("fold")).unwrap();
        must!(stored == fold, "{id}: the stored fold is {stored:?}, a full scan gives {fold:?}");
        let reply = fold.pick().map(|pick| pick.session_seq);
        must!(command.opt_int("reply_session_seq") == reply, "{id}: reply_session_seq is not {reply:?}");
        Ok(())
    }

    /// A cancel waits only for a runner that may be at work, a steer only for a turn that has not ended.
    fn cancel_and_target(&self, command: &Row) -> Result<(), String> {
        if !UNFINISHED.contains(&command.text("state")) {
            return Ok(());
        }
        let id = command.text("command_id");
        if command.opt_int("cancel_requested_at").is_some() {
            must!(self.held(command.text("run_id")).is_some(), "{id}: its cancel waits for nobody");
        }
        if command.text("type") != "turn" {
            let target = command.opt_text("target_command_id").ok_or_else(|| format!("{id} has no target"))?;
            let target = self.rows.find("commands", "command_id", target).ok_or("a target is gone")?;
            must!(UNFINISHED.contains(&target.text("state")), "{id}: its target has ended");
        }
        Ok(())
    }

    fn permissions(&self) -> Result<(), String> {
        for request in self.rows.of("permissions") {
            let id = request.text("permission_id");
            let command = self.rows.find("commands", "command_id", request.text("command_id"));
            let command = command.ok_or("a permission request of no command")?;
            must!(command.text("run_id") == request.text("run_id"), "{id}: of another run's command");
            let open = request.text("status") == "pending";
            must!(!open || UNFINISHED.contains(&command.text("state")), "{id}: open, but its command has ended");
            let run_id = request.id("run_id");
            let of_run = self.events(request).iter().filter(|e| e.run.is_some_and(|(run, _)| run == run_id));
            let facts = of_run.filter(|e| e.payload["permissionId"] == id);
            let facts: Vec<_> = facts.map(|e| e.event_type).collect();
            let (asked, resolved) = (EventType::PermissionRequest, EventType::PermissionResolved);
            let expected = if open { vec![asked] } else { vec![asked, resolved] };
            must!(facts == expected, "{id}: the log has {facts:?}");
        }
        Ok(())
    }

    /// What was answered is in the log once, where the answer said; what was refused is not; nothing is there twice.
    fn sent(&self, model: &Model) -> Result<(), String> {
        let mut marks: BTreeMap<u64, Vec<i64>> = BTreeMap::new();
        for event in self.log.values().flatten() {
            if let Some(mark) = event.payload["mark"].as_u64() {
                marks.entry(mark).or_default().push(event.seq());
            }
        }
        for sent in &model.sent {
            for mark in &sent.marks {
                let at = marks.get(mark).map_or(&[][..], Vec::as_slice);
                let fits = match sent.fate {
                    Fate::Unknown => at.len() <= 1,
                    Fate::Refused => at.is_empty(),
                    Fate::Appended(answer) => at.len() == 1 && (answer.first_seq..=answer.last_seq).contains(&at[0]),
                };
                must!(fits, "mark {mark} of {:?} is at {at:?}, {:?}", sent.run.run_id, sent.fate);
            }
        }
        Ok(())
    }
}

/// A row that has ended has one fact of it, with the same status and at the number it names; others have none.
fn one_end(row: &Row, column: &str, open: &[&str], ends: &[&Read]) -> Result<(), String> {
    let status = row.text(column);
    if open.contains(&status) {
        must!(ends.is_empty() && row.opt_text("terminal").is_none(), "{row:?} is open and has an end");
        return Ok(());
    }
    let [end] = ends else { return Err(format!("{row:?} has {} ends", ends.len())) };
    let terminal = row.json("terminal");
    must!(end.payload["status"] == status && terminal["status"] == status, "{row:?} ended otherwise: {terminal}");
    must!(terminal["seq"] == end.seq(), "{row:?} names another end than {}", end.seq());
    Ok(())
}
