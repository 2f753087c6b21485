//! Private files of the server: each sealed with the server's key and its own name, mode 0600, replaced atomically. A lock file
//! serializes writers, also those of other servers that share the directory.

use std::{
    fs::{File, OpenOptions},
    io::{ErrorKind, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use ostler_crypto::{
    Zeroizing,
    seal::{NONCE_BYTES, SealingKey},
};
use ostler_protocol::{Failure, Rule, json::hex};
use rustix::fs::{FlockOperation, flock};

use crate::{clock, directories};

/// The first bytes of a sealed file; another format gets another number.
const MAGIC: &[u8] = b"ostler secret 1\n";
const SUFFIX: &str = ".sealed";
const LOCK: &str = ".lock";
/// The suffix of a file that is not completely written; such a file remains if its server dies.
const UNFINISHED: &str = ".tmp";
/// More than the largest secret there can be.
const FILE_BYTES_MAX: u64 = 8 * 1024 * 1024;

pub struct SealedFiles {
    directory: PathBuf,
    key: SealingKey,
}

/// The contents of a file.
pub enum Found {
    Nothing,
    /// It was changed, moved, or sealed under another key.
    Damaged,
    Text(Zeroizing<Vec<u8>>),
}

impl SealedFiles {
    pub fn open(directory: PathBuf, key: SealingKey) -> Result<Self, Failure> {
        directories::create(&directory).map_err(broken)?;
        let files = Self { directory, key };
        let lock = files.lock()?;
        for entry in std::fs::read_dir(&files.directory).map_err(broken)? {
            let path = entry.map_err(broken)?.path();
            if path.to_string_lossy().ends_with(UNFINISHED) {
                std::fs::remove_file(path).map_err(broken)?;
            }
        }
        drop(lock);
        Ok(files)
    }

    /// For programs that only read: does not create the directory or remove unfinished files.
    pub fn existing(directory: PathBuf, key: SealingKey) -> Self {
        Self { directory, key }
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}{SUFFIX}"))
    }

    /// An exclusive lock, held until the file is dropped.
    pub fn lock(&self) -> Result<File, Failure> {
        let path = self.directory.join(LOCK);
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path).map_err(broken)?;
        flock(&file, FlockOperation::LockExclusive).map_err(|error| broken(error.into()))?;
        Ok(file)
    }

    /// The names of all sealed files, sorted.
    pub fn list(&self) -> Result<Vec<String>, Failure> {
        let mut names = vec![];
        for entry in std::fs::read_dir(&self.directory).map_err(broken)? {
            let file = entry.map_err(broken)?.file_name();
            names.extend(file.to_str().and_then(|file| file.strip_suffix(SUFFIX)).map(str::to_owned));
        }
        names.sort();
        Ok(names)
    }

    pub fn get(&self, name: &str) -> Result<Found, Failure> {
        let mut bytes = vec![];
        match File::open(self.file(name)) {
            Ok(file) => file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(broken)?,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Found::Nothing),
            Err(error) => return Err(broken(error)),
        };
        let text = bytes.strip_prefix(MAGIC).and_then(|sealed| self.open_sealed(name, sealed));
        Ok(text.map_or(Found::Damaged, Found::Text))
    }

    pub fn put(&self, name: &str, text: &[u8]) -> Result<(), Failure> {
        self.write(&self.file(name), &[MAGIC, &self.seal(name, text)])
    }

    /// Seals a text that is stored elsewhere, for this name.
    pub fn seal(&self, name: &str, text: &[u8]) -> Vec<u8> {
        let mut nonce = [0; NONCE_BYTES];
        clock::fill(&mut nonce);
        self.key.seal(nonce, name.as_bytes(), text)
    }

    pub fn open_sealed(&self, name: &str, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        self.key.open(name.as_bytes(), sealed)
    }

    /// Writes a public text beside the sealed files, in clear.
    pub fn put_plain(&self, name: &str, text: &str) -> Result<(), Failure> {
        self.write(&self.directory.join(name), &[text.as_bytes()])
    }

    pub fn get_plain(&self, name: &str) -> Result<Option<String>, Failure> {
        match std::fs::read_to_string(self.directory.join(name)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(broken(error)),
        }
    }

    /// Idempotent.
    pub fn delete(&self, name: &str) -> Result<(), Failure> {
        match std::fs::remove_file(self.file(name)) {
            Ok(()) => self.sync(),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(broken(error)),
        }
    }

    /// Writes a file atomically, also in a power cut: to a temporary file first, which is then renamed.
    fn write(&self, path: &Path, parts: &[&[u8]]) -> Result<(), Failure> {
        let mut mark = [0; 8];
        clock::fill(&mut mark);
        let unfinished = self.directory.join(format!(".{}{UNFINISHED}", hex(&mark)));
        let written = write_new(&unfinished, parts).and_then(|()| std::fs::rename(&unfinished, path));
        if let Err(error) = written {
            let _ = std::fs::remove_file(&unfinished);
            return Err(broken(error));
        }
        self.sync()
    }

    fn sync(&self) -> Result<(), Failure> {
        File::open(&self.directory).and_then(|directory| directory.sync_all()).map_err(broken)
    }
}

fn write_new(path: &Path, parts: &[&[u8]]) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    parts.iter().try_for_each(|part| file.write_all(part))?;
    file.sync_all()
}

fn broken(error: std::io::Error) -> Failure {
    let mut failure = Failure::rule(Rule::SecretStore, "the store of secrets did not answer");
    failure.cause = Some(error.to_string().into());
    failure
}
