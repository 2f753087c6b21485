//! Writes a backup to a temporary name beside its own, and renames it when everything is on the disk.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{self, BufWriter, Read, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use ostler_crypto::age::{AgeEncryptor, Lock};
use ostler_protocol::{Failure, Rule, json::hex, sha256::Sha256Stream};
use rustix::fs::{FlockOperation, OFlags, flock};
use tar::{Builder, EntryType, Header};

use super::format::{CHECKSUMS, END, checksum_line};
use crate::clock;

const BUFFER_BYTES: usize = 1 << 20;

pub(super) fn failed(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::rule(Rule::Backup, format!("{}: {error}", path.display()))
}

enum Output {
    Plain(BufWriter<File>),
    Encrypted(Box<AgeEncryptor<BufWriter<File>>>),
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(writer) => writer.write(bytes),
            Self::Encrypted(writer) => writer.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(writer) => writer.flush(),
            Self::Encrypted(writer) => writer.flush(),
        }
    }
}

struct Hashing {
    output: Output,
    digest: Sha256Stream,
}

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.output.write(bytes)?;
        self.digest.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

pub(super) struct ArchiveWriter {
    tar: Builder<Hashing>,
    /// The digest of the latest file of each name.
    digests: BTreeMap<Vec<u8>, [u8; 32]>,
    part: PathBuf,
    target: PathBuf,
}

impl ArchiveWriter {
    /// Begins a backup. The file must not exist.
    pub(super) fn create(target: &Path, lock: Option<&Lock>) -> Result<Self, Failure> {
        if target.symlink_metadata().is_ok() {
            let message = format!("{} exists already", target.display());
            return Err(Failure::rule(Rule::BackupTarget, message));
        }
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(".part");
        let part = target.with_file_name(name);
        let file = open_part(&part)?;
        let writer = BufWriter::with_capacity(BUFFER_BYTES, file);
        let output = match lock {
            None => Output::Plain(writer),
            Some(lock) => {
                let encryptor = AgeEncryptor::start(writer, lock, &mut clock::fill);
                Output::Encrypted(Box::new(encryptor.map_err(|error| failed(&part, error))?))
            }
        };
        let tar = Builder::new(Hashing { output, digest: Sha256Stream::default() });
        Ok(Self { tar, digests: BTreeMap::new(), part, target: target.to_owned() })
    }

    pub(super) fn directory(&mut self, path: &Path, mode: u32) -> io::Result<()> {
        let mut header = header(EntryType::Directory, 0, mode, 0);
        self.tar.append_data(&mut header, path, io::empty())
    }

    pub(super) fn link(&mut self, path: &Path, target: &Path) -> io::Result<()> {
        self.tar.append_link(&mut header(EntryType::Symlink, 0, 0o777, 0), path, target)
    }

    /// Copies a file as long as it was when it was opened. Returns its length.
    pub(super) fn file(&mut self, path: &Path, file: &File) -> io::Result<u64> {
        let metadata = file.metadata()?;
        let (size, mode) = (metadata.len(), metadata.permissions().mode() & 0o777);
        let modified = u64::try_from(metadata.mtime()).unwrap_or(0);
        self.append(path, header(EntryType::Regular, size, mode, modified), &mut Exactly { reader: file, left: size })?;
        Ok(size)
    }

    pub(super) fn bytes(&mut self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let header = header(EntryType::Regular, bytes.len() as u64, 0o600, 0);
        self.append(Path::new(path), header, &mut &bytes[..])
    }

    fn append(&mut self, path: &Path, mut header: Header, contents: &mut dyn Read) -> io::Result<()> {
        let mut reader = Digested { reader: contents, digest: Sha256Stream::default() };
        self.tar.append_data(&mut header, path, &mut reader)?;
        self.digests.insert(path.as_os_str().as_bytes().to_vec(), reader.digest.finish());
        Ok(())
    }

