//! References of runs that were found to be to the workspace that the server is bound to. Each call of an MCP server's tool depends on
//! it, and a whole check resolves several paths link by link.

use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use ostler_protocol::{
    RawJson,
    kernel::{runs::Run, workspaces::WorkspaceRef},
};
use parking_lot::Mutex;

use super::workspaces;
use crate::app::App;

/// References that are remembered. Runs of the workspace have the same one, unless links lead to it.
const REFERENCES_MAX: usize = 64;

/// References that a whole check has accepted.
#[derive(Default)]
pub(crate) struct BoundReferences(Mutex<Vec<Arc<AcceptedReference>>>);

struct AcceptedReference {
    tenant_id: String,
    /// As the run has it.
    reference: String,
    path: PathBuf,
    directory: DirectoryId,
}

/// Distinguishes a directory from others, whatever its path: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DirectoryId(u64, u64);

impl DirectoryId {
    /// Of the directory to which a path leads. `None` if it leads to none.
    fn of(path: &Path) -> Option<Self> {
        let found = path.metadata().ok().filter(std::fs::Metadata::is_dir)?;
        Some(Self(found.dev(), found.ino()))
    }

    /// Of the directory to which both paths lead.
    fn of_both(path: &Path, bound: &Path) -> Option<Self> {
        let directory = Self::of(path)?;
        (path == bound || Self::of(bound) == Some(directory)).then_some(directory)
    }
}

impl BoundReferences {
    /// Whether a run works in the workspace that the server is bound to. A reference that was accepted is checked as a whole again if
    /// its path, or that of the workspace, leads to another directory than before.
    pub(crate) fn has(&self, app: &App, run: &Run) -> bool {
        let Some(bound) = app.config.server.workspace.as_deref() else { return false };
        self.has_or_accepts(bound, &run.tenant_id, &run.workspace_ref, || workspaces::is_bound(app, run))
    }

    fn has_or_accepts(
        &self,
        bound: &Path,
        tenant_id: &str,
        reference: &RawJson,
        is_accepted: impl FnOnce() -> bool,
    ) -> bool {
        let known = {
            let known = self.0.lock();
            known.iter().find(|known| known.tenant_id == tenant_id && known.reference == reference.as_str()).cloned()
        };
        if known.is_some_and(|known| DirectoryId::of_both(&known.path, bound) == Some(known.directory)) {
            return true;
        }
        let Ok(WorkspaceRef::Local { path }) = WorkspaceRef::read(reference) else { return false };
        let path = PathBuf::from(path);
        // Before the check, so that a directory that replaces this one during the check is checked next time.
        let directory = DirectoryId::of_both(&path, bound);
        if !is_accepted() {
            return false;
        }
        if let Some(directory) = directory {
            let (tenant_id, reference) = (tenant_id.to_owned(), reference.as_str().to_owned());
            let mut known = self.0.lock();
            known.retain(|known| known.tenant_id != tenant_id || known.reference != reference);
            if known.len() >= REFERENCES_MAX {
                known.clear();
            }
            known.push(Arc::new(AcceptedReference { tenant_id, reference, path, directory }));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn reference(path: &Path) -> RawJson {
        RawJson::of(&json!({"kind": "local", "path": path}))
    }

    #[test]
    fn an_accepted_reference_is_checked_again_when_it_leads_elsewhere() {
        let root = tempfile::tempdir().unwrap();
        let (bound, other, link) = (root.path().join("bound"), root.path().join("other"), root.path().join("link"));
        std::fs::create_dir(&bound).unwrap();
        std::fs::create_dir(&other).unwrap();
        std::os::unix::fs::symlink(&bound, &link).unwrap();
        let references = BoundReferences::default();
        let never = || -> bool { panic!("it is not checked again") };
        for path in [&bound, &link] {
            assert!(!references.has_or_accepts(&bound, "a", &reference(path), || false));
            assert!(references.has_or_accepts(&bound, "a", &reference(path), || true));
            assert!(references.has_or_accepts(&bound, "a", &reference(path), never));
            assert!(!references.has_or_accepts(&bound, "b", &reference(path), || false), "of another tenant");
        }
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(&other, &link).unwrap();
        assert!(!references.has_or_accepts(&bound, "a", &reference(&link), || false));
        // The link leads to the directory that was the workspace, and the workspace is another one.
        std::fs::rename(&bound, root.path().join("moved")).unwrap();
        std::fs::rename(&other, &bound).unwrap();
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(root.path().join("moved"), &link).unwrap();
        assert!(!references.has_or_accepts(&bound, "a", &reference(&link), || false));
        assert!(!references.has_or_accepts(&bound, "a", &reference(&bound), || false), "it was replaced");
        assert!(references.has_or_accepts(&bound, "a", &reference(&bound), || true));
        std::fs::remove_dir(&bound).unwrap();
        assert!(!references.has_or_accepts(&bound, "a", &reference(&bound), || false));
    }

    #[test]
    fn references_are_bounded_and_other_kinds_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let references = BoundReferences::default();
        for number in 0..2 * REFERENCES_MAX {
            assert!(references.has_or_accepts(root.path(), &number.to_string(), &reference(root.path()), || true));
        }
        assert!(references.0.lock().len() <= REFERENCES_MAX);
        let none = RawJson::of(&json!({"kind": "none"}));
        assert!(!references.has_or_accepts(root.path(), "a", &none, || true));
    }
}
