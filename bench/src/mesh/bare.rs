//! The same rows without a mesh around them: one connection, as many rows per transaction as there are senders who wait.

use rusqlite::params;
use sqlx::{Connection, PgConnection};

use super::{SENDERS, payload};
use crate::engine::Place;
use crate::machine::{now, since};
use crate::outcome::Outcome;

const SENT_AT: i64 = 1_790_000_000_000_000;
/// So far ahead that no sweep deletes them during the run.
const EXPIRES_AT: i64 = 4_000_000_000_000_000;

/// A row's names and number.
struct Row {
    owner: String,
    seq: i64,
    message_id: String,
    sender: String,
}

fn rows(round: usize, count: usize) -> Vec<Row> {
    let row = |number: usize| {
        let (pair, turn) = (number % SENDERS, number / SENDERS);
        Row {
            owner: format!("bare-{round}-{pair}.localhost.test"),
            seq: turn as i64 + 1,
            message_id: format!("m-{round}-{number}"),
            sender: format!("sender-{pair}.localhost.test"),
        }
    };
    (0..count).map(row).collect()
}

/// Writes that many rows beside those of the server, which is idle. Returns how many it wrote per second.
pub(crate) async fn rows_per_s(place: &Place, round: usize, count: usize) -> Outcome<f64> {
    let rows = rows(round, count);
    let seconds = match &place.database_url {
        None => sqlite(place, &rows)?,
        Some(url) => postgres(url, &rows).await?,
    };
    Ok(count as f64 / seconds)
}

fn sqlite(place: &Place, rows: &[Row]) -> Outcome<f64> {
    let mut connection = rusqlite::Connection::open(place.data_dir.join("ostler.db"))?;
    connection
        .execute_batch("PRAGMA synchronous = FULL; PRAGMA cache_size = -32768; PRAGMA wal_autocheckpoint = 4000;")?;
    let payload = payload();
    let insert =
        "INSERT INTO mesh_messages (owner, seq, message_id, sender, recipient, direction, type, encrypted, payload,
        sent_at, expires_at) VALUES (?1, ?2, ?3, ?4, ?1, 'inbound', 'e2ee.encrypted', 1, ?5, ?6, ?7)";
    let started = now();
    for chunk in rows.chunks(SENDERS) {
        let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let mut statement = transaction.prepare_cached(insert)?;
        for Row { owner, seq, message_id, sender } in chunk {
            statement.execute(params![owner, seq, message_id, sender, payload, SENT_AT, EXPIRES_AT])?;
        }
        drop(statement);
        transaction.commit()?;
    }
    Ok(since(started).as_secs_f64())
}

async fn postgres(url: &str, rows: &[Row]) -> Outcome<f64> {
    let mut connection = PgConnection::connect(url).await?;
    let payload = payload();
    let insert = "INSERT INTO mesh_messages (owner, seq, message_id, sender, recipient, direction, type, encrypted, payload,
        sent_at, expires_at)
        SELECT owner, seq, message_id, sender, owner, 'inbound', 'e2ee.encrypted', 1, payload, $6, $7
        FROM UNNEST($1::text[], $2::bigint[], $3::text[], $4::text[], $5::text[]) AS g (owner, seq, message_id, sender, payload)";
    let started = now();
    for chunk in rows.chunks(SENDERS) {
        sqlx::query(insert)
            .bind(chunk.iter().map(|row| row.owner.as_str()).collect::<Vec<_>>())
            .bind(chunk.iter().map(|row| row.seq).collect::<Vec<_>>())
            .bind(chunk.iter().map(|row| row.message_id.as_str()).collect::<Vec<_>>())
            .bind(chunk.iter().map(|row| row.sender.as_str()).collect::<Vec<_>>())
            .bind(vec![payload.as_str(); chunk.len()])
            .bind(SENT_AT)
            .bind(EXPIRES_AT)
            .execute(&mut connection)
            .await?;
    }
    let seconds = since(started).as_secs_f64();
    connection.close().await?;
    Ok(seconds)
}
