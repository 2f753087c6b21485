//! History: the messages of a session, by time. Messages and phases have an index of their own, so that neither the other
//! events of a session nor its other days are scanned.

use ostler_protocol::{
    Timestamp,
    ids::{CommandId, RunId, SessionId},
    kernel::{
        commands::{CommandState, CommandType},
        events::Event,
        runs::Terminal,
    },
};

use crate::{
    db::Db,
    error::StoreError,
    kernel::events::INDEXED,
    record::{Reader, Record, Value, columns, text},
};

const MESSAGES: &str = "(e.type = 'user_message' OR e.type = 'assistant_message' OR e.type = 'backend_status')
         AND e.type <> 'backend_status'";
/// Turns that were rolled back are not shown.
const NOT_ROLLED_BACK: &str =
    "NOT EXISTS (SELECT 1 FROM commands c WHERE c.command_id = e.command_id AND c.rolled_back_at IS NOT NULL)";
/// Messages read at a time.
const CHUNK: usize = 256;
/// Events of a turn that are searched for its unfinished reply.
const TURN_EVENTS_MAX: i64 = 10_000;
/// Turns of a day that are read.
const TURNS_MAX: i64 = 10_000;
/// Phases of a day that are read, the newest.
const PHASES_MAX: i64 = 20_000;
/// A phase that history looks at is a name. Those that carry changes of the workspace are large.
const PHASE_BYTES_MAX: i64 = 1_024;

/// A statement and its arguments.
type Statement = (String, Vec<Value>);

fn last(session: SessionId, before: Timestamp) -> Statement {
    let sql = format!(
        "SELECT e.created_at FROM events e WHERE e.session_id = $1 AND {MESSAGES} AND e.created_at < $2 AND {NOT_ROLLED_BACK}
         ORDER BY e.created_at DESC, e.session_seq DESC LIMIT 1"
    );
    (sql, vec![text(session), before.into()])
}

/// The time of the last message before then.
pub async fn find_last(db: &Db, session: SessionId, before: Timestamp) -> Result<Option<Timestamp>, StoreError> {
    let (sql, args) = last(session, before);
    db.read_one(sql, args, |row| row.time()).await
}

fn earlier(session: SessionId, before: Timestamp) -> Statement {
    // A turn that was not rolled back begins with a visible message, and every other visible message belongs to a turn.
    let sql = format!(
        "SELECT e.session_seq FROM events e JOIN commands t ON t.command_id = e.command_id
         WHERE e.session_id = $1 AND {INDEXED} AND e.type = 'user_message' AND e.created_at < $2
         AND t.type = 'turn' AND t.rolled_back_at IS NULL ORDER BY e.created_at DESC, e.session_seq DESC LIMIT 1"
    );
    (sql, vec![text(session), before.into()])
}

/// Whether there is a visible message before then.
pub async fn has_earlier(db: &Db, session: SessionId, before: Timestamp) -> Result<bool, StoreError> {
    let (sql, args) = earlier(session, before);
    Ok(db.read_one(sql, args, |row| row.int()).await?.is_some())
}

/// A span of time, without its end.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub start: Timestamp,
    pub end: Timestamp,
}

fn messages(session: SessionId, span: Span, before: (Timestamp, i64), limit: usize) -> Statement {
    let columns = columns::<Event>("e");
    let sql = format!(
        "SELECT {columns} FROM events e WHERE e.session_id = $1 AND {MESSAGES} AND e.created_at >= $2
         AND (e.created_at, e.session_seq) < ($3, $4) AND {NOT_ROLLED_BACK}
         ORDER BY e.created_at DESC, e.session_seq DESC LIMIT $5"
    );
    let args = vec![text(session), span.start.into(), before.0.into(), before.1.into(), (limit as i64).into()];
    (sql, args)
}

/// The messages of that time, in order. If they are too many or too large, the newest.
pub async fn list_messages(
    db: &Db,
    session: SessionId,
    span: Span,
    messages_max: usize,
    bytes_max: usize,
) -> Result<Vec<Event>, StoreError> {
    let (mut found, mut bytes, mut before): (Vec<Event>, _, _) = (vec![], 0, (span.end, i64::MIN));
    'all: loop {
        let (sql, args) = messages(session, span, before, CHUNK);
        let chunk = db.read(sql, args, Event::decode).await?;
        let is_last = chunk.len() < CHUNK;
        for event in chunk {
            bytes += event.payload.as_deref().map_or(0, str::len);
            if found.len() == messages_max || (bytes > bytes_max && !found.is_empty()) {
                break 'all;
            }
            before = (event.created_at, event.session_seq);
            found.push(event);
        }
        if is_last {
            break;
        }
    }
    found.sort_unstable_by_key(|event| event.session_seq);
    Ok(found)
}

