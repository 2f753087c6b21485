//! Reads a backup from its beginning to its end, and checks every byte of it: the digest of each file, the digest of all, and
//! that nothing follows. Paths with `..` or a root are rejected.

use std::{
    cell::RefCell,
    collections::HashMap,
    ffi::OsStr,
    fs::File,
    io::{self, BufReader, Read, Seek},
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
    rc::Rc,
};

use ostler_crypto::age::{AgeDecryptor, AgeError, MAGIC, Unlock};
use ostler_protocol::{Failure, Rule, json::hex, sha256::Sha256Stream};
use tar::{Archive, EntryType};

use super::format::{
    BLOCK_BYTES, BackupContents, BackupManifest, CHECKSUMS, CONTENTS, END, END_BYTES, FORMAT, MANIFEST, checksum_line,
    damaged, end_of_archive,
};

const BUFFER_BYTES: usize = 1 << 20;
/// Entries that are read whole.
const TEXT_BYTES_MAX: u64 = 1 << 30;

pub(super) enum EntryKind {
    File,
    Directory,
    Link(PathBuf),
}

pub(super) struct ArchiveEntry {
    pub path: PathBuf,
    pub kind: EntryKind,
    pub mode: u32,
    /// Seconds since 1970.
    pub modified: u64,
}

pub(super) struct Checked {
    pub manifest: BackupManifest,
    pub contents: BackupContents,
}

/// Receives the manifest, which comes first, and then each entry.
pub(super) trait EntryVisitor {
    fn manifest(&mut self, manifest: &BackupManifest) -> Result<(), Failure>;
    fn entry(&mut self, entry: &ArchiveEntry, contents: &mut dyn Read) -> Result<(), Failure>;
    /// The position in the file.
    fn position(&mut self, position: u64);
}

pub(super) fn has_magic(file: &mut File) -> io::Result<bool> {
    let mut start = vec![];
    file.rewind()?;
    file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut start)?;
    file.rewind()?;
    Ok(start == MAGIC)
}

/// Reads the whole backup from its beginning.
pub(super) fn read(
    file: &mut File,
    unlock: Option<&Unlock>,
    visitor: &mut dyn EntryVisitor,
) -> Result<Checked, Failure> {
    let is_encrypted = has_magic(file).map_err(damaged)?;
    let position = Rc::<RefCell<u64>>::default();
    let counted = Counted { file, position: position.clone() };
    let reader = BufReader::with_capacity(BUFFER_BYTES, counted);
    match (is_encrypted, unlock) {
        (false, _) => read_plain(reader, &position, visitor),
        (true, None) => Err(Failure::rule(Rule::BackupKey, "the backup is encrypted")),
        (true, Some(unlock)) => {
            let decryptor = AgeDecryptor::start(reader, unlock).map_err(|error| match error {
                AgeError::Malformed | AgeError::Io(_) => damaged(error),
                error => Failure::rule(Rule::BackupKey, error.to_string()),
            })?;
            read_plain(decryptor, &position, visitor)
        }
    }
}

struct Counted<'a> {
    file: &'a mut File,
    position: Rc<RefCell<u64>>,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        *self.position.borrow_mut() += read as u64;
        Ok(read)
    }
}

/// The digest of everything that was read, except for the last block: that is the header of the entry with the digest.
#[derive(Default)]
struct Digesting {
    digest: Sha256Stream,
    digested: u64,
    tail: Vec<u8>,
    /// Everything after that header.
    end: Option<Vec<u8>>,
    /// The first entry is that of a backup.
    is_begun: bool,
    /// The reader has returned everything that the file has.
    is_read: bool,
}

struct Digested<R> {
    reader: R,
    state: Rc<RefCell<Digesting>>,
}

impl<R: Read> Read for Digested<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        state.is_read |= read == 0 && !buffer.is_empty();
        match &mut state.end {
            Some(end) => end.extend_from_slice(&buffer[..read]),
            None => {
                state.tail.extend_from_slice(&buffer[..read]);
                let sure = state.tail.len().saturating_sub(BLOCK_BYTES);
                state.digest.update(&state.tail[..sure]);
                state.tail.drain(..sure);
                state.digested += sure as u64;
            }
        }
        Ok(read)
    }
}

