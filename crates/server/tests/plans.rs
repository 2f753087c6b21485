//! No statement of the API reads a table from end to end if that table grows. The statements are not listed here: the servers are
//! recorded while every operation is called, and each statement that they have run is explained.

mod bindings;
mod drive;
mod postgres;
mod shard_key;
mod sqlite;

use std::collections::BTreeSet;

use ostler_server::dialect::Location;

use crate::harness::{Engine, both_engines, dialects};

/// Tables whose size does not follow from use, each with the reason. All others grow.
const STEADY: &[(&str, &str)] = &[
    ("backends", "one row for each backend of the configuration"),
    ("daemon_workspaces", "one row for each workspace that is served"),
    ("mesh_issuers", "one row for each domain of the mesh that this store certifies"),
    ("mesh_presence", "one row for each connection of an agent that is open"),
    ("provider_validations", "one row for each trial of a profile, which people start"),
    ("retention_gate", "one row"),
    ("retention_holds", "legal holds, which people place"),
    ("schema_migrations", "one row for each migration of the build"),
    ("signing_keys", "one row for each key of a server"),
    ("store_clock", "one row"),
    ("store_probe", "one row"),
    ("wakeups", "rows are deleted after a minute"),
    ("webhooks", "at most one row for each agent, which its owner sets"),
    ("workspace_switches", "tools and MCP servers that people switch on and off"),
];

/// Indexes of what is alive at the moment. To walk one costs as much as the work at hand, however many rows have ended.
const LIVE: &[&str] = &[
    "attachments_unused",
    "automation_starts_claimed",
    "automation_starts_running",
    "automations_due",
    "commands_deadline",
    "commands_unfinished",
    "daemon_clients_present",
    "daemon_sessions_open",
    "daemon_sessions_owner",
    "daemon_sessions_single",
    "leases_held",
    "mesh_queue_sent",
    "permissions_open",
    "permissions_pending",
    "retention_holds_live",
    "runner_jobs_pending",
    "runner_jobs_running",
    "sessions_erasing",
    "sessions_running",
    "webhook_deliveries_due",
    "webhook_deliveries_waiting",
    // Users who were removed and agents that were retired: the sweep looks for what they left. No request does.
    "agents_retired",
    "users_removed",
];

/// Indexes that the recorded statements may do without, each with the statements that need it.
const NOT_RECORDED: &[(&str, &str)] = &[
    ("daemon_sessions_open", "the open sessions of a workspace; SQLite has a choice"),
    ("events_of_session", "frames of the daemon, and retention of what happened to a session"),
    ("payload_removals_session", "frames of a session whose payloads were removed"),
    ("permissions_pending", "the pending requests of a session; SQLite has a choice"),
    ("run_labels_run", "the triggers that follow the labels of a run"),
    ("runs_children", "runs that `run_agent` has started"),
    ("session_labels_session", "the triggers that follow the labels of a session"),
    ("sessions_half_erased", "sessions whose erasure was interrupted"),
    ("usage_tenant", "what a tenant has used"),
    ("usage_user", "what a user has used"),
];

/// Statements that are meant to read much, by a part of their text, each with the reason.
const ACCEPTED: &[(&str, &str)] = &[
    ("FROM schema_migrations", "the ledger is read as a whole when a server starts"),
    ("MIN(e.session_seq) AS first_seq", "`verify` walks over all events"),
    // Sweeps. No request waits for them.
    (
        "FROM mesh_cursors GROUP BY aid HAVING COUNT(*) > $1",
        "it bounds the rows of each identity, and so has to count them",
    ),
    (
        "GROUP BY agent_id, status HAVING COUNT(*) > $1",
        "it bounds the deliveries of each agent, and so has to count them",
    ),
    ("SELECT c.run_id, c.reported_seq FROM webhook_runs c", "what has lost its run or its webhook has no mark"),
    (
        "d.opened_at <= $1 AND s.updated_at <= $1",
        "where it may, Postgres hashes all sessions to join them with those that are open",
    ),
];

/// The names of the tables that grow.
fn growing_tables() -> BTreeSet<&'static str> {
    let dialects = dialects();
    let tables = dialects.holdings().filter_map(|holding| match holding.location {
        Location::Table(name) => Some(name),
        Location::Path(_) => None,
    });
    let mut tables: BTreeSet<_> = tables.collect();
    for (steady, reason) in STEADY {
        assert!(tables.remove(steady), "{steady} ({reason}) is no table");
    }
    tables
}

fn is_accepted(sql: &str) -> bool {
    ACCEPTED.iter().any(|(part, _)| sql.contains(part))
}

/// The statement on one line, for messages.
fn on_one_line(sql: &str) -> String {
    sql.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether it reads or changes rows, and so has a plan.
fn has_plan(sql: &str) -> bool {
    let first = sql.split_whitespace().next().unwrap_or_default().to_uppercase();
    ["SELECT", "WITH", "INSERT", "UPDATE", "DELETE"].contains(&first.as_str())
}

/// What the plans of all statements show.
#[derive(Default)]
struct Plans {
    /// Which statements read a growing table from end to end or start other processes, for people.
    problems: BTreeSet<String>,
    /// The indexes that some plan reads.
    used: BTreeSet<String>,
    /// The indexes of the schema that only serve to find rows: they enforce nothing.
    indexes: BTreeSet<String>,
}

async fn plans(engine: Engine) -> Plans {
    let statements = drive::statements(engine).await;
    let with_plans: BTreeSet<_> = statements.into_iter().filter(|sent| has_plan(&sent.sql)).collect();
    assert!(with_plans.len() > 200, "only {} statements were recorded", with_plans.len());
    let growing = growing_tables();
    match engine {
        Engine::Sqlite => sqlite::plans(&with_plans, &growing).await,
        Engine::Postgres => postgres::plans(&with_plans, &growing).await,
    }
}

#[both_engines]
async fn every_statement_finds_its_rows_by_an_index_and_every_index_serves_a_statement(engine: Engine) {
    let Plans { problems, used, indexes } = plans(engine).await;
    assert!(
        problems.is_empty(),
        "{} problems:\n{}",
        problems.len(),
        problems.into_iter().collect::<Vec<_>>().join("\n")
    );
    assert!(indexes.len() > 30, "only {} indexes were found", indexes.len());
    let is_recorded = |index: &&String| !NOT_RECORDED.iter().any(|(name, _)| name == index);
    let unused: Vec<_> = indexes.difference(&used).filter(is_recorded).collect();
    assert!(unused.is_empty(), "every write pays for these indexes, and no statement uses them: {unused:?}");
}
