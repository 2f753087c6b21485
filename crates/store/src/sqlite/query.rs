//! Values to and rows from SQLite.

use rusqlite::{
    Connection,
    types::{ToSqlOutput, ValueRef},
};

use crate::{
    error::StoreError,
    record::{ColumnValue, Reader, RowRef, Value},
};

impl rusqlite::ToSql for ColumnValue<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Text(Some(text)) => ValueRef::Text(text.as_bytes()),
            Self::Int(Some(number)) => ValueRef::Integer(*number),
            Self::Bytes(Some(bytes)) => ValueRef::Blob(bytes),
            Self::Text(None) | Self::Int(None) | Self::Bytes(None) => ValueRef::Null,
        }))
    }
}

pub(crate) fn query<T>(
    connection: &Connection,
    sql: &str,
    args: &[Value],
    decode: fn(&mut Reader<'_>) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(rusqlite::params_from_iter(args))?;
    let mut found = vec![];
    while let Some(row) = rows.next()? {
        found.push(decode(&mut Reader::new(RowRef::Sqlite(row)))?);
    }
    Ok(found)
}

/// Returns free pages to the end of the file, which is cut off when the log is written back. True: free pages are left.
/// Without effect in a file that was made without `auto_vacuum`.
pub(crate) fn release_pages(connection: &Connection, pages: u32) -> Result<bool, StoreError> {
    let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    const INCREMENTAL: i64 = 2;
    if number("PRAGMA auto_vacuum")? != INCREMENTAL {
        return Ok(false);
    }
    query(connection, &format!("PRAGMA incremental_vacuum({pages})"), &[], |_| Ok(()))?;
    Ok(number("PRAGMA freelist_count")? > 0)
}
