//! The data that the server stores, and what backup, retention and erasure do with it. A test fails for a table or file that is
//! not declared.

use std::path::PathBuf;

use crate::config::Config;

/// A table, or a file or directory in the data directory.
#[derive(Clone, Copy, Debug)]
pub struct Holding {
    pub location: Location,
    /// Where the configuration puts a path.
    pub place: fn(&Config) -> ConfiguredPlace,
    pub backup: Backup,
    pub retention: Retention,
    pub erasure: Erasure,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    Table(&'static str),
    /// A path in the data directory: a file, or a directory with everything in it.
    Path(&'static str),
}

/// Where a path of the data directory is.
#[derive(Clone, Debug, PartialEq)]
pub enum ConfiguredPlace {
    DataDir,
    /// In this place instead, by a setting.
    At(PathBuf),
    /// Where a backup does not copy it from: the text names what is where, and by which setting.
    Elsewhere(String),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Backup {
    Copied,
    /// Copied table by table.
    ByTables,
    /// Copied. Backends write there, so that files may be unreadable.
    BackendFiles,
    /// As [`Backup::BackendFiles`], unless the backup is made without workspaces.
    Workspaces,
    /// Can be made again from the rest, or is only of use to the server that runs.
    LeftOut,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Retention {
    /// Kept until it is deleted by a request, or for ever if no request deletes it.
    Kept,
    /// Deleted by the server some time after it has ended or was last used.
    Expires,
    /// Lives as long as the session that it belongs to.
    WithSession,
    /// Kept as proof, without its contents once those are erased.
    Proof,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Erasure {
    /// Holds nothing of a session or person that could be erased.
    Untouched,
    /// The erasure of a session deletes the rows with its `session_id`.
    OfSession,
    /// The erasure of a session deletes the rows with the `run_id` of one of its runs.
    OfRuns,
    /// Deleted when its session is erased or soon after, by code of its own or by a trigger.
    WithSession,
    /// The contents are deleted when the session is erased. Digests and counts remain.
    ContentsOnly,
    /// Deleted when the person, agent or identity that it belongs to is removed.
    WithOwner,
    /// Stays when the person, agent or identity that it belongs to is removed: as a row that is marked as ended, or until it expires.
    OutlivesOwner,
}

impl Location {
    pub fn table(self) -> Option<&'static str> {
        if let Self::Table(name) = self { Some(name) } else { None }
    }
}

impl Holding {
    pub const fn table(name: &'static str, backup: Backup, retention: Retention, erasure: Erasure) -> Self {
        Self { location: Location::Table(name), place: |_| ConfiguredPlace::DataDir, backup, retention, erasure }
    }

    pub const fn path(name: &'static str, backup: Backup, retention: Retention, erasure: Erasure) -> Self {
        Self { location: Location::Path(name), place: |_| ConfiguredPlace::DataDir, backup, retention, erasure }
    }

    /// For a path that a setting can move.
    #[must_use]
    pub const fn placed_by(self, place: fn(&Config) -> ConfiguredPlace) -> Self {
        Self { place, ..self }
    }
}
