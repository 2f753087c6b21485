//! The migration ledger: each step with its checksum. A ledger that does not fit this build stops the start.

use ostler_protocol::{json::hex, sha256::sha256};

use crate::error::StoreError;

pub struct Migration {
    pub id: &'static str,
    pub sql: &'static str,
}

pub const SQLITE: &[Migration] = &[
    Migration { id: "0001_kernel", sql: include_str!("../migrations/sqlite/0001_kernel.sql") },
    Migration { id: "0002_profile_owners", sql: include_str!("../migrations/sqlite/0002_profile_owners.sql") },
    Migration { id: "0003_store_health", sql: include_str!("../migrations/sqlite/0003_store_health.sql") },
    Migration { id: "0004_real_pods", sql: include_str!("../migrations/sqlite/0004_real_pods.sql") },
    Migration { id: "0005_command_aliases", sql: include_str!("../migrations/sqlite/0005_command_aliases.sql") },
    Migration { id: "0006_retention", sql: include_str!("../migrations/sqlite/0006_retention.sql") },
    Migration { id: "0007_usage", sql: include_str!("../migrations/sqlite/0007_usage.sql") },
    Migration { id: "0008_run_webhooks", sql: include_str!("../migrations/sqlite/0008_run_webhooks.sql") },
    Migration { id: "0009_cheaper_writes", sql: include_str!("../migrations/sqlite/0009_cheaper_writes.sql") },
    Migration { id: "0010_daemon", sql: include_str!("../migrations/sqlite/0010_daemon.sql") },
    Migration { id: "0011_permission_votes", sql: include_str!("../migrations/sqlite/0011_permission_votes.sql") },
    Migration { id: "0012_agents", sql: include_str!("../migrations/sqlite/0012_agents.sql") },
    Migration { id: "0013_parent_sessions", sql: include_str!("../migrations/sqlite/0013_parent_sessions.sql") },
    Migration { id: "0014_workspace_switches", sql: include_str!("../migrations/sqlite/0014_workspace_switches.sql") },
    Migration { id: "0015_command_payloads", sql: include_str!("../migrations/sqlite/0015_command_payloads.sql") },
    Migration { id: "0016_daemon_lifetimes", sql: include_str!("../migrations/sqlite/0016_daemon_lifetimes.sql") },
    Migration { id: "0018_automations", sql: include_str!("../migrations/sqlite/0018_automations.sql") },
    Migration { id: "0019_front_end", sql: include_str!("../migrations/sqlite/0019_front_end.sql") },
    Migration { id: "0020_session_metadata", sql: include_str!("../migrations/sqlite/0020_session_metadata.sql") },
    Migration { id: "0021_lists", sql: include_str!("../migrations/sqlite/0021_lists.sql") },
    Migration { id: "0022_cluster_jobs", sql: include_str!("../migrations/sqlite/0022_cluster_jobs.sql") },
    Migration { id: "0023_narrow_indexes", sql: include_str!("../migrations/sqlite/0023_narrow_indexes.sql") },
    Migration { id: "0024_claimed_storage", sql: include_str!("../migrations/sqlite/0024_claimed_storage.sql") },
    Migration { id: "0025_job_extras", sql: include_str!("../migrations/sqlite/0025_job_extras.sql") },
    Migration { id: "0026_marks", sql: include_str!("../migrations/sqlite/0026_marks.sql") },
    Migration { id: "0027_resource_bundles", sql: include_str!("../migrations/sqlite/0027_resource_bundles.sql") },
];

/// What all steps together make of an empty SQLite file. A table that is altered step by step is parsed again by each step, with all
/// other tables, which was half the time of a first start.
pub const SQLITE_SCHEMA: &str = include_str!("../migrations/sqlite/schema.sql");

/// Tables that every process creates again.
pub const VOLATILE: &str = include_str!("../migrations/sqlite/volatile.sql");

