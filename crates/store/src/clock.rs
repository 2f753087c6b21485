//! The database's clock, which all servers of one Postgres go by. No statement that decides anything reads it: it is
//! sampled here, and passed in like any other time.
//!
//! Builds with the feature `fault-injection` can move it from outside the process: the environment variable
//! `OSTLER_FAULT_DATABASE_CLOCK_FILE` names a file, and the number of milliseconds in it is added to every sample. A file
//! that is missing or does not hold a number counts as 0.

use crate::{db::Db, error::StoreError, record::Reader};

/// What the database's clock showed, and what the servers have made of it so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    pub raw_us: i64,
    /// What the servers add to it, because it has jumped.
    pub correction_us: i64,
    /// What it showed when a server last stored that it had looked.
    pub seen_us: i64,
}

/// Reads the database's clock. Only Postgres has one; SQLite's is the machine's own.
pub async fn sample(db: &Db) -> Result<Sample, StoreError> {
    let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS raw_us, correction_us, seen_us
        FROM store_clock WHERE id = 1";
    let decode = |row: &mut Reader<'_>| {
        let (raw_us, correction_us) = (row.at("raw_us")?.int()?, row.at("correction_us")?.int()?);
        Ok(Sample { raw_us, correction_us, seen_us: row.at("seen_us")?.int()? })
    };
    let sample =
        db.read_one(sql, vec![], decode).await?.ok_or_else(|| StoreError::corrupt("store_clock has no row"))?;
    Ok(Sample { raw_us: sample.raw_us.saturating_add(injected_us()), ..sample })
}

#[cfg(feature = "fault-injection")]
fn injected_us() -> i64 {
    let file = std::env::var_os("OSTLER_FAULT_DATABASE_CLOCK_FILE");
    let text = file.and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
    text.trim().parse::<i64>().unwrap_or(0).saturating_mul(1_000)
}

#[cfg(not(feature = "fault-injection"))]
fn injected_us() -> i64 {
    0
}

/// Stores that a server has seen this sample, with a correction for all. False if another server was first.
pub async fn update(db: &Db, sample: &Sample, correction_us: i64) -> Result<bool, StoreError> {
    let sql = "UPDATE store_clock SET correction_us = $1, seen_us = $2
        WHERE id = 1 AND correction_us = $3 AND seen_us = $4 RETURNING 1";
    let args = vec![correction_us.into(), sample.raw_us.into(), sample.correction_us.into(), sample.seen_us.into()];
    Ok(!db.write(sql, args, |_| Ok(())).await?.is_empty())
}
