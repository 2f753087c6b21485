//! How a noun declares its columns: once, a line per column.
//!
//! ```text
//! record! {
//!     Run, run in "runs";
//!     key { run_id: id; }
//!     fixed { session = "session_id": id; tenant_id: text; }
//!     state { status: named(RunStatus); }
//! }
//! ```
//!
//! A line names a field, its column if that has another name, and the codec between them. The lists of columns, the values to
//! bind and the decoding all come from it, in its order, so no value can end up in another column than it is read from. The
//! position of a column is its line's, known when this is compiled.
//!
//! `from` gives the value to write where it is not the field of that name, and `build` how the noun is made from what was
//! read, where its fields are not the lines. `beside` names columns of the table that are not part of the noun.
//! `on_conflict` defines what a new row does if there is a stored one with its key; without it, the statement fails.

/// Implements [`Record`](super::noun::Record) for a noun.
macro_rules! record {
    (
        $Noun:ty, $noun:ident in $table:literal;
        key { $($k:ident $(= $k_column:literal)? : $k_codec:ident $(($k_of:ty))? $(from $k_value:expr)?;)+ }
        fixed { $($f:ident $(= $f_column:literal)? : $f_codec:ident $(($f_of:ty))? $(from $f_value:expr)?;)* }
        state { $($s:ident $(= $s_column:literal)? : $s_codec:ident $(($s_of:ty))? $(from $s_value:expr)?;)* }
        $(beside { $($beside:ident)+ })?
        $(unless_changed $unless_changed:literal;)?
        $(on_conflict $on_conflict:ident;)?
        $(build $build:expr;)?
    ) => {
        impl $crate::record::noun::Record for $Noun {
            const TABLE: &'static str = $table;
            const KEY: usize = $crate::record::noun::count(&[$(stringify!($k)),+]);
            const FIXED: usize = Self::KEY + $crate::record::noun::count(&[$(stringify!($f)),*]);
            const COLUMNS: &'static [(&'static str, $crate::record::value::Kind)] = &[
                $(($crate::record::declare::column!(name $k $(= $k_column)?), $crate::record::declare::column!(kind $k_codec)),)+
                $(($crate::record::declare::column!(name $f $(= $f_column)?), $crate::record::declare::column!(kind $f_codec)),)*
                $(($crate::record::declare::column!(name $s $(= $s_column)?), $crate::record::declare::column!(kind $s_codec)),)*
            ];
            const NAMES: &'static str = concat!(
                $(", ", $crate::record::declare::column!(name $k $(= $k_column)?),)+
                $(", ", $crate::record::declare::column!(name $f $(= $f_column)?),)*
                $(", ", $crate::record::declare::column!(name $s $(= $s_column)?),)*
            ).split_at(2).1;
            const NAMES_OF_T: &'static str = concat!(
                $(", t.", $crate::record::declare::column!(name $k $(= $k_column)?),)+
                $(", t.", $crate::record::declare::column!(name $f $(= $f_column)?),)*
                $(", t.", $crate::record::declare::column!(name $s $(= $s_column)?),)*
            ).split_at(2).1;
            $(const BESIDE: &'static [&'static str] = &[$(stringify!($beside)),+];)?
            $(const UNLESS_CHANGED: &'static str = $unless_changed;)?
            $(const ON_CONFLICT: $crate::record::noun::OnConflict = $crate::record::noun::OnConflict::$on_conflict;)?

            fn key(&self) -> Vec<$crate::record::value::ColumnValue<'_>> {
                let $noun = self;
                vec![$($crate::record::declare::column!(
                    write $k_codec ($crate::record::declare::column!(value $noun.$k $(, $k_value)?))
                )),+]
            }

            fn fixed(&self) -> Vec<$crate::record::value::ColumnValue<'_>> {
                let $noun = self;
                vec![
                    $($crate::record::declare::column!(write $k_codec ($crate::record::declare::column!(value $noun.$k $(, $k_value)?))),)+
                    $($crate::record::declare::column!(write $f_codec ($crate::record::declare::column!(value $noun.$f $(, $f_value)?))),)*
                ]
            }

            fn state(&self) -> Vec<$crate::record::value::ColumnValue<'_>> {
                let $noun = self;
                let _ = $noun;
                vec![$($crate::record::declare::column!(
                    write $s_codec ($crate::record::declare::column!(value $noun.$s $(, $s_value)?))
                )),*]
            }

            fn decode(row: &mut $crate::record::reader::Reader<'_>) -> Result<Self, $crate::error::StoreError> {
                $(let $k = $crate::record::declare::column!(read row $k_codec $(($k_of))?);)+
                $(let $f = $crate::record::declare::column!(read row $f_codec $(($f_of))?);)*
                $(let $s = $crate::record::declare::column!(read row $s_codec $(($s_of))?);)*
                Ok($crate::record::declare::column!(build ($($build)?) $($k)+ $($f)* $($s)*))
            }
        }
    };
}

