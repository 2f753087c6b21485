//! File systems of our own, in image files: what is unmounted and detached again is exactly what was mounted here.

use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

/// Runs a tool of the system. `Err`: what it said.
fn tool(name: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(name).args(args).output().map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Err(format!("{name} {args:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// An ext4 file system in a file. Everything is written out, so that the kernel has nothing to do later.
pub fn make_image(image: &Path, bytes: u64) -> Result<(), String> {
    File::create(image).and_then(|file| file.set_len(bytes)).map_err(|error| error.to_string())?;
    let path = image.to_str().unwrap();
    tool("mkfs.ext4", &["-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", path]).map(drop)
}

/// A mounted image.
pub struct LoopMount {
    pub dir: PathBuf,
    device: String,
    mounted: bool,
}

impl LoopMount {
    /// The journal is not committed by the clock, so that only what a process asked for reaches the device.
    pub fn new(image: &Path, dir: &Path) -> Result<Self, String> {
        std::fs::create_dir_all(dir).map_err(|error| error.to_string())?;
        let device = tool("losetup", &["--find", "--show", image.to_str().unwrap()])?;
        let mut mount = Self { dir: dir.to_owned(), device, mounted: false };
        let options = "noatime,commit=900";
        tool("mount", &["-t", "ext4", "-o", options, &mount.device, dir.to_str().unwrap()])?;
        mount.mounted = true;
        Ok(mount)
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        let dir = self.dir.to_str().unwrap_or_default();
        if self.mounted {
            let _ = tool("umount", &[dir]).or_else(|_| tool("umount", &["--lazy", dir]));
        }
        let _ = tool("losetup", &["--detach", &self.device]);
    }
}

/// Where `cargo xtask test` gathers what could not be tested, to say it at its end.
const NOT_TESTED_FILE: &str = "OSTLER_NOT_TESTED";
/// Set to anything: what cannot be tested here has failed.
const TEST_EVERYTHING: &str = "OSTLER_TEST_EVERYTHING";

/// Mounts, or says aloud that this machine cannot: past the capture of a passing test's output.
pub fn mount_or_say_so(image: &Path, bytes: u64, dir: &Path) -> Option<LoopMount> {
    let why = match make_image(image, bytes).and_then(|()| LoopMount::new(image, dir)) {
        Ok(mount) => return Some(mount),
        Err(why) => why,
    };
    assert!(std::env::var_os(TEST_EVERYTHING).is_none(), "loop mounts are not available here: {why}");
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let line = format!("NOT TESTED: {test}: loop mounts are not available here: {why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(file) = std::env::var_os(NOT_TESTED_FILE) {
        let mut file = File::options().create(true).append(true).open(file).unwrap();
        file.write_all(line.as_bytes()).unwrap();
    }
    None
}
