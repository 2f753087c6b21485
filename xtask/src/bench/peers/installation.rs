//! Where a peer is installed.

use std::path::Path;

use serde_json::{Map, Value};

pub(crate) struct Peer {
    pub version: String,
    /// Paths by their role, as the load generator names it.
    pub files: Map<String, Value>,
}

impl Peer {
    pub(crate) fn new<const N: usize>(version: String, files: [(&str, &Path); N]) -> Self {
        let path = |path: &Path| Value::String(path.display().to_string());
        Self { version, files: files.into_iter().map(|(role, file)| (role.to_owned(), path(file))).collect() }
    }
}
