//! The text format of Postgres' `COPY`: a line per row, a tab between columns, `\N` for null. A part of a table begins with
//! a line of its own: the names of the columns.

use std::borrow::Cow;

use ostler_protocol::json::{hex, unhex};
use rusqlite::types::{Value, ValueRef};

use super::is_name;
use crate::error::StoreError;

const NULL: &str = r"\N";
/// Bytes are written as `\x` and hexadecimal digits; the backslash is escaped.
const BYTES: &str = r"\\x";

/// Appends a value of SQLite.
pub(super) fn push(line: &mut Vec<u8>, value: ValueRef<'_>) -> Result<(), StoreError> {
    match value {
        ValueRef::Null => line.extend_from_slice(NULL.as_bytes()),
        ValueRef::Integer(number) => line.extend_from_slice(number.to_string().as_bytes()),
        ValueRef::Blob(bytes) => {
            line.extend_from_slice(BYTES.as_bytes());
            line.extend_from_slice(hex(bytes).as_bytes());
        }
        ValueRef::Text(text) => {
            std::str::from_utf8(text).map_err(StoreError::corrupt)?;
            for byte in text {
                match byte {
                    b'\\' => line.extend_from_slice(br"\\"),
                    b'\t' => line.extend_from_slice(br"\t"),
                    b'\n' => line.extend_from_slice(br"\n"),
                    b'\r' => line.extend_from_slice(br"\r"),
                    byte => line.push(*byte),
                }
            }
        }
        ValueRef::Real(_) => return Err(StoreError::corrupt("a number with a fraction")),
    }
    Ok(())
}

/// The columns of a part, and its rows.
pub(super) fn split(part: &[u8]) -> Result<(Vec<&str>, &str), StoreError> {
    let text = std::str::from_utf8(part).map_err(StoreError::corrupt)?;
    let (head, rows) = text.split_once('\n').ok_or_else(|| StoreError::corrupt("a part of a table without columns"))?;
    let columns: Vec<_> = head.split('\t').collect();
    match columns.iter().find(|column| !is_name(column)) {
        Some(other) => Err(StoreError::corrupt(format!("{other:?} is no column"))),
        None => Ok((columns, rows)),
    }
}

/// How SQLite declares a column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ColumnType {
    Text,
    Integer,
    Blob,
}

/// The values of a row, by the types of its columns.
pub(super) fn read_row(line: &str, types: &[ColumnType]) -> Result<Vec<Value>, StoreError> {
    let fields: Vec<_> = line.split('\t').collect();
    if fields.len() != types.len() {
        return Err(StoreError::corrupt(format!("a row has {} columns instead of {}", fields.len(), types.len())));
    }
    fields.into_iter().zip(types).map(|(field, column)| read(field, *column)).collect()
}

fn read(field: &str, column: ColumnType) -> Result<Value, StoreError> {
    if field == NULL {
        return Ok(Value::Null);
    }
    match column {
        ColumnType::Text => unescape(field).map(|text| Value::Text(text.into_owned())),
        ColumnType::Integer => field.parse().map(Value::Integer).map_err(StoreError::corrupt),
        ColumnType::Blob => {
            let bytes = field.strip_prefix(BYTES).and_then(unhex);
            bytes.map(Value::Blob).ok_or_else(|| StoreError::corrupt("bytes that are not hexadecimal"))
        }
    }
}

fn unescape(field: &str) -> Result<Cow<'_, str>, StoreError> {
    if !field.contains('\\') {
        return Ok(field.into());
    }
    let mut text = String::with_capacity(field.len());
    let mut characters = field.chars();
    while let Some(character) = characters.next() {
        text.push(match character {
            '\\' => match characters.next() {
                Some('\\') => '\\',
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                Some('b') => '\x08',
                Some('f') => '\x0c',
                Some('v') => '\x0b',
                other => return Err(StoreError::corrupt(format!("an unknown escape {other:?}"))),
            },
            character => character,
        });
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_read_back() {
        let text = "a\tb\\N \\n\n\r\u{8}ü\"'";
        let values = [
            (Value::Null, ColumnType::Text),
            (Value::Text(text.into()), ColumnType::Text),
            (Value::Text(String::new()), ColumnType::Text),
            (Value::Text(r"\N".into()), ColumnType::Text),
            (Value::Integer(i64::MIN), ColumnType::Integer),
            (Value::Blob(vec![0, 255, 9]), ColumnType::Blob),
        ];
        let mut line = vec![];
        for (index, (value, _)) in values.iter().enumerate() {
            if index > 0 {
                line.push(b'\t');
            }
            push(&mut line, value.into()).unwrap();
        }
        let line = String::from_utf8(line).unwrap();
        assert!(!line.contains(['\n', '\r']));
        let types = values.each_ref().map(|(_, column)| *column);
        assert_eq!(read_row(&line, &types).unwrap(), values.map(|(value, _)| value));
        assert!(read_row(&line, &types[1..]).is_err());
        assert!(read(r"\q", ColumnType::Text).is_err() && read("x", ColumnType::Integer).is_err());
    }

    #[test]
    fn columns_have_plain_names() {
        assert_eq!(split(b"a\tb_2\n1\t2\n").unwrap(), (vec!["a", "b_2"], "1\t2\n"));
        for wrong in ["a) FROM x --\n1", "\n", "a", "A\n", "a\t\n"] {
            assert!(split(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
    }
}
