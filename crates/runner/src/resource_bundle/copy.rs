//! Copies files of a checkout into a workspace. Every entry of the workspace is opened relative to its open directory, and no
//! symbolic link is followed on either side: links of the repository are copied as links.

use std::{
    ffi::{OsStr, OsString},
    fs::{File, Metadata},
    io,
    os::{fd::OwnedFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use ostler_protocol::{Failure, Rule, kernel::resource_bundles::BundlePart};
use rustix::{
    fs::{AtFlags, CWD, Dir, Mode, OFlags, mkdirat, openat, statat, symlinkat, unlinkat},
    io::Errno,
    path::Arg,
};

/// Files, directories and links of one part.
const ENTRIES_MAX: usize = 10_000;
/// Bytes of all files of one part.
const BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Deeper directories are refused.
const DEPTH_MAX: usize = 64;
/// The repository in its own checkout, which is not part of its files.
const GIT_FOLDER: &str = ".git";

/// Why a part cannot be placed.
#[derive(Debug)]
pub(super) enum CopyError {
    /// The repository does not have it.
    Missing,
    /// Something else is at its target.
    Exists,
    TooLarge,
    /// The runner no longer waits for the copy.
    Stopped,
    /// Its target cannot be written.
    Target(io::Error),
    Source(io::Error),
}

impl CopyError {
    pub(super) fn into_failure(self, part: &BundlePart) -> Failure {
        let BundlePart { subpath, target_path } = part;
        let (rule, message) = match self {
            Self::Missing => (Rule::ResourceBundleMissing, format!("the repository has no {subpath:?} at this commit")),
            Self::Exists => {
                let message = format!("{target_path:?} exists in the workspace, and no resource bundle has placed it");
                (Rule::ResourceBundleTarget, message)
            }
            Self::TooLarge => {
                let message = format!(
                    "{subpath:?} has more than {ENTRIES_MAX} entries, {BYTES_MAX} bytes or {DEPTH_MAX} levels of directories"
                );
                (Rule::ResourceBundleSize, message)
            }
            Self::Target(error) => {
                let message = format!("{target_path:?} cannot be written in the workspace: {}", error.kind());
                (Rule::ResourceBundleTarget, message)
            }
            Self::Stopped => return Failure::internal("copying the resource bundle was stopped"),
            Self::Source(error) => return Failure::internal(error),
        };
        Failure::rule(rule, message)
    }
}

/// The path of a part in the checkout. A link on the way would lead elsewhere.
pub(super) fn find(checkout: &Path, subpath: &str) -> Result<PathBuf, CopyError> {
    let mut path = checkout.to_owned();
    for (number, name) in subpath.split('/').enumerate() {
        if number > 0 && !metadata(&path)?.is_dir() {
            return Err(CopyError::Missing);
        }
        path.push(name);
    }
    let found = metadata(&path)?;
    if found.is_dir() || found.is_file() { Ok(path) } else { Err(CopyError::Missing) }
}

/// Of the entry itself, not of what it links to.
fn metadata(path: &Path) -> Result<Metadata, CopyError> {
    std::fs::symlink_metadata(path).map_err(|_| CopyError::Missing)
}

/// Checks the sizes of all files of a part, as the repository lists them. `None`: there are too many to list.
pub(super) fn check_sizes(sizes: Option<&[u64]>) -> Result<(), CopyError> {
    let sizes = sizes.ok_or(CopyError::TooLarge)?;
    let bytes = sizes.iter().fold(0_u64, |sum, size| sum.saturating_add(*size));
    match sizes.len() {
        0 => Err(CopyError::Missing),
        entries if entries > ENTRIES_MAX || bytes > BYTES_MAX => Err(CopyError::TooLarge),
        _ => Ok(()),
    }
}

/// Counts everything before anything is written.
pub(super) fn check_size(source: &Path) -> Result<(), CopyError> {
    let (mut entries, mut bytes) = (0, 0_u64);
    let mut waiting = vec![(source.to_owned(), 0)];
    while let Some((path, depth)) = waiting.pop() {
        let found = std::fs::symlink_metadata(&path).map_err(CopyError::Source)?;
        entries += 1;
        if found.is_dir() {
            for name in names(&path, depth)? {
                waiting.push((path.join(name), depth + 1));
            }
        } else {
            bytes = bytes.saturating_add(found.len());
        }
        if entries + waiting.len() > ENTRIES_MAX || bytes > BYTES_MAX || depth > DEPTH_MAX {
            return Err(CopyError::TooLarge);
        }
    }
    Ok(())
}

/// The entries of a directory of the checkout.
fn names(directory: &Path, depth: usize) -> Result<Vec<OsString>, CopyError> {
    let entries = std::fs::read_dir(directory).map_err(CopyError::Source)?;
    let mut names = vec![];
    for entry in entries {
        let name = entry.map_err(CopyError::Source)?.file_name();
        if depth > 0 || name != GIT_FOLDER {
            names.push(name);
        }
    }
    Ok(names)
}

/// A place in the workspace, with its directory open.
pub(super) struct Target {
    parent: OwnedFd,
    name: String,
}

impl Target {
    /// Opens the directory of a target, and creates it if it does not exist.
    pub(super) fn open(workspace: &Path, path: &str) -> Result<Self, CopyError> {
        let mut parent = open_directory(CWD, workspace, OFlags::empty()).map_err(CopyError::Target)?;
        let mut names = path.split('/').peekable();
        while let Some(name) = names.next() {
            if names.peek().is_none() {
                return Ok(Self { parent, name: name.to_owned() });
            }
            make_directory(&parent, name.as_ref()).map_err(CopyError::Target)?;
            parent = open_directory(&parent, name, OFlags::NOFOLLOW).map_err(CopyError::Target)?;
        }
        Err(CopyError::Target(io::ErrorKind::InvalidInput.into()))
    }

    pub(super) fn exists(&self) -> bool {
        statat(&self.parent, &self.name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Removes whatever is there.
    pub(super) fn remove(&self) -> Result<(), CopyError> {
        remove(&self.parent, &self.name, 0).map_err(CopyError::Target)
    }

    /// Copies a file or directory of the checkout to the place, where nothing must be.
    pub(super) fn fill(&self, source: &Path, is_stopped: &AtomicBool) -> Result<(), CopyError> {
        fill(&self.parent, self.name.as_ref(), source, 0, is_stopped)
    }
}

fn open_directory(at: impl std::os::fd::AsFd, name: impl Arg, more: OFlags) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | more;
    Ok(openat(at, name, flags, Mode::empty())?)
}

fn make_directory(at: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match mkdirat(at, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn remove(at: &OwnedFd, name: impl Arg + Copy, depth: usize) -> io::Result<()> {
    match unlinkat(at, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        // Only a directory is refused in this way.
        Err(Errno::ISDIR | Errno::PERM) if depth <= DEPTH_MAX => {}
        Err(error) => return Err(error.into()),
    }
    let directory = open_directory(at, name, OFlags::NOFOLLOW)?;
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            remove(&directory, entry.file_name(), depth + 1)?;
        }
    }
    Ok(unlinkat(at, name, AtFlags::REMOVEDIR)?)
}

fn fill(at: &OwnedFd, name: &OsStr, source: &Path, depth: usize, is_stopped: &AtomicBool) -> Result<(), CopyError> {
    if is_stopped.load(Ordering::Relaxed) {
        return Err(CopyError::Stopped);
    }
    let target = |error: Errno| CopyError::Target(error.into());
    let found = std::fs::symlink_metadata(source).map_err(CopyError::Source)?;
    if found.is_symlink() {
        let linked = std::fs::read_link(source).map_err(CopyError::Source)?;
        return symlinkat(linked, at, name).map_err(target);
    }
    if found.is_dir() {
        mkdirat(at, name, Mode::from_raw_mode(0o755)).map_err(target)?;
        let directory = open_directory(at, name, OFlags::NOFOLLOW).map_err(CopyError::Target)?;
        for below in names(source, depth)? {
            fill(&directory, &below, &source.join(&below), depth + 1, is_stopped)?;
        }
        return Ok(());
    }
    // Git has only two modes of files.
    let mode = if found.permissions().mode() & 0o100 == 0 { 0o644 } else { 0o755 };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let out = openat(at, name, flags, Mode::from_raw_mode(mode)).map_err(target)?;
    let mut file = File::open(source).map_err(CopyError::Source)?;
    io::copy(&mut file, &mut File::from(out)).map(drop).map_err(CopyError::Target)
}
