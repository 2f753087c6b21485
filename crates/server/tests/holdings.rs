//! Everything that is kept is declared, with what backup, retention and erasure do with it.

use std::{collections::BTreeSet, fs, path::Path};

use ostler_protocol::Timestamp;
use ostler_server::{
    Config,
    dialect::{Backup, Erasure, Location, Retention},
};
use ostler_store::{Db, backup::LEDGER_TABLE};
use ostler_testkit::scratch;

use crate::harness::{Database, Engine, Identity, PNG, TestServer, both_engines, dialects, query};

fn declared(of: impl Fn(Location) -> Option<&'static str>) -> BTreeSet<String> {
    let names: Vec<_> = dialects().holdings().filter_map(|holding| of(holding.location)).map(str::to_owned).collect();
    let unique: BTreeSet<_> = names.iter().cloned().collect();
    assert_eq!(names.len(), unique.len(), "declared twice: {names:?}");
    unique
}

fn path(location: Location) -> Option<&'static str> {
    if let Location::Path(name) = location { Some(name) } else { None }
}

#[both_engines]
async fn every_table_is_declared_once(engine: Engine) {
    let server = TestServer::start(engine).await;
    let sql = match engine {
        Engine::Sqlite => "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'",
        Engine::Postgres => "SELECT table_name::text FROM information_schema.tables WHERE table_schema = 'public'",
    };
    let tables: BTreeSet<_> = server.store(sql).await.into_iter().collect();
    let declared = declared(Location::table);
    assert_eq!(tables.difference(&declared).collect::<Vec<_>>(), [""; 0], "tables that nothing declares");
    // Some are only needed where servers share a store, or live in SQLite's memory.
    let missing: Vec<_> = declared.difference(&tables).map(String::as_str).collect();
    let expected: &[&str] = match engine {
        Engine::Sqlite => &["mesh_presence", "mesh_queue", "store_clock", "wakeups"],
        Engine::Postgres => &["run_labels", "session_labels"],
    };
    assert_eq!(missing, expected, "declared tables that do not exist");
}

/// A restore migrates a new store and loads the rows of the backup. A row that a migration inserts would be there twice.
#[both_engines]
async fn tables_that_are_copied_exist_and_are_empty_in_a_new_store(engine: Engine) {
    let data_dir = scratch::in_memory();
    let database = (engine == Engine::Postgres).then(Database::empty);
    let mut config = Config::default();
    config.server.data_dir = Some(data_dir.path().into());
    config.store.database_url = database.as_ref().map(|database| database.url().into());
    let db = Db::open(&config.store().unwrap(), Timestamp::UNIX_EPOCH).await.unwrap();
    db.close().await;
    let dialects = dialects();
    let copied = dialects.holdings().filter(|holding| holding.backup != Backup::LeftOut);
    let tables: Vec<_> = copied.filter_map(|holding| holding.location.table()).collect();
    assert!(tables.contains(&"runs"));
    for table in tables.into_iter().filter(|table| *table != LEDGER_TABLE) {
        let rows = query(&config, &format!("SELECT CAST(COUNT(*) AS TEXT) FROM {table}")).await;
        assert_eq!(rows, ["0"], "{table} has rows in a new store");
    }
}

#[both_engines]
async fn every_file_of_the_data_directory_is_declared(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    Identity::register(&server, "alice").await;
    let (run_id, command_id) = server.start("hi").await;
    server.ended(&run_id, &command_id).await;
    server.upload("2c4f7d0e-5d3b-4f0e-9f5e-0d8a4c1b2a3f", PNG).await.ok();
    let declared = declared(path);
    for entry in std::fs::read_dir(server.config.data_dir().unwrap()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        // SQLite's own files beside the database are part of it.
        let known = declared.contains(&name) || name.starts_with("ostler.db-") || name.ends_with(".lock");
        assert!(known, "{name} is not declared");
    }
}

