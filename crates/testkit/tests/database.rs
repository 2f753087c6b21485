//! Databases of tests: cloned with the schema, apart from each other, and dropped with their guards.

#![expect(clippy::unwrap_used, reason = "a test program: a failed unwrap is a failed test")]

use std::thread;

use ostler_store::migrate;
use ostler_testkit::{
    database::Database,
    engine::{Engine, both_engines, one_engine, run},
};
use sqlx::{Connection, PgConnection};

async fn migrations(url: &str) -> Result<i64, sqlx::Error> {
    let mut connection = PgConnection::connect(url).await?;
    sqlx::query_scalar("SELECT count(*) FROM schema_migrations").fetch_one(&mut connection).await
}

#[test]
fn a_migrated_database_has_every_migration_and_is_dropped_with_its_guard() {
    // Together, because processes of a run also miss the template together.
    let databases = [(); 4].map(|()| thread::spawn(Database::migrated)).map(|clone| clone.join().unwrap());
    run(async {
        for database in &databases {
            assert_eq!(migrations(database.url()).await.unwrap() as usize, migrate::POSTGRES.len());
        }
        let mut connection = PgConnection::connect(databases[0].url()).await.unwrap();
        sqlx::query("DELETE FROM schema_migrations").execute(&mut connection).await.unwrap();
        assert_eq!(migrations(databases[0].url()).await.unwrap(), 0);
        assert_ne!(migrations(databases[1].url()).await.unwrap(), 0);
    });
    let url = databases[0].url().to_owned();
    drop(databases);
    run(async { assert!(migrations(&url).await.is_err()) });
}

#[test]
fn an_empty_database_has_no_tables() {
    let database = Database::empty();
    run(async { assert!(migrations(database.url()).await.is_err()) });
}

/// Whether the attributes run a function with the engine of their test's name.
fn check_engine(engine: Engine) {
    let test = thread::current().name().unwrap().to_owned();
    assert!(test.ends_with(&format!("::{}", engine.name())), "{test}");
}

#[both_engines]
fn a_test_on_both_engines_is_named_after_each(engine: Engine) {
    check_engine(engine);
}

#[both_engines]
async fn an_asynchronous_test_on_both_engines_is_named_after_each(engine: Engine) {
    check_engine(engine);
}

#[one_engine]
fn a_test_on_one_engine_runs_on_sqlite(engine: Engine) {
    check_engine(engine);
}