/// The parts of a line, and the codecs: how a field is bound and read.
macro_rules! column {
    (name $field:ident) => { stringify!($field) };
    (name $field:ident = $column:literal) => { $column };

    (value $noun:ident . $field:ident) => { $noun.$field };
    (value $noun:ident . $field:ident, $value:expr) => { $value };

    (build () $($field:ident)+) => { Self { $($field),+ } };
    (build ($build:expr) $($field:ident)+) => { $build };

    (kind int) => { $crate::record::value::Kind::Int };
    (kind opt_int) => { $crate::record::value::Kind::Int };
    (kind unread_int) => { $crate::record::value::Kind::Int };
    (kind flag) => { $crate::record::value::Kind::Int };
    (kind time) => { $crate::record::value::Kind::Int };
    (kind opt_time) => { $crate::record::value::Kind::Int };
    (kind hash) => { $crate::record::value::Kind::Bytes };
    (kind $text:ident) => { $crate::record::value::Kind::Text };

    (write id ($value:expr)) => { $crate::record::value::text(&$value) };
    (write opt_id ($value:expr)) => { $crate::record::value::opt_text($value.as_ref()) };
    (write text ($value:expr)) => { $crate::record::value::ColumnValue::borrowed(&$value) };
    (write opt_text ($value:expr)) => { $crate::record::value::ColumnValue::opt_borrowed($value.as_deref()) };
    (write empty_text ($value:expr)) => { $crate::record::value::ColumnValue::borrowed($value.as_deref().unwrap_or_default()) };
    (write named ($value:expr)) => { $crate::record::value::ColumnValue::Text(Some($value.as_str().into())) };
    (write opt_named ($value:expr)) => { $crate::record::value::ColumnValue::Text($value.map(|name| name.as_str().into())) };
    (write int ($value:expr)) => { $crate::record::value::ColumnValue::Int(Some($value)) };
    (write opt_int ($value:expr)) => { $crate::record::value::ColumnValue::Int($value) };
    (write unread_int ($value:expr)) => { $crate::record::value::ColumnValue::Int($value) };
    (write flag ($value:expr)) => { $crate::record::value::ColumnValue::Int(Some($value.into())) };
    (write time ($value:expr)) => { $crate::record::value::Value::from($value) };
    (write opt_time ($value:expr)) => { $crate::record::value::Value::from($value) };
    (write hash ($value:expr)) => { $crate::record::value::ColumnValue::Bytes(Some($value)) };
    (write json ($value:expr)) => { $crate::record::value::json(&$value) };
    (write opt_json ($value:expr)) => {
        $value.as_ref().map_or($crate::record::value::ColumnValue::Text(None), |value| $crate::record::value::json(value))
    };
    (write raw_json ($value:expr)) => { $crate::record::value::ColumnValue::Text(Some($value.as_str().into())) };
    (write opt_raw_json ($value:expr)) => {
        $crate::record::value::ColumnValue::Text($value.as_ref().map(|json| json.as_str().into()))
    };
    // JSON in an `Arc`, as events have it: it is neither copied nor looked through.
    (write shared_json ($value:expr)) => { $crate::record::value::ColumnValue::Text($value.as_deref().map(Into::into)) };

    (read $row:ident id) => { $row.id()? };
    (read $row:ident opt_id) => { $row.opt_id()? };
    (read $row:ident text) => { $row.text()? };
    (read $row:ident opt_text) => { $row.opt_text()? };
    (read $row:ident empty_text) => { Some($row.text()?).filter(|text| !text.is_empty()) };
    (read $row:ident named ($Name:ty)) => { $row.named(<$Name>::parse)? };
    (read $row:ident opt_named ($Name:ty)) => { $row.opt_named(<$Name>::parse)? };
    (read $row:ident int) => { $row.int()? };
    (read $row:ident opt_int) => { $row.opt_int()? };
    (read $row:ident unread_int) => { $row.skip(1) };
    (read $row:ident flag) => { $row.flag()? };
    (read $row:ident time) => { $row.time()? };
    (read $row:ident opt_time) => { $row.opt_time()? };
    (read $row:ident hash) => { $row.hash()? };
    (read $row:ident json) => { $row.json()? };
    (read $row:ident opt_json) => { $row.opt_json()? };
    (read $row:ident raw_json) => { $row.raw_json()? };
    (read $row:ident opt_raw_json) => { $row.opt_json()? };
    (read $row:ident shared_json) => { $row.opt_str()?.map(Into::into) };
}

