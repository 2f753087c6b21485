//! Runs.

use ostler_protocol::{
    Timestamp,
    cursors::Cursor,
    ids::{CommandId, RunId},
    kernel::{
        commands::{Command, CommandState},
        labels::Labels,
        runs::{CHILD_RUN_KEY, Run, RunSort, RunState, RunStatus, TerminalStatus},
        usage::RunUsage,
    },
};

use crate::{
    db::{Db, Engine},
    error::StoreError,
    kernel::labels,
    record::{Reader, Record, Value, columns, record, text},
};

record! {
    Run, run in "runs";
    key {
        run_id: id;
    }
    fixed {
        session = "session_id": id;
        session_id = "session_name": text;
        tenant_id: text;
        project_id: text;
        workspace_ref: raw_json;
        provider_id: text;
        backend_profile: text;
        execution_policy: json;
        trace_sink: raw_json;
        idempotency_key: opt_text;
        request_hash: text;
        agent_id: opt_id;
        created_by: opt_text;
        retry_of: opt_id;
        resource_bundle_ref: opt_raw_json;
        created_at: time;
    }
    state {
        status: named(RunStatus);
        terminal: opt_json;
        cancel_requested_at: opt_time;
        cancel_reason: opt_text;
        last_seq: int;
        command_count: int;
        unfinished_commands: int;
        lease_epoch: int;
        open_permissions: int;
        offered_attempt_id: opt_id;
        attempt_id: opt_id;
        standing_job_id: opt_id;
        labels: opt_json from (!run.labels.is_empty()).then_some(&run.labels);
        tokens: int from run.usage.tokens;
        cost_nano_usd: int from run.usage.cost_nano_usd;
        turns: int from run.usage.turns;
        active_ms: int from run.usage.active_ms;
        updated_at: time;
    }
    build Run {
        run_id,
        session,
        session_id,
        tenant_id,
        project_id,
        workspace_ref,
        provider_id,
        backend_profile,
        execution_policy,
        trace_sink,
        idempotency_key,
        request_hash,
        agent_id,
        created_by,
        retry_of,
        resource_bundle_ref,
        created_at,
        status,
        terminal,
        cancel_requested_at,
        cancel_reason,
        last_seq,
        command_count,
        unfinished_commands,
        lease_epoch,
        open_permissions,
        offered_attempt_id,
        attempt_id,
        standing_job_id,
        labels: Option::unwrap_or_default(labels),
        usage: RunUsage { tokens, cost_nano_usd, turns, active_ms },
        updated_at,
    };
}

pub async fn get(db: &Db, run_id: RunId) -> Result<Option<Run>, StoreError> {
    Ok(db.select::<Run>("WHERE t.run_id = $1", vec![text(run_id)]).await?.pop())
}

/// Runs without their first event, by id: their rows were put there from outside.
pub async fn list_without_events(db: &Db, after: Option<RunId>, limit: u32) -> Result<Vec<Run>, StoreError> {
    let after = after.map(|id| id.to_string()).unwrap_or_default();
    let wanted = "WHERE t.run_id > $1 AND NOT EXISTS (SELECT 1 FROM events e WHERE e.run_id = t.run_id AND e.seq = 1)
         ORDER BY t.run_id LIMIT $2";
    db.select::<Run>(wanted, vec![after.into(), i64::from(limit).into()]).await
}

pub async fn find_by_key(db: &Db, tenant_id: &str, key: &str) -> Result<Option<Run>, StoreError> {
    Ok(db
        .select::<Run>("WHERE t.tenant_id = $1 AND t.idempotency_key = $2", vec![tenant_id.into(), key.into()])
        .await?
        .pop())
}