#[test]
fn whatever_holds_keys_or_secrets_is_in_a_backup() {
    for wanted in ["secrets", "secrets-key", "pki", "mesh", "signing-key", "token", "git-credentials", "attachments"] {
        let found = dialects().holdings().find(|holding| path(holding.location) == Some(wanted)).copied();
        assert_eq!(found.map(|holding| holding.backup), Some(Backup::Copied), "{wanted}");
    }
}

/// Tables with the id of a session or run whose rows an erasure leaves, and why.
const NOT_ERASED: [(&str, &str); 4] = [
    ("runners", "the run that a runner has registered for; nothing of the run"),
    ("provider_validations", "the run in which the operator has tried a profile"),
    ("retention_holds", "a hold on the session prevents its erasure; a released one is evidence"),
    ("automation_starts", "that an automation has started a run; deleted with the automation"),
];

/// The erasure of a session deletes rows by these columns, from the tables that declare it.
#[both_engines]
async fn rows_with_the_id_of_a_session_or_run_are_erased(engine: Engine) {
    let server = TestServer::start(engine).await;
    let sql = match engine {
        Engine::Sqlite => {
            "SELECT t.name || '.' || c.name FROM sqlite_schema t JOIN pragma_table_info(t.name) c WHERE t.type = 'table'"
        }
        Engine::Postgres => {
            "SELECT table_name::text || '.' || column_name::text FROM information_schema.columns WHERE table_schema = 'public'"
        }
    };
    let columns: BTreeSet<_> = server.store(sql).await.into_iter().collect();
    for holding in dialects().holdings() {
        let Some(table) = holding.location.table() else { continue };
        let has = |column: &str| columns.contains(&format!("{table}.{column}"));
        match holding.erasure {
            Erasure::OfSession => assert!(has("session_id"), "{table}"),
            Erasure::OfRuns => assert!(has("run_id"), "{table}"),
            Erasure::WithSession | Erasure::ContentsOnly => {}
            Erasure::Untouched | Erasure::WithOwner | Erasure::OutlivesOwner => {
                let is_left = NOT_ERASED.iter().any(|(left, _)| *left == table);
                assert_eq!(has("session_id") || has("run_id"), is_left, "{table}");
            }
        }
    }
}

/// Every text below a directory.
fn texts_below(directory: &Path) -> String {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let text = |entry: fs::DirEntry| match entry.file_type().unwrap().is_dir() {
        true => texts_below(&entry.path()),
        false => fs::read_to_string(entry.path()).unwrap(),
    };
    entries.map(text).collect()
}

/// What is declared of a table agrees with the SQL of the store: whether any of it deletes rows of the table.
#[test]
fn rows_are_deleted_exactly_from_the_tables_that_declare_it() {
    let store = Path::new(env!("CARGO_MANIFEST_DIR")).join("../store");
    let sql = texts_below(&store.join("src")) + &texts_below(&store.join("migrations"));
    let words: Vec<&str> = sql.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let deleted: BTreeSet<&str> =
        words.windows(3).filter(|words| words[..2] == ["DELETE", "FROM"]).map(|words| words[2]).collect();
    for holding in dialects().holdings() {
        let Some(table) = holding.location.table() else { continue };
        let (retention, erasure) = (holding.retention, holding.erasure);
        let is_of_session = matches!(erasure, Erasure::OfSession | Erasure::OfRuns);
        let has_delete = deleted.contains(table) || is_of_session;
        let loses_rows =
            retention == Retention::Expires || matches!(erasure, Erasure::WithSession | Erasure::WithOwner);
        assert!(has_delete || !loses_rows, "nothing deletes rows of {table}");
        let is_kept =
            retention == Retention::Proof || (retention, erasure) == (Retention::Kept, Erasure::OutlivesOwner);
        assert!(!is_kept || !has_delete, "rows of {table} are deleted");
        assert!(retention != Retention::WithSession || is_of_session || erasure == Erasure::WithSession, "{table}");
    }
}
