//! Events: read by run or by session, appended by the lanes only.

use ostler_protocol::{
    ids::{CommandId, RunId, SessionId},
    kernel::{
        conversation::{CHANGES, SAID},
        events::{Event, EventType},
        operations::Batch,
    },
    limits::{CONVERSATION_EVENTS_MAX, PAGE_BYTES_MAX},
    tools::calls::{TOOLKIT, is_call_id},
};

use crate::{
    db::Db,
    error::StoreError,
    record::{Reader, Record, Value, opt_text, record, text},
};

const NAMES: &str = <Event as Record>::NAMES;

/// Rows of the first read; later reads have as many as seem to fit the page.
const CHUNK_ROWS_MIN: u32 = 24;
const CHUNK_ROWS_MAX: u32 = 512;
/// The same, where the newest are read.
const NEWEST_CHUNK: usize = 128;

/// The condition of the partial index of messages and phases, for `events e`; in SQLite also its text. It is not a list of values,
/// because SQLite builds a table in memory for each use of one.
pub(crate) const INDEXED: &str =
    "(e.type = 'user_message' OR e.type = 'assistant_message' OR e.type = 'backend_status')";

record! {
    Event, event in "events";
    key {
        session = "session_id": id;
        session_seq: int;
    }
    fixed {
        run_id: opt_id from event.run.map(|(run_id, _)| run_id);
        seq: opt_int from event.run.map(|(_, seq)| seq);
        command_id: opt_id;
        event_type = "type": named(EventType);
        payload: shared_json;
        digest: hash;
        hash: hash;
        created_at: time;
    }
    state {}
    build Event {
        session,
        session_seq,
        run: both(run_id, seq)?,
        command_id,
        event_type,
        payload,
        digest,
        hash,
        created_at,
    };
}

/// An event's place in a run: both columns, or neither.
fn both(run_id: Option<RunId>, seq: Option<i64>) -> Result<Option<(RunId, i64)>, StoreError> {
    match (run_id, seq) {
        (Some(run_id), Some(seq)) => Ok(Some((run_id, seq))),
        (None, None) => Ok(None),
        _ => Err(StoreError::corrupt("an event has half a place in a run")),
    }
}

/// A page of events and whether more follow.
pub struct StoredEvents {
    pub events: Vec<Event>,
    pub has_more: bool,
}

/// How much a page holds at most. One event always fits.
#[derive(Clone, Copy)]
pub struct Bounds {
    pub events: u32,
    pub bytes: usize,
}

impl From<u32> for Bounds {
    fn from(events: u32) -> Self {
        Self { events, bytes: PAGE_BYTES_MAX }
    }
}

/// The run's events numbered above `after`.
pub async fn list_by_run(
    db: &Db,
    session: SessionId,
    run_id: RunId,
    after: i64,
    bounds: impl Into<Bounds>,
) -> Result<StoredEvents, StoreError> {
    let sql =
        format!("SELECT {NAMES} FROM events WHERE session_id = $1 AND run_id = $2 AND seq > $3 ORDER BY seq LIMIT $4");
    let args = move |after: i64, limit: u32| vec![text(session), text(run_id), after.into(), i64::from(limit).into()];
    page(db, sql, args, Event::seq, after, bounds.into()).await
}

/// The session's events numbered above `after`.
pub async fn list_by_session(
    db: &Db,
    session: SessionId,
    after: i64,
    bounds: impl Into<Bounds>,
) -> Result<StoredEvents, StoreError> {
    let sql =
        format!("SELECT {NAMES} FROM events WHERE session_id = $1 AND session_seq > $2 ORDER BY session_seq LIMIT $3");
    let args = move |after: i64, limit: u32| vec![text(session), after.into(), i64::from(limit).into()];
    page(db, sql, args, |event| event.session_seq, after, bounds.into()).await
}

pub async fn get(db: &Db, session: SessionId, session_seq: i64) -> Result<Option<Event>, StoreError> {
    let sql = format!("SELECT {NAMES} FROM events WHERE session_id = $1 AND session_seq = $2");
    db.read_one(sql, vec![text(session), session_seq.into()], Event::decode).await
}

/// What people read of a session: messages of the agent and output of its tools, numbered above `after`; of one run, by
/// the run's numbers, when it is named.
pub async fn list_output(
    db: &Db,
    session: SessionId,
    run_id: Option<RunId>,
    after: i64,
    limit: u32,
) -> Result<StoredEvents, StoreError> {
    let (scope, number) = match run_id {
        Some(_) => ("run_id = $2 AND seq > $3", "seq"),
        None => ("session_seq > $2", "session_seq"),
    };
    let last = if run_id.is_some() { "$4" } else { "$3" };
    let sql = format!(
        "SELECT {NAMES} FROM events WHERE session_id = $1 AND {scope}
         AND type IN ('assistant_message', 'command_output') ORDER BY {number} LIMIT {last}"
    );
    let args = move |after: i64, limit: u32| {
        let run = run_id.map(text);
        [text(session)].into_iter().chain(run).chain([after.into(), i64::from(limit).into()]).collect()
    };
    let number = if run_id.is_some() { Event::seq } else { |event: &Event| event.session_seq };
    page(db, sql, args, number, after, limit.into()).await
}

