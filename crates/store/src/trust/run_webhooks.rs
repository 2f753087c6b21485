//! Which events of runs were reported to webhooks. A run's cursor moves together with the deliveries of the events that it
//! passes, so that each event is reported once, by whichever server.

use ostler_protocol::{
    Timestamp,
    ids::{AgentId, RunId, SessionId},
    kernel::events::{Event, EventType},
};

use crate::{
    db::{Db, Engine},
    error::StoreError,
    record::{Reader, Record, Statement, json, record, text},
    retention::{gate, held_tenants},
    trust::webhooks::{self, NewDelivery, OF_OWNER},
};

/// The types of events that are reported.
const REPORTED: [EventType; 2] = [EventType::PermissionRequest, EventType::TerminalStatus];

record! {
    RunCursor, cursor in "webhook_runs";
    key {
        run_id: id;
    }
    fixed {
        agent_id: id;
    }
    state {
        reported_seq: int;
    }
}

/// How far the events of a run were reported.
#[derive(Clone, Debug)]
pub struct RunCursor {
    pub run_id: RunId,
    pub agent_id: AgentId,
    /// Events up to this number were reported, or are not to be.
    pub reported_seq: i64,
}

/// A run with events that were not read for its agent's webhook.
#[derive(Clone, Debug)]
pub struct UnreportedRun {
    pub cursor: RunCursor,
    pub session: SessionId,
    pub last_seq: i64,
    /// Earlier events are not reported.
    pub since: Timestamp,
    pub owner_id: String,
}

fn decode(row: &mut Reader<'_>) -> Result<UnreportedRun, StoreError> {
    Ok(UnreportedRun {
        cursor: RunCursor {
            run_id: row.at("run_id")?.id()?,
            agent_id: row.at("agent_id")?.id()?,
            reported_seq: row.at("reported_seq")?.int()?,
        },
        session: row.at("session_id")?.id()?,
        last_seq: row.at("last_seq")?.int()?,
        since: row.at("since")?.time()?,
        owner_id: row.at("owner_id")?.text()?,
    })
}

/// The time from which a webhook reports runs. A server of an earlier version stores none.
const SINCE: &str = "COALESCE(w.runs_since, w.created_at)";

/// Runs of agents with a webhook, also a disabled one: what it misses can be replayed. `join` is how runs are joined to webhooks.
fn unreported(join: &str, of: &str, rest: &str) -> String {
    format!(
        "SELECT r.run_id AS run_id, r.agent_id AS agent_id, COALESCE(c.reported_seq, 0) AS reported_seq,
             r.session_id AS session_id, r.last_seq AS last_seq, {SINCE} AS since, a.owner_id AS owner_id
         FROM webhooks w JOIN agents a ON a.agent_id = w.agent_id {join} runs r ON r.agent_id = w.agent_id
         LEFT JOIN webhook_runs c ON c.run_id = r.run_id
         WHERE {of} AND r.updated_at >= {SINCE} AND r.last_seq > COALESCE(c.reported_seq, 0) {rest}"
    )
}

/// Whether any agent has a webhook.
pub async fn any_webhook(db: &Db) -> Result<bool, StoreError> {
    Ok(!db.read("SELECT 1 FROM webhooks LIMIT 1", vec![], |_| Ok(())).await?.is_empty())
}

/// Reads all runs of agents with a webhook, in the order of their ids.
pub async fn list_unreported(db: &Db, after: Option<RunId>, limit: u32) -> Result<Vec<UnreportedRun>, StoreError> {
    // SQLite would otherwise look up the webhook of each run that names an agent.
    let join = match db.engine {
        Engine::Sqlite(_) => "CROSS JOIN",
        Engine::Postgres(_) => "JOIN",
    };
    let after = after.map(|run_id| run_id.to_string()).unwrap_or_default();
    let sql = unreported(join, "r.run_id > $1", "ORDER BY r.run_id LIMIT $2");
    db.read(sql, vec![after.into(), i64::from(limit).into()], decode).await
}

/// As [`list_unreported`], among these runs only.
pub async fn list_unreported_of(db: &Db, runs: &[RunId]) -> Result<Vec<UnreportedRun>, StoreError> {
    let of = format!("r.run_id IN (SELECT one FROM {})", db.list("$1"));
    db.read(unreported("JOIN", &of, ""), vec![json(&runs)], decode).await
}

/// The facts about a run that decide who may read it.
#[derive(Clone, Debug)]
pub struct RunAccess {
    pub run_id: RunId,
    pub session: SessionId,
    pub tenant_id: String,
    /// The user whose thread it is in, if it is in one.
    pub owner: Option<String>,
    pub backend_profile: String,
}

