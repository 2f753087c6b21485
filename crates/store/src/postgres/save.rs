//! Saving what a flush changed: one statement, with an insert and an update per table that changed, which writes all of
//! it or fails.

use std::{collections::HashMap, fmt::Write as _, sync::Arc};

use ostler_protocol::{
    kernel::aliases::CommandAlias,
    kernel::{
        commands::Command, events::Event, leases::Lease, operations::Batch, permissions::PermissionRequest,
        runner_jobs::RunnerJob, runs::Run, sessions::Session, usage::UsageDay,
    },
};
use sqlx::{
    AssertSqlSafe, Encode, PgConnection, Postgres, Type,
    encode::IsNull,
    error::BoxDynError,
    postgres::{PgArgumentBuffer, PgTypeInfo},
};

use super::connections::PgQuery;
use crate::{
    error::StoreError,
    lane::desks::Changes,
    record::{ColumnValue, Kind, Record, insert_rows, update_rows, update_width},
};

/// Write statements by the set of tables they touch.
#[derive(Default)]
pub(super) struct Statements(HashMap<u32, Arc<str>>);

impl Statements {
    /// Fails, and writes nothing, unless every session on the desks still has the revision it was decided on.
    pub(super) async fn save(&mut self, tx: &mut PgConnection, changes: &Changes<'_>) -> Result<(), StoreError> {
        let mask = TABLES.iter().rev().fold(0_u32, |mask, table| mask << 1 | u32::from((table.touched)(changes)));
        if mask == 0 {
            return Ok(());
        }
        let sql = self.0.entry(mask).or_insert_with(|| write_statement(mask).into()).clone();
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for table in TABLES.iter().filter(|table| (table.touched)(changes)) {
            query = (table.bind)(query, changes);
        }
        let held = changes.sessions.changed.len() + changes.consulted.len();
        query.bind(held as i64).execute(tx).await?;
        Ok(())
    }
}

/// One part of the write statement.
struct Table {
    touched: fn(&Changes<'_>) -> bool,
    /// The part's text, its parameters starting at the number given, and how many they are.
    sql: fn(usize) -> (String, usize),
    bind: for<'q> fn(PgQuery<'q>, &Changes<'q>) -> PgQuery<'q>,
}

macro_rules! new_rows {
    ($R:ty, $field:ident) => {
        Table {
            touched: |changes| !changes.$field.new.is_empty(),
            sql: |first| (insert_rows::<$R>(first), <$R>::COLUMNS.len()),
            bind: |query, changes| bind_new(query, &changes.$field.new),
        }
    };
}

macro_rules! changed_rows {
    ($R:ty, $field:ident) => {
        Table {
            touched: |changes| !changes.$field.changed.is_empty(),
            sql: |first| (update_rows::<$R>(first), update_width::<$R>()),
            bind: |query, changes| bind_changed(query, &changes.$field.changed),
        }
    };
}

/// How many parts at the front are about sessions that were there before.
const HELD: usize = 2;

/// The parts at the front find sessions with the revision they were decided on.
const TABLES: &[Table] = &[
    changed_rows!(Session, sessions),
    Table {
        touched: |changes| !changes.consulted.is_empty(),
        sql: |first| (find_consulted(first), 2),
        bind: bind_consulted,
    },
    Table {
        touched: |changes| !changes.events.is_empty(),
        sql: |first| (insert_rows::<Event>(first), Event::COLUMNS.len()),
        bind: |query, changes| bind_new(query, &changes.events),
    },
    new_rows!(Session, sessions),
    new_rows!(Run, runs),
    changed_rows!(Run, runs),
    new_rows!(Lease, leases),
    changed_rows!(Lease, leases),
    new_rows!(Command, commands),
    changed_rows!(Command, commands),
    new_rows!(PermissionRequest, permissions),
    changed_rows!(PermissionRequest, permissions),
    new_rows!(RunnerJob, jobs),
    changed_rows!(RunnerJob, jobs),
    Table {
        touched: |changes| !changes.batches.is_empty(),
        sql: |first| (insert_rows::<Batch>(first), Batch::COLUMNS.len()),
        bind: |query, changes| bind_new(query, &changes.batches),
    },
    Table {
        touched: |changes| !changes.usage.is_empty(),
        sql: |first| (insert_rows::<UsageDay>(first), UsageDay::COLUMNS.len()),
        bind: |query, changes| bind_new(query, &changes.usage),
    },
    Table {
        touched: |changes| !changes.aliases.is_empty(),
        sql: |first| (insert_rows::<CommandAlias>(first), CommandAlias::COLUMNS.len()),
        bind: |query, changes| bind_new(query, &changes.aliases),
    },
    Table {
        touched: |changes| !changes.forget_batches.is_empty(),
        sql: |first| (forget_batches(first), 2),
        bind: bind_forget,
    },
];

fn write_statement(mask: u32) -> String {
    let mut sql = String::from("WITH ");
    let mut next = 1;
    for (index, table) in TABLES.iter().enumerate().filter(|(index, _)| mask >> index & 1 == 1) {
        let (part, width) = (table.sql)(next);
        let comma = if next > 1 { ", " } else { "" };
        let _ = write!(sql, "{comma}w{index} AS ({part})");
        next += width;
    }
    let held: String = (0..HELD)
        .filter(|index| mask >> index & 1 == 1)
        .map(|index| format!(" + (SELECT COUNT(*) FROM w{index})"))
        .collect();
    // A division by zero is the shortest way for a statement to fail as a whole. It comes before the writes that the
    // answer does not depend on, so an outdated flush does not go on to clash with the rows it knew nothing of.
    let _ = write!(sql, " SELECT 1 / (CASE WHEN 0{held} = ${next}::bigint THEN 1 ELSE 0 END)");
    sql
}

fn find_consulted(first: usize) -> String {
    format!(
        "SELECT 1 FROM sessions t JOIN UNNEST(${first}::text[], ${}::bigint[]) AS u (session_id, revision)
         ON t.session_id = u.session_id AND t.revision = u.revision",
        first + 1
    )
}

fn bind_consulted<'q>(query: PgQuery<'q>, changes: &Changes<'q>) -> PgQuery<'q> {
    query
        .bind(changes.consulted.iter().map(|session| session.session.to_string()).collect::<Vec<_>>())
        .bind(changes.consulted.iter().map(|session| session.revision).collect::<Vec<_>>())
}

fn forget_batches(first: usize) -> String {
    format!(
        "DELETE FROM append_batches b USING UNNEST(${first}::text[], ${}::bigint[]) AS k (run_id, epoch)
         WHERE b.run_id = k.run_id AND b.lease_epoch < k.epoch",
        first + 1
    )
}

fn bind_forget<'q>(query: PgQuery<'q>, changes: &Changes<'q>) -> PgQuery<'q> {
    query
        .bind(changes.forget_batches.iter().map(|(run_id, _)| run_id.to_string()).collect::<Vec<_>>())
        .bind(changes.forget_batches.iter().map(|(_, epoch)| *epoch).collect::<Vec<_>>())
}

fn bind_new<'q, R: Record>(query: PgQuery<'q>, records: &[&'q R]) -> PgQuery<'q> {
    let rows = records.iter().map(|record| record.fixed().into_iter().chain(record.state()).collect());
    bind_columns(query, R::COLUMNS.iter(), rows.collect())
}

fn bind_changed<'q, R: Record>(query: PgQuery<'q>, records: &[&'q R]) -> PgQuery<'q> {
    let rows = records.iter().map(|record| record.key().into_iter().chain(record.state()).collect());
    bind_columns(query, R::COLUMNS[..R::KEY].iter().chain(&R::COLUMNS[R::FIXED..]), rows.collect())
}

/// One array per column.
fn bind_columns<'q>(
    mut query: PgQuery<'q>,
    columns: impl Iterator<Item = &'static (&'static str, Kind)>,
    rows: Vec<Vec<ColumnValue<'q>>>,
) -> PgQuery<'q> {
    for (index, (_, kind)) in columns.enumerate() {
        query = query.bind(ColumnArray { kind: *kind, index, rows: &rows });
    }
    query
}

