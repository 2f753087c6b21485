//! Writes of files. A file appears under its name whole or not at all: it is written under another name in the same directory,
//! stored on the disk, and then renamed. Other names of the same file (hard links) keep the old content.

use std::{fs::File, io, io::Write, os::fd::AsFd};

use ostler_protocol::{
    Failure,
    daemon::files::{
        FILE_WRITE_BYTES_MAX, FileError, FileProfile, TextWrite, WorkspacePath, content_hash, encode_text, file_failure,
    },
};
use parking_lot::Mutex;
use rustix::{
    fs::{AtFlags, Mode, OFlags, RenameFlags, Stat, fchmod, fstat, linkat, openat, renameat, renameat_with, unlinkat},
    io::Errno,
};

use super::{
    read::{as_text, read_whole},
    root::{Place, Root, failed},
};

/// How many locks the paths share. Two paths with the same lock wait for each other and nothing else.
const LOCKS: usize = 64;
/// A new file is for its owner alone.
const NEW_FILE_MODE: u32 = 0o600;
/// As a checkout would create it.
const RESTORED_FILE_MODE: u32 = 0o644;
/// Bits of a replaced file's mode that its successor gets. It never runs with other rights than those of its user.
const KEPT_MODE: u32 = 0o777;

/// What a write expects to find under the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// No file.
    Absent,
    /// A file with this digest.
    Hash(String),
    /// Any file, or none.
    Anything,
}

/// A file as it was written.
#[derive(Clone, Debug)]
pub(crate) struct WrittenText {
    pub created: bool,
    pub size_bytes: u64,
    pub hash: String,
    pub profile: FileProfile,
}

/// A new text of a file.
pub(super) struct NewText<'a> {
    pub content: &'a str,
    /// How it is encoded. `None`: as it is.
    pub write: Option<TextWrite>,
    pub expected: &'a Expected,
    /// A name for the file until it is whole. No other write has the same.
    pub temporary: &'a str,
}

/// Serialises writes of this process to the same file.
pub(super) struct WriteLocks([Mutex<()>; LOCKS]);

impl Default for WriteLocks {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl WriteLocks {
    /// The lock of a file, by its directory and name: two paths may lead to the same directory.
    fn of(&self, directory: &Stat, name: &str) -> &Mutex<()> {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        (directory.st_dev, directory.st_ino, name).hash(&mut hasher);
        &self.0[hasher.finish() as usize % LOCKS]
    }