/// The newest events of a session, in their order.
#[derive(Clone, Debug, Default)]
pub struct Newest {
    pub events: Vec<Event>,
    /// There were more of them, or they were too large.
    pub truncated: bool,
}

/// The newest events of these types among the newest `within` of a session: so many, and as many as a page has bytes.
pub async fn list_newest(
    db: &Db,
    session: SessionId,
    types: &[EventType],
    within: i64,
    limit: usize,
) -> Result<Newest, StoreError> {
    newest(db, session, Wanted::all(of_types(types)), i64::MAX, within, limit).await
}

/// The newest events up to `last` of which a conversation is folded, among the newest `within` up to it: so many, and as many as
/// a page has bytes.
pub async fn list_conversation(
    db: &Db,
    session: SessionId,
    last: i64,
    within: i64,
    limit: usize,
) -> Result<Newest, StoreError> {
    let calls = format!("type = 'tool_call' AND CAST(payload AS TEXT) LIKE '%\"type\":\"{TOOLKIT}\"%'");
    let wanted = format!("({} OR {calls} OR {})", of_types(&SAID), is_change(&CHANGES));
    newest(db, session, Wanted::all(wanted), last.saturating_add(1), within, limit).await
}

/// Most events of one tool call.
const CALL_EVENTS_MAX: usize = 8;

/// The events of a tool call, in their order. `call_id` must be one that passed `is_call_id`. Events of calls whose ids look like
/// it may be among them: whether one is of this call is for its reader to check.
pub async fn list_tool_call(db: &Db, session: SessionId, call_id: &str) -> Result<Vec<Event>, StoreError> {
    if !is_call_id(call_id) {
        return Ok(vec![]);
    }
    let condition = format!("{} AND CAST(payload AS TEXT) LIKE $5", of_types(&[EventType::ToolCall]));
    let pattern = format!("%\"toolCallId\":\"{call_id}\"%");
    let wanted = Wanted { condition, argument: Some(pattern.into()) };
    let found = newest(db, session, wanted, i64::MAX, CONVERSATION_EVENTS_MAX, CALL_EVENTS_MAX).await?;
    Ok(found.events)
}

/// The newest `tool_call` events of a command, in their order. Those before the newest `CONVERSATION_EVENTS_MAX` events of the session
/// are left out, which `truncated` does not report.
pub async fn list_tool_calls(
    db: &Db,
    session: SessionId,
    command_id: CommandId,
    limit: u32,
) -> Result<Newest, StoreError> {
    let condition = format!("{} AND command_id = $5", of_types(&[EventType::ToolCall]));
    let wanted = Wanted { condition, argument: Some(text(command_id)) };
    newest(db, session, wanted, i64::MAX, CONVERSATION_EVENTS_MAX, limit as usize).await
}

/// The newest `tool_call` events of a command, numbered above `after` and below `before` in their session, the newest first.
pub async fn list_tool_calls_between(
    db: &Db,
    session: SessionId,
    command_id: CommandId,
    (after, before): (i64, i64),
    limit: usize,
) -> Result<Vec<Event>, StoreError> {
    let sql = format!(
        "SELECT {NAMES} FROM events WHERE session_id = $1 AND session_seq > $2 AND session_seq < $3
         AND {} AND command_id = $4 ORDER BY session_seq DESC LIMIT $5",
        of_types(&[EventType::ToolCall])
    );
    let args = vec![text(session), after.into(), before.into(), text(command_id), (limit as i64).into()];
    db.read(sql, args, Event::decode).await
}

/// A condition: the event is of one of these types.
pub(crate) fn of_types(types: &[EventType]) -> String {
    let names: Vec<_> = types.iter().map(|event_type| format!("'{}'", event_type.as_str())).collect();
    format!("type IN ({})", names.join(", "))
}

/// A condition: the session's own fact may be one of these changes. Whether it is one is for its reader to check.
pub(crate) fn is_change(changes: &[&str]) -> String {
    let like = |change: &&str| format!("CAST(payload AS TEXT) LIKE '%\"change\":\"{change}\"%'");
    let any: Vec<_> = changes.iter().map(like).collect();
    format!("type = 'session' AND run_id IS NULL AND ({})", any.join(" OR "))
}

/// A condition on events. Its argument is `$5`: a value in the text of a statement would have it prepared again for each value.
struct Wanted {
    condition: String,
    argument: Option<Value>,
}

impl Wanted {
    fn all(condition: String) -> Self {
        Self { condition, argument: None }
    }
}

