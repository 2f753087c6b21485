//! Files of the workspace that the server or its agents read as configuration: they can switch backends and start programs. A caller
//! that may not change settings and subagents through their own routes may not write these files either.

use std::{
    collections::HashSet,
    ffi::{OsStr, OsString},
    io,
    os::{
        fd::OwnedFd,
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
};

use ostler_protocol::{
    Failure,
    daemon::files::{FileError, WorkspacePath, file_failure},
};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};

/// Names in the root of the workspace. Everything below a directory of such a name is configuration, too. Qwen Code reads the
/// address of its provider from `.env`.
const NAMES: [&str; 5] = [".ostler", ".qwen", ".codex", ".mcp.json", ".env"];
/// Files below these names that may have other names (hard links) elsewhere in the workspace.
const FILES: [&str; 3] = [".ostler/settings.json", ".qwen/settings.json", ".codex/config.toml"];
/// Entries below these names that are searched for links. If there are more, nothing is written.
const ENTRIES_MAX: usize = 200_000;
/// Links that lead to one another.
const LINKS_MAX: usize = 40;
/// How a directory is opened to compare it, and to start a path from it.
const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Levels of directories above a file. A file that is deeper is not written.
const LEVELS_MAX: usize = 256;

/// Which files of the workspace a write may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteScope {
    /// All except configuration.
    Ordinary,
    Everything,
}

pub(super) fn refusal(path: &WorkspacePath) -> Failure {
    let message = format!("{path}: this is configuration, which only callers that may change settings write");
    file_failure(FileError::Denied, message)
}

/// Whether the path names configuration. File systems may ignore the case of names.
pub(super) fn is_named(path: &WorkspacePath) -> bool {
    path.names().next().is_some_and(|first| NAMES.iter().any(|name| name.eq_ignore_ascii_case(first)))
}

/// Where configuration is: what its names stand for, and where links below them lead.
pub(super) struct ConfiguredPlaces {
    /// The directory of the workspace.
    top: Stat,
    existing: Vec<Stat>,
    /// A directory, and the name in it of a file that may not exist.
    targets: Vec<(Stat, OsString)>,
}

impl ConfiguredPlaces {
    /// Searches the workspace. `open` opens a directory by its path, unless that leads out of the workspace. `None` if there is too
    /// much to search.
    pub(super) fn find(top: &OwnedFd, open: impl Fn(&str) -> Option<OwnedFd>) -> io::Result<Option<Self>> {
        let mut places = Self { top: fstat(top)?, existing: vec![], targets: vec![] };
        for path in NAMES.iter().chain(&FILES) {
            places.add(top, OsStr::new(path))?;
        }
        let mut searched = HashSet::from([(places.top.st_dev, places.top.st_ino)]);
        let mut waiting: Vec<String> = NAMES.map(str::to_owned).to_vec();
        let mut entries = 0;
        while let Some(path) = waiting.pop() {
            let Some(directory) = open(&path) else { continue };
            let stat = fstat(&directory)?;
            if !searched.insert((stat.st_dev, stat.st_ino)) {
                continue;
            }
            for entry in Dir::read_from(&directory)? {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                entries += 1;
                if entries > ENTRIES_MAX {
                    return Ok(None);
                }
                if name == b"." || name == b".." || entry.file_type() == FileType::RegularFile {
                    continue;
                }
                if entry.file_type() != FileType::Directory {
                    places.add(&directory, OsStr::from_bytes(name))?;
                }
                if let Ok(name) = std::str::from_utf8(name) {
                    waiting.push(format!("{path}/{name}"));
                }
            }
        }
        Ok(Some(places))
    }

    /// Adds what a path names, and where it leads if it is a link.
    fn add(&mut self, directory: &OwnedFd, path: &OsStr) -> io::Result<()> {
        let found = statat(directory, path, AtFlags::empty()).ok();
        // A link to the whole workspace does not make everything configuration.
        self.existing.extend(found.filter(|found| !is_same(found, &self.top)));
        self.targets.extend(target_of(directory, path)?);
        Ok(())
    }

    /// Whether the name in the directory is configuration. `existing`: what it names now.
    pub(super) fn contain(&self, directory: &OwnedFd, name: &str, existing: Option<&Stat>) -> io::Result<bool> {
        let above = fstat(directory)?;
        let is_target =
            |(directory, target): &(Stat, OsString)| is_same(directory, &above) && target.eq_ignore_ascii_case(name);
        if existing.is_some_and(|existing| self.has(existing)) || self.targets.iter().any(is_target) {
            return Ok(true);
        }
        self.is_below(directory)
    }

    fn has(&self, stat: &Stat) -> bool {
        self.existing.iter().any(|existing| is_same(existing, stat))
    }

    /// Whether the directory is configuration, or is below a directory that is.
    fn is_below(&self, directory: &OwnedFd) -> io::Result<bool> {
        let mut current = openat(directory, ".", FOLDER, Mode::empty())?;
        for _ in 0..LEVELS_MAX {
            let found = fstat(&current)?;
            if self.has(&found) {
                return Ok(true);
            }
            if is_same(&self.top, &found) {
                return Ok(false);
            }
            current = openat(&current, "..", FOLDER, Mode::empty())?;
        }
        Ok(true)
    }
}

/// The directory and the name that a path leads to, through links, whether or not there is such a file. `None` if there is no such
/// directory. Only compared with places in the workspace, so that it may be elsewhere.
fn target_of(directory: &OwnedFd, path: &OsStr) -> io::Result<Option<(Stat, OsString)>> {
    let mut directory = openat(directory, ".", FOLDER, Mode::empty())?;
    let mut path = PathBuf::from(path);
    for _ in 0..LINKS_MAX {
        let Some(name) = path.file_name() else { return Ok(None) };
        let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let Ok(next) = openat(&directory, above, FOLDER, Mode::empty()) else { return Ok(None) };
        directory = next;
        let Ok(link) = readlinkat(&directory, name, Vec::<u8>::new()) else {
            return Ok(Some((fstat(&directory)?, name.to_owned())));
        };
        path = PathBuf::from(OsString::from_vec(link.into_bytes()));
    }
    Ok(None)
}

pub(super) fn is_same(file: &Stat, other: &Stat) -> bool {
    (file.st_dev, file.st_ino) == (other.st_dev, other.st_ino)
}
