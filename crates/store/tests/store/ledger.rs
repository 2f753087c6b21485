//! The migration ledger: a store that another build has written stops the start, and nothing is changed.

use ostler_protocol::{
    Timestamp,
    ids::{CommandId, SessionId},
};
use ostler_store::{Db, StoreError, kernel::aliases, migrate};
use uuid::Uuid;

use crate::{
    rows::{TABLES, Witness},
    test_store::{Engine, TestStore, both_engines},
};

async fn open(test_store: &TestStore) -> Result<Db, StoreError> {
    Db::open(&test_store.config(), Timestamp::UNIX_EPOCH).await
}

/// The store's tables and its ledger, as text.
async fn shape(test_store: &TestStore) -> String {
    match Witness::of(test_store).await {
        Witness::Sqlite(connection) => {
            let sql = "SELECT group_concat(sql, ';') || (SELECT group_concat(id || checksum || applied_at, ';')
                FROM schema_migrations) FROM sqlite_schema";
            connection.query_row(sql, [], |row| row.get(0)).unwrap()
        }
        Witness::Postgres(mut connection) => {
            let sql = "SELECT (SELECT string_agg(table_name || column_name || data_type, ';'
                    ORDER BY table_name, ordinal_position) FROM information_schema.columns WHERE table_schema = 'public')
                || (SELECT string_agg(id || checksum || applied_at, ';' ORDER BY id) FROM schema_migrations)";
            sqlx::query_scalar(sql).fetch_one(&mut *connection).await.unwrap()
        }
    }
}

/// The steps of this build, which are named alike on both engines.
fn known() -> Vec<&'static str> {
    let ids = |steps: &'static [ostler_store::migrate::Migration]| steps.iter().map(|step| step.id).collect::<Vec<_>>();
    let (sqlite, postgres) = (ids(ostler_store::migrate::SQLITE), ids(ostler_store::migrate::POSTGRES));
    assert_eq!(sqlite, postgres);
    assert!(sqlite.is_sorted(), "{sqlite:?}");
    sqlite
}

#[both_engines]
async fn a_new_store_gets_every_table_and_reports_it(engine: Engine) {
    let test_store = TestStore::empty(engine);
    let db = open(&test_store).await.unwrap();
    assert_eq!(db.migrations().await.unwrap(), known());
    db.close().await;
    let rows = Witness::of(&test_store).await.rows().await;
    assert!(TABLES.iter().all(|table| rows.of(table).is_empty()));
}

/// The store of the first release, with a client's name for a command in it, is migrated by the current build.
#[both_engines]
async fn a_store_of_the_first_release_keeps_its_rows(engine: Engine) {
    let test_store = TestStore::empty(engine);
    let first = match engine {
        Engine::Sqlite => &migrate::SQLITE[0],
        Engine::Postgres => &migrate::POSTGRES[0],
    };
    let (session, command_id) = (SessionId::new(Uuid::from_u128(1)), CommandId::new(Uuid::from_u128(2)));
    let mut old = Witness::of(&test_store).await;
    for sql in [
        migrate::LEDGER.to_owned(),
        first.sql.to_owned(),
        format!(
            "INSERT INTO schema_migrations (id, checksum, applied_at) VALUES ('{}', '{}', 0)",
            first.id,
            first.checksum()
        ),
        format!(
            "INSERT INTO agent_runs (session_id, run_id, command_id, request_hash, after_seq, created_at)
             VALUES ('{session}', 'run-1', '{command_id}', 'hash', 7, 0)"
        ),
    ] {
        old.execute(&sql).await;
    }
    drop(old);
    let db = open(&test_store).await.unwrap();
    assert_eq!(db.migrations().await.unwrap(), known());
    let alias = aliases::get(&db, session, "run-1").await.unwrap().expect("it was kept");
    assert_eq!((alias.command_id, alias.after_seq), (command_id, 7));
    assert_eq!(aliases::find_by_command(&db, command_id).await.unwrap(), Some(alias));
    db.close().await;
}

#[both_engines]
async fn a_changed_step_stops_the_start_and_changes_nothing(engine: Engine) {
    let test_store = TestStore::empty(engine);
    open(&test_store).await.unwrap().close().await;
    Witness::of(&test_store).await.execute("UPDATE schema_migrations SET checksum = 'another'").await;
    let before = shape(&test_store).await;
    let error = open(&test_store).await.err().expect("a changed step stops the start");
    assert!(matches!(error, StoreError::Migration(_)), "{error}");
    assert!(error.to_string().contains("0001_kernel"), "{error}");
    assert_eq!(shape(&test_store).await, before);
}

#[both_engines]
async fn a_step_of_a_later_build_stops_the_start_and_changes_nothing(engine: Engine) {
    let test_store = TestStore::empty(engine);
    open(&test_store).await.unwrap().close().await;
    let later = "INSERT INTO schema_migrations (id, checksum, applied_at) VALUES ('9999_later', 'x', 0)";
    Witness::of(&test_store).await.execute(later).await;
    let before = shape(&test_store).await;
    let error = open(&test_store).await.err().expect("a later step stops the start");
    assert!(matches!(error, StoreError::Migration(_)), "{error}");
    assert!(error.to_string().contains("9999_later"), "{error}");
    assert_eq!(shape(&test_store).await, before);
    Witness::of(&test_store).await.execute("DELETE FROM schema_migrations WHERE id = '9999_later'").await;
    open(&test_store).await.unwrap().close().await;
}

#[tokio::test]
async fn servers_that_start_together_apply_each_step_once() {
    let test_store = TestStore::empty(Engine::Postgres);
    let opened = futures_util::future::join_all((0..6).map(|_| open(&test_store))).await;
    for db in opened {
        let db = db.unwrap();
        assert_eq!(db.migrations().await.unwrap(), known());
        db.close().await;
    }
}
