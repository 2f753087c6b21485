//! A file that exists while a restore into the data directory has begun and has not ended. While it exists no server starts
//! there: half of a backup looks like a server that lost data.

use std::{fs::File, path::Path};

use ostler_protocol::{Failure, Rule};

pub(crate) const NAME: &str = "restore-unfinished";

/// Rejects a data directory into which a restore was cut off.
pub(crate) fn check(data_dir: &Path) -> Result<(), Failure> {
    if !data_dir.join(NAME).exists() {
        return Ok(());
    }
    let message = format!("a restore into {} was cut off, so its data is not complete", data_dir.display());
    Err(Failure::rule(Rule::RestoreUnfinished, message))
}

pub(crate) fn set(data_dir: &Path) -> std::io::Result<()> {
    File::create_new(data_dir.join(NAME))?.sync_all()?;
    File::open(data_dir)?.sync_all()
}

pub(crate) fn remove(data_dir: &Path) -> std::io::Result<()> {
    std::fs::remove_file(data_dir.join(NAME))?;
    File::open(data_dir)?.sync_all()
}
