//! How a noun's row is written and read: one list of columns, used by both engines for selects and upserts.

use std::{fmt::Display, str::FromStr};

use ostler_protocol::{RawJson, Timestamp};
use serde::de::DeserializeOwned;
use sqlx::Row as _;

use crate::db::StoreError;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Text,
    Int,
    Bytes,
}

/// A value to bind. The kind is known even when it is null, because Postgres wants to know.
#[derive(Clone, Debug)]
pub enum Value {
    Text(Option<String>),
    Int(Option<i64>),
    Bytes(Option<Vec<u8>>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(Some(without_nul(text)))
    }
}

impl From<Option<String>> for Value {
    fn from(text: Option<String>) -> Self {
        Self::Text(text.map(without_nul))
    }
}

/// Postgres cannot hold a NUL in text, and one caller's must not fail a whole flush. JSON is not touched by this: there
/// a NUL is always escaped.
fn without_nul(text: String) -> String {
    if text.as_bytes().contains(&0) { text.replace('\0', "\u{fffd}") } else { text }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Int(Some(number))
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Int(Some(flag.into()))
    }
}

impl From<Timestamp> for Value {
    fn from(time: Timestamp) -> Self {
        Self::Int(Some(time.as_microsecond()))
    }
}

impl From<Option<Timestamp>> for Value {
    fn from(time: Option<Timestamp>) -> Self {
        Self::Int(time.map(|t| t.as_microsecond()))
    }
}

impl From<&[u8; 32]> for Value {
    fn from(hash: &[u8; 32]) -> Self {
        Self::Bytes(Some(hash.to_vec()))
    }
}

impl From<&RawJson> for Value {
    fn from(raw: &RawJson) -> Self {
        raw.as_str().into()
    }
}

/// An id, or anything else that is its text.
pub fn text(id: impl Display) -> Value {
    Value::Text(Some(id.to_string()))
}

pub fn opt_text(id: Option<impl Display>) -> Value {
    Value::Text(id.map(|id| id.to_string()))
}

pub fn json(value: &impl serde::Serialize) -> Value {
    Value::Text(Some(serde_json::to_string(value).expect("our own types serialise")))
}

/// A noun with a table. What never changes is written once; an update carries the key and the state only.
pub trait Record: Sized {
    const TABLE: &'static str;
    /// The key, at the front of the columns.
    const KEY: usize;
    /// The columns that never change, key included, at the front.
    const FIXED: usize;
    const COLUMNS: &'static [(&'static str, Kind)];
    /// What else must hold of a stored row `t` for `u` to replace it.
    const UNLESS_CHANGED: &'static str = "";

    fn key(&self) -> Vec<Value>;
    /// The columns that never change, key included.
    fn fixed(&self) -> Vec<Value>;
    /// The rest.
    fn state(&self) -> Vec<Value>;
    fn decode(row: &mut Reader<'_>) -> Result<Self, StoreError>;
}

/// A statement's text, put together once and kept: `$R` names the record, the rest follows its table.
macro_rules! select {
    ($R:ty, $rest:expr) => {{
        static SQL: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| $crate::record::select_sql::<$R>($rest));
        SQL.as_str()
    }};
}

/// As [`select!`], for a text that is put together some other way.
macro_rules! sql {
    ($text:expr) => {{
        static SQL: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| $text);
        SQL.as_str()
    }};
}

pub(crate) use {select, sql};

/// `SELECT <all columns of R> FROM <its table> AS t <rest>`.
pub fn select_sql<R: Record>(rest: &str) -> String {
    format!("SELECT {} FROM {} AS t {rest}", columns::<R>("t"), R::TABLE)
}

/// `a.x, a.y, …` for a select.
pub fn columns<R: Record>(alias: &str) -> String {
    R::COLUMNS.iter().map(|(name, _)| format!("{alias}.{name}")).collect::<Vec<_>>().join(", ")
}

