//! Finds out whether the store takes writes.

use ostler_protocol::Timestamp;

use crate::{
    db::{Db, Engine},
    error::StoreError,
    record::Statement,
};

/// Enough that a probe needs pages of its own, not only room that is left in the last one.
const PROBE_BYTES: usize = 32 * 1024;
/// The same for Postgres, which would compress a repeated character to nothing: different digests of 32 characters each.
const PROBE_PADDING: &str = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 1024) n)";

/// Writes a row that no client reads, to find out whether the store takes writes.
pub async fn probe(db: &Db, now: Timestamp) -> Result<(), StoreError> {
    let health = db.write_health();
    match (&db.engine, health.lacks_room()) {
        (Engine::Sqlite(_), _) => {
            let sql = "UPDATE store_probe SET padding = $1, probed_at = $2 WHERE id = 1";
            db.execute(sql, vec![".".repeat(PROBE_BYTES).into(), now.into()]).await?;
        }
        (Engine::Postgres(_), true) => probe_for_room(db, now).await?,
        (Engine::Postgres(_), false) => {
            let sql = format!("UPDATE store_probe SET padding = {PROBE_PADDING}, probed_at = $1 WHERE id = 1");
            db.execute(sql, vec![now.into()]).await?;
        }
    }
    health.wrote();
    Ok(())
}

/// An update can reuse room inside the table's files, so it succeeds on a full disk. After `TRUNCATE` the table has new, empty
/// files, which must grow. The lock that this takes would wait for a running `pg_dump`, so it is not the usual probe.
async fn probe_for_room(db: &Db, now: Timestamp) -> Result<(), StoreError> {
    let insert = format!("INSERT INTO store_probe (id, padding, probed_at) VALUES (1, {PROBE_PADDING}, $1)");
    let statements = vec![Statement::new("TRUNCATE store_probe", vec![]), Statement::new(insert, vec![now.into()])];
    db.write_together(statements).await.map(drop)
}
