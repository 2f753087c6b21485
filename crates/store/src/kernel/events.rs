//! Events: read by run or by session, appended by the lanes only.

use ostler_protocol::{
    ids::{RunId, SessionId},
    kernel::events::{Event, EventType},
    limits::PAGE_BYTES_MAX,
};

use crate::{
    db::{Db, StoreError},
    record::{Reader, Value, opt_text, text},
};

pub(crate) const COLUMNS: &str =
    "session_id, session_seq, run_id, seq, command_id, type, payload, digest, hash, created_at";

/// Rows asked for at first; later reads ask for as many as seem to fit the page.
const CHUNK_ROWS_MIN: u32 = 24;
const CHUNK_ROWS_MAX: u32 = 512;
/// The same, where the newest are read.
const NEWEST_CHUNK: usize = 128;

pub(crate) fn decode(row: &mut Reader<'_>) -> Result<Event, StoreError> {
    let (session, session_seq) = (row.id()?, row.int()?);
    let run = match (row.opt_id()?, row.opt_int()?) {
        (Some(run_id), Some(seq)) => Some((run_id, seq)),
        (None, None) => None,
        _ => return Err(StoreError::corrupt("an event has half a place in a run")),
    };
    Ok(Event {
        session,
        session_seq,
        run,
        command_id: row.opt_id()?,
        event_type: row.named(EventType::parse)?,
        payload: row.opt_str()?.map(Into::into),
        digest: row.hash()?,
        hash: row.hash()?,
        created_at: row.time()?,
    })
}

/// A page of events and whether more follow.
pub struct Page {
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
) -> Result<Page, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM events WHERE session_id = $1 AND run_id = $2 AND seq > $3 ORDER BY seq LIMIT $4"
    );
    let args = move |after: i64, limit: u32| vec![text(session), text(run_id), after.into(), i64::from(limit).into()];
    page(db, sql, args, Event::seq, after, bounds.into()).await
}

/// The session's events numbered above `after`.
pub async fn list_by_session(
    db: &Db,
    session: SessionId,
    after: i64,
    bounds: impl Into<Bounds>,
) -> Result<Page, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM events WHERE session_id = $1 AND session_seq > $2 ORDER BY session_seq LIMIT $3"
    );
    let args = move |after: i64, limit: u32| vec![text(session), after.into(), i64::from(limit).into()];
    page(db, sql, args, |event| event.session_seq, after, bounds.into()).await
}

pub async fn get(db: &Db, session: SessionId, session_seq: i64) -> Result<Option<Event>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM events WHERE session_id = $1 AND session_seq = $2");
    db.read_one(sql, vec![text(session), session_seq.into()], decode).await
}