pub fn names<R: Record>() -> String {
    R::COLUMNS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// A new row replaces the state of one with the same key: a run's next lease takes the place of its last.
fn on_conflict<R: Record>() -> String {
    let key = list(&R::COLUMNS[..R::KEY], |name| name.to_owned());
    let state = list(&R::COLUMNS[R::FIXED..], |name| format!("{name} = excluded.{name}"));
    if state.is_empty() { String::new() } else { format!("ON CONFLICT ({key}) DO UPDATE SET {state}") }
}

fn list(columns: &[(&str, Kind)], write: impl Fn(&str) -> String) -> String {
    columns.iter().map(|(name, _)| write(name)).collect::<Vec<_>>().join(", ")
}

/// One new row, with `?n`.
pub fn insert_row<R: Record>() -> String {
    let marks = (1..=R::COLUMNS.len()).map(|n| format!("?{n}")).collect::<Vec<_>>().join(", ");
    format!("INSERT INTO {} ({}) VALUES ({marks}) {}", R::TABLE, names::<R>(), on_conflict::<R>())
}

/// One changed row, with `?n`: the key, then the state.
pub fn update_row<R: Record>() -> String {
    let mut mark = 0;
    let mut next = || {
        mark += 1;
        mark
    };
    let key: Vec<_> = R::COLUMNS[..R::KEY].iter().map(|(name, _)| format!("{name} = ?{}", next())).collect();
    let state: Vec<_> = R::COLUMNS[R::FIXED..].iter().map(|(name, _)| format!("{name} = ?{}", next())).collect();
    format!("UPDATE {} SET {} WHERE {}", R::TABLE, state.join(", "), key.join(" AND "))
}

/// New rows, from one array per column, starting at `$first`.
pub fn insert_rows<R: Record>(first: usize) -> String {
    let arrays = arrays(R::COLUMNS.iter(), first);
    format!("INSERT INTO {} ({}) SELECT * FROM UNNEST({arrays}) {}", R::TABLE, names::<R>(), on_conflict::<R>())
}

/// Changed rows, from one array per column of the key and the state, starting at `$first`.
pub fn update_rows<R: Record>(first: usize) -> String {
    let (key, state) = (&R::COLUMNS[..R::KEY], &R::COLUMNS[R::FIXED..]);
    let arrays = arrays(key.iter().chain(state), first);
    let set = list(state, |name| format!("{name} = u.{name}"));
    let given = list(&[key, state].concat(), |name| name.to_owned());
    let same = key.iter().map(|(name, _)| format!("t.{name} = u.{name}")).collect::<Vec<_>>().join(" AND ");
    let unless_changed = R::UNLESS_CHANGED;
    format!(
        "UPDATE {} AS t SET {set} FROM UNNEST({arrays}) AS u ({given}) WHERE {same}{unless_changed} RETURNING 1",
        R::TABLE
    )
}

/// How many parameters [`update_rows`] takes.
pub fn update_width<R: Record>() -> usize {
    R::KEY + R::COLUMNS.len() - R::FIXED
}

fn arrays<'a>(columns: impl Iterator<Item = &'a (&'static str, Kind)>, first: usize) -> String {
    let array = |kind: &Kind| match kind {
        Kind::Text => "text[]",
        Kind::Int => "bigint[]",
        Kind::Bytes => "bytea[]",
    };
    let marks = columns.enumerate().map(|(index, (_, kind))| format!("${}::{}", first + index, array(kind)));
    marks.collect::<Vec<_>>().join(", ")
}

/// A row of either engine.
#[derive(Clone, Copy)]
pub enum RowRef<'a> {
    Sqlite(&'a rusqlite::Row<'a>),
    Postgres(&'a sqlx::postgres::PgRow),
}

/// Reads a row's columns in the order they were selected.
pub struct Reader<'a> {
    row: RowRef<'a>,
    next: usize,
}

impl<'a> Reader<'a> {
    pub fn new(row: RowRef<'a>) -> Self {
        Self { row, next: 0 }
    }

    fn index(&mut self) -> usize {
        self.next += 1;
        self.next - 1
    }

