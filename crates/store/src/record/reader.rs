//! Reads a row of either engine, column by column.

use std::{fmt::Display, str::FromStr};

use ostler_protocol::{RawJson, Timestamp};
use serde::de::DeserializeOwned;
use sqlx::{Column as _, Row as _, ValueRef as _};

use crate::error::StoreError;

/// A row of either engine.
#[derive(Clone, Copy)]
pub(crate) enum RowRef<'a> {
    Sqlite(&'a rusqlite::Row<'a>),
    Postgres(&'a sqlx::postgres::PgRow),
}

/// Reads a row's columns in the order they were selected.
pub(crate) struct Reader<'a> {
    row: RowRef<'a>,
    next: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(row: RowRef<'a>) -> Self {
        Self { row, next: 0 }
    }

    /// Goes to the column of this name, for the columns of a statement that no noun declares.
    pub(crate) fn at(&mut self, name: &str) -> Result<&mut Self, StoreError> {
        self.next = match self.row {
            RowRef::Sqlite(row) => row.as_ref().column_index(name)?,
            RowRef::Postgres(row) => row.try_column(name)?.ordinal(),
        };
        Ok(self)
    }

    fn index(&mut self) -> usize {
        self.next += 1;
        self.next - 1
    }

    pub(crate) fn opt_str(&mut self) -> Result<Option<&'a str>, StoreError> {
        let index = self.index();
        match self.row {
            RowRef::Sqlite(row) => Ok(row.get_ref(index)?.as_str_or_null().map_err(StoreError::corrupt)?),
            RowRef::Postgres(row) => Ok(row.try_get(index)?),
        }
    }

    pub(crate) fn str(&mut self) -> Result<&'a str, StoreError> {
        self.opt_str()?.ok_or_else(|| StoreError::corrupt("a null where none can be"))
    }

    pub(crate) fn text(&mut self) -> Result<String, StoreError> {
        self.str().map(str::to_owned)
    }

    pub(crate) fn opt_text(&mut self) -> Result<Option<String>, StoreError> {
        Ok(self.opt_str()?.map(str::to_owned))
    }

    pub(crate) fn opt_int(&mut self) -> Result<Option<i64>, StoreError> {
        let index = self.index();
        match self.row {
            RowRef::Sqlite(row) => Ok(row.get_ref(index)?.as_i64_or_null().map_err(StoreError::corrupt)?),
            RowRef::Postgres(row) => Ok(row.try_get(index)?),
        }
    }

    pub(crate) fn int(&mut self) -> Result<i64, StoreError> {
        self.opt_int()?.ok_or_else(|| StoreError::corrupt("a null where none can be"))
    }

    pub(crate) fn flag(&mut self) -> Result<bool, StoreError> {
        Ok(self.int()? != 0)
    }

    pub(crate) fn hash(&mut self) -> Result<[u8; 32], StoreError> {
        let index = self.index();
        let bytes: &[u8] = match self.row {
            RowRef::Sqlite(row) => row.get_ref(index)?.as_blob().map_err(StoreError::corrupt)?,
            RowRef::Postgres(row) => row.try_get(index)?,
        };
        bytes.try_into().map_err(StoreError::corrupt)
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp, StoreError> {
        Timestamp::from_microsecond(self.int()?).map_err(StoreError::corrupt)
    }

    pub(crate) fn opt_time(&mut self) -> Result<Option<Timestamp>, StoreError> {
        self.opt_int()?.map(Timestamp::from_microsecond).transpose().map_err(StoreError::corrupt)
    }

    pub(crate) fn id<T: FromStr<Err: Display>>(&mut self) -> Result<T, StoreError> {
        self.str()?.parse().map_err(StoreError::corrupt)
    }

    pub(crate) fn opt_id<T: FromStr<Err: Display>>(&mut self) -> Result<Option<T>, StoreError> {
        self.opt_str()?.map(str::parse).transpose().map_err(StoreError::corrupt)
    }

    /// A name from a closed list.
    pub(crate) fn named<T>(&mut self, parse: fn(&str) -> Option<T>) -> Result<T, StoreError> {
        let name = self.str()?;
        parse(name).ok_or_else(|| StoreError::corrupt(format!("unknown name {name:?}")))
    }

    pub(crate) fn opt_named<T>(&mut self, parse: fn(&str) -> Option<T>) -> Result<Option<T>, StoreError> {
        if self.next_is_null()? {
            self.skip(1);
            return Ok(None);
        }
        self.named(parse).map(Some)
    }

    pub(crate) fn json<T: DeserializeOwned>(&mut self) -> Result<T, StoreError> {
        serde_json::from_str(self.str()?).map_err(StoreError::corrupt)
    }

    pub(crate) fn opt_json<T: DeserializeOwned>(&mut self) -> Result<Option<T>, StoreError> {
        self.opt_str()?.map(serde_json::from_str).transpose().map_err(StoreError::corrupt)
    }

    pub(crate) fn raw_json(&mut self) -> Result<RawJson, StoreError> {
        RawJson::parse(self.text()?).map_err(StoreError::corrupt)
    }

    /// Whether the next column is null, without taking it: for the right side of a left join.
    pub(crate) fn next_is_null(&mut self) -> Result<bool, StoreError> {
        match self.row {
            RowRef::Sqlite(row) => Ok(matches!(row.get_ref(self.next)?, rusqlite::types::ValueRef::Null)),
            RowRef::Postgres(row) => Ok(row.try_get_raw(self.next)?.is_null()),
        }
    }

    pub(crate) fn skip(&mut self, columns: usize) {
        self.next += columns;
    }
}