    /// Writes the checksums, makes the file durable, and gives it its name. Returns its size.
    pub(super) fn finish(mut self) -> Result<u64, Failure> {
        let (part, target) = (self.part.clone(), self.target.clone());
        let finished = || -> io::Result<u64> {
            let digests = std::mem::take(&mut self.digests);
            let lines: Vec<u8> = digests.iter().flat_map(|(path, digest)| checksum_line(&hex(digest), path)).collect();
            self.bytes(CHECKSUMS, &lines)?;
            let digest = self.tar.get_ref().digest.clone().finish();
            self.bytes(END, format!("{}\n", hex(&digest)).as_bytes())?;
            let mut writer = match self.tar.into_inner()?.output {
                Output::Plain(writer) => writer,
                Output::Encrypted(encryptor) => encryptor.finish()?,
            };
            writer.flush()?;
            let file = writer.get_ref();
            file.sync_all()?;
            let bytes = file.metadata()?.len();
            std::fs::rename(&part, &target)?;
            File::open(directory_of(&target))?.sync_all()?;
            Ok(bytes)
        };
        finished().map_err(|error| {
            let _ = std::fs::remove_file(&part);
            failed(&target, error)
        })
    }

    /// Deletes what was written.
    pub(super) fn abandon(self) {
        let _ = std::fs::remove_file(&self.part);
    }
}

pub(super) fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Opens the temporary file. One that a killed backup left is written again; one that a running backup writes is not. A link
/// is rejected: the file that it leads to never gets the name of the backup.
fn open_part(path: &Path) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    loop {
        let file = options.open(path).map_err(|error| match path.is_symlink() {
            true => Failure::rule(Rule::BackupTarget, format!("{} is a link; delete it", path.display())),
            false => failed(path, error),
        })?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            let message = format!("another backup is writing {}", path.display());
            Failure::rule(Rule::BackupTarget, message)
        })?;
        // Another backup may have given it its name while this one waited.
        let (ours, named) = (file.metadata(), path.symlink_metadata());
        if let (Ok(ours), Ok(named)) = (ours, named)
            && (ours.ino(), ours.dev()) == (named.ino(), named.dev())
        {
            let prepared = file.set_len(0).and_then(|()| file.set_permissions(PermissionsExt::from_mode(0o600)));
            return prepared.map(|()| file).map_err(|error| failed(path, error));
        }
    }
}

fn header(entry_type: EntryType, size: u64, mode: u32, modified: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(entry_type);
    header.set_size(size);
    header.set_mode(mode);
    header.set_mtime(modified);
    header.set_uid(0);
    header.set_gid(0);
    header
}

/// As many bytes as the header promised: a file that grows is cut, one that shrinks is filled with zeros. Either is copied
/// again later, because it has changed.
struct Exactly<R> {
    reader: R,
    left: u64,
}

impl<R: Read> Read for Exactly<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let read = match self.reader.read(&mut buffer[..wanted])? {
            0 => {
                buffer[..wanted].fill(0);
                wanted
            }
            read => read,
        };
        self.left -= read as u64;
        Ok(read)
    }
}

struct Digested<'a> {
    reader: &'a mut dyn Read,
    digest: Sha256Stream,
}

impl Read for Digested<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.digest.update(&buffer[..read]);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use super::*;

    #[test]
    fn a_link_in_the_place_of_the_temporary_file_is_rejected() {
        let place = tempfile::tempdir().unwrap();
        let (part, other) = (place.path().join("b.tar.part"), place.path().join("other"));
        std::fs::write(&other, "kept").unwrap();
        std::os::unix::fs::symlink(&other, &part).unwrap();
        // In a thread, because it once tried again for ever.
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || sender.send(open_part(&part).map(drop)));
        let failure = receiver.recv_timeout(Duration::from_secs(20)).expect("it ends").unwrap_err();
        assert_eq!(failure.rule_name(), Some("backup-target"));
        assert_eq!(std::fs::read_to_string(other).unwrap(), "kept");
    }
}