/// Those of these runs that exist and whose session is not erased.
pub async fn list_access(db: &Db, runs: &[RunId]) -> Result<Vec<RunAccess>, StoreError> {
    let sql = format!(
        "SELECT r.run_id AS run_id, r.session_id AS session_id, r.tenant_id AS tenant_id, s.owner AS owner,
             r.backend_profile AS backend_profile
         FROM runs r JOIN sessions s ON s.session_id = r.session_id AND s.erased_at IS NULL
         WHERE r.run_id IN (SELECT one FROM {})",
        db.list("$1")
    );
    let decode = |row: &mut Reader<'_>| {
        Ok(RunAccess {
            run_id: row.at("run_id")?.id()?,
            session: row.at("session_id")?.id()?,
            tenant_id: row.at("tenant_id")?.text()?,
            owner: row.at("owner")?.opt_text()?,
            backend_profile: row.at("backend_profile")?.text()?,
        })
    };
    db.read(sql, vec![json(&runs)], decode).await
}

/// The run's next events of the reported types, at most `limit`.
pub async fn list_events(db: &Db, run: &UnreportedRun, limit: u32) -> Result<Vec<Event>, StoreError> {
    let types = REPORTED.map(|event_type| format!("'{}'", event_type.as_str())).join(", ");
    let sql = format!(
        "SELECT {} FROM events WHERE session_id = $1 AND run_id = $2 AND seq > $3 AND seq <= $4 AND created_at >= $5
         AND type IN ({types}) ORDER BY seq LIMIT $6",
        <Event as Record>::NAMES
    );
    let cursor = &run.cursor;
    let args = vec![
        text(run.session),
        text(cursor.run_id),
        cursor.reported_seq.into(),
        run.last_seq.into(),
        run.since.into(),
        i64::from(limit).into(),
    ];
    db.read(sql, args, Event::decode).await
}

/// Moves a run's cursor to `seq`, and inserts the deliveries of the events that it passes. False if another server has moved it;
/// then nothing is inserted.
pub async fn update_reported(
    db: &Db,
    cursor: &RunCursor,
    seq: i64,
    deliveries: &[NewDelivery],
) -> Result<bool, StoreError> {
    let sql = "INSERT INTO webhook_runs (run_id, agent_id, reported_seq) VALUES ($1, $2, $3)
         ON CONFLICT (run_id) DO UPDATE SET reported_seq = excluded.reported_seq
         WHERE webhook_runs.reported_seq = $4 RETURNING 1";
    let args = vec![text(cursor.run_id), text(cursor.agent_id), seq.into(), cursor.reported_seq.into()];
    let moved = Statement::guard(sql, args);
    db.write_together([moved].into_iter().chain(deliveries.iter().map(webhooks::delivery)).collect()).await
}

/// Deletes cursors of agents without a webhook and of erased runs, at most `limit`. A cursor that is moved concurrently is in
/// use, because the webhook was set again, and is not deleted.
pub async fn delete_unused(db: &Db, limit: u32) -> Result<usize, StoreError> {
    let sql =
        "DELETE FROM webhook_runs WHERE (run_id, reported_seq) IN (SELECT c.run_id, c.reported_seq FROM webhook_runs c
         WHERE NOT EXISTS (SELECT 1 FROM webhooks w WHERE w.agent_id = c.agent_id)
         OR NOT EXISTS (SELECT 1 FROM runs r WHERE r.run_id = c.run_id) LIMIT $1) RETURNING 1";
    Ok(db.write(sql, vec![i64::from(limit).into()], |_| Ok(())).await?.len())
}

/// Deletes deliveries that describe runs of erased sessions, at most `limit`, except under a hold.
pub async fn delete_erased(db: &Db, limit: u32) -> Result<usize, StoreError> {
    let sql = format!(
        "DELETE FROM webhook_deliveries WHERE delivery_id IN (SELECT d.delivery_id FROM webhook_deliveries d {OF_OWNER}
             WHERE d.run_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM runs r JOIN sessions s
                 ON s.session_id = r.session_id AND s.erased_at IS NULL WHERE r.run_id = d.run_id)
             AND NOT {held} LIMIT $1) RETURNING 1",
        held = held_tenants(db, "u.tenants")
    );
    let delete = Statement::new(sql, vec![i64::from(limit).into()]);
    let deleted = db.write_together_returning(vec![gate(db), delete], 1, |_| Ok(())).await?;
    Ok(deleted.map_or(0, |deleted| deleted.len()))
}
