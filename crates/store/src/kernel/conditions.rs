//! Conditions on rows that several statements share.

/// Commands that have not ended, in SQL. `columns` is the name of the table in the statement, with a dot, or empty. Partial
/// indexes have the same condition. It is not a list of values, because SQLite builds a table in memory for each use of one.
pub(crate) fn unfinished(columns: &str) -> String {
    format!("({columns}state = 'pending' OR {columns}state = 'acked' OR {columns}state = 'running')")
}
