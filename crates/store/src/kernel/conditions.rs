//! Conditions on rows that several statements share.

/// In SQL, next to the partial index that says the same.
pub(crate) const UNFINISHED: &str = "state IN ('pending', 'acked', 'running')";