/// The runs that a command has started, each with its first command. The keys of the runs begin with `prefix`, which begins with
/// [`CHILD_RUN_KEY`]; the keys of their first commands are the id of the command that has started them.
pub async fn list_children(
    db: &Db,
    tenant_id: &str,
    prefix: &str,
    started_by: CommandId,
) -> Result<Vec<(Run, Command)>, StoreError> {
    // Postgres has an index of these keys in the order of bytes, in which those with the same prefix follow each other.
    let indexed = match db.engine {
        Engine::Sqlite(_) => String::new(),
        Engine::Postgres(_) => format!(" AND starts_with(r.idempotency_key, '{CHILD_RUN_KEY}')"),
    };
    let sql = format!(
        "SELECT {}, {} FROM runs r JOIN commands c ON c.run_id = r.run_id AND c.seq = 1
         WHERE r.tenant_id = $1 AND r.idempotency_key{order} >= $2 AND r.idempotency_key{order} < $3{indexed}
         AND c.idempotency_key = $4",
        columns::<Run>("r"),
        columns::<Command>("c"),
        order = db.byte_order(),
    );
    let end = format!("{prefix}{}", char::MAX);
    let args = vec![tenant_id.into(), prefix.into(), end.into(), text(started_by)];
    db.read(sql, args, |row| Ok((Run::decode(row)?, Command::decode(row)?))).await
}

/// What a list is narrowed to. `None` and empty mean everything.
#[derive(Clone, Debug, Default)]
pub struct RunFilter {
    /// The tenants the caller may see.
    pub tenants: Option<Vec<String>>,
    /// Of runs in threads, only those of this owner's threads. `None`: every owner's.
    pub threads_of: Option<String>,
    pub project_id: Option<String>,
    pub provider_id: Option<String>,
    pub backend_profile: Option<String>,
    pub session_id: Option<String>,
    pub status: Option<RunStatus>,
    /// In any of these.
    pub states: Vec<RunState>,
    /// Created at this time or later.
    pub created_after: Option<Timestamp>,
    /// All of them.
    pub labels: Labels,
    pub sort: RunSort,
    /// From the first text to before the second.
    pub ids: Option<(String, String)>,
}

/// A run with what its state for people follows from.
pub struct RunRow {
    pub run: Run,
    /// How the run's latest turn ended, if it has.
    pub turn_end: Option<TerminalStatus>,
}

/// A value of the latest turn of the run in this row.
fn of_latest_turn(run: &str, value: &str) -> String {
    format!(
        "(SELECT {value} FROM commands c WHERE c.run_id = {run}.run_id AND c.type = 'turn'
             ORDER BY c.seq DESC LIMIT 1)"
    )
}

/// The state for people of the run in this row, as [`RunState::of`] derives it. A test compares both.
pub(super) fn state_sql(run: &str) -> String {
    const ENDED: &str = "('completed', 'failed', 'blocked', 'cancelled')";
    let turn_end = of_latest_turn(run, &format!("CASE WHEN c.state IN {ENDED} THEN c.state END"));
    format!(
        "COALESCE({turn_end}, CASE WHEN {run}.status IN {ENDED} THEN {run}.status
             WHEN {run}.status IN ('claimed', 'running') AND {run}.open_permissions = 0 THEN 'running' ELSE 'waiting' END)"
    )
}

/// Whether a state is one of these. Postgres expects an equality with a state to hold for very few rows, and would read and
/// sort all rows of a list to find them. It expects any other condition to hold for half of the rows, and reads rows in the
/// order of the list until the page is full.
pub(super) fn is_in_states(state: &str, marks: &[String]) -> String {
    format!("CASE WHEN {state} IN ({}) THEN TRUE ELSE FALSE END", marks.join(", "))
}

fn row_sql(rest: &str) -> String {
    format!(
        "SELECT {}, {} AS turn_state
         FROM runs AS t {rest}",
        columns::<Run>("t"),
        of_latest_turn("t", "c.state")
    )
}

fn decode_row(row: &mut Reader<'_>) -> Result<RunRow, StoreError> {
    let run = Run::decode(row)?;
    let turn = row.at("turn_state")?.opt_text()?;
    let ended = turn.as_deref().and_then(CommandState::parse).filter(|state| state.is_terminal());
    let turn_end = ended.and_then(|state| TerminalStatus::parse(state.as_str()));
    Ok(RunRow { run, turn_end })
}

