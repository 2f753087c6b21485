//! Reads of files and directories, each within its bounds.

use std::{
    io::{Read, Seek, SeekFrom},
    os::fd::OwnedFd,
};

use ostler_protocol::{
    Failure,
    daemon::files::{
        EntryKind, FileError, LIST_ENTRIES_MAX, WorkspaceEntry, WorkspacePath, content_hash, file_failure, is_binary,
    },
};
use rustix::fs::{AtFlags, Dir, FileType, Stat, statat};

use super::root::{OpenFile, Root, failed, file_type};

/// A whole text file.
#[derive(Clone, Debug)]
pub(crate) struct TextFile {
    /// As stored, with its byte order mark.
    pub text: String,
    /// The digest of its bytes.
    pub hash: String,
}

/// Some bytes of a file.
pub(crate) struct ByteWindow {
    pub bytes: Vec<u8>,
    pub size_bytes: u64,
    /// The digest of the file, if these are all its bytes.
    pub hash: Option<String>,
}

/// What the system stores about a path.
pub(crate) struct EntryStat {
    pub kind: EntryKind,
    pub size_bytes: u64,
    pub modified_ms: i64,
}

/// Entries of a directory, by name.
pub(crate) struct Entries {
    pub entries: Vec<WorkspaceEntry>,
    pub truncated: bool,
}

/// All bytes of a file that has no more than this.
pub(super) fn read_whole(path: &WorkspacePath, open: OpenFile, bytes_max: usize) -> Result<Vec<u8>, Failure> {
    let too_large = || {
        let message = format!("{path}: the file is larger than {bytes_max} bytes");
        file_failure(FileError::TooLarge, message).detail("bytesMax", bytes_max)
    };
    if size_of(&open.stat) > bytes_max as u64 {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    // A file can grow while it is read.
    open.file.take(bytes_max as u64 + 1).read_to_end(&mut bytes).map_err(|error| failed(path, error))?;
    if bytes.len() > bytes_max {
        return Err(too_large());
    }
    Ok(bytes)
}

/// The text of a file's bytes.
pub(super) fn as_text(path: &WorkspacePath, bytes: Vec<u8>) -> Result<TextFile, Failure> {
    let hash = content_hash(&bytes);
    let binary = || file_failure(FileError::Binary, format!("{path}: the file is not UTF-8 text"));
    if is_binary(&bytes) {
        return Err(binary());
    }
    Ok(TextFile { text: String::from_utf8(bytes).map_err(|_| binary())?, hash })
}

pub(super) fn text(root: &Root, path: &WorkspacePath, bytes_max: usize) -> Result<TextFile, Failure> {
    as_text(path, read_whole(path, root.open_file(path)?, bytes_max)?)
}

pub(super) fn bytes(root: &Root, path: &WorkspacePath, offset: u64, count: usize) -> Result<ByteWindow, Failure> {
    let OpenFile { mut file, stat } = root.open_file(path)?;
    let size_bytes = size_of(&stat);
    file.seek(SeekFrom::Start(offset)).map_err(|error| failed(path, error))?;
    let mut bytes = Vec::new();
    file.take(count as u64).read_to_end(&mut bytes).map_err(|error| failed(path, error))?;
    let is_whole = offset == 0 && bytes.len() as u64 == size_bytes;
    let hash = is_whole.then(|| content_hash(&bytes));
    Ok(ByteWindow { bytes, size_bytes, hash })
}

pub(super) fn stat(root: &Root, path: &WorkspacePath) -> Result<EntryStat, Failure> {
    let stat = root.stat(path)?;
    let modified_ms = stat.st_mtime.saturating_mul(1_000).saturating_add(stat.st_mtime_nsec as i64 / 1_000_000);
    Ok(EntryStat { kind: entry_kind(file_type(&stat)), size_bytes: size_of(&stat), modified_ms })
}

pub(super) fn list(root: &Root, path: &WorkspacePath) -> Result<Entries, Failure> {
    let directory = root.open_directory(path)?;
    let found = entries(&directory, LIST_ENTRIES_MAX).map_err(|error| failed(path, error))?;
    let entry = |(name, kind): (Vec<u8>, FileType)| WorkspaceEntry {
        name: String::from_utf8_lossy(&name).into_owned(),
        kind: entry_kind(kind),
        ignored: false,
    };
    Ok(Entries { entries: found.names.into_iter().map(entry).collect(), truncated: found.truncated })
}

/// Names in a directory, in order, and what each is, without following links.
pub(super) struct Names {
    pub names: Vec<(Vec<u8>, FileType)>,
    /// Whether the directory has more of them.
    pub truncated: bool,
}

/// At most this many names of a directory.
pub(super) fn entries(directory: &OwnedFd, entries_max: usize) -> std::io::Result<Names> {
    let (mut names, mut truncated) = (vec![], false);
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        if names.len() == entries_max {
            truncated = true;
            break;
        }
        let kind = match entry.file_type() {
            // Some file systems only tell when asked about the entry itself. An entry that is gone by now is nothing to open.
            FileType::Unknown => statat(directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
                .map_or(FileType::Unknown, |stat| file_type(&stat)),
            kind => kind,
        };
        names.push((name.to_vec(), kind));
    }
    names.sort_by(|(name, _), (other, _)| name.cmp(other));
    Ok(Names { names, truncated })
}

fn size_of(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

fn entry_kind(kind: FileType) -> EntryKind {
    match kind {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Symlink,
        _ => EntryKind::Other,
    }
}
