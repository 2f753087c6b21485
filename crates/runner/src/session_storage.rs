//! Measures the session's storage after each turn: its files are counted and digested for the report to the server. A
//! backend may put anything there, so every entry is opened relative to its open directory, no symbolic link is followed,
//! and only regular files are opened.

use std::{io, io::Read, os::fd::OwnedFd, path::Path};

use ostler_protocol::{json::hex, kernel::session_storage::RefreshStorage, sha256::Sha256Stream};
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, fstat, openat};

/// Deeper directories are skipped.
const DEPTH_MAX: usize = 64;
/// Further files are not counted.
const FILES_MAX: usize = 100_000;
/// Bytes of all files that are read. Files beyond this are counted, but then there is no digest.
const READ_BYTES_MAX: u64 = 1024 * 1024 * 1024;

struct StoredFile {
    /// Relative to the storage, parts joined by slashes.
    path: Vec<u8>,
    bytes: u64,
    digest: Option<[u8; 32]>,
}

#[derive(Default)]
struct Walk {
    files: Vec<StoredFile>,
    read_bytes: u64,
}

/// Counts and digests all files under a directory.
pub(crate) fn measure(directory: &Path, run_id: String) -> io::Result<RefreshStorage> {
    let mut walk = Walk::default();
    walk.enter(open(CWD, directory, OFlags::DIRECTORY)?, &mut vec![], 0)?;
    let mut files = walk.files;
    files.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    let size_bytes = files.iter().map(|file| file.bytes).sum::<u64>() as i64;
    Ok(RefreshStorage { run_id, size_bytes, files_count: files.len() as i64, sha256: digest_all(&files) })
}

/// The digest of all files. `None` if not everything was read.
fn digest_all(files: &[StoredFile]) -> Option<String> {
    let mut all = Sha256Stream::default();
    for file in files {
        all.update((file.path.len() as u64).to_be_bytes());
        all.update(&file.path);
        all.update(file.digest?);
    }
    (files.len() < FILES_MAX).then(|| hex(&all.finish()))
}

fn open(at: impl std::os::fd::AsFd, name: impl rustix::path::Arg, kind: OFlags) -> io::Result<OwnedFd> {
    // Otherwise, opening a named pipe would wait for its other end.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | kind;
    Ok(openat(at, name, flags, Mode::empty())?)
}

impl Walk {
    fn enter(&mut self, directory: OwnedFd, path: &mut Vec<u8>, depth: usize) -> io::Result<()> {
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") || self.files.len() >= FILES_MAX {
                continue;
            }
            let length = path.len();
            if depth > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(name.to_bytes());
            match entry.file_type() {
                FileType::Directory if depth < DEPTH_MAX => {
                    // A directory that has disappeared, or that the backend made unreadable, is skipped.
                    if let Ok(below) = open(&directory, name, OFlags::DIRECTORY) {
                        self.enter(below, path, depth + 1)?;
                    }
                }
                FileType::RegularFile | FileType::Unknown => {
                    if let Ok(file) = open(&directory, name, OFlags::empty()) {
                        self.add(file, path)?;
                    }
                }
                _ => {}
            }
            path.truncate(length);
        }
        Ok(())
    }

    fn add(&mut self, file: OwnedFd, path: &[u8]) -> io::Result<()> {
        let metadata = fstat(&file)?;
        if FileType::from_raw_mode(metadata.st_mode) != FileType::RegularFile {
            return Ok(());
        }
        let bytes = metadata.st_size as u64;
        let is_within_limit = self.read_bytes.saturating_add(bytes) <= READ_BYTES_MAX;
        self.read_bytes = self.read_bytes.saturating_add(bytes);
        let digest = if is_within_limit { Some(digest_file(file.into(), bytes)?) } else { None };
        self.files.push(StoredFile { path: path.to_owned(), bytes, digest });
        Ok(())
    }
}

/// The digest of the first `bytes` of a file, which may grow in the meantime.
fn digest_file(file: std::fs::File, bytes: u64) -> io::Result<[u8; 32]> {
    let (mut digest, mut buffer, mut file) = (Sha256Stream::default(), vec![0; 64 * 1024], file.take(bytes));
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(digest.finish()),
            read => digest.update(&buffer[..read]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn measured(directory: &Path) -> (i64, i64, String) {
        let found = measure(directory, "run".into()).unwrap();
        (found.size_bytes, found.files_count, found.sha256.unwrap())
    }

    #[test]
    fn the_digest_covers_names_and_contents_in_order() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (directory, names) in [(&one, ["a/x", "b", "a/y"]), (&two, ["a/y", "a/x", "b"])] {
            std::fs::create_dir(directory.path().join("a")).unwrap();
            names.iter().for_each(|name| std::fs::write(directory.path().join(name), name).unwrap());
        }
        let before = measured(one.path());
        assert_eq!((before.0, before.1), (7, 3));
        assert_eq!(before, measured(two.path()));
        std::fs::write(two.path().join("b"), "c").unwrap();
        assert_ne!(before.2, measured(two.path()).2);
        std::fs::write(two.path().join("b"), "b").unwrap();
        std::fs::rename(two.path().join("a/x"), two.path().join("a/z")).unwrap();
        assert_ne!(before.2, measured(two.path()).2);
    }

    #[test]
    fn links_and_pipes_are_neither_followed_nor_opened() {
        let (storage, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(storage.path().join("own"), "own").unwrap();
        let before = measured(storage.path());
        std::fs::write(outside.path().join("large"), vec![0; 100_000]).unwrap();
        symlink(outside.path(), storage.path().join("directory")).unwrap();
        symlink(outside.path().join("large"), storage.path().join("file")).unwrap();
        symlink(storage.path(), storage.path().join("circle")).unwrap();
        rustix::fs::mknodat(CWD, storage.path().join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert_eq!(measured(storage.path()), before);
        let link = outside.path().join("link");
        symlink(storage.path(), &link).unwrap();
        assert!(measure(&link, "run".into()).is_err(), "a storage that was replaced by a link is not measured");
    }
}
