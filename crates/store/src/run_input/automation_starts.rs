//! Starts of automations. A start is recorded in the transaction that moves the automation's next time, so that no time has two
//! starts and none is lost; its run is submitted afterwards, under ids that the start already has. A start whose server died is
//! claimed again.

use ostler_protocol::{
    Timestamp,
    cursors::Cursor,
    ids::{AutomationId, AutomationStartId, CommandId},
    kernel::commands::CommandState,
    run_input::automations::{
        Automation, AutomationStart, AutomationStatus, DisabledReason, STARTS_KEPT, StartStatus, StartTrigger,
    },
};
use serde::Serialize;

use crate::{
    db::{Db, Engine},
    error::StoreError,
    record::{self, Reader, Record, Statement, columns, json, record, text},
    retention::{gate, held_tenant},
};

const NAMES: &str = <AutomationStart as Record>::NAMES;

record! {
    AutomationStart, start in "automation_starts";
    key {
        id = "start_id": id;
    }
    fixed {
        automation_id: id;
        trigger = "caused_by": named(StartTrigger);
        due_at: opt_time;
        thread_id: text;
        run_id: text;
        created_at: time;
    }
    state {
        status: named(StartStatus);
        message: opt_text;
        task_id = "command_id": opt_id;
        ended_at: opt_time;
    }
    beside { owner_id start_key attempts claimed_until }
}

/// A due automation, with what its start and its next time will be. Times are in microseconds.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DueStart {
    pub automation_id: AutomationId,
    /// The time that the automation has now. If it has another one, nothing is started.
    pub due_us: i64,
    pub next_us: Option<i64>,
    /// The local date of the start.
    pub last_date: Option<String>,
    pub zone_rules: String,
    pub start_id: AutomationStartId,
    pub thread_id: String,
}

/// Parts of a row of a JSON list, in the words of an engine.
struct JsonRows {
    table: &'static str,
    engine_is_sqlite: bool,
}

impl JsonRows {
    fn of(db: &Db) -> Self {
        match db.engine {
            Engine::Sqlite(_) => Self { table: "json_each", engine_is_sqlite: true },
            Engine::Postgres(_) => Self { table: "jsonb_array_elements", engine_is_sqlite: false },
        }
    }

    fn source(&self, parameter: &str) -> String {
        match self.engine_is_sqlite {
            true => format!("{}({parameter}) AS l", self.table),
            false => format!("{}({parameter}::jsonb) AS l (value)", self.table),
        }
    }

    fn text(&self, member: &str) -> String {
        match self.engine_is_sqlite {
            true => format!("json_extract(l.value, '$.{member}')"),
            false => format!("(l.value ->> '{member}')"),
        }
    }

    fn int(&self, member: &str) -> String {
        match self.engine_is_sqlite {
            true => self.text(member),
            false => format!("{}::bigint", self.text(member)),
        }
    }
}

/// Records the starts of due automations and moves their next times, together. Returns the starts that this call recorded: of
/// several servers that claim the same ones, each start is returned to one of them.
pub async fn claim(
    db: &Db,
    due: &[DueStart],
    until: Timestamp,
    now: Timestamp,
) -> Result<Vec<AutomationStart>, StoreError> {
    let listed = JsonRows::of(db);
    let (id, due_us, start_id) = (listed.text("automationId"), listed.int("dueUs"), listed.text("startId"));
    let key = format!("'due:' || {}", listed.text("dueUs"));
    // SQLite has one process, whose writes follow each other; only Postgres needs to skip what others hold.
    let lock = if listed.engine_is_sqlite { "" } else { "FOR UPDATE OF a SKIP LOCKED" };
    let insert = format!(
        "INSERT INTO automation_starts (start_id, automation_id, owner_id, start_key, caused_by, due_at, status,
             thread_id, run_id, attempts, claimed_until, created_at)
         SELECT {start_id}, a.automation_id, a.owner_id, {key}, 'schedule', a.next_run_at, 'starting', {thread_id},
             {start_id}, 1, $1, $2
         FROM {from}, automations AS a
         WHERE a.automation_id = {id} AND a.next_run_at = {due_us} AND a.status = 'active' {lock}
         ON CONFLICT (automation_id, start_key) DO NOTHING RETURNING {NAMES}",
        thread_id = listed.text("threadId"),
        from = listed.source("$3"),
    );
    // The start may be another server's; without one, the time is not moved.
    let update = format!(
        "UPDATE automations SET next_run_at = {next}, last_run_at = $1, plan_after = $1, plan_last_date = {date},
             plan_zone_rules = {rules}, revision = revision + 1, updated_at = $1
         FROM {from} WHERE automation_id = {id} AND next_run_at = {due_us} AND status = 'active'
         AND EXISTS (SELECT 1 FROM automation_starts AS s WHERE s.automation_id = {id} AND s.start_key = {key})",
        next = listed.int("nextUs"),
        date = listed.text("lastDate"),
        rules = listed.text("zoneRules"),
        from = listed.source("$2"),
    );
    let insert = Statement::new(insert, vec![until.into(), now.into(), json(&due)]);
    let update = Statement::new(update, vec![now.into(), json(&due)]);
    let claimed = db.write_together_returning(vec![insert, update], 0, AutomationStart::decode).await?;
    Ok(claimed.unwrap_or_default())
}

