//! The columns that nouns declare are those of the migrated database.

use std::collections::{BTreeMap, BTreeSet};

use ostler_store::{Db, declared_tables, lane::Host as _, migrate};
use sqlx::{Connection, PgConnection};

use crate::{
    host::TestHost,
    test_store::{Engine, TestStore, both_engines},
};

/// Tables without a noun: each of their statements names the few columns that it reads or writes. Triggers keep the labels.
const WITHOUT_A_NOUN: [&str; 12] = [
    "bundle_commits",
    "daemon_workspaces",
    "retention_gate",
    "run_labels",
    "schema_migrations",
    "session_labels",
    "sqlite_sequence",
    "sqlite_stat1",
    "store_clock",
    "store_probe",
    "wakeups",
    "workspace_switches",
];

/// Tables that only a store with several servers needs.
const ONLY_ON_POSTGRES: [&str; 1] = ["mesh_presence"];

/// Every table's columns and their types, in the words of Postgres.
async fn read_columns(test_store: &TestStore) -> BTreeMap<String, BTreeMap<String, String>> {
    let rows: Vec<(String, String, String)> = match test_store.engine() {
        Engine::Sqlite => {
            let connection = rusqlite::Connection::open(test_store.file()).unwrap();
            connection.execute_batch(migrate::VOLATILE).unwrap();
            let sql = "SELECT m.name, c.name, c.type FROM (SELECT * FROM sqlite_master
                UNION ALL SELECT * FROM sqlite_temp_master) AS m JOIN pragma_table_info(m.name) AS c
                WHERE m.type = 'table'";
            let mut statement = connection.prepare(sql).unwrap();
            let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
            rows.map(Result::unwrap).collect()
        }
        Engine::Postgres => {
            let sql = "SELECT table_name::text, column_name::text, data_type::text FROM information_schema.columns
                WHERE table_schema = current_schema()";
            let mut connection = PgConnection::connect(&test_store.url()).await.unwrap();
            sqlx::query_as(sql).fetch_all(&mut connection).await.unwrap()
        }
    };
    let mut tables: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for (table, column, kind) in rows {
        let kind = kind.to_lowercase().replace("blob", "bytea");
        tables.entry(table).or_default().insert(column, kind);
    }
    tables
}

#[both_engines]
async fn declared_columns_are_those_of_the_migrated_database(test_store: TestStore) {
    let db = Db::open(&test_store.config(), TestHost::default().now()).await.unwrap();
    let mut tables = read_columns(&test_store).await;
    for declared in declared_tables() {
        if test_store.engine() == Engine::Sqlite && ONLY_ON_POSTGRES.contains(&declared.name) {
            continue;
        }
        let stored = tables.remove(declared.name).unwrap_or_else(|| panic!("{} is not there", declared.name));
        let names: BTreeSet<&str> = declared.columns.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), declared.columns.len(), "{} declares a column twice", declared.name);
        let beside = |name: &&String| declared.beside.contains(&name.as_str());
        assert_eq!(stored.keys().filter(beside).count(), declared.beside.len(), "{}", declared.name);
        let own: BTreeMap<&str, &str> = stored
            .iter()
            .filter(|(name, _)| !beside(name))
            .map(|(name, kind)| (name.as_str(), kind.as_str()))
            .collect();
        assert_eq!(own, declared.columns.iter().copied().collect(), "{}", declared.name);
    }
    tables.retain(|name, _| !WITHOUT_A_NOUN.contains(&name.as_str()));
    assert_eq!(tables.keys().collect::<Vec<_>>(), [] as [&String; 0], "tables that no noun declares");
    db.close().await;
}
