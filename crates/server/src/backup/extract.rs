//! Writes the files of a backup below the places that the configuration names. These were empty, and links are created last,
//! so nothing is ever written through a link.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions, Permissions},
    io::{Read, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use ostler_protocol::Failure;

use super::{
    format::damaged,
    places::BackupPlaces,
    read_archive::{ArchiveEntry, EntryKind},
    write_archive::failed,
};
use crate::directories;

const BUFFER_BYTES: usize = 1 << 16;

#[derive(Default)]
pub(super) struct Extracted {
    links: BTreeMap<PathBuf, PathBuf>,
    directory_modes: BTreeMap<PathBuf, u32>,
}

impl Extracted {
    /// Writes an entry. `below` is its path in the part of this name. A later entry of the same path replaces it.
    pub(super) fn write(
        &mut self,
        all: &BackupPlaces,
        (name, below): (&str, &Path),
        entry: &ArchiveEntry,
        contents: &mut dyn Read,
    ) -> Result<(), Failure> {
        let place = all.get(name)?;
        let path = if below.as_os_str().is_empty() { place.path.clone() } else { place.path.join(below) };
        self.links.remove(&path);
        match &entry.kind {
            EntryKind::Directory => {
                if path.symlink_metadata().is_ok_and(|found| !found.is_dir()) {
                    fs::remove_file(&path).map_err(|error| failed(&path, error))?;
                }
                directories::create(&path).map_err(|error| failed(&path, error))?;
                self.directory_modes.insert(path, entry.mode);
            }
            EntryKind::Link(target) => {
                self.clear(&path)?;
                self.links.insert(path, target.clone());
            }
            EntryKind::File => {
                self.clear(&path)?;
                if let Some(parent) = path.parent() {
                    directories::create(parent).map_err(|error| failed(parent, error))?;
                }
                write_file(&path, entry, contents)?;
            }
        }
        Ok(())
    }

    /// Removes what an earlier entry of this path left.
    fn clear(&mut self, path: &Path) -> Result<(), Failure> {
        if path.symlink_metadata().is_err() {
            return Ok(());
        }
        self.links.retain(|link, _| !link.starts_with(path));
        self.directory_modes.retain(|directory, _| !directory.starts_with(path));
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        removed.map_err(|error| failed(path, error))
    }

    /// Creates links, and sets the modes of directories, which may be read-only.
    pub(super) fn finish(self) -> Result<(), Failure> {
        // A link below another link would be created where that one leads.
        let is_below_link = |path: &Path| path.ancestors().skip(1).any(|ancestor| self.links.contains_key(ancestor));
        if let Some(path) = self.links.keys().find(|path| is_below_link(path)) {
            return Err(damaged(format!("{} is below a link", path.display())));
        }
        for (path, target) in &self.links {
            if let Some(parent) = path.parent() {
                directories::create(parent).map_err(|error| failed(parent, error))?;
            }
            std::os::unix::fs::symlink(target, path).map_err(|error| failed(path, error))?;
        }
        for (path, mode) in self.directory_modes.iter().rev() {
            fs::set_permissions(path, Permissions::from_mode(*mode)).map_err(|error| failed(path, error))?;
        }
        rustix::fs::sync();
        Ok(())
    }
}

fn write_file(path: &Path, entry: &ArchiveEntry, contents: &mut dyn Read) -> Result<(), Failure> {
    let broken = |error: std::io::Error| failed(path, error);
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(broken)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        // A backup that cannot be read is reported as damaged, a disk that cannot be written is not.
        let read = contents.read(&mut buffer).map_err(damaged)?;
        if read == 0 {
            break;
        }
        file.write_all(&buffer[..read]).map_err(broken)?;
    }
    if let Some(modified) = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(entry.modified)) {
        let _ = file.set_modified(modified);
    }
    file.set_permissions(Permissions::from_mode(entry.mode)).map_err(broken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::places::BackupPlace;

    fn places(root: &Path) -> BackupPlaces {
        let place =
            BackupPlace { name: "workspaces", path: root.join("workspaces"), is_backends: true, is_workspaces: true };
        BackupPlaces { places: vec![place], elsewhere: vec![], tables: vec![], left_out: vec![] }
    }

    fn write(into: &mut Extracted, root: &Path, path: &str, kind: EntryKind, mut text: &[u8]) -> Result<(), Failure> {
        let entry = ArchiveEntry { path: path.into(), kind, mode: 0o640, modified: 7 };
        let (name, below) = path.split_once('/').unwrap_or((path, ""));
        into.write(&places(root), (name, Path::new(below)), &entry, &mut text)
    }

    #[test]
    fn the_last_entry_of_a_path_counts() {
        let place = tempfile::tempdir().unwrap();
        let (root, mut extracted) = (place.path(), Extracted::default());
        let mut add = |path: &str, kind, text: &[u8]| write(&mut extracted, root, path, kind, text).unwrap();
        add("workspaces", EntryKind::Directory, b"");
        add("workspaces/a", EntryKind::File, b"first");
        add("workspaces/a", EntryKind::File, b"second");
        add("workspaces/b", EntryKind::Directory, b"");
        add("workspaces/b/c", EntryKind::File, b"lost");
        add("workspaces/b", EntryKind::Link("a".into()), b"");
        add("workspaces/d", EntryKind::Link("a".into()), b"");
        add("workspaces/d", EntryKind::File, b"a file");
        extracted.finish().unwrap();
        let read = |name: &str| fs::read_to_string(root.join("workspaces").join(name)).unwrap();
        assert_eq!((read("a").as_str(), read("b").as_str(), read("d").as_str()), ("second", "second", "a file"));
        let found = fs::metadata(root.join("workspaces/a")).unwrap();
        assert_eq!(found.permissions().mode() & 0o777, 0o640);
        assert_eq!(found.modified().unwrap(), SystemTime::UNIX_EPOCH + Duration::from_secs(7));
        assert!(fs::symlink_metadata(root.join("workspaces/b")).unwrap().is_symlink());
    }

    #[test]
    fn nothing_is_written_through_a_link() {
        let place = tempfile::tempdir().unwrap();
        let outside = place.path().join("outside");
        fs::create_dir(&outside).unwrap();
        let (root, mut extracted) = (place.path().join("root"), Extracted::default());
        write(&mut extracted, &root, "workspaces/out", EntryKind::Link(outside.clone()), b"").unwrap();
        write(&mut extracted, &root, "workspaces/out/planted", EntryKind::File, b"x").unwrap();
        assert!(extracted.finish().is_err(), "the link has no place any more");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        // Nor is a link, however far below.
        for below in ["workspaces/out/planted", "workspaces/out/new/planted"] {
            let mut extracted = Extracted::default();
            let root = place.path().join(below.replace('/', "-"));
            write(&mut extracted, &root, "workspaces/out", EntryKind::Link(outside.clone()), b"").unwrap();
            write(&mut extracted, &root, below, EntryKind::Link("/etc/hosts".into()), b"").unwrap();
            assert_eq!(extracted.finish().unwrap_err().rule_name(), Some("backup-damaged"), "{below}");
            assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{below}");
        }
    }

    #[test]
    fn a_time_that_no_clock_can_show_is_ignored() {
        let place = tempfile::tempdir().unwrap();
        let entry =
            ArchiveEntry { path: "workspaces/a".into(), kind: EntryKind::File, mode: 0o640, modified: u64::MAX };
        let parts = ("workspaces", Path::new("a"));
        Extracted::default().write(&places(place.path()), parts, &entry, &mut &b"x"[..]).unwrap();
        assert_eq!(fs::read(place.path().join("workspaces/a")).unwrap(), b"x");
    }

    #[test]
    fn a_part_that_nothing_declares_is_rejected() {
        let place = tempfile::tempdir().unwrap();
        let failure = write(&mut Extracted::default(), place.path(), "unknown/x", EntryKind::File, b"x").unwrap_err();
        assert_eq!(failure.rule_name(), Some("backup-damaged"));
    }
}