    pub fn opt_str(&mut self) -> Result<Option<&'a str>, StoreError> {
        let index = self.index();
        match self.row {
            RowRef::Sqlite(row) => Ok(row.get_ref(index)?.as_str_or_null().map_err(StoreError::corrupt)?),
            RowRef::Postgres(row) => Ok(row.try_get(index)?),
        }
    }

    pub fn str(&mut self) -> Result<&'a str, StoreError> {
        self.opt_str()?.ok_or_else(|| StoreError::corrupt("a null where none can be"))
    }

    pub fn text(&mut self) -> Result<String, StoreError> {
        self.str().map(str::to_owned)
    }

    pub fn opt_text(&mut self) -> Result<Option<String>, StoreError> {
        Ok(self.opt_str()?.map(str::to_owned))
    }

    pub fn opt_int(&mut self) -> Result<Option<i64>, StoreError> {
        let index = self.index();
        match self.row {
            RowRef::Sqlite(row) => Ok(row.get_ref(index)?.as_i64_or_null().map_err(StoreError::corrupt)?),
            RowRef::Postgres(row) => Ok(row.try_get(index)?),
        }
    }

    pub fn int(&mut self) -> Result<i64, StoreError> {
        self.opt_int()?.ok_or_else(|| StoreError::corrupt("a null where none can be"))
    }

    pub fn flag(&mut self) -> Result<bool, StoreError> {
        Ok(self.int()? != 0)
    }

    pub fn hash(&mut self) -> Result<[u8; 32], StoreError> {
        let index = self.index();
        let bytes: &[u8] = match self.row {
            RowRef::Sqlite(row) => row.get_ref(index)?.as_blob().map_err(StoreError::corrupt)?,
            RowRef::Postgres(row) => row.try_get(index)?,
        };
        bytes.try_into().map_err(StoreError::corrupt)
    }

    pub fn time(&mut self) -> Result<Timestamp, StoreError> {
        Timestamp::from_microsecond(self.int()?).map_err(StoreError::corrupt)
    }

    pub fn opt_time(&mut self) -> Result<Option<Timestamp>, StoreError> {
        self.opt_int()?.map(Timestamp::from_microsecond).transpose().map_err(StoreError::corrupt)
    }

    pub fn id<T: FromStr<Err: Display>>(&mut self) -> Result<T, StoreError> {
        self.str()?.parse().map_err(StoreError::corrupt)
    }

    pub fn opt_id<T: FromStr<Err: Display>>(&mut self) -> Result<Option<T>, StoreError> {
        self.opt_str()?.map(str::parse).transpose().map_err(StoreError::corrupt)
    }

    /// A name from a closed list.
    pub fn named<T>(&mut self, parse: fn(&str) -> Option<T>) -> Result<T, StoreError> {
        let name = self.str()?;
        parse(name).ok_or_else(|| StoreError::corrupt(format!("unknown name {name:?}")))
    }

    pub fn json<T: DeserializeOwned>(&mut self) -> Result<T, StoreError> {
        serde_json::from_str(self.str()?).map_err(StoreError::corrupt)
    }

    pub fn opt_json<T: DeserializeOwned>(&mut self) -> Result<Option<T>, StoreError> {
        self.opt_str()?.map(serde_json::from_str).transpose().map_err(StoreError::corrupt)
    }

    pub fn raw_json(&mut self) -> Result<RawJson, StoreError> {
        RawJson::parse(self.text()?).map_err(StoreError::corrupt)
    }

    /// Whether the next column is null, without taking it: for the right side of a left join.
    pub fn next_is_null(&mut self) -> Result<bool, StoreError> {
        let null = self.opt_str()?.is_none();
        self.next -= 1;
        Ok(null)
    }

    pub fn skip(&mut self, columns: usize) {
        self.next += columns;
    }

    /// The right side of a left join, told by its first column.
    pub fn joined<R: Record>(&mut self) -> Result<Option<R>, StoreError> {
        if self.next_is_null()? {
            self.skip(R::COLUMNS.len());
            return Ok(None);
        }
        R::decode(self).map(Some)
    }
}
