//! The workspace's directory as a handle. Every path is resolved by the kernel from that handle, which refuses to leave the directory by
//! `..` or by a symbolic link, even by one that was created a moment before. Nothing but regular files and directories is
//! ever opened.

use std::{fs::File, io, os::fd::OwnedFd, path::Path, sync::Arc};

use ostler_protocol::{
    Failure,
    daemon::files::{FileError, WorkspacePath, file_failure},
};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, statat};

use super::{
    configuration::{self, ConfiguredPlaces, WriteScope},
    links::{self, ServerFiles},
};

/// How often an open is tried again if a concurrent rename keeps the kernel from deciding where the path leads.
#[cfg(target_os = "linux")]
const OPEN_ATTEMPTS_MAX: usize = 16;

/// Never wait for the other end of a pipe, and never become the terminal's process.
const SAFE: OFlags = OFlags::CLOEXEC.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// The handle of the workspace's directory.
#[derive(Debug)]
pub(super) struct Root {
    handle: OwnedFd,
    /// The files of the server, which are not read under other names.
    server_files: Option<Arc<ServerFiles>>,
    scope: WriteScope,
}

/// A file that was opened for reading.
pub(super) struct OpenFile {
    pub file: File,
    pub stat: Stat,
}

/// A directory of the workspace, and the name of a file in it, which may not exist.
pub(super) struct Place {
    pub directory: OwnedFd,
    pub name: String,
    server_files: Option<Arc<ServerFiles>>,
}

impl Root {
    /// Opens the workspace by its path without symbolic links. A link that replaced a part of it is refused.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let text = path.to_string_lossy();
        let opened = open_without_links(path).map_err(|error| {
            let message = format!("the workspace cannot be opened: {}", error.kind());
            tracing::warn!(workspace = %text, %error, "the workspace cannot be opened");
            file_failure(FileError::Io, message)
        })?;
        Ok(Self { handle: opened, server_files: None, scope: WriteScope::Everything })
    }

    /// Refuses other names of these files.
    pub(super) fn hiding(self, server_files: Option<ServerFiles>) -> Self {
        Self { server_files: server_files.map(Arc::new), ..self }
    }

    /// Restricts which files are written.
    pub(super) fn scoped(self, scope: WriteScope) -> Self {
        Self { scope, ..self }
    }

    /// What is at a path, without opening it.
    pub(super) fn stat(&self, path: &WorkspacePath) -> Result<Stat, Failure> {
        let found = self.resolve(path, OFlags::PATH.union(OFlags::CLOEXEC))?;
        fstat(&found).map_err(|error| failed(path, error.into()))
    }

    /// Opens a regular file for reading.
    pub(super) fn open_file(&self, path: &WorkspacePath) -> Result<OpenFile, Failure> {
        // Looked at first, because to open a device can have effects of its own.
        check_regular(path, &self.stat(path)?)?;
        let file = self.resolve(path, OFlags::RDONLY.union(SAFE))?;
        let stat = fstat(&file).map_err(|error| failed(path, error.into()))?;
        check_regular(path, &stat)?;
        links::check(path, &stat, self.server_files.as_deref())?;
        Ok(OpenFile { file: file.into(), stat })
    }

    pub(super) fn open_directory(&self, path: &WorkspacePath) -> Result<OwnedFd, Failure> {
        self.resolve(path, OFlags::RDONLY.union(OFlags::DIRECTORY).union(SAFE))
    }

    /// The directory that a file is in, and the file's name.
    pub(super) fn place(&self, path: &WorkspacePath) -> Result<Place, Failure> {
        let Some((above, name)) = path.split() else {
            return Err(file_failure(FileError::Parse, ".: this is a directory, not a file"));
        };
        let is_restricted = self.scope == WriteScope::Ordinary;
        if is_restricted && configuration::is_named(path) {
            return Err(configuration::refusal(path));
        }
        let (directory, name) = (self.open_directory(&above)?, name.to_owned());
        let place = Place { directory, name, server_files: self.server_files.clone() };
        if is_restricted && self.is_configuration(&place).map_err(|error| failed(path, error))? {
            return Err(configuration::refusal(path));
        }
        Ok(place)
    }

    /// Whether the place is configuration, under whatever name.
    fn is_configuration(&self, place: &Place) -> io::Result<bool> {
        let flags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(SAFE);
        let open = |path: &str| open_beneath(&self.handle, path, flags).ok();
        match ConfiguredPlaces::find(&self.handle, open)? {
            Some(places) => places.contain(&place.directory, &place.name, place.stat()?.as_ref()),
            None => Ok(true),
        }
    }

    /// Creates a directory and those above it, as far as they do not exist.
    pub(super) fn create_directories(&self, path: &WorkspacePath) -> Result<(), Failure> {
        let Some((above, name)) = path.split() else { return Ok(()) };
        self.create_directories(&above)?;
        let directory = self.open_directory(&above)?;
        match rustix::fs::mkdirat(&directory, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
            Err(error) => Err(failed(path, error.into())),
        }
    }

    fn resolve(&self, path: &WorkspacePath, flags: OFlags) -> Result<OwnedFd, Failure> {
        open_beneath(&self.handle, &path.to_string(), flags).map_err(|error| failed(path, error))
    }
}

