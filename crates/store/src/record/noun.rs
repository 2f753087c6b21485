//! A noun with a table.

use super::{
    reader::Reader,
    value::{ColumnValue, Kind},
};
use crate::error::StoreError;

/// What a new row does if there is a stored one with its key.
#[derive(Clone, Copy)]
pub(crate) enum OnConflict {
    /// The statement fails.
    Fail,
    /// Its state replaces that of the stored row.
    Replace,
    /// Its state, which is numbers, is added to that of the stored row.
    Add,
}

/// A noun with a table, declared by [`record!`](super::record). What never changes is written once; an update carries the
/// key and the state only.
pub(crate) trait Record: Sized {
    const TABLE: &'static str;
    /// How many columns at the front are the key.
    const KEY: usize;
    /// How many columns at the front never change, the key included.
    const FIXED: usize;
    const COLUMNS: &'static [(&'static str, Kind)];
    /// The names of the columns: `x, y, …`.
    const NAMES: &'static str;
    /// The same for a select from the table under the name `t`: `t.x, t.y, …`.
    const NAMES_OF_T: &'static str;
    /// Columns of the table that are not part of the noun.
    const BESIDE: &'static [&'static str] = &[];
    /// What else must hold of a stored row `t` for `u` to replace it.
    const UNLESS_CHANGED: &'static str = "";
    /// What a new row does if there is a stored one with its key.
    const ON_CONFLICT: OnConflict = OnConflict::Fail;

    fn key(&self) -> Vec<ColumnValue<'_>>;
    /// The columns that never change, key included.
    fn fixed(&self) -> Vec<ColumnValue<'_>>;
    /// The rest.
    fn state(&self) -> Vec<ColumnValue<'_>>;
    fn decode(row: &mut Reader<'_>) -> Result<Self, StoreError>;
}

pub(crate) const fn count(names: &[&str]) -> usize {
    names.len()
}

impl Reader<'_> {
    /// The right side of a left join. `None` if its first column is null.
    pub(crate) fn joined<R: Record>(&mut self) -> Result<Option<R>, StoreError> {
        if self.next_is_null()? {
            self.skip(R::COLUMNS.len());
            return Ok(None);
        }
        R::decode(self).map(Some)
    }
}
