//! Hard links. A name in the workspace can be another name of a file that is outside of it. Package managers and git use such names, so
//! they are not refused in general: only for files that are not meant for others to read, and for those of the server itself.

use std::{
    io,
    path::{Path, PathBuf},
};

use ostler_protocol::{
    Failure,
    daemon::files::{FileError, WorkspacePath, file_failure},
};
use rustix::{
    fs::{AtFlags, CWD, Stat, stat, statat},
    io::Errno,
};

use super::configuration::is_same;

/// The rights of others than the owner.
const OTHERS: u32 = 0o077;
/// Files that SQLite has beside the database.
const OF_SQLITE: [&str; 2] = ["ostler.db-wal", "ostler.db-shm"];
/// A directory whose files the operator creates, with whatever rights, and how many of them are compared.
const CREDENTIALS: &str = "git-credentials";
const CREDENTIALS_MAX: usize = 1_024;

/// The files of the server. Those in other directories than these are created for their owner only.
#[derive(Debug)]
pub(super) struct ServerFiles {
    data_dir: PathBuf,
    names: Vec<&'static str>,
}

impl ServerFiles {
    /// `names`: what the server stores in its data directory.
    pub(super) fn new(data_dir: PathBuf, names: impl Iterator<Item = &'static str>) -> Self {
        Self { data_dir, names: names.chain(OF_SQLITE).collect() }
    }

    /// Whether the file is one of them. True if that cannot be found out.
    fn contain(&self, file: &Stat) -> bool {
        // All names of a file are in one file system.
        if stat(self.data_dir.as_path()).is_ok_and(|data_dir| data_dir.st_dev != file.st_dev) {
            return false;
        }
        let is_file = |path: &Path| match statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => is_same(&found, file),
            Err(error) => error != Errno::NOENT,
        };
        if self.names.iter().any(|name| is_file(&self.data_dir.join(name))) {
            return true;
        }
        match std::fs::read_dir(self.data_dir.join(CREDENTIALS)) {
            Err(error) => error.kind() != io::ErrorKind::NotFound,
            Ok(entries) => entries
                .enumerate()
                .any(|(number, entry)| number >= CREDENTIALS_MAX || entry.map_or(true, |entry| is_file(&entry.path()))),
        }
    }
}

/// Refuses a file that has another name, if only its owner may use it, or if it is a file of the server.
pub(super) fn check(path: &WorkspacePath, file: &Stat, server_files: Option<&ServerFiles>) -> Result<(), Failure> {
    if file.st_nlink <= 1 {
        return Ok(());
    }
    if file.st_mode & OTHERS == 0 || server_files.is_some_and(|server_files| server_files.contain(file)) {
        let message = format!("{path}: this is another name (a hard link) of a private file");
        return Err(file_failure(FileError::Denied, message));
    }
    Ok(())
}