pub async fn get_row(db: &Db, run_id: RunId) -> Result<Option<RunRow>, StoreError> {
    db.read_one(row_sql("WHERE t.run_id = $1"), vec![text(run_id)], decode_row).await
}

/// Newest first, or in the filter's order. The cursor holds the number by which it orders runs.
pub async fn list(db: &Db, filter: &RunFilter, after: Option<&Cursor>, limit: u32) -> Result<Vec<RunRow>, StoreError> {
    let (sql, args) = page(db, filter, after, limit);
    db.read(sql, args, decode_row).await
}

/// The engine's plan for a list.
pub async fn explain_list(
    db: &Db,
    filter: &RunFilter,
    after: Option<&Cursor>,
    limit: u32,
) -> Result<Vec<String>, StoreError> {
    let (sql, args) = page(db, filter, after, limit);
    db.explain(&sql, args).await
}

fn page(db: &Db, filter: &RunFilter, after: Option<&Cursor>, limit: u32) -> (String, Vec<Value>) {
    let mut args: Vec<Value> = vec![];
    let mut conditions: Vec<String> = vec![];
    let mut mark = |value: Value| {
        args.push(value);
        format!("${}", args.len())
    };
    if let Some(tenants) = &filter.tenants {
        let marks: Vec<_> = tenants.iter().map(|t| mark(t.as_str().into())).collect();
        let list = if marks.is_empty() { "NULL".to_owned() } else { marks.join(", ") };
        conditions.push(format!("t.tenant_id IN ({list})"));
    }
    if let Some(owner) = &filter.threads_of {
        let others = "SELECT 1 FROM sessions s WHERE s.session_id = t.session_id AND s.owner";
        conditions.push(format!("NOT EXISTS ({others} <> {})", mark(owner.as_str().into())));
    }
    let equal = [
        ("project_id", filter.project_id.clone()),
        ("provider_id", filter.provider_id.clone()),
        ("backend_profile", filter.backend_profile.clone()),
        ("session_name", filter.session_id.clone()),
        ("status", filter.status.map(|s| s.as_str().to_owned())),
    ];
    for (column, value) in equal {
        if let Some(value) = value {
            conditions.push(format!("t.{column} = {}", mark(value.into())));
        }
    }
    if let Some(time) = filter.created_after {
        conditions.push(format!("t.created_at >= {}", mark(time.into())));
    }
    conditions.extend(labels::conditions(db, &labels::RUNS, &filter.labels, &mut mark));
    if !filter.states.is_empty() {
        let marks: Vec<_> = filter.states.iter().map(|state| mark(state.as_str().into())).collect();
        conditions.push(is_in_states(&state_sql("t"), &marks));
    }
    if let Some((first, end)) = &filter.ids {
        let (first, end) = (mark(first.as_str().into()), mark(end.as_str().into()));
        conditions.push(format!("t.run_id >= {first} AND t.run_id < {end}"));
    }
    let by = match filter.sort {
        RunSort::Created => "created_at",
        RunSort::Cost => "cost_nano_usd",
        RunSort::Tokens => "tokens",
        RunSort::Duration => "active_ms",
    };
    if let Some(cursor) = after {
        let (last, id) = (mark(cursor.created_at_us.into()), mark(cursor.id.as_str().into()));
        conditions.push(format!("(t.{by}, t.run_id{}) < ({last}, {id})", db.byte_order()));
    }
    let wanted = if conditions.is_empty() { String::new() } else { format!("WHERE {}", conditions.join(" AND ")) };
    let limit = mark(i64::from(limit).into());
    let order = db.byte_order();
    let sql = row_sql(&format!("{wanted} ORDER BY t.{by} DESC, t.run_id{order} DESC LIMIT {limit}"));
    (sql, args)
}
