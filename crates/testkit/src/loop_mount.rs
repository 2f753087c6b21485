//! File systems in image files, mounted through loop devices. What is unmounted and detached is exactly what was mounted
//! here. They need root; [`LoopMount::create`] names what is missing.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

const COPIES_MAX: u32 = 10;

/// Runs a tool of the system. The error is what the tool printed.
fn tool(name: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(name).args(args).output().map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Err(format!("{name} {args:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

fn text(path: &Path) -> Result<&str, String> {
    path.to_str().ok_or_else(|| format!("{} is not UTF-8", path.display()))
}

/// A mounted image. Dropping it unmounts the file system and detaches its loop device; the image file stays.
pub struct LoopMount {
    pub dir: PathBuf,
    pub image: PathBuf,
    device: String,
    mounted: bool,
}

impl LoopMount {
    /// Creates an ext4 file system of this size in `image` and mounts it at `dir`.
    pub fn create(image: &Path, bytes: u64, dir: &Path) -> Result<Self, String> {
        File::create(image).and_then(|file| file.set_len(bytes)).map_err(|error| error.to_string())?;
        // Everything is written now, so that the kernel has no initialisation left to do in the background.
        let options = "lazy_itable_init=0,lazy_journal_init=0";
        tool("mkfs.ext4", &["-q", "-F", "-m", "0", "-E", options, text(image)?])?;
        Self::mount(image, dir)
    }

    /// Mounts an existing image. A journal that was not closed is replayed, as after a power cut.
    pub fn mount(image: &Path, dir: &Path) -> Result<Self, String> {
        fs::create_dir_all(dir).map_err(|error| error.to_string())?;
        let device = tool("losetup", &["--find", "--show", text(image)?])?;
        let mut mount = Self { dir: dir.to_owned(), image: image.to_owned(), device, mounted: false };
        // The journal is not committed by a timer: only what a process asked for reaches the device.
        tool("mount", &["-t", "ext4", "-o", "noatime,commit=900", &mount.device, text(dir)?])?;
        mount.mounted = true;
        Ok(mount)
    }

    /// Writes everything to the device, so that only what comes later can be lost.
    pub fn sync(&self) -> Result<(), String> {
        tool("sync", &["--file-system", text(&self.dir)?]).map(drop)
    }

    /// Copies the image as the device has it at this moment, without what only the page cache of the mounted file
    /// system holds. Reads of the image file see what the loop device wrote to it and nothing else. If the kernel wrote
    /// to the device during the copy, the copy would mix two states of the file system: it is made again.
    pub fn copy_device(&self, to: &Path) -> Result<(), String> {
        for _ in 0..COPIES_MAX {
            let before = self.writes();
            // Most of an image is holes, which a plain copy would fill.
            tool("cp", &["--sparse=always", text(&self.image)?, text(to)?])?;
            if self.writes() == before {
                return Ok(());
            }
        }
        Err(format!("{} was written to during each of {COPIES_MAX} copies", self.device))
    }

    /// The completed writes, the writes in progress and the flushes of the device, from the kernel's statistics.
    fn writes(&self) -> Option<[String; 3]> {
        let name = self.device.strip_prefix("/dev/")?;
        let stat = fs::read_to_string(format!("/sys/block/{name}/stat")).ok()?;
        let field = |number: usize| stat.split_whitespace().nth(number).map(str::to_owned);
        Some([field(4)?, field(8)?, field(15)?])
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