impl Place {
    /// The metadata of the entry with this name, without following links. `None` if there is no such entry.
    pub(super) fn stat(&self) -> io::Result<Option<Stat>> {
        match statat(&self.directory, self.name.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens the file for reading, if it is a regular one. `None` if there is none.
    pub(super) fn open(&self, path: &WorkspacePath) -> Result<Option<OpenFile>, Failure> {
        let Some(stat) = self.stat().map_err(|error| failed(path, error))? else { return Ok(None) };
        check_writable(path, &stat)?;
        let flags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(SAFE);
        let file = match rustix::fs::openat(&self.directory, self.name.as_str(), flags, Mode::empty()) {
            Ok(file) => file,
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(error) => return Err(failed(path, error.into())),
        };
        let stat = fstat(&file).map_err(|error| failed(path, error.into()))?;
        check_writable(path, &stat)?;
        links::check(path, &stat, self.server_files.as_deref())?;
        Ok(Some(OpenFile { file: file.into(), stat }))
    }
}

pub(super) fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn check_regular(path: &WorkspacePath, stat: &Stat) -> Result<(), Failure> {
    match file_type(stat) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(file_failure(FileError::Parse, format!("{path}: this is a directory, not a file"))),
        _ => Err(file_failure(FileError::Parse, format!("{path}: this is not a regular file"))),
    }
}

/// A link is not written through, and not replaced either: its owner wants it to be one.
fn check_writable(path: &WorkspacePath, stat: &Stat) -> Result<(), Failure> {
    match file_type(stat) {
        FileType::Symlink => {
            Err(file_failure(FileError::Symlink, format!("{path}: symbolic links are not written through")))
        }
        _ => check_regular(path, stat),
    }
}

/// What a failed call of the system means to clients.
pub(super) fn failed(path: &WorkspacePath, error: io::Error) -> Failure {
    use rustix::io::Errno;
    let describe = |kind, message: &str| file_failure(kind, format!("{path}: {message}"));
    match Errno::from_io_error(&error) {
        Some(Errno::NOENT) => describe(FileError::NotFound, "no such file or directory"),
        Some(Errno::NOTDIR) => describe(FileError::NotFound, "a part of the path is not a directory"),
        Some(Errno::XDEV) => describe(FileError::Symlink, "a symbolic link leads out of the workspace"),
        // Links of /proc, which lead anywhere, are refused with the same error of the system.
        Some(Errno::LOOP) => describe(FileError::Symlink, "the symbolic links form a loop, or one is a link of /proc"),
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => describe(FileError::Denied, "the system denies access"),
        Some(Errno::ISDIR) => describe(FileError::Parse, "this is a directory, not a file"),
        Some(Errno::NAMETOOLONG | Errno::INVAL | Errno::NXIO) => {
            describe(FileError::Parse, "the system cannot open this path")
        }
        Some(_) => {
            tracing::warn!(%error, "a file of the workspace cannot be used");
            describe(FileError::Io, &error.kind().to_string())
        }
        None => {
            tracing::error!(%error, "a file of the workspace cannot be used");
            describe(FileError::Internal, "the operation failed")
        }
    }
}

#[cfg(target_os = "linux")]
fn open_beneath(root: &OwnedFd, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
    use rustix::fs::{ResolveFlags, openat2};
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let mut attempt = 1;
    loop {
        match openat2(root, path, flags, Mode::empty(), resolve) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) if attempt < OPEN_ATTEMPTS_MAX => attempt += 1,
            opened => return Ok(opened?),
        }
    }
}

#[cfg(target_os = "linux")]
fn open_without_links(path: &Path) -> io::Result<OwnedFd> {
    use rustix::fs::{CWD, ResolveFlags, openat2};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?)
}

/// Other kernels cannot confine a path to a directory, so no file is opened there.
#[cfg(not(target_os = "linux"))]
fn open_beneath(_: &OwnedFd, _: &str, _: OFlags) -> io::Result<OwnedFd> {
    Err(rustix::io::Errno::OPNOTSUPP.into())
}

#[cfg(not(target_os = "linux"))]
fn open_without_links(_: &Path) -> io::Result<OwnedFd> {
    Err(rustix::io::Errno::OPNOTSUPP.into())
}