/// What became of a requested start.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestedStart {
    New,
    /// The key was used before, by this start.
    Existing(Box<AutomationStart>),
    /// Too many runs of the automation have not ended.
    TooMany,
    /// The automation was deleted.
    NoAutomation,
}

/// Records a start that a request has asked for, claimed until then. It is the last run of its automation.
pub async fn insert_requested(
    db: &Db,
    start: &AutomationStart,
    owner_id: &str,
    key: &str,
    open_max: i64,
    until: Timestamp,
) -> Result<RequestedStart, StoreError> {
    // The row is locked until the start is recorded, so that a concurrent deletion of the automation deletes the start too. The
    // revision rises, so that a concurrent change does not restore the old time.
    let sql = "UPDATE automations SET last_run_at = $1, revision = revision + 1 WHERE automation_id = $2 RETURNING 1";
    let automation = Statement::guard(sql, vec![start.created_at.into(), text(start.automation_id)]);
    let sql = "SELECT 1 WHERE (SELECT COUNT(*) FROM automation_starts WHERE automation_id = $1
         AND status IN ('starting', 'running')) < $2";
    let room = Statement::guard(sql, vec![text(start.automation_id), open_max.into()]);
    let beside = vec![
        ("owner_id", owner_id.into()),
        ("start_key", key.into()),
        ("attempts", 1_i64.into()),
        ("claimed_until", until.into()),
    ];
    match db.write_together(vec![automation, room, record::insert(start, beside, "")]).await {
        Ok(true) => return Ok(RequestedStart::New),
        Ok(false) => {}
        Err(error) if error.is_unique_violation() => {}
        Err(error) => return Err(error),
    }
    let rest = "WHERE t.automation_id = $1 AND t.start_key = $2";
    let existing = db.select::<AutomationStart>(rest, vec![text(start.automation_id), key.into()]).await?.pop();
    if let Some(existing) = existing {
        return Ok(RequestedStart::Existing(Box::new(existing)));
    }
    let sql = "SELECT 1 FROM automations WHERE automation_id = $1";
    let exists = db.read_one(sql, vec![text(start.automation_id)], |_| Ok(())).await?.is_some();
    Ok(if exists { RequestedStart::TooMany } else { RequestedStart::NoAutomation })
}

/// A start that was claimed again, and how often it was claimed.
#[derive(Clone, Debug)]
pub struct ReclaimedStart {
    pub start: AutomationStart,
    pub attempts: i64,
}

/// Claims starts whose claims have expired: their servers died, or failed to start them.
pub async fn claim_expired(
    db: &Db,
    until: Timestamp,
    now: Timestamp,
    limit: u32,
) -> Result<Vec<ReclaimedStart>, StoreError> {
    let skip = match db.engine {
        Engine::Sqlite(_) => "",
        Engine::Postgres(_) => "FOR UPDATE SKIP LOCKED",
    };
    let sql = format!(
        "UPDATE automation_starts SET claimed_until = $1, attempts = attempts + 1 WHERE start_id IN
             (SELECT c.start_id FROM automation_starts AS c WHERE c.status = 'starting' AND c.claimed_until <= $2
              ORDER BY c.claimed_until LIMIT $3 {skip})
         RETURNING {NAMES}, attempts"
    );
    let decode = |row: &mut Reader<'_>| {
        let start = AutomationStart::decode(row)?;
        Ok(ReclaimedStart { start, attempts: row.at("attempts")?.int()? })
    };
    db.write(sql, vec![until.into(), now.into(), i64::from(limit).into()], decode).await
}

/// Whether a claim has expired: cheaper than a claim without effect.
pub async fn any_expired(db: &Db, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM automation_starts WHERE status = 'starting' AND claimed_until <= $1 LIMIT 1";
    Ok(!db.read(sql, vec![now.into()], |_| Ok(())).await?.is_empty())
}

