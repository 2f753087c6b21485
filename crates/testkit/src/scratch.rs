//! Directories for one test each. Most tests do not depend on the disk, and waiting for it is what makes them slow: their
//! files are in memory, where a sync costs nothing and every durability setting keeps its default. A test about
//! durability, recovery or a file system asks for a directory on disk.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Where Linux keeps a file system in memory.
const MEMORY: &str = "/dev/shm";
/// With less than this the directory is on disk: containers often limit it to 64 MiB.
const ROOM_BYTES_MIN: u64 = 2 * 1024 * 1024 * 1024;

/// The directory in which [`in_memory`] makes its own: on a file system in memory if there is one with enough room,
/// otherwise the directory for temporary files.
pub fn memory_root() -> PathBuf {
    let memory = Path::new(MEMORY);
    let has_room = rustix::fs::statvfs(memory).is_ok_and(|fs| fs.f_bavail * fs.f_frsize >= ROOM_BYTES_MIN);
    if has_room { memory.to_owned() } else { std::env::temp_dir() }
}

/// A directory whose files do not survive a power cut.
pub fn in_memory() -> TempDir {
    new_in(&memory_root())
}

/// A directory for tests about durability: a sync waits for the disk.
pub fn on_disk() -> TempDir {
    new_in(&std::env::temp_dir())
}

fn new_in(root: &Path) -> TempDir {
    let made = tempfile::Builder::new().prefix("ostler-test-").tempdir_in(root);
    made.unwrap_or_else(|error| panic!("no scratch directory in {}: {error}", root.display()))
}
