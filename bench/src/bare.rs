//! The fastest insert of the same rows that one bare connection manages: no HTTP, no checks, no folds, no hashes.

use std::path::Path;

use rusqlite::params;
use sqlx::{Connection, PgConnection};

use crate::append::{BATCH_EVENTS, CONNECTIONS, EVENT_TYPE, payload};
use crate::engine::{Engine, Place};
use crate::machine::{now, since};
use crate::outcome::Outcome;

/// A way to write the rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InsertMethod {
    method: Method,
    rows_per_transaction: usize,
}

#[derive(Clone, Copy, Debug)]
enum Method {
    SqliteStatement,
    Unnest,
    BinaryCopy,
}

impl InsertMethod {
    /// Every way worth trying.
    pub(crate) fn all(engine: Engine) -> Vec<InsertMethod> {
        let methods: &[Method] = match engine {
            Engine::Sqlite => &[Method::SqliteStatement],
            Engine::Postgres => &[Method::Unnest, Method::BinaryCopy],
        };
        let sized = |method: &Method| {
            [256, 1_024].map(|rows_per_transaction| InsertMethod { method: *method, rows_per_transaction })
        };
        methods.iter().flat_map(sized).collect()
    }

    pub(crate) fn name(self) -> String {
        let method = match self.method {
            Method::SqliteStatement => "a cached statement",
            Method::Unnest => "UNNEST",
            Method::BinaryCopy => "binary COPY",
        };
        format!("{method}, {} rows per transaction", self.rows_per_transaction)
    }

    /// Writes that many rows. Returns how many it wrote per second.
    pub(crate) async fn rows_per_s(self, place: &Place, rows: usize) -> Outcome<f64> {
        let rows = rows - rows % self.rows_per_transaction;
        let made = Rows::new(&place.data_dir, rows)?;
        let seconds = match &place.database_url {
            None => sqlite(&place.data_dir.join("ostler.db"), &made, self.rows_per_transaction)?,
            Some(url) => postgres(url, &made, self).await?,
        };
        Ok(rows as f64 / seconds)
    }
}

/// A row's numbers; everything else is the same for all, or belongs to its session.
struct Row {
    session: usize,
    seq: i64,
}

struct Sessions {
    session_id: String,
    run_id: String,
    command_id: String,
}

/// As many sessions as the load has connections, a batch of each in turn.
struct Rows {
    sessions: Vec<Sessions>,
    rows: Vec<Row>,
    payload: String,
    digest: [u8; 32],
    created_at: i64,
}

impl Rows {
    /// Ids sort like the server's, later ones behind earlier ones; the counter is kept beside the data.
    fn new(data_dir: &Path, count: usize) -> Outcome<Self> {
        let file = data_dir.with_extension("rounds");
        let round: u64 = std::fs::read_to_string(&file).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        std::fs::write(&file, (round + 1).to_string())?;
        let sessions = (0..CONNECTIONS as u64).map(|number| {
            let body = format!(
                "{:012x}7{:03x}{:016x}",
                0x0190_0000_0000 + round,
                number,
                0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(number + 1)
            );
            Sessions {
                session_id: format!("ses_{body}"),
                run_id: format!("run_{body}"),
                command_id: format!("cmd_{body}"),
            }
        });
        let row = |index: usize| {
            let batch = index / BATCH_EVENTS;
            let seq = batch / CONNECTIONS * BATCH_EVENTS + index % BATCH_EVENTS + 1;
            Row { session: batch % CONNECTIONS, seq: seq as i64 }
        };
        Ok(Self {
            sessions: sessions.collect(),
            rows: (0..count).map(row).collect(),
            payload: payload(),
            digest: [0xa5; 32],
            created_at: 1_790_000_000_000_000,
        })
    }
}

const COLUMNS: &str = "session_id, session_seq, run_id, seq, command_id, type, payload, digest, hash, created_at";

