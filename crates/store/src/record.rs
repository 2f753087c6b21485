//! How a noun's row is written and read: one list of columns per noun, declared by [`record!`], from which both engines'
//! selects, inserts, updates and decoders come. It knows no noun.

pub(crate) mod declare;
pub(crate) mod noun;
pub(crate) mod reader;
pub(crate) mod statements;
pub(crate) mod value;

pub(crate) use self::{
    declare::record,
    noun::Record,
    reader::{Reader, RowRef},
    statements::{
        Sql, Statement, columns, columns_except, columns_replaced, insert, insert_row, insert_row_with, insert_rows,
        insert_select, insert_some, replace_stored, select_sql, update_row, update_rows, update_where, update_width,
    },
    value::{ColumnValue, Kind, Value, json, opt_text, text},
};

/// A statement's text, put together once and kept: `$R` names the record, the rest follows its table.
macro_rules! select {
    ($R:ty, $rest:expr) => {{
        static SQL: std::sync::LazyLock<String> =
            std::sync::LazyLock::new(|| $crate::record::statements::select_sql::<$R>($rest));
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