/// What people read of a session: messages of the agent and output of its tools, numbered above `after`; of one run, by
/// the run's numbers, when it is named.
pub async fn list_output(
    db: &Db,
    session: SessionId,
    run_id: Option<RunId>,
    after: i64,
    limit: u32,
) -> Result<Page, StoreError> {
    let (scope, number) = match run_id {
        Some(_) => ("run_id = $2 AND seq > $3", "seq"),
        None => ("session_seq > $2", "session_seq"),
    };
    let last = if run_id.is_some() { "$4" } else { "$3" };
    let sql = format!(
        "SELECT {COLUMNS} FROM events WHERE session_id = $1 AND {scope}
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
    let names: Vec<_> = types.iter().map(|event_type| format!("'{}'", event_type.as_str())).collect();
    let sql = format!(
        "SELECT {COLUMNS} FROM events WHERE session_id = $1 AND session_seq < $2
         AND session_seq > (SELECT MAX(session_seq) FROM events WHERE session_id = $1) - $3
         AND type IN ({}) ORDER BY session_seq DESC LIMIT $4",
        names.join(", ")
    );
    let (mut found, mut bytes, mut before) = (Newest::default(), 0, i64::MAX);
    loop {
        let args = vec![text(session), before.into(), within.into(), (NEWEST_CHUNK as i64).into()];
        let chunk = db.read(sql.clone(), args, decode).await?;
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
        "SELECT {COLUMNS} FROM events WHERE session_id = $1 AND session_seq <= $2 AND session_seq > $3
         AND type = '{}' ORDER BY session_seq DESC LIMIT $4",
        event_type.as_str()
    );
    let (first, limit) = (last.saturating_sub(within), limit as i64);
    db.read(sql, vec![text(session), last.into(), first.into(), limit.into()], decode).await
}

/// Events of a session that is not there.
#[derive(Clone, Debug, PartialEq)]
pub struct Orphans {
    /// As it stands in the row; nothing says that it is an id of ours.
    pub session_id: String,
    pub first_seq: i64,
    pub events: i64,
}

/// Sessions that have events and no row, named above `after`.
pub async fn list_orphans(db: &Db, after: Option<&str>, limit: u32) -> Result<Vec<Orphans>, StoreError> {
    let sql = "SELECT e.session_id, MIN(e.session_seq), COUNT(*) FROM events AS e
         WHERE ($1 IS NULL OR e.session_id > $1)
         AND NOT EXISTS (SELECT 1 FROM sessions AS s WHERE s.session_id = e.session_id)
         GROUP BY e.session_id ORDER BY e.session_id LIMIT $2";
    let decode =
        |row: &mut Reader<'_>| Ok(Orphans { session_id: row.text()?, first_seq: row.int()?, events: row.int()? });
    db.read(sql, vec![opt_text(after), i64::from(limit).into()], decode).await
}

async fn page(
    db: &Db,
    sql: String,
    args: impl Fn(i64, u32) -> Vec<Value>,
    number: fn(&Event) -> i64,
    mut after: i64,
    bounds: Bounds,
) -> Result<Page, StoreError> {
    let mut events: Vec<Event> = vec![];
    let mut bytes = 0;
    let mut chunk_rows = CHUNK_ROWS_MIN;
    loop {
        let left = bounds.events - events.len() as u32;
        // One more than is wanted tells whether more follow.
        let asked = chunk_rows.min(left + 1);
        let mut chunk = db.read(sql.clone(), args(after, asked), decode).await?;
        let full = chunk.len() as u32 == asked;
        let has_more = chunk.len() as u32 > left;
        chunk.truncate(left as usize);
        for event in chunk {
            let size = event.payload.as_deref().map_or(0, str::len);
            // One is always taken, or a reader would never get past it.
            if bytes + size > bounds.bytes && !events.is_empty() {
                return Ok(Page { events, has_more: true });
            }
            bytes += size;
            after = number(&event);
            events.push(event);
        }
        if has_more || !full {
            return Ok(Page { events, has_more });
        }
        let fitting = bounds.bytes.saturating_sub(bytes) / (bytes / events.len().max(1)).max(1);
        chunk_rows = (fitting as u32).clamp(CHUNK_ROWS_MIN, CHUNK_ROWS_MAX);
    }
}

impl crate::record::Record for ostler_protocol::kernel::operations::Batch {
    const TABLE: &'static str = "append_batches";
    const KEY: usize = 3;
    const FIXED: usize = 7;
    const COLUMNS: &'static [(&'static str, crate::record::Kind)] = &[
        ("run_id", crate::record::Kind::Text),
        ("lease_epoch", crate::record::Kind::Int),
        ("batch_no", crate::record::Kind::Int),
        ("first_seq", crate::record::Kind::Int),
        ("last_seq", crate::record::Kind::Int),
        ("released", crate::record::Kind::Int),
        ("digest", crate::record::Kind::Bytes),
    ];

    fn key(&self) -> Vec<Value> {
        vec![text(self.run_id), self.lease_epoch.into(), self.batch_no.into()]
    }

    fn fixed(&self) -> Vec<Value> {
        vec![
            text(self.run_id),
            self.lease_epoch.into(),
            self.batch_no.into(),
            self.first_seq.into(),
            self.last_seq.into(),
            self.released.into(),
            (&self.digest).into(),
        ]
    }

    fn state(&self) -> Vec<Value> {
        vec![]
    }

    fn decode(row: &mut Reader<'_>) -> Result<Self, StoreError> {
        Ok(Self {
            run_id: row.id()?,
            lease_epoch: row.int()?,
            batch_no: row.int()?,
            first_seq: row.int()?,
            last_seq: row.int()?,
            released: row.flag()?,
            digest: row.hash()?,
        })
    }
}