fn read_plain(reader: impl Read, position: &RefCell<u64>, visitor: &mut dyn EntryVisitor) -> Result<Checked, Failure> {
    let state = Rc::<RefCell<Digesting>>::default();
    read_entries(reader, &state, position, visitor).map_err(|failure| {
        let state = state.borrow();
        let is_short = state.end.as_ref().is_none_or(|end| end.len() < END_BYTES);
        match (state.is_begun, state.is_read && is_short) {
            _ if failure.broken_rule() != Some(Rule::BackupDamaged) => failure,
            (false, _) => Failure::rule(Rule::BackupDamaged, "the file is not a backup of Ostler"),
            // Whatever was found wrong, the end of the file is the cause.
            (true, true) => damaged("it is cut off"),
            (true, false) => failure,
        }
    })
}

fn read_entries(
    reader: impl Read,
    state: &Rc<RefCell<Digesting>>,
    position: &RefCell<u64>,
    visitor: &mut dyn EntryVisitor,
) -> Result<Checked, Failure> {
    let mut archive = Archive::new(Digested { reader, state: state.clone() });
    let (mut manifest, mut contents, mut checksums) = (None, None, None);
    let mut digests: HashMap<Vec<u8>, [u8; 32]> = HashMap::new();
    let mut is_ended = false;
    for entry in archive.entries().map_err(damaged)? {
        let mut entry = entry.map_err(damaged)?;
        if is_ended {
            return Err(damaged("something follows its end"));
        }
        let path = check_path(&entry.path_bytes())?;
        let (name, start) = (path.as_os_str().as_bytes().to_vec(), entry.raw_header_position());
        let kind = match entry.header().entry_type() {
            EntryType::Regular => EntryKind::File,
            EntryType::Directory => EntryKind::Directory,
            EntryType::Symlink => {
                let target = entry.link_name_bytes().ok_or_else(|| damaged("a link without a target"))?;
                EntryKind::Link(OsStr::from_bytes(&target).into())
            }
            other => return Err(damaged(format!("an entry of the type {other:?}"))),
        };
        let mode = entry.header().mode().map_err(damaged)? & 0o777;
        let modified = entry.header().mtime().map_err(damaged)?;
        if name == END.as_bytes() {
            let mut state = state.borrow_mut();
            if state.digested != start {
                return Err(damaged("its last entry is not where it should be"));
            }
            state.end = Some(vec![]);
            is_ended = true;
            continue;
        }
        visitor.position(*position.borrow());
        let is_file = matches!(kind, EntryKind::File);
        let entry_head = ArchiveEntry { path, kind, mode, modified };
        let mut hashed = HashedEntry { reader: &mut entry, digest: Sha256Stream::default() };
        match (&manifest, std::str::from_utf8(&name)) {
            (None, Ok(MANIFEST)) => {
                state.borrow_mut().is_begun = true;
                let read: BackupManifest = json(&mut hashed)?;
                check_format(&read)?;
                visitor.manifest(&read)?;
                manifest = Some(read);
            }
            (None, _) => return Err(damaged("it does not begin with a manifest")),
            (_, Ok(CONTENTS)) => contents = Some(json(&mut hashed)?),
            (_, Ok(CHECKSUMS)) => {
                checksums = Some(text(&mut hashed)?);
                continue;
            }
            _ => visitor.entry(&entry_head, &mut hashed)?,
        }
        io::copy(&mut hashed, &mut io::sink()).map_err(damaged)?;
        if is_file {
            digests.insert(name, hashed.digest.finish());
        }
    }
    let mut rest = vec![];
    archive.into_inner().take(2 * BLOCK_BYTES as u64).read_to_end(&mut rest).map_err(damaged)?;
    check_end(&state.borrow())?;
    check_digests(digests, checksums)?;
    match (manifest, contents) {
        (Some(manifest), Some(contents)) => Ok(Checked { manifest, contents }),
        _ => Err(damaged("it is cut off")),
    }
}

fn check_end(state: &Digesting) -> Result<(), Failure> {
    let end = state.end.as_ref().ok_or_else(|| damaged("it is cut off"))?;
    let digest = hex(&state.digest.clone().finish());
    if *end != end_of_archive(&digest) {
        return Err(damaged("a byte of it was changed, or it is cut off"));
    }
    Ok(())
}