/// Whether any start has not ended.
pub async fn any_open(db: &Db) -> Result<bool, StoreError> {
    for status in ["starting", "running"] {
        let sql = format!("SELECT 1 FROM automation_starts WHERE status = '{status}' LIMIT 1");
        if !db.read(sql, vec![], |_| Ok(())).await?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A start whose run exists.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunningStart {
    pub start_id: AutomationStartId,
    pub command_id: CommandId,
}

/// The runs of these starts exist. Starts that have ended or were deleted stay as they are.
pub async fn update_running(db: &Db, started: &[RunningStart]) -> Result<(), StoreError> {
    if started.is_empty() {
        return Ok(());
    }
    let listed = JsonRows::of(db);
    let sql = format!(
        "UPDATE automation_starts SET status = 'running', command_id = {command_id}, claimed_until = NULL
         FROM {from} WHERE start_id = {start_id} AND status = 'starting'",
        command_id = listed.text("commandId"),
        from = listed.source("$1"),
        start_id = listed.text("startId"),
    );
    db.execute(sql, vec![json(&started)]).await
}

/// A start whose run has ended. `None`: the thread of the run was erased.
pub type EndedStart = (AutomationStart, Option<CommandState>);

/// Starts whose runs have ended since they were last listed.
pub async fn list_ended(db: &Db, limit: u32) -> Result<Vec<EndedStart>, StoreError> {
    let sql = format!(
        "SELECT {}, c.state AS command_state FROM automation_starts AS s LEFT JOIN commands AS c ON c.command_id = s.command_id
         WHERE s.status = 'running' AND (c.state IS NULL OR c.state IN ('completed', 'failed', 'blocked', 'cancelled'))
         LIMIT $1",
        columns::<AutomationStart>("s")
    );
    let decode = |row: &mut Reader<'_>| {
        let start = AutomationStart::decode(row)?;
        Ok((start, row.at("command_state")?.opt_named(CommandState::parse)?))
    };
    db.read(sql, vec![i64::from(limit).into()], decode).await
}

/// How a start has ended.
#[derive(Clone, Copy, Debug)]
pub struct StartEnd<'a> {
    pub id: AutomationStartId,
    pub automation_id: AutomationId,
    pub status: StartStatus,
    pub message: Option<&'a str>,
    /// The automation is disabled when this many runs have failed in a row.
    pub failures_max: i64,
}

/// Records the end of a start and counts failures in a row. Returns the automation if this end has disabled it.
pub async fn update_ended(db: &Db, end: StartEnd<'_>, now: Timestamp) -> Result<Option<Automation>, StoreError> {
    let sql = "UPDATE automation_starts SET status = $1, ended_at = $2, message = $3, claimed_until = NULL
         WHERE start_id = $4 AND status IN ('starting', 'running') RETURNING 1";
    let message = end.message.map(str::to_owned);
    let ended = Statement::guard(sql, vec![end.status.as_str().into(), now.into(), message.into(), text(end.id)]);
    let trimmed = trim(end.automation_id);
    let sql = match end.status {
        // The revision rises with the count, so that a concurrent change does not restore the old count.
        StartStatus::Completed => {
            "UPDATE automations SET failures = 0, revision = revision + 1, updated_at = $1
             WHERE automation_id = $2 AND failures <> 0"
        }
        StartStatus::Failed | StartStatus::Blocked => {
            "UPDATE automations SET failures = failures + 1, revision = revision + 1, updated_at = $1
             WHERE automation_id = $2"
        }
        StartStatus::Starting | StartStatus::Running | StartStatus::Cancelled => {
            db.write_together(vec![ended, gate(db), trimmed]).await?;
            return Ok(None);
        }
    };
    let counted = Statement::new(sql, vec![now.into(), text(end.automation_id)]);
    // Only an active automation is disabled, and only the end that disables it returns it.
    let sql = format!(
        "UPDATE automations SET status = '{disabled}', next_run_at = NULL, disabled_reason = '{reason}'
         WHERE automation_id = $1 AND status = '{active}' AND failures >= $2 RETURNING {names}",
        disabled = AutomationStatus::Disabled.as_str(),
        reason = DisabledReason::RepeatedFailure.as_str(),
        active = AutomationStatus::Active.as_str(),
        names = Automation::NAMES,
    );
    let disabled = Statement::new(sql, vec![text(end.automation_id), end.failures_max.into()]);
    let statements = vec![ended, counted, disabled, gate(db), trimmed];
    let disabled = db.write_together_returning(statements, 2, Automation::decode).await?;
    Ok(disabled.into_iter().flatten().next())
}

/// Deletes the oldest starts of an automation, unless its tenant is under a legal hold. It must follow the gate of retention.
fn trim(automation_id: AutomationId) -> Statement {
    let sql = format!(
        "DELETE FROM automation_starts WHERE automation_id = $1 AND status NOT IN ('starting', 'running')
         AND created_at < (SELECT created_at FROM automation_starts WHERE automation_id = $1
             ORDER BY created_at DESC LIMIT 1 OFFSET {})
         AND NOT EXISTS (SELECT 1 FROM automations a WHERE a.automation_id = $1 AND {})",
        STARTS_KEPT - 1,
        held_tenant("a.tenant_id")
    );
    Statement::new(sql, vec![text(automation_id)])
}

pub async fn get(db: &Db, id: AutomationStartId) -> Result<Option<AutomationStart>, StoreError> {
    Ok(db.select("WHERE t.start_id = $1", vec![text(id)]).await?.pop())
}

/// The newest first.
pub async fn list(
    db: &Db,
    automation_id: AutomationId,
    after: Option<&Cursor>,
    limit: u32,
) -> Result<Vec<AutomationStart>, StoreError> {
    let mut args = vec![text(automation_id)];
    let page = db.newest_first("start_id", &mut args, after, limit);
    db.select(&format!("WHERE automation_id = $1{page}"), args).await
}
