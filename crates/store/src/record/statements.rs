//! Statements, and their texts made from the columns that a noun declares.

use std::borrow::Cow;

use super::{
    noun::{OnConflict, Record},
    value::{ColumnValue, Kind, Value},
};

pub(crate) type Sql = Cow<'static, str>;

/// One of several statements that are written together.
pub(crate) struct Statement {
    pub sql: Sql,
    pub args: Vec<Value>,
    /// It returns the rows it touches, and must touch one.
    pub must_touch: bool,
}

impl Statement {
    pub(crate) fn new(sql: impl Into<Sql>, args: Vec<Value>) -> Self {
        Self { sql: sql.into(), args, must_touch: false }
    }

    /// A guard: it returns the rows it touched (`RETURNING 1`). If there are none, the other statements are not written either.
    pub(crate) fn guard(sql: impl Into<Sql>, args: Vec<Value>) -> Self {
        Self { must_touch: true, ..Self::new(sql, args) }
    }
}

/// `SELECT <all columns of R> FROM <its table> AS t <rest>`.
pub(crate) fn select_sql<R: Record>(rest: &str) -> String {
    format!("SELECT {} FROM {} AS t {rest}", R::NAMES_OF_T, R::TABLE)
}

/// `a.x, a.y, …` for a select.
pub(crate) fn columns<R: Record>(alias: &str) -> String {
    R::COLUMNS.iter().map(|(name, _)| format!("{alias}.{name}")).collect::<Vec<_>>().join(", ")
}

/// As [`columns`], with a null in the place of one that is not wanted.
pub(crate) fn columns_except<R: Record>(alias: &str, unwanted: &str) -> String {
    columns_replaced::<R>(alias, unwanted, "CAST(NULL AS TEXT)")
}

/// As [`columns`], with another expression in the place of one of them.
pub(crate) fn columns_replaced<R: Record>(alias: &str, replaced: &str, by: &str) -> String {
    let column = |(name, _): &(&str, Kind)| if *name == replaced { by.to_owned() } else { format!("{alias}.{name}") };
    R::COLUMNS.iter().map(column).collect::<Vec<_>>().join(", ")
}

/// `INSERT INTO <its table> (x, …) SELECT <expression of x>, … <rest>`: each column beside what is written to it.
pub(crate) fn insert_select<R: Record>(columns: &[(&str, &str)], rest: &str) -> String {
    let is_declared = |name: &&str| R::COLUMNS.iter().any(|(own, _)| own == name) || R::BESIDE.contains(name);
    debug_assert!(columns.iter().all(|(name, _)| is_declared(name)), "{columns:?} of {}", R::TABLE);
    let names: Vec<_> = columns.iter().map(|(name, _)| *name).collect();
    let values: Vec<_> = columns.iter().map(|(_, value)| *value).collect();
    format!("INSERT INTO {} ({}) SELECT {} {rest}", R::TABLE, names.join(", "), values.join(", "))
}

