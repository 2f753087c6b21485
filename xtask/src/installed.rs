//! What the tests drive and other people publish: installed once into the cache directory, exactly as in a committed lock
//! file, beside each other and away from the user's own packages.

use std::fs;
use std::path::{Path, PathBuf};

use crate::tools::cache_dir;

/// Written last, with the lock file that was installed: without it an installation is not whole.
const MARK: &str = "installed-lock";

/// The directory of this name, made again unless it matches the lock file and is complete.
pub(crate) fn find_or_make(
    name: &str,
    lock: &str,
    is_good: impl Fn(&Path) -> bool,
    make: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let directory = cache_dir()?.join(name);
    if is_whole(&directory, lock) && is_good(&directory) {
        return Ok(directory);
    }
    let place = directory.parent().ok_or("the cache directory has no parent")?;
    fs::create_dir_all(place).map_err(|e| format!("cannot make {}: {e}", place.display()))?;
    let scratch = || {
        let made = tempfile::Builder::new().prefix(&format!("{name}-")).tempdir_in(place);
        made.map_err(|e| format!("cannot write to {}: {e}", place.display()))
    };
    // Installed beside it first, so that no process sees half an installation.
    let new = scratch()?;
    make(new.path())?;
    fs::write(new.path().join(MARK), lock).map_err(|e| format!("cannot write {MARK}: {e}"))?;
    // What was there is moved aside before it is deleted: its files may be in use.
    let aside = scratch()?;
    let _ = fs::rename(&directory, aside.path().join("old"));
    match fs::rename(new.path(), &directory) {
        Ok(()) => {}
        // Another process was faster, with the same result.
        Err(_) if is_whole(&directory, lock) => {}
        Err(error) => return Err(format!("cannot put {} in its place: {error}", directory.display())),
    }
    if is_good(&directory) {
        Ok(directory)
    } else {
        Err(format!("{} is installed, but not whole", directory.display()))
    }
}

fn is_whole(directory: &Path, lock: &str) -> bool {
    fs::read_to_string(directory.join(MARK)).is_ok_and(|installed| installed == lock)
}