pub const POSTGRES: &[Migration] = &[
    Migration { id: "0001_kernel", sql: include_str!("../migrations/postgres/0001_kernel.sql") },
    Migration { id: "0002_profile_owners", sql: include_str!("../migrations/postgres/0002_profile_owners.sql") },
    Migration { id: "0003_store_health", sql: include_str!("../migrations/postgres/0003_store_health.sql") },
    Migration { id: "0004_real_pods", sql: include_str!("../migrations/postgres/0004_real_pods.sql") },
    Migration { id: "0005_command_aliases", sql: include_str!("../migrations/postgres/0005_command_aliases.sql") },
    Migration { id: "0006_retention", sql: include_str!("../migrations/postgres/0006_retention.sql") },
    Migration { id: "0007_usage", sql: include_str!("../migrations/postgres/0007_usage.sql") },
    Migration { id: "0008_run_webhooks", sql: include_str!("../migrations/postgres/0008_run_webhooks.sql") },
    Migration { id: "0009_cheaper_writes", sql: include_str!("../migrations/postgres/0009_cheaper_writes.sql") },
    Migration { id: "0010_daemon", sql: include_str!("../migrations/postgres/0010_daemon.sql") },
    Migration { id: "0011_permission_votes", sql: include_str!("../migrations/postgres/0011_permission_votes.sql") },
    Migration { id: "0012_agents", sql: include_str!("../migrations/postgres/0012_agents.sql") },
    Migration { id: "0013_parent_sessions", sql: include_str!("../migrations/postgres/0013_parent_sessions.sql") },
    Migration {
        id: "0014_workspace_switches",
        sql: include_str!("../migrations/postgres/0014_workspace_switches.sql"),
    },
    Migration { id: "0015_command_payloads", sql: include_str!("../migrations/postgres/0015_command_payloads.sql") },
    Migration { id: "0016_daemon_lifetimes", sql: include_str!("../migrations/postgres/0016_daemon_lifetimes.sql") },
    Migration { id: "0018_automations", sql: include_str!("../migrations/postgres/0018_automations.sql") },
    Migration { id: "0019_front_end", sql: include_str!("../migrations/postgres/0019_front_end.sql") },
    Migration { id: "0020_session_metadata", sql: include_str!("../migrations/postgres/0020_session_metadata.sql") },
    Migration { id: "0021_lists", sql: include_str!("../migrations/postgres/0021_lists.sql") },
    Migration { id: "0022_cluster_jobs", sql: include_str!("../migrations/postgres/0022_cluster_jobs.sql") },
    Migration { id: "0023_narrow_indexes", sql: include_str!("../migrations/postgres/0023_narrow_indexes.sql") },
    Migration { id: "0024_claimed_storage", sql: include_str!("../migrations/postgres/0024_claimed_storage.sql") },
    Migration { id: "0025_job_extras", sql: include_str!("../migrations/postgres/0025_job_extras.sql") },
    Migration { id: "0026_marks", sql: include_str!("../migrations/postgres/0026_marks.sql") },
    Migration { id: "0027_resource_bundles", sql: include_str!("../migrations/postgres/0027_resource_bundles.sql") },
];

pub const LEDGER: &str = "CREATE TABLE IF NOT EXISTS schema_migrations (
    id TEXT PRIMARY KEY, checksum TEXT NOT NULL, applied_at BIGINT NOT NULL)";

impl Migration {
    pub fn checksum(&self) -> String {
        hex(&sha256(self.sql.as_bytes()))
    }
}

/// Compares the ledger with this build. Answers the steps still to apply.
pub fn outstanding<'a>(known: &'a [Migration], applied: &[(String, String)]) -> Result<&'a [Migration], StoreError> {
    for (index, (id, checksum)) in applied.iter().enumerate() {
        let Some(migration) = known.get(index) else {
            return Err(StoreError::Migration(format!("a newer release has changed it (step {id:?})")));
        };
        if migration.id != id {
            return Err(StoreError::Migration(format!("it has step {id:?} where this release has {:?}", migration.id)));
        }
        if migration.checksum() != *checksum {
            return Err(StoreError::Migration(format!("its step {id:?} has another text than in this release")));
        }
    }
    Ok(&known[applied.len()..])
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    /// The statements that make the tables and rows of a store.
    fn statements(connection: &Connection) -> String {
        let list = |sql: &str| {
            let mut statement = connection.prepare(sql).unwrap();
            let rows = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
            rows.collect::<Result<Vec<_>, _>>().unwrap()
        };
        let own = "FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'";
        let mut statements = list(&format!("SELECT sql {own} ORDER BY rowid"));
        for table in list(&format!("SELECT name {own} AND type = 'table' ORDER BY name")) {
            let columns = list(&format!("SELECT 'quote(' || name || ')' FROM pragma_table_info('{table}')"));
            let values = columns.join(" || ', ' || ");
            let rows = list(&format!("SELECT {values} FROM {table}"));
            statements.extend(rows.into_iter().map(|row| format!("INSERT INTO {table} VALUES ({row})")));
        }
        let header = "-- Generated from the steps beside it, by the tests of `ostler-store` with `OSTLER_BLESS=1`.\n\n";
        statements.into_iter().fold(header.to_owned(), |text, statement| format!("{text}{statement};\n"))
    }

    #[test]
    fn the_schema_of_a_new_store_is_what_all_steps_make() {
        let [by_steps, at_once] = [(); 2].map(|()| Connection::open_in_memory().unwrap());
        SQLITE.iter().for_each(|step| by_steps.execute_batch(step.sql).unwrap());
        let text = statements(&by_steps);
        if std::env::var_os("OSTLER_BLESS").is_some() {
            std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/sqlite/schema.sql"), &text).unwrap();
            return;
        }
        assert!(SQLITE_SCHEMA == text, "run the test with OSTLER_BLESS=1");
        at_once.execute_batch(SQLITE_SCHEMA).unwrap();
        assert!(statements(&at_once) == text);
    }

    #[test]
    fn a_changed_or_unknown_step_stops_the_start() {
        let applied = |id: &str, sum: &str| vec![(id.to_owned(), sum.to_owned())];
        let sum = SQLITE[0].checksum();
        assert_eq!(outstanding(SQLITE, &[]).unwrap().len(), SQLITE.len());
        assert_eq!(outstanding(SQLITE, &applied("0001_kernel", &sum)).unwrap().len(), SQLITE.len() - 1);
        assert!(outstanding(SQLITE, &applied("0001_kernel", "other")).is_err());
        assert!(outstanding(SQLITE, &applied("0001_other", &sum)).is_err());
        let known = SQLITE.iter().map(|step| (step.id.to_owned(), step.checksum()));
        let ahead: Vec<_> = known.chain(applied("9999_later", "x")).collect();
        assert!(outstanding(SQLITE, &ahead).is_err());
    }
}
