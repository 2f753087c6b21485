//! The manifests of `deploy/kubernetes`: which overlays there are, and whether their rendered copies are up to date.
//! `cargo xtask kubernetes` renders them with kubectl; tests read the copies, so they need no kubectl.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Folders of `deploy/kubernetes` that can be applied.
pub const OVERLAYS: [&str; 4] = ["small", "production", "agentrun", "migration"];

/// Files of `deploy/kubernetes` that are applied by themselves, as they are.
pub const SINGLE_FILES: [&str; 4] =
    ["clients.yaml", "restore/agentrun.yaml", "restore/production.yaml", "restore/small.yaml"];

/// The beginning of the first line of a rendered overlay; the digest of the sources follows.
const MARK: &str = "# Written by `cargo xtask kubernetes` from sources with the digest ";

/// `deploy/kubernetes`, in the checkout at `root`.
pub fn directory(root: &Path) -> PathBuf {
    root.join("deploy/kubernetes")
}

/// The rendered copy of an overlay.
pub fn rendered(root: &Path, overlay: &str) -> PathBuf {
    directory(root).join("rendered").join(format!("{overlay}.yaml"))
}

/// The first line of a copy that was rendered from the current sources.
pub fn mark(root: &Path) -> io::Result<String> {
    Ok(format!("{MARK}{:016x}.", digest(root)?))
}

/// A digest of all sources: FNV-1a over their names and contents. It detects stale copies and protects against nothing.
fn digest(root: &Path) -> io::Result<u64> {
    let mut files = vec![];
    for folder in OVERLAYS.iter().chain(&["base"]) {
        for entry in fs::read_dir(directory(root).join(folder))? {
            files.push(format!("{folder}/{}", entry?.file_name().to_string_lossy()));
        }
    }
    files.sort();
    let mut digest: u64 = 0xcbf2_9ce4_8422_2325;
    let mut add = |bytes: &[u8]| {
        // The length separates a name from contents, and one file from the next.
        for byte in (bytes.len() as u64).to_le_bytes().iter().chain(bytes) {
            digest = (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for name in &files {
        add(name.as_bytes());
        add(&fs::read(directory(root).join(name))?);
    }
    Ok(digest)
}