async fn newest(
    db: &Db,
    session: SessionId,
    Wanted { condition, argument }: Wanted,
    end: i64,
    within: i64,
    limit: usize,
) -> Result<Newest, StoreError> {
    let sql = format!(
        "SELECT {NAMES} FROM events WHERE session_id = $1 AND session_seq < $2
         AND session_seq > (SELECT MAX(session_seq) FROM events WHERE session_id = $1 AND session_seq < $3) - $4
         AND {condition} ORDER BY session_seq DESC LIMIT {NEWEST_CHUNK}"
    );
    let (mut found, mut bytes, mut before) = (Newest::default(), 0, end);
    loop {
        let mut args = vec![text(session), before.into(), end.into(), within.into()];
        args.extend(argument.clone());
        let chunk = db.read(sql.clone(), args, Event::decode).await?;
        let is_last = chunk.len() < NEWEST_CHUNK;
        for event in chunk {
            bytes += event.payload.as_deref().map_or(0, str::len);
            found.truncated = found.events.len() == limit || (bytes > PAGE_BYTES_MAX && !found.events.is_empty());
            if found.truncated {
                break;
            }
            before = event.session_seq;
            found.events.push(event);
        }
        if is_last || found.truncated {
            found.events.reverse();
            return Ok(found);
        }
    }
}

/// The newest events of a type numbered `last` or below, among the `within` newest of those: so many, the newest first.
pub async fn list_newest_before(
    db: &Db,
    session: SessionId,
    event_type: EventType,
    last: i64,
    within: i64,
    limit: usize,
) -> Result<Vec<Event>, StoreError> {
    let sql = format!(
        "SELECT {NAMES} FROM events WHERE session_id = $1 AND session_seq <= $2 AND session_seq > $3
         AND type = '{}' ORDER BY session_seq DESC LIMIT $4",
        event_type.as_str()
    );
    let (first, limit) = (last.saturating_sub(within), limit as i64);
    db.read(sql, vec![text(session), last.into(), first.into(), limit.into()], Event::decode).await
}

/// Events of a session that is not there.
#[derive(Clone, Debug, PartialEq)]
pub struct Orphans {
    /// As stored; may not be a valid session id.
    pub session_id: String,
    pub first_seq: i64,
    pub events: i64,
}

/// Sessions that have events and no row, named above `after`.
pub async fn list_orphans(db: &Db, after: Option<&str>, limit: u32) -> Result<Vec<Orphans>, StoreError> {
    let sql = "SELECT e.session_id, MIN(e.session_seq) AS first_seq, COUNT(*) AS events FROM events AS e
         WHERE ($1 IS NULL OR e.session_id > $1)
         AND NOT EXISTS (SELECT 1 FROM sessions AS s WHERE s.session_id = e.session_id)
         GROUP BY e.session_id ORDER BY e.session_id LIMIT $2";
    let decode = |row: &mut Reader<'_>| {
        let (session_id, first_seq) = (row.at("session_id")?.text()?, row.at("first_seq")?.int()?);
        Ok(Orphans { session_id, first_seq, events: row.at("events")?.int()? })
    };
    db.read(sql, vec![opt_text(after), i64::from(limit).into()], decode).await
}

async fn page(
    db: &Db,
    sql: String,
    args: impl Fn(i64, u32) -> Vec<Value>,
    number: fn(&Event) -> i64,
    mut after: i64,
    bounds: Bounds,
) -> Result<StoredEvents, StoreError> {
    let mut events: Vec<Event> = vec![];
    let mut bytes = 0;
    let mut chunk_rows = CHUNK_ROWS_MIN;
    loop {
        let left = bounds.events - events.len() as u32;
        // One more than fits shows whether more follow.
        let wanted = chunk_rows.min(left + 1);
        let mut chunk = db.read(sql.clone(), args(after, wanted), Event::decode).await?;
        let full = chunk.len() as u32 == wanted;
        let has_more = chunk.len() as u32 > left;
        chunk.truncate(left as usize);
        for event in chunk {
            let size = event.payload.as_deref().map_or(0, str::len);
            // One is always taken, or a reader would never get past it.
            if bytes + size > bounds.bytes && !events.is_empty() {
                return Ok(StoredEvents { events, has_more: true });
            }
            bytes += size;
            after = number(&event);
            events.push(event);
        }
        if has_more || !full {
            return Ok(StoredEvents { events, has_more });
        }
        let fitting = bounds.bytes.saturating_sub(bytes) / (bytes / events.len().max(1)).max(1);
        chunk_rows = (fitting as u32).clamp(CHUNK_ROWS_MIN, CHUNK_ROWS_MAX);
    }
}

record! {
    Batch, batch in "append_batches";
    key {
        run_id: id;
        lease_epoch: int;
        batch_no: int;
    }
    fixed {
        first_seq: int;
        last_seq: int;
        released: flag;
        digest: hash;
    }
    state {}
}