/// With the settings of the server's own connection.
fn sqlite(file: &Path, made: &Rows, rows_per_transaction: usize) -> Outcome<f64> {
    let mut connection = rusqlite::Connection::open(file)?;
    connection.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -32768;
         PRAGMA wal_autocheckpoint = 4000; PRAGMA mmap_size = 0; PRAGMA temp_store = MEMORY;",
    )?;
    let insert = format!("INSERT INTO events ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)");
    let started = now();
    for chunk in made.rows.chunks(rows_per_transaction) {
        let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let mut statement = transaction.prepare_cached(&insert)?;
        for row in chunk {
            let of = &made.sessions[row.session];
            statement.execute(params![
                of.session_id,
                row.seq,
                of.run_id,
                row.seq,
                of.command_id,
                EVENT_TYPE,
                made.payload,
                &made.digest[..],
                &made.digest[..],
                made.created_at,
            ])?;
        }
        drop(statement);
        transaction.commit()?;
    }
    Ok(since(started).as_secs_f64())
}

/// One statement is one transaction, so there is one round trip for each.
async fn postgres(url: &str, made: &Rows, way: InsertMethod) -> Outcome<f64> {
    let mut connection = PgConnection::connect(url).await?;
    let started = now();
    for chunk in made.rows.chunks(way.rows_per_transaction) {
        match way.method {
            Method::BinaryCopy => copy(&mut connection, made, chunk).await?,
            _ => unnest(&mut connection, made, chunk).await?,
        }
    }
    let seconds = since(started).as_secs_f64();
    connection.close().await?;
    Ok(seconds)
}

async fn unnest(connection: &mut PgConnection, made: &Rows, chunk: &[Row]) -> Outcome<()> {
    let of = |row: &Row| &made.sessions[row.session];
    let numbers: Vec<i64> = chunk.iter().map(|row| row.seq).collect();
    let digests = vec![&made.digest[..]; chunk.len()];
    let sql =
        "INSERT INTO events (session_id, session_seq, run_id, seq, command_id, type, payload, digest, hash, created_at)
        SELECT * FROM UNNEST($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::text[],
            $8::bytea[], $9::bytea[], $10::bigint[])";
    sqlx::query(sql)
        .bind(chunk.iter().map(|row| of(row).session_id.as_str()).collect::<Vec<_>>())
        .bind(&numbers)
        .bind(chunk.iter().map(|row| of(row).run_id.as_str()).collect::<Vec<_>>())
        .bind(&numbers)
        .bind(chunk.iter().map(|row| of(row).command_id.as_str()).collect::<Vec<_>>())
        .bind(vec![EVENT_TYPE; chunk.len()])
        .bind(vec![made.payload.as_str(); chunk.len()])
        .bind(&digests)
        .bind(&digests)
        .bind(vec![made.created_at; chunk.len()])
        .execute(connection)
        .await?;
    Ok(())
}

async fn copy(connection: &mut PgConnection, made: &Rows, chunk: &[Row]) -> Outcome<()> {
    let mut bytes = Vec::with_capacity(chunk.len() * (made.payload.len() + 400));
    bytes.extend_from_slice(b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0");
    for row in chunk {
        let of = &made.sessions[row.session];
        let number = row.seq.to_be_bytes();
        let fields: [&[u8]; 10] = [
            of.session_id.as_bytes(),
            &number,
            of.run_id.as_bytes(),
            &number,
            of.command_id.as_bytes(),
            EVENT_TYPE.as_bytes(),
            made.payload.as_bytes(),
            &made.digest,
            &made.digest,
            &made.created_at.to_be_bytes(),
        ];
        bytes.extend_from_slice(&(fields.len() as i16).to_be_bytes());
        for field in fields {
            bytes.extend_from_slice(&(field.len() as i32).to_be_bytes());
            bytes.extend_from_slice(field);
        }
    }
    bytes.extend_from_slice(&(-1_i16).to_be_bytes());
    let mut copy = connection.copy_in_raw(&format!("COPY events ({COLUMNS}) FROM STDIN (FORMAT binary)")).await?;
    copy.send(bytes).await?;
    copy.finish().await?;
    Ok(())
}