/// The values that rows have in one column, as an array. They are encoded where they are: sqlx would need them in a list of
/// their own, of a type that is known when this is compiled.
struct ColumnArray<'a, 'q> {
    kind: Kind,
    index: usize,
    rows: &'a [Vec<ColumnValue<'q>>],
}

/// The numbers of `text`, `bigint` and `bytea` in every Postgres.
const TEXT_OID: i32 = 25;
const INT_OID: i32 = 20;
const BYTES_OID: i32 = 17;
/// Bytes of an array before its elements, and of an element before its value.
const ARRAY_HEAD_BYTES: usize = 20;
const LENGTH_BYTES: usize = 4;

impl ColumnArray<'_, '_> {
    /// The encoded values; `None` is null.
    fn put_values(&self, mut put: impl FnMut(Option<&[u8]>) -> Result<(), BoxDynError>) -> Result<(), BoxDynError> {
        for row in self.rows {
            match &row[self.index] {
                ColumnValue::Text(text) => put(text.as_deref().map(str::as_bytes))?,
                ColumnValue::Int(Some(number)) => put(Some(number.to_be_bytes().as_slice()))?,
                ColumnValue::Int(None) => put(None)?,
                ColumnValue::Bytes(bytes) => put(bytes.as_ref().map(<[u8; 32]>::as_slice))?,
            }
        }
        Ok(())
    }
}

impl Type<Postgres> for ColumnArray<'_, '_> {
    fn type_info() -> PgTypeInfo {
        <Vec<String> as Type<Postgres>>::type_info()
    }
}

impl Encode<'_, Postgres> for ColumnArray<'_, '_> {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let element = match self.kind {
            Kind::Text => TEXT_OID,
            Kind::Int => INT_OID,
            Kind::Bytes => BYTES_OID,
        };
        let mut bytes = ARRAY_HEAD_BYTES;
        self.put_values(|value| {
            bytes += LENGTH_BYTES + value.map_or(0, <[u8]>::len);
            Ok(())
        })?;
        buffer.reserve(bytes);
        let (dimensions, flags, first_index) = (1, 0, 1);
        for number in [dimensions, flags, element, i32::try_from(self.rows.len())?, first_index] {
            buffer.extend_from_slice(&number.to_be_bytes());
        }
        self.put_values(|value| {
            let length = value.map_or(Ok(-1), |value| i32::try_from(value.len()))?;
            buffer.extend_from_slice(&length.to_be_bytes());
            buffer.extend_from_slice(value.unwrap_or_default());
            Ok(())
        })?;
        Ok(IsNull::No)
    }

    fn produces(&self) -> Option<PgTypeInfo> {
        Some(match self.kind {
            Kind::Text => <Vec<String> as Type<Postgres>>::type_info(),
            Kind::Int => <Vec<i64> as Type<Postgres>>::type_info(),
            Kind::Bytes => <Vec<Vec<u8>> as Type<Postgres>>::type_info(),
        })
    }
}
