//! Finding rows by their labels. The column holds them as JSON; SQLite also has a table of them for each noun, which triggers
//! keep, and Postgres an index over the JSON.

use ostler_protocol::{json::text_of, kernel::labels::Labels};

use crate::{
    db::{Db, Engine},
    record::Value,
};

/// A table whose rows have labels.
pub(crate) struct Labelled {
    /// The row's key.
    pub key: &'static str,
    /// The table of its labels on SQLite.
    pub labels: &'static str,
}

pub(crate) const RUNS: Labelled = Labelled { key: "run_id", labels: "run_labels" };
pub(crate) const SESSIONS: Labelled = Labelled { key: "session_id", labels: "session_labels" };

/// The conditions on a row `t` that has all of these labels.
pub(crate) fn conditions(
    db: &Db,
    of: &Labelled,
    labels: &Labels,
    mut mark: impl FnMut(Value) -> String,
) -> Vec<String> {
    if labels.is_empty() {
        return vec![];
    }
    match db.engine {
        Engine::Sqlite(_) => {
            let Labelled { key, labels: table } = of;
            let one = |(name, value): (&str, &str)| {
                let (name, value) = (mark(name.into()), mark(value.into()));
                format!("t.{key} IN (SELECT l.{key} FROM {table} l WHERE l.key = {name} AND l.value = {value})")
            };
            labels.iter().map(one).collect()
        }
        Engine::Postgres(_) => {
            let wanted = mark(text_of(labels).into());
            vec![format!("t.labels IS NOT NULL AND t.labels::jsonb @> {wanted}::jsonb")]
        }
    }
}
