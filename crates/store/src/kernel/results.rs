//! Everything a result is made of, in one read.

use ostler_protocol::{
    Timestamp,
    ids::{CommandId, RunId},
    kernel::{chain::Hash, commands::Command, leases::Lease, results::TargetingEvents, runs::Run},
};

use crate::{
    db::{Db, Engine},
    error::StoreError,
    record::{Reader, Record, columns, sql, text},
};

const BY_ID: &str = "c.command_id = $1";
const LATEST_TURN: &str = "c.seq = (SELECT n.seq FROM commands n WHERE n.run_id = r.run_id AND n.type = 'turn'
    ORDER BY n.seq DESC LIMIT 1)";

pub struct ResultRow {
    pub run: Run,
    pub lease: Option<Lease>,
    pub command: Option<Command>,
    /// The payload of the message the command's fold picked.
    pub reply_payload: Option<String>,
    pub session_seq: i64,
    pub chain_head: Hash,
    pub target_fold: Option<String>,
    /// The events of the steers and interrupts that target the command.
    pub targeting: TargetingEvents,
    /// When retention removed payloads of the run.
    pub payloads_removed_at: Option<Timestamp>,
}

/// In the order of [`select`]. To find a column by its name, SQLite compares it with those of all columns before it.
fn decode(row: &mut Reader<'_>) -> Result<ResultRow, StoreError> {
    Ok(ResultRow {
        run: Run::decode(row)?,
        lease: row.joined()?,
        command: row.joined()?,
        reply_payload: row.opt_text()?,
        target_fold: row.opt_text()?,
        session_seq: row.int()?,
        chain_head: row.hash()?,
        payloads_removed_at: row.opt_time()?,
        targeting: TargetingEvents { count: row.int()?, last_seq: row.int()? },
    })
}

/// The run's result row: for the named command, or for the latest turn. A steer or an interrupt has a result too, but it is
/// not what became of the run.
pub async fn get(db: &Db, run_id: RunId, command_id: Option<CommandId>) -> Result<Option<ResultRow>, StoreError> {
    // Parameters are numbered by their first use, which SQLite follows.
    let (by_id, latest) = match db.engine {
        Engine::Sqlite(_) => (sql!(select(BY_ID, "$2", sqlite_number)), sql!(select(LATEST_TURN, "$1", sqlite_number))),
        Engine::Postgres(_) => {
            (sql!(select(BY_ID, "$2", postgres_number)), sql!(select(LATEST_TURN, "$1", postgres_number)))
        }
    };
    let (sql, args) = match command_id {
        Some(id) => (by_id, vec![text(id), text(run_id)]),
        None => (latest, vec![text(run_id)]),
    };
    db.read_one(sql, args, decode).await
}

/// A number in the fold of the command `a`.
fn sqlite_number(member: &str) -> String {
    format!("json_extract(a.fold, '$.{member}')")
}

fn postgres_number(member: &str) -> String {
    format!("CAST(a.fold::jsonb ->> '{member}' AS BIGINT)")
}

/// The result row of a run, for the command that `which` selects. The commands that target it are read in the same statement, so
/// that their events are those of the same moment.
fn select(which: &str, run: &str, number: fn(&str) -> String) -> String {
    let targeting = |value: String| {
        format!(
            "(SELECT CAST(COALESCE({value}, 0) AS BIGINT) FROM commands a WHERE a.target_command_id = c.command_id)"
        )
    };
    format!(
        "SELECT {}, {}, {}, e.payload AS reply_payload, target.fold AS target_fold, s.last_seq AS session_seq,
             s.chain_head AS session_chain_head, p.removed_at AS payloads_removed_at,
             {} AS targeting_count, {} AS targeting_last_seq
         FROM runs r
         JOIN sessions s ON s.session_id = r.session_id
         LEFT JOIN leases l ON l.run_id = r.run_id
         LEFT JOIN commands c ON c.run_id = r.run_id AND {which}
         LEFT JOIN events e ON e.session_id = c.session_id AND e.session_seq = c.reply_session_seq
         LEFT JOIN commands target ON target.command_id = c.target_command_id
         LEFT JOIN payload_removals p ON p.run_id = r.run_id
         WHERE r.run_id = {run}",
        columns::<Run>("r"),
        columns::<Lease>("l"),
        columns::<Command>("c"),
        targeting(format!("SUM({})", number("events"))),
        targeting(format!("MAX({})", number("last_seq"))),
    )
}
