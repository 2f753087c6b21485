//! Copies of a whole store: a [`Snapshot`] reads every table of a store in use as of one moment, a [`Loader`] fills an empty
//! store. Rows are in the text format of Postgres' `COPY` on both engines, so a copy of one engine loads into the other.

mod copy_text;
mod loader;
mod snapshot;

pub use loader::Loader;
pub use snapshot::{RowSink, Snapshot};

use serde::{Deserialize, Serialize};

/// The ledger of migrations. It is copied as [`AppliedMigration`]s, because each engine has checksums of its own.
pub const LEDGER_TABLE: &str = "schema_migrations";

/// A row of the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AppliedMigration {
    pub id: String,
    pub checksum: String,
    /// Microseconds since 1970.
    pub applied_at: i64,
}

/// Table and column names are part of statements, and those of a loaded copy come from a file.
fn is_name(text: &str) -> bool {
    let first = text.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'_');
    first && text.len() < 64 && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
}
