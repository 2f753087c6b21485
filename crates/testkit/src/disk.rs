//! A small file system of its own, to fill up and to free again.

use std::{
    fs::{File, Permissions, set_permissions},
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::loop_mount::LoopMount;

/// Where `cargo xtask test` collects what could not be tested, to print it at its end.
const NOT_TESTED_FILE: &str = "OSTLER_NOT_TESTED";
/// If this is set, a test that cannot run fails.
const TEST_EVERYTHING: &str = "OSTLER_TEST_EVERYTHING";

/// A mounted file system. Dropping it unmounts it.
pub struct SmallDisk {
    mount: LoopMount,
    // Dropped last: the image is in it.
    scratch: TempDir,
}

impl SmallDisk {
    /// Mounts a file system of this size, or records that `test` cannot run on this machine.
    pub fn mount_for(test: &str, bytes: u64) -> Option<Self> {
        match Self::mount(bytes) {
            Ok(disk) => Some(disk),
            Err(why) => {
                not_tested(test, &format!("a file system cannot be mounted here: {why}"));
                None
            }
        }
    }

    fn mount(bytes: u64) -> Result<Self, String> {
        let scratch = tempfile::Builder::new().prefix("ostler-disk-").tempdir().map_err(|e| e.to_string())?;
        let mount = LoopMount::create(&scratch.path().join("image"), bytes, &scratch.path().join("disk"))?;
        Ok(Self { mount, scratch })
    }

    pub fn path(&self) -> &Path {
        &self.mount.dir
    }

    /// Lets every user reach and use it: Postgres does not run as root.
    pub fn open_to_all(&self) -> std::io::Result<()> {
        let mode = || Permissions::from_mode(0o777);
        set_permissions(self.scratch.path(), mode())?;
        set_permissions(self.path(), mode())
    }

    /// Writes until nothing more fits. Call it again for space that was freed since.
    pub fn fill(&self) {
        let Ok(mut file) = File::options().create(true).append(true).open(self.ballast()) else { return };
        for size in [1024 * 1024, 64 * 1024, 4096, 512] {
            let block = vec![7; size];
            while file.write_all(&block).is_ok() {}
        }
    }

    /// Frees what [`SmallDisk::fill`] took.
    pub fn free(&self) -> std::io::Result<()> {
        std::fs::remove_file(self.ballast())
    }

    fn ballast(&self) -> PathBuf {
        self.path().join("ballast")
    }
}

/// Records that a test cannot run on this machine, past the capture of a passing test's output.
///
/// # Panics
/// If every test must run (`OSTLER_TEST_EVERYTHING`).
pub fn not_tested(test: &str, why: &str) {
    assert!(std::env::var_os(TEST_EVERYTHING).is_none(), "{test} cannot run: {why}");
    let line = format!("NOT TESTED: {test}: {why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os(NOT_TESTED_FILE) {
        let file = File::options().create(true).append(true).open(path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        assert!(written.is_ok(), "that {test} did not run could not be recorded: {written:?}");
    }
}
