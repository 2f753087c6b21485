//! Creating directories that only their owner may enter.

use std::{io, os::unix::fs::DirBuilderExt, path::Path};

/// Creates a directory that only its owner may enter, and its parents. An existing directory is kept.
pub fn create(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}
