//! The workspace that the server is bound to, if the operator names one. It is checked at the start, so that no client finds a
//! workspace that is not there, or reads the server's own secrets in it.

use std::path::{Path, PathBuf};

use ostler_protocol::{Failure, Rule};

use crate::{config::Config, startup::not_started};

/// The directory without symbolic links. `None` if the server is bound to none.
pub(crate) fn find(config: &Config, data_dir: &Path) -> Result<Option<PathBuf>, Failure> {
    let Some(named) = &config.server.workspace else { return Ok(None) };
    let refused =
        |why: &dyn std::fmt::Display| not_started(Rule::Workspace, format!("the workspace {}: {why}", named.display()));
    if !named.is_absolute() {
        return Err(refused(&"not an absolute path"));
    }
    let workspace = named.canonicalize().map_err(|error| refused(&error))?;
    if !workspace.is_dir() {
        return Err(refused(&"not a directory"));
    }
    let data_dir = data_dir.canonicalize().map_err(|error| not_started(Rule::DataDir, error))?;
    if workspace.starts_with(&data_dir) {
        return Err(refused(&"it is inside the server's data directory"));
    }
    if data_dir.starts_with(&workspace) {
        return Err(refused(&"it contains the server's data directory, where its keys and tokens are"));
    }
    Ok(Some(workspace))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(workspace: &Path, data_dir: &Path) -> String {
        let mut config = Config::default();
        config.server.workspace = Some(workspace.to_owned());
        let failure = find(&config, data_dir).unwrap_err();
        assert_eq!(failure.broken_rule(), Some(Rule::Workspace));
        failure.message
    }

    #[test]
    fn a_workspace_is_an_existing_directory_apart_from_the_data_directory() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let (data_dir, workspace) = (root.join("data"), root.join("workspace"));
        std::fs::create_dir_all(data_dir.join("inner")).unwrap();
        std::fs::create_dir(&workspace).unwrap();
        std::fs::write(root.join("file"), "").unwrap();
        std::os::unix::fs::symlink(&root, root.join("link")).unwrap();
        for (named, expected) in [
            (PathBuf::from("workspace"), "not an absolute path"),
            (root.join("absent"), "No such file or directory"),
            (root.join("file"), "not a directory"),
            (data_dir.clone(), "inside the server's data directory"),
            (data_dir.join("inner"), "inside the server's data directory"),
            (root.join("link/data/inner"), "inside the server's data directory"),
            (root.clone(), "contains the server's data directory"),
        ] {
            let message = message(&named, &data_dir);
            assert!(message.contains(expected) && message.contains(&*named.to_string_lossy()), "{message}");
        }
        let mut config = Config::default();
        assert_eq!(find(&config, &data_dir).unwrap(), None);
        config.server.workspace = Some(root.join("link/workspace"));
        assert_eq!(find(&config, &data_dir).unwrap(), Some(workspace));
    }
}
