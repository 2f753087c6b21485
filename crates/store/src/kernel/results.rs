//! Everything a result is made of, in one read.

use ostler_protocol::{
    Timestamp,
    ids::{CommandId, RunId},
    kernel::{chain::Hash, commands::Command, leases::Lease, results::AimedEvents, runs::Run},
};

use crate::{
    db::Db,
    error::StoreError,
    record::{Reader, Record, columns, sql, text},
};

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
    /// How many steers and interrupts were aimed at the command.
    pub aimed_commands: i64,
    /// When retention removed payloads of the run.
    pub payloads_removed_at: Option<Timestamp>,
}

fn decode(row: &mut Reader<'_>) -> Result<ResultRow, StoreError> {
    Ok(ResultRow {
        run: Run::decode(row)?,
        lease: row.joined()?,
        command: row.joined()?,
        reply_payload: row.at("reply_payload")?.opt_text()?,
        target_fold: row.at("target_fold")?.opt_text()?,
        aimed_commands: row.at("aimed_commands")?.int()?,
        payloads_removed_at: row.at("payloads_removed_at")?.opt_time()?,
        session_seq: row.at("session_seq")?.int()?,
        chain_head: row.at("session_chain_head")?.hash()?,
    })
}

/// The run's result row: for the named command, or for the latest turn. A steer or an interrupt has a result too, but it is
/// not what became of the run.
pub async fn get(db: &Db, run_id: RunId, command_id: Option<CommandId>) -> Result<Option<ResultRow>, StoreError> {
    // Parameters are numbered by their first use, which SQLite follows.
    let (sql, args) = match command_id {
        Some(id) => (sql!(select("c.command_id = $1", "$2")), vec![text(id), text(run_id)]),
        None => (sql!(select(LATEST_TURN, "$1")), vec![text(run_id)]),
    };
    db.read_one(sql, args, decode).await
}

/// The events of the steers and interrupts that were aimed at a command.
pub async fn aimed_events(db: &Db, command_id: CommandId) -> Result<AimedEvents, StoreError> {
    let member = |name: &str| format!("CAST({} AS BIGINT)", db.json_text("a.fold", name));
    let sql = format!(
        "SELECT CAST(COALESCE(SUM({}), 0) AS BIGINT), CAST(COALESCE(MAX({}), 0) AS BIGINT)
         FROM commands a WHERE a.target_command_id = $1",
        member("events"),
        member("last_seq"),
    );
    Ok(db.read_one(sql, vec![text(command_id)], decode_aimed).await?.unwrap_or_default())
}

fn decode_aimed(row: &mut Reader<'_>) -> Result<AimedEvents, StoreError> {
    Ok(AimedEvents { count: row.int()?, last_seq: row.int()? })
}

/// The result row of a run, for the command that `which` selects.
fn select(which: &str, run: &str) -> String {
    format!(
        "SELECT {}, {}, {}, e.payload AS reply_payload, target.fold AS target_fold, s.last_seq AS session_seq,
             s.chain_head AS session_chain_head, p.removed_at AS payloads_removed_at,
             (SELECT COUNT(*) FROM commands a WHERE a.target_command_id = c.command_id) AS aimed_commands
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
    )
}