/// What history needs to know of a turn.
#[derive(Clone, Debug)]
pub struct Turn {
    pub command_id: CommandId,
    pub run_id: RunId,
    pub command_type: CommandType,
    pub state: CommandState,
    /// When anything last happened in it.
    pub updated_at: Timestamp,
    /// How it ended, if it has.
    pub terminal: Option<Terminal>,
}

fn turns(session: SessionId, span: Span) -> Statement {
    let sql = format!(
        "SELECT t.command_id, t.run_id, t.type, t.state, t.updated_at, t.terminal FROM commands t WHERE t.command_id IN
         (SELECT e.command_id FROM events e WHERE e.session_id = $1 AND {MESSAGES} AND e.created_at >= $2
          AND e.created_at < $3 ORDER BY e.created_at DESC, e.session_seq DESC LIMIT $4)"
    );
    (sql, vec![text(session), span.start.into(), span.end.into(), TURNS_MAX.into()])
}

/// The commands with messages at that time.
pub async fn list_turns(db: &Db, session: SessionId, span: Span) -> Result<Vec<Turn>, StoreError> {
    let (sql, args) = turns(session, span);
    let decode = |row: &mut Reader<'_>| {
        Ok(Turn {
            command_id: row.at("command_id")?.id()?,
            run_id: row.at("run_id")?.id()?,
            command_type: row.at("type")?.named(CommandType::parse)?,
            state: row.at("state")?.named(CommandState::parse)?,
            updated_at: row.at("updated_at")?.time()?,
            terminal: row.at("terminal")?.opt_json()?,
        })
    };
    db.read(sql, args, decode).await
}

fn phases(session: SessionId, span: Span) -> Statement {
    let columns = columns::<Event>("e");
    let sql = format!(
        "SELECT {columns} FROM events e WHERE e.session_id = $1 AND {INDEXED} AND e.type = 'backend_status'
         AND e.created_at >= $2 AND e.created_at <= $3 AND octet_length(e.payload) <= $4
         ORDER BY e.created_at DESC, e.session_seq DESC LIMIT $5"
    );
    (sql, vec![text(session), span.start.into(), span.end.into(), PHASE_BYTES_MAX.into(), PHASES_MAX.into()])
}

/// The phases of that time, including its end, in order, except those with large payloads. If they are too many, the newest.
pub async fn list_phases(db: &Db, session: SessionId, span: Span) -> Result<Vec<Event>, StoreError> {
    let (sql, args) = phases(session, span);
    let mut found = db.read(sql, args, Event::decode).await?;
    found.reverse();
    Ok(found)
}

/// From a turn's own message to its end, by the numbers of its run.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    pub run_id: RunId,
    pub command_id: CommandId,
    pub asked_seq: i64,
    pub end_seq: i64,
}

impl Extent {
    /// `None` if it has not ended.
    pub fn of(turn: &Turn, asked: &Event) -> Option<Self> {
        let ((run_id, asked_seq), end) = asked.run.zip(turn.terminal.as_ref())?;
        Some(Self { run_id, command_id: turn.command_id, asked_seq, end_seq: end.seq })
    }
}

fn turn(extent: Extent) -> Statement {
    let columns = columns::<Event>("e");
    let sql = format!(
        "SELECT {columns} FROM events e WHERE e.run_id = $1 AND e.seq > $2 AND e.seq < $3 AND e.command_id = $4
         AND e.type IN ('assistant_delta', 'assistant_message', 'backend_status') ORDER BY e.seq LIMIT $5"
    );
    let Extent { run_id, command_id, asked_seq, end_seq } = extent;
    (sql, vec![text(run_id), asked_seq.into(), end_seq.into(), text(command_id), TURN_EVENTS_MAX.into()])
}

/// The deltas, messages and phases of a turn, between the user's message and its end.
pub async fn list_turn(db: &Db, extent: Extent) -> Result<Vec<Event>, StoreError> {
    let (sql, args) = turn(extent);
    db.read(sql, args, Event::decode).await
}

/// The engine's plan for a turn.
pub async fn explain_turn(db: &Db, extent: Extent) -> Result<String, StoreError> {
    let (sql, args) = turn(extent);
    Ok(db.explain(&sql, args).await?.join("\n"))
}

/// The engine's plans for a page, one per statement.
pub async fn explain(db: &Db, session: SessionId, span: Span) -> Result<Vec<String>, StoreError> {
    let statements = [
        last(session, span.end),
        earlier(session, span.start),
        messages(session, span, (span.end, i64::MIN), CHUNK),
        turns(session, span),
        phases(session, span),
    ];
    let mut plans = vec![];
    for (sql, args) in statements {
        plans.push(db.explain(&sql, args).await?.join("\n"));
    }
    Ok(plans)
}
