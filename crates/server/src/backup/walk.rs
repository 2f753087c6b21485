//! Walks the files of a part of a backup. Backends may replace directories by links while it runs, so each level is opened
//! from the directory above it and links are never followed.

use std::{
    ffi::{CStr, CString, OsStr},
    fs::File,
    io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, readlinkat, statat},
    io::Errno,
};

/// Each level holds a descriptor.
const DEPTH_MAX: usize = 128;
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// `NONBLOCK`, because a file may have become a named pipe.
const FILE: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

pub(super) enum Walked {
    Directory {
        mode: u32,
    },
    File(File),
    Link(PathBuf),
    /// It exists and cannot be read, or is neither file, directory nor link.
    Unreadable(io::Error),
}

/// Called with each path, relative to the part; that of the part itself is empty.
pub(super) type Visit<'a> = &'a mut dyn FnMut(&Path, Walked) -> io::Result<()>;

/// Visits the path and everything below it, directories before their contents. A path that does not exist is not visited. The
/// path itself may be a link: the operator may have put it on another disk.
pub(super) fn walk(path: &Path, visit: Visit<'_>) -> io::Result<()> {
    let path = match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        path => path?,
    };
    let name = CString::new(path.as_os_str().as_bytes())?;
    visit_entry(CWD, &name, Path::new(""), 0, visit)
}

fn visit_entry(
    parent: impl std::os::fd::AsFd + Copy,
    name: &CStr,
    shown: &Path,
    depth: usize,
    visit: Visit<'_>,
) -> io::Result<()> {
    let found = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => found,
        // Deleted since it was listed.
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return visit(shown, Walked::Unreadable(error.into())),
    };
    let outcome = match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => match openat(parent, name, DIRECTORY, Mode::empty()) {
            Ok(_) if depth >= DEPTH_MAX => Walked::Unreadable(io::Error::other("nested too deeply")),
            Ok(directory) => return visit_directory(&File::from(directory), shown, depth, visit),
            Err(error) => missing_or(error)?,
        },
        FileType::RegularFile => match openat(parent, name, FILE, Mode::empty()) {
            Ok(file) => Walked::File(File::from(file)),
            Err(error) => missing_or(error)?,
        },
        FileType::Symlink => match readlinkat(parent, name, vec![]) {
            Ok(target) => Walked::Link(OsStr::from_bytes(target.as_bytes()).into()),
            Err(error) => missing_or(error)?,
        },
        // Sockets and pipes have no contents.
        _ => return Ok(()),
    };
    if matches!(&outcome, Walked::Unreadable(error) if error.kind() == io::ErrorKind::NotFound) {
        return Ok(());
    }
    // It may have become something else before it was opened.
    if let Walked::File(file) = &outcome
        && !file.metadata()?.is_file()
    {
        return Ok(());
    }
    visit(shown, outcome)
}

/// Too many open files, or a failed disk, is the end of the backup; everything else is about this file.
fn missing_or(error: Errno) -> io::Result<Walked> {
    match error {
        Errno::MFILE | Errno::NFILE | Errno::IO | Errno::NOMEM => Err(error.into()),
        error => Ok(Walked::Unreadable(error.into())),
    }
}

fn visit_directory(directory: &File, shown: &Path, depth: usize, visit: Visit<'_>) -> io::Result<()> {
    visit(shown, Walked::Directory { mode: directory.metadata()?.mode() & 0o777 })?;
    let mut names = vec![];
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_owned();
        if name.as_bytes() != b"." && name.as_bytes() != b".." {
            names.push(name);
        }
    }
    names.sort();
    for name in names {
        let shown = shown.join(OsStr::from_bytes(name.as_bytes()));
        visit_entry(directory, &name, &shown, depth + 1, visit)?;
    }
    Ok(())
}

/// Differs whenever a file was written or replaced.
pub(super) type Fingerprint = (u64, u64, i64, i64, u32);

pub(super) fn fingerprint(metadata: &std::fs::Metadata) -> Fingerprint {
    (metadata.ino(), metadata.size(), metadata.ctime(), metadata.ctime_nsec(), metadata.mode())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walked(path: &Path) -> Vec<String> {
        let mut all = vec![];
        walk(path, &mut |shown, found| {
            all.push(match found {
                Walked::Directory { .. } => format!("{}/", shown.display()),
                Walked::File(file) => format!("{} {}", shown.display(), file.metadata()?.len()),
                Walked::Link(target) => format!("{} -> {}", shown.display(), target.display()),
                Walked::Unreadable(error) => format!("{} {error}", shown.display()),
            });
            Ok(())
        })
        .unwrap();
        all
    }

    #[test]
    fn links_are_visited_and_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("root");
        std::fs::create_dir_all(root.join("deep/er")).unwrap();
        std::fs::write(root.join("deep/er/file"), "four").unwrap();
        std::fs::write(place.path().join("outside"), "secret").unwrap();
        std::os::unix::fs::symlink("../../outside", root.join("deep/link")).unwrap();
        std::os::unix::fs::symlink(place.path(), root.join("up")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
        let up = format!("up -> {}", place.path().display());
        assert_eq!(walked(&root), ["/", "deep/", "deep/er/", "deep/er/file 4", "deep/link -> ../../outside", &up]);
        assert_eq!(walked(&root.join("deep/er/file")), [" 4"]);
        assert_eq!(walked(&root.join("absent")), [""; 0]);
        std::os::unix::fs::symlink(root.join("deep/er"), place.path().join("moved")).unwrap();
        assert_eq!(walked(&place.path().join("moved")), ["/", "file 4"], "the part itself may be a link");
    }
}