fn check_digests(digests: HashMap<Vec<u8>, [u8; 32]>, checksums: Option<Vec<u8>>) -> Result<(), Failure> {
    let mut digests: Vec<_> = digests.into_iter().collect();
    digests.sort();
    let lines: Vec<u8> = digests.iter().flat_map(|(path, digest)| checksum_line(&hex(digest), path)).collect();
    if checksums.as_deref() == Some(&lines[..]) { Ok(()) } else { Err(damaged("a file differs from its checksum")) }
}

fn check_format(manifest: &BackupManifest) -> Result<(), Failure> {
    if manifest.format == FORMAT {
        return Ok(());
    }
    Err(damaged(format!("its format is {}, and this build reads {FORMAT}; use a newer build", manifest.format)))
}

/// A relative path of plain names.
fn check_path(bytes: &[u8]) -> Result<PathBuf, Failure> {
    let path = Path::new(OsStr::from_bytes(bytes));
    let is_plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    if !is_plain || path.as_os_str().is_empty() || bytes.contains(&0) {
        return Err(damaged(format!("{:?} is not a path of a backup", path.display().to_string())));
    }
    // Without the slash at the end of a directory.
    Ok(path.components().collect())
}

struct HashedEntry<'a> {
    reader: &'a mut dyn Read,
    digest: Sha256Stream,
}

impl Read for HashedEntry<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.digest.update(&buffer[..read]);
        Ok(read)
    }
}

pub(super) fn text(reader: &mut dyn Read) -> Result<Vec<u8>, Failure> {
    let mut text = vec![];
    reader.take(TEXT_BYTES_MAX).read_to_end(&mut text).map_err(damaged)?;
    Ok(text)
}

pub(super) fn json<T: serde::de::DeserializeOwned>(reader: &mut dyn Read) -> Result<T, Failure> {
    serde_json::from_slice(&text(reader)?).map_err(damaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Ignored;

    impl EntryVisitor for Ignored {
        fn manifest(&mut self, _: &BackupManifest) -> Result<(), Failure> {
            Ok(())
        }

        fn entry(&mut self, _: &ArchiveEntry, _: &mut dyn Read) -> Result<(), Failure> {
            Ok(())
        }

        fn position(&mut self, _: u64) {}
    }

    fn message_about(bytes: &[u8]) -> String {
        let failure = read_plain(bytes, &RefCell::default(), &mut Ignored).err().unwrap();
        assert_eq!(failure.broken_rule(), Some(Rule::BackupDamaged));
        failure.message
    }

    #[test]
    fn another_file_and_a_part_of_a_backup_are_distinguished() {
        let mut archive = tar::Builder::new(vec![]);
        let manifest = br#"{"format":1,"ostler":"1","createdAt":"2030-01-01T00:00:00Z","engine":"sqlite","hasWorkspaces":true,"absent":[]}"#;
        let mut append = |name: &str, contents: &[u8]| {
            let mut header = tar::Header::new_gnu();
            header.set_size(contents.len() as u64);
            header.set_mode(0o600);
            header.set_mtime(0);
            archive.append_data(&mut header, name, contents).unwrap();
        };
        append(MANIFEST, manifest);
        append("files/token", &[b'x'; 2_000]);
        let begun = archive.into_inner().unwrap();
        for length in [520, 600, 1_024, 1_100, 2_000, begun.len()] {
            assert_eq!(message_about(&begun[..length]), "the backup cannot be used: it is cut off", "{length}");
        }
        for other in [&b""[..], b"some text", &[7; 2_000], &[0; 2_000]] {
            assert_eq!(message_about(other), "the file is not a backup of Ostler");
        }
    }

    #[test]
    fn paths_lead_nowhere_else() {
        for good in ["files/token", "files/workspaces/a b/…/.git", "files/workspaces/dir/"] {
            assert!(check_path(good.as_bytes()).is_ok(), "{good}");
        }
        for wrong in ["", "/etc/passwd", "files/../x", "../x", "files/workspaces/..", "./files/x", "files\0/x"] {
            assert!(check_path(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
    }
}