/// `INSERT INTO <its table> (<all columns>) VALUES (…) <rest>`, which fails where there is such a row. `beside` are values
/// of [`Record::BESIDE`].
pub(crate) fn insert<R: Record>(noun: &R, beside: Vec<(&'static str, Value)>, rest: &str) -> Statement {
    debug_assert!(beside.iter().all(|(name, _)| R::BESIDE.contains(name)), "{beside:?} beside {}", R::TABLE);
    let more: String = beside.iter().map(|(name, _)| format!(", {name}")).collect();
    let own = noun.fixed().into_iter().chain(noun.state()).map(ColumnValue::into_owned);
    let args: Vec<Value> = own.chain(beside.into_iter().map(|(_, value)| value)).collect();
    let marks = (1..=args.len()).map(|n| format!("${n}")).collect::<Vec<_>>().join(", ");
    Statement::new(format!("INSERT INTO {} ({}{more}) VALUES ({marks}) {rest}", R::TABLE, R::NAMES), args)
}

/// A guard that replaces the state of the row with the noun's key, where it has these values.
pub(crate) fn update_where<R: Record>(noun: &R, conditions: Vec<(&'static str, Value)>) -> Statement {
    let mut args: Vec<Value> = vec![];
    let mut equal = |name: &str, value: ColumnValue<'_>| {
        args.push(value.into_owned());
        format!("{name} = ${}", args.len())
    };
    let state: Vec<_> =
        R::COLUMNS[R::FIXED..].iter().zip(noun.state()).map(|((name, _), value)| equal(name, value)).collect();
    let key = R::COLUMNS[..R::KEY].iter().zip(noun.key()).map(|((name, _), value)| (*name, value.into_owned()));
    let wanted: Vec<_> = key.chain(conditions).map(|(name, value)| equal(name, value)).collect();
    let sql = format!("UPDATE {} SET {} WHERE {} RETURNING 1", R::TABLE, state.join(", "), wanted.join(" AND "));
    Statement::guard(sql, args)
}

/// The end of an insert whose row replaces the state of a stored one with the same key.
pub(crate) fn replace_stored<R: Record>() -> String {
    change_stored::<R>(|name| format!("{name} = excluded.{name}"))
}

fn change_stored<R: Record>(change: impl Fn(&str) -> String) -> String {
    debug_assert!(R::FIXED < R::COLUMNS.len(), "{} has no state to change", R::TABLE);
    let key = list(&R::COLUMNS[..R::KEY], |name| name.to_owned());
    format!("ON CONFLICT ({key}) DO UPDATE SET {}", list(&R::COLUMNS[R::FIXED..], change))
}

/// What a statement of SQLite begins with if a caller undoes everything when it fails. By default SQLite undoes the statement
/// itself, for which it copies each page that one with a trigger or several rows changes.
const OR_FAIL: &str = "OR FAIL";

/// What the noun declares. SQLite keeps a journal for each statement with such a clause, so only nouns that need it have it.
fn on_conflict<R: Record>() -> String {
    match R::ON_CONFLICT {
        OnConflict::Fail => String::new(),
        OnConflict::Replace => replace_stored::<R>(),
        OnConflict::Add => change_stored::<R>(|name| format!("{name} = {}.{name} + excluded.{name}", R::TABLE)),
    }
}

fn list(columns: &[(&str, Kind)], write: impl Fn(&str) -> String) -> String {
    columns.iter().map(|(name, _)| write(name)).collect::<Vec<_>>().join(", ")
}

/// One new row, with `?n`. If it fails, the caller undoes the transaction or goes back to a savepoint.
pub(crate) fn insert_row<R: Record>() -> String {
    insert_some::<R>(1)
}

/// As [`insert_row`], for several rows, whose values follow each other.
pub(crate) fn insert_some<R: Record>(rows: usize) -> String {
    let width = R::COLUMNS.len();
    let marks = |row: usize| (1..=width).map(|n| format!("?{}", row * width + n)).collect::<Vec<_>>().join(", ");
    let rows = (0..rows).map(|row| format!("({})", marks(row))).collect::<Vec<_>>().join(", ");
    match R::ON_CONFLICT {
        OnConflict::Fail => format!("INSERT {OR_FAIL} INTO {} ({}) VALUES {rows}", R::TABLE, R::NAMES),
        _ => format!("INSERT INTO {} ({}) VALUES {rows} {}", R::TABLE, R::NAMES, on_conflict::<R>()),
    }
}

/// As [`insert_row`], followed by columns of [`Record::BESIDE`]. It fails where there is such a row.
pub(crate) fn insert_row_with<R: Record>(beside: &[&str]) -> String {
    debug_assert!(beside.iter().all(|name| R::BESIDE.contains(name)), "{beside:?} beside {}", R::TABLE);
    let more: String = beside.iter().map(|name| format!(", {name}")).collect();
    let marks = (1..=R::COLUMNS.len() + beside.len()).map(|n| format!("?{n}")).collect::<Vec<_>>().join(", ");
    format!("INSERT INTO {} ({}{more}) VALUES ({marks})", R::TABLE, R::NAMES)
}

/// One changed row, with `?n`: the key, then the state. If it fails, the caller undoes the transaction or goes back to a
/// savepoint.
pub(crate) fn update_row<R: Record>() -> String {
    let mut mark = 0;
    let mut next = || {
        mark += 1;
        mark
    };
    let key: Vec<_> = R::COLUMNS[..R::KEY].iter().map(|(name, _)| format!("{name} = ?{}", next())).collect();
    let state: Vec<_> = R::COLUMNS[R::FIXED..].iter().map(|(name, _)| format!("{name} = ?{}", next())).collect();
    format!("UPDATE {OR_FAIL} {} SET {} WHERE {}", R::TABLE, state.join(", "), key.join(" AND "))
}

/// New rows, from one array per column, starting at `$first`.
pub(crate) fn insert_rows<R: Record>(first: usize) -> String {
    let arrays = arrays(R::COLUMNS.iter(), first);
    format!("INSERT INTO {} ({}) SELECT * FROM UNNEST({arrays}) {}", R::TABLE, R::NAMES, on_conflict::<R>())
}

/// Changed rows, from one array per column of the key and the state, starting at `$first`.
pub(crate) fn update_rows<R: Record>(first: usize) -> String {
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
pub(crate) fn update_width<R: Record>() -> usize {
    R::KEY + R::COLUMNS.len() - R::FIXED
}

fn arrays<'a>(columns: impl Iterator<Item = &'a (&'static str, Kind)>, first: usize) -> String {
    let marks = columns.enumerate().map(|(index, (_, kind))| format!("${}::{}[]", first + index, kind.postgres_type()));
    marks.collect::<Vec<_>>().join(", ")
}
