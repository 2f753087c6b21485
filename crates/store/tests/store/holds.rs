//! Legal holds that are placed while something is removed.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use crate::{
    mesh::limits::run,
    test_store::{Engine, TestStore},
};

const CHANGE_GATE: &str = "UPDATE retention_gate SET holds_placed = holds_placed + 1 WHERE id = 1";

/// Starts a removal while another server places a hold. SQLite does one write after the other, so there the hold is first.
pub(crate) async fn while_placing<T>(
    test_store: &TestStore,
    column: &str,
    value: &str,
    removal: impl Future<Output = T>,
) -> T {
    let insert = format!(
        "INSERT INTO retention_holds (hold_id, {column}, reason, placed_by, placed_at)
         VALUES ('hld_00000000000000000000000000000007', '{value}', 'case 7', 'operator', 0)"
    );
    match test_store.engine() {
        Engine::Sqlite => {
            run(test_store, insert).await;
            removal.await
        }
        Engine::Postgres => {
            let mut connection = PgConnection::connect(&test_store.url()).await.unwrap();
            let mut placing = connection.begin().await.unwrap();
            placing.execute(CHANGE_GATE).await.unwrap();
            placing.execute(sqlx::raw_sql(AssertSqlSafe(insert))).await.unwrap();
            let commit = async {
                tokio::time::sleep(Duration::from_millis(200)).await;
                placing.commit().await.unwrap();
            };
            tokio::join!(removal, commit).0
        }
    }
}

pub(crate) async fn release_all(test_store: &TestStore) {
    run(test_store, "UPDATE retention_holds SET released_at = 1".into()).await;
}