    fn while_locked<T>(
        &self,
        path: &WorkspacePath,
        place: &Place,
        work: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let directory = fstat(&place.directory).map_err(|error| failed(path, error.into()))?;
        let _locked = self.of(&directory, &place.name).lock();
        work()
    }
}

/// Writes a text file.
pub(super) fn text(
    root: &Root,
    locks: &WriteLocks,
    path: &WorkspacePath,
    new: &NewText<'_>,
) -> Result<WrittenText, Failure> {
    let place = root.place(path)?;
    locks.while_locked(path, &place, || {
        let existing = existing(path, &place)?;
        check_expected(path, existing.as_ref().map(|existing| existing.hash.as_str()), new.expected)?;
        let profile = existing.as_ref().map(|existing| existing.profile).unwrap_or_default();
        let (text, profile) = match new.write {
            Some(write) => encode_text(new.content, write, profile),
            None => (new.content.to_owned(), FileProfile::of(new.content).0),
        };
        let mode = existing.as_ref().map_or(NEW_FILE_MODE, |existing| existing.mode & KEPT_MODE);
        let (expected, temporary) = (new.expected, new.temporary);
        replace(path, &place, &Replacement { bytes: text.as_bytes(), mode, expected, temporary })?;
        let (size_bytes, hash) = (text.len() as u64, content_hash(text.as_bytes()));
        Ok(WrittenText { created: existing.is_none(), size_bytes, hash, profile })
    })
}

/// Deletes a regular file. False if there is none.
pub(super) fn remove(root: &Root, locks: &WriteLocks, path: &WorkspacePath) -> Result<bool, Failure> {
    let place = root.place(path)?;
    locks.while_locked(path, &place, || {
        // Checks the entry with this name, and refuses links and directories.
        if place.open(path)?.is_none() {
            return Ok(false);
        }
        match unlinkat(&place.directory, place.name.as_str(), AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(failed(path, error.into())),
        }
    })
}

/// Changes the text of a file with this digest.
pub(super) fn edit(
    root: &Root,
    locks: &WriteLocks,
    path: &WorkspacePath,
    (hash, temporary): (&str, &str),
    change: impl FnOnce(&str) -> Result<String, Failure>,
) -> Result<WrittenText, Failure> {
    let place = root.place(path)?;
    let expected = Expected::Hash(hash.to_owned());
    locks.while_locked(path, &place, || {
        let open = place.open(path)?.ok_or_else(|| not_found(path))?;
        let mode = open.stat.st_mode & KEPT_MODE;
        let bytes = read_whole(path, open, FILE_WRITE_BYTES_MAX)?;
        check_expected(path, Some(&content_hash(&bytes)), &expected)?;
        let changed = change(&as_text(path, bytes)?.text)?;
        replace(path, &place, &Replacement { bytes: changed.as_bytes(), mode, expected: &expected, temporary })?;
        let (size_bytes, hash) = (changed.len() as u64, content_hash(changed.as_bytes()));
        Ok(WrittenText { created: false, size_bytes, hash, profile: FileProfile::of(&changed).0 })
    })
}

/// A file as it was at some time. `None`: there was none.
pub(crate) type PastFile = Option<PastContent>;

#[derive(Clone, Debug)]
pub(crate) struct PastContent {
    pub bytes: Vec<u8>,
    pub is_executable: bool,
}

/// Makes a file what it was `before`, if it is what it was `after`.
pub(super) fn restore(
    root: &Root,
    locks: &WriteLocks,
    path: &WorkspacePath,
    (before, after): (&PastFile, &PastFile),
    temporary: &str,
) -> Result<(), Failure> {
    if let (Some((above, _)), Some(_)) = (path.split(), before) {
        root.create_directories(&above)?;
    }
    let place = root.place(path)?;
    let expected = match after {
        Some(after) => Expected::Hash(content_hash(&after.bytes)),
        None => Expected::Absent,
    };
    locks.while_locked(path, &place, || {
        let existing = existing(path, &place)?;
        check_expected(path, existing.as_ref().map(|existing| existing.hash.as_str()), &expected)?;
        let Some(before) = before else {
            return unlinkat(&place.directory, place.name.as_str(), AtFlags::empty())
                .map_err(|error| failed(path, error.into()));
        };
        let mode = existing.map_or(RESTORED_FILE_MODE, |existing| existing.mode & KEPT_MODE);
        // Those who can read it can run it.
        let mode = if before.is_executable { mode | ((mode & 0o444) >> 2) } else { mode & !0o111 };
        replace(path, &place, &Replacement { bytes: &before.bytes, mode, expected: &expected, temporary })
    })
}

/// The file that a write replaces.
struct Existing {
    hash: String,
    mode: u32,
    profile: FileProfile,
}

fn existing(path: &WorkspacePath, place: &Place) -> Result<Option<Existing>, Failure> {
    let Some(open) = place.open(path)? else { return Ok(None) };
    let mode = open.stat.st_mode;
    let bytes = read_whole(path, open, FILE_WRITE_BYTES_MAX)?;
    let hash = content_hash(&bytes);
    let profile = std::str::from_utf8(&bytes).map(|text| FileProfile::of(text).0).unwrap_or_default();
    Ok(Some(Existing { hash, mode, profile }))
}

fn not_found(path: &WorkspacePath) -> Failure {
    file_failure(FileError::NotFound, format!("{path}: no such file"))
}

fn check_expected(path: &WorkspacePath, found: Option<&str>, expected: &Expected) -> Result<(), Failure> {
    match (found, expected) {
        (_, Expected::Anything) | (None, Expected::Absent) => Ok(()),
        (Some(_), Expected::Absent) => Err(file_failure(FileError::Exists, format!("{path}: the file exists already"))),
        (None, Expected::Hash(_)) => Err(not_found(path)),
        (Some(found), Expected::Hash(hash)) if found == hash => Ok(()),
        (Some(found), Expected::Hash(hash)) => {
            Err(file_failure(FileError::HashMismatch, format!("{path}: expected {hash}, found {found}")))
        }
    }
}

struct Replacement<'a> {
    bytes: &'a [u8],
    mode: u32,
    expected: &'a Expected,
    temporary: &'a str,
}

