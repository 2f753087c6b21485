//! Copies the parts of a bundle from a checkout into the workspace, and keeps the record of what was placed. Runs that share a
//! workspace share its record, so everything here happens under a lock.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions, TryLockError},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ostler_protocol::{
    Failure,
    kernel::resource_bundles::{BundlePart, WHOLE_REPOSITORY},
};
use serde::{Deserialize, Serialize};

use super::copy::{self, CopyError, Target};

const LOCK_FILE: &str = "lock";
/// Pause between two attempts to lock.
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// What was placed at a target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Placed {
    pub(super) source: Vec<String>,
    /// Whether all of it is there. Otherwise a runner ended while it wrote, and the next one begins again.
    pub(super) is_whole: bool,
}

/// What was placed, by target path.
type Record = BTreeMap<String, Placed>;

/// The parts of a bundle, and where they belong.
pub(super) struct Placement {
    pub(super) workspace: PathBuf,
    pub(super) checkout: PathBuf,
    pub(super) record_directory: PathBuf,
    /// Each with its entry in the record.
    pub(super) parts: Vec<(BundlePart, Placed)>,
}

/// Stops a copy when it is dropped: with the future that waits for the copy.
pub(super) struct StopOnDrop(pub(super) Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Placement {
    /// Whether nothing is to be done.
    pub(super) fn is_complete(&self) -> bool {
        let record = read_record(&self.record_directory);
        self.parts.iter().all(|(part, placed)| self.has(&record, part, placed))
    }

    /// Places the parts that are missing. The record is read under the lock: another run may have placed some of them.
    pub(super) fn place(&self, is_stopped: &AtomicBool) -> Result<(), Failure> {
        let _lock = self.lock(is_stopped)?;
        let mut record = read_record(&self.record_directory);
        for (part, placed) in &self.parts {
            if !self.has(&record, part, placed) {
                self.place_part(part, placed, &mut record, is_stopped)?;
            }
        }
        Ok(())
    }

    fn has(&self, record: &Record, part: &BundlePart, placed: &Placed) -> bool {
        let target = self.workspace.join(&part.target_path);
        record.get(&part.target_path) == Some(placed) && target.symlink_metadata().is_ok()
    }

    /// Copies one part into the workspace. The record is written before and after it, so that the next runner knows what is there.
    fn place_part(
        &self,
        part: &BundlePart,
        placed: &Placed,
        record: &mut Record,
        is_stopped: &AtomicBool,
    ) -> Result<(), Failure> {
        let failed = |error: CopyError| error.into_failure(part);
        let source = match part.subpath.as_str() {
            WHOLE_REPOSITORY => self.checkout.clone(),
            subpath => copy::find(&self.checkout, subpath).map_err(failed)?,
        };
        copy::check_size(&source).map_err(failed)?;
        let target = Target::open(&self.workspace, &part.target_path).map_err(failed)?;
        if record.contains_key(&part.target_path) {
            target.remove().map_err(failed)?;
            // What other parts have placed below it is gone, too.
            record.retain(|path, _| !Path::new(path).starts_with(&part.target_path));
        } else if target.exists() {
            return Err(failed(CopyError::Exists));
        }
        record.insert(part.target_path.clone(), Placed { is_whole: false, ..placed.clone() });
        write_record(&self.record_directory, record).map_err(Failure::internal)?;
        target.fill(&source, is_stopped).map_err(failed)?;
        record.insert(part.target_path.clone(), placed.clone());
        write_record(&self.record_directory, record).map_err(Failure::internal)
    }

    /// Locks the record until the file is dropped.
    fn lock(&self, is_stopped: &AtomicBool) -> Result<File, Failure> {
        let path = self.record_directory.join(LOCK_FILE);
        let opened = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
        let file = opened.map_err(Failure::internal)?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if !is_stopped.load(Ordering::Relaxed) => std::thread::sleep(LOCK_PAUSE),
                Err(error) => return Err(Failure::internal(error)),
            }
        }
    }
}

/// A record that cannot be read is none: then nothing in the workspace is replaced.
fn read_record(directory: &Path) -> Record {
    let text = std::fs::read(directory.join("placed.json")).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

fn write_record(directory: &Path, record: &Record) -> io::Result<()> {
    let (half, whole) = (directory.join("placed.json.half"), directory.join("placed.json"));
    std::fs::write(&half, serde_json::to_vec(record)?)?;
    std::fs::rename(half, whole)
}
