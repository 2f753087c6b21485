//! Values to bind, borrowed from a noun where they are part of it.

use std::{borrow::Cow, fmt::Display};

use ostler_protocol::{RawJson, Timestamp, json::text_of};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Text,
    Int,
    Bytes,
}

impl Kind {
    pub(crate) fn postgres_type(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Int => "bigint",
            Self::Bytes => "bytea",
        }
    }
}

/// The value of a column. Its kind is known even when it is null, because Postgres requires it.
#[derive(Clone, Debug)]
pub(crate) enum ColumnValue<'a> {
    Text(Option<Cow<'a, str>>),
    Int(Option<i64>),
    /// A hash: nothing else is stored as bytes.
    Bytes(Option<[u8; 32]>),
}

/// A value that belongs to the statement it is bound to.
pub(crate) type Value = ColumnValue<'static>;

impl<'a> ColumnValue<'a> {
    pub(crate) fn borrowed(text: &'a str) -> Self {
        Self::Text(Some(without_nul(text)))
    }

    pub(crate) fn opt_borrowed(text: Option<&'a str>) -> Self {
        Self::Text(text.map(without_nul))
    }

    pub(crate) fn into_owned(self) -> Value {
        match self {
            Self::Text(text) => Value::Text(text.map(|text| Cow::Owned(text.into_owned()))),
            Self::Int(number) => Value::Int(number),
            Self::Bytes(bytes) => Value::Bytes(bytes),
        }
    }
}

/// Postgres cannot hold a NUL in text, and one caller's must not fail a whole flush. JSON is not touched by this: there
/// a NUL is always escaped.
fn without_nul(text: &str) -> Cow<'_, str> {
    if text.as_bytes().contains(&0) { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        ColumnValue::borrowed(text).into_owned()
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        let text = if text.as_bytes().contains(&0) { text.replace('\0', "\u{fffd}") } else { text };
        Self::Text(Some(text.into()))
    }
}

impl From<Option<String>> for Value {
    fn from(text: Option<String>) -> Self {
        text.map_or(Self::Text(None), Self::from)
    }
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

impl From<&RawJson> for Value {
    fn from(raw: &RawJson) -> Self {
        Self::Text(Some(raw.as_str().to_owned().into()))
    }
}

/// An id, or anything else that is its text.
pub(crate) fn text(id: impl Display) -> Value {
    Value::Text(Some(id.to_string().into()))
}

pub(crate) fn opt_text(id: Option<impl Display>) -> Value {
    Value::Text(id.map(|id| id.to_string().into()))
}

pub(crate) fn json(value: &impl serde::Serialize) -> Value {
    Value::Text(Some(text_of(value).into()))
}
