//! The layout of a backup: a tar archive, plain or encrypted by age.
//!
//! In this order: `manifest.json`; `files/NAME/…`, the files; `store/schema.json`; `store/TABLE/NUMBER`, the rows;
//! `files/NAME/…` again, files that changed since they were copied; `contents.json`, counts; `checksums`, the digest of each
//! file as `sha256sum -c` reads it; `sha256`, the digest of all bytes before it.

use std::collections::BTreeMap;

use ostler_protocol::{Failure, Rule, Timestamp};
use ostler_store::backup::AppliedMigration;
use serde::{Deserialize, Serialize};

/// Another layout gets another number.
pub(super) const FORMAT: u32 = 1;
pub(super) const MANIFEST: &str = "manifest.json";
pub(super) const FILES: &str = "files";
pub(super) const STORE: &str = "store";
pub(super) const SCHEMA: &str = "store/schema.json";
pub(super) const CONTENTS: &str = "contents.json";
pub(super) const CHECKSUMS: &str = "checksums";
pub(super) const END: &str = "sha256";
pub(super) const BLOCK_BYTES: usize = 512;
/// The digest in a block of its own, and the two empty blocks of tar.
pub(super) const END_BYTES: usize = 3 * BLOCK_BYTES;

/// What a backup is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupManifest {
    pub format: u32,
    /// The version that made it.
    pub ostler: String,
    pub created_at: Timestamp,
    /// `sqlite` or `postgres`.
    pub engine: String,
    pub has_workspaces: bool,
    /// What belongs to the server and is not in the backup, with the reason.
    pub absent: Vec<String>,
}

/// The schema of the store, as of the moment of its rows.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Schema {
    pub engine: String,
    pub migrations: Vec<AppliedMigration>,
}

/// How much a backup holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupContents {
    /// Files by the part of the data directory that they belong to.
    pub files: BTreeMap<String, u64>,
    pub file_bytes: u64,
    /// Rows by table.
    pub rows: BTreeMap<String, u64>,
    /// Files of backends that could not be read.
    pub unreadable: Vec<String>,
}

impl BackupContents {
    pub fn files_total(&self) -> u64 {
        self.files.values().sum()
    }

    pub fn rows_of(&self, table: &str) -> u64 {
        self.rows.get(table).copied().unwrap_or(0)
    }
}

pub(super) fn damaged(why: impl std::fmt::Display) -> Failure {
    Failure::rule(Rule::BackupDamaged, format!("the backup cannot be used: {why}"))
}

/// A line of `checksums`. Names with a line feed or a backslash are written as `sha256sum` writes them.
pub(super) fn checksum_line(digest: &str, path: &[u8]) -> Vec<u8> {
    let mut line = vec![];
    if path.iter().any(|byte| matches!(byte, b'\n' | b'\\' | b'\r')) {
        line.push(b'\\');
    }
    line.extend_from_slice(digest.as_bytes());
    line.extend_from_slice(b"  ");
    for byte in path {
        match byte {
            b'\n' => line.extend_from_slice(br"\n"),
            b'\r' => line.extend_from_slice(br"\r"),
            b'\\' => line.extend_from_slice(br"\\"),
            byte => line.push(*byte),
        }
    }
    line.push(b'\n');
    line
}

/// The end of the archive, after the header of its last entry: the digest, and the two empty blocks of tar.
pub(super) fn end_of_archive(digest: &str) -> Vec<u8> {
    let mut end = format!("{digest}\n").into_bytes();
    end.resize(END_BYTES, 0);
    end
}