pub(crate) use {column, record};

#[cfg(test)]
mod tests {
    use crate::record::{
        noun::Record,
        reader::{Reader, RowRef},
        statements::{insert_row, select_sql, update_row},
    };

    #[derive(Debug, PartialEq)]
    struct Person {
        id: i64,
        first: String,
        last: String,
    }

    record! {
        Person, person in "people";
        key { id: int; }
        fixed {}
        state { first: text; last = "family": text; }
    }

    /// The same noun with two lines in the other order.
    #[derive(Debug, PartialEq)]
    struct Swapped {
        id: i64,
        first: String,
        last: String,
    }

    record! {
        Swapped, swapped in "people";
        key { id: int; }
        fixed {}
        state { last = "family": text; first: text; }
    }

    fn read<R: Record>(connection: &rusqlite::Connection) -> R {
        let decode = |row: &rusqlite::Row<'_>| Ok(R::decode(&mut Reader::new(RowRef::Sqlite(row))).unwrap());
        connection.query_row(&select_sql::<R>(""), [], decode).unwrap()
    }

    #[test]
    fn the_order_of_the_lines_does_not_matter() {
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE people (family TEXT, id BIGINT PRIMARY KEY, first TEXT)").unwrap();
        let ada = Person { id: 7, first: "Ada".into(), last: "Lovelace".into() };
        let row = ada.fixed().into_iter().chain(ada.state());
        connection.execute(&insert_row::<Person>(), rusqlite::params_from_iter(row)).unwrap();
        assert_eq!(read::<Person>(&connection), ada);
        assert_eq!(read::<Swapped>(&connection), Swapped { id: 7, first: "Ada".into(), last: "Lovelace".into() });
        let king = Swapped { id: 7, first: "Augusta".into(), last: "King".into() };
        let row = king.key().into_iter().chain(king.state());
        connection.execute(&update_row::<Swapped>(), rusqlite::params_from_iter(row)).unwrap();
        assert_eq!(read::<Person>(&connection), Person { id: 7, first: "Augusta".into(), last: "King".into() });
    }

    #[test]
    fn lists_of_columns_are_in_the_order_of_the_lines() {
        assert_eq!((Person::NAMES, Swapped::NAMES), ("id, first, family", "id, family, first"));
        assert_eq!((Person::KEY, Person::FIXED, Person::COLUMNS.len()), (1, 1, 3));
    }
}