/// Puts the file under its name.
fn replace(path: &WorkspacePath, place: &Place, replacement: &Replacement<'_>) -> Result<(), Failure> {
    if replacement.bytes.len() > FILE_WRITE_BYTES_MAX {
        let message = format!("{path}: a file of more than {FILE_WRITE_BYTES_MAX} bytes is not written");
        return Err(file_failure(FileError::TooLarge, message).detail("bytesMax", FILE_WRITE_BYTES_MAX));
    }
    let io_failed = |error: io::Error| failed(path, error);
    let mut temporary = Temporary::create(place, replacement.temporary).map_err(io_failed)?;
    temporary.fill(replacement.bytes, replacement.mode).map_err(io_failed)?;
    if matches!(replacement.expected, Expected::Hash(_)) {
        // Another process may have written the file concurrently.
        let found = existing(path, place)?.map(|existing| existing.hash);
        check_expected(path, found.as_deref(), replacement.expected)?;
    }
    match temporary.rename(*replacement.expected != Expected::Absent) {
        Err(Errno::EXIST) => Err(file_failure(FileError::Exists, format!("{path}: the file exists already"))),
        renamed => renamed.map_err(|error| io_failed(error.into())),
    }?;
    rustix::fs::fsync(&place.directory).map_err(|error| io_failed(error.into()))
}

/// A file under another name. It is deleted unless it gets its own.
struct Temporary<'a> {
    place: &'a Place,
    name: &'a str,
    file: File,
    is_renamed: bool,
}

impl<'a> Temporary<'a> {
    fn create(place: &'a Place, name: &'a str) -> io::Result<Self> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&place.directory, name, flags, Mode::from_raw_mode(NEW_FILE_MODE))?;
        Ok(Self { place, name, file: file.into(), is_renamed: false })
    }

    fn fill(&mut self, bytes: &[u8], mode: u32) -> io::Result<()> {
        self.file.write_all(bytes)?;
        fchmod(self.file.as_fd(), Mode::from_raw_mode(mode))?;
        self.file.sync_all()
    }

    /// Gives the file its own name, in place of another file only if it may overwrite one.
    fn rename(&mut self, overwrites: bool) -> rustix::io::Result<()> {
        let Place { directory, name, .. } = self.place;
        if overwrites {
            renameat(directory, self.name, directory, name.as_str())?;
        } else {
            match renameat_with(directory, self.name, directory, name.as_str(), RenameFlags::NOREPLACE) {
                // Not every file system can do this; a link is refused, too, if the name is taken.
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                    linkat(directory, self.name, directory, name.as_str(), AtFlags::empty())?;
                    return Ok(());
                }
                renamed => renamed?,
            }
        }
        self.is_renamed = true;
        Ok(())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.is_renamed
            && let Err(error) = unlinkat(&self.place.directory, self.name, AtFlags::empty())
        {
            tracing::warn!(%error, name = self.name, "a temporary file of the workspace was not deleted");
        }
    }
}
