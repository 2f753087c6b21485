//! Text files that the services of the workspace read and write whole: in the workspace, and in the data directory for the
//! server's own.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use ostler_protocol::{Failure, Rule, daemon::memory::MEMORY_FILE_BYTES_MAX};
use ostler_server::{app::App, directories};
use ostler_store::attempts::Attempts;

use crate::{
    files::{Expected, Workspace},
    state::DaemonState,
};

/// How often one change of a file is tried while others write the file, too.
const CHANGES_MAX: usize = 3;

/// Counts the attempts at one change of a file. `refuse` is the failure if others wrote the file during each of them.
pub(super) fn attempts<F: Fn() -> Failure>(refuse: F) -> Attempts<'static, F> {
    Attempts::at_most(CHANGES_MAX, refuse)
}

/// Where a document is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum DocumentPlace {
    /// A path in the workspace.
    Workspace(&'static str),
    /// A path in the data directory. Its writers hold a lock.
    Data(&'static str),
}

/// A document as it was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Document {
    pub text: String,
    /// The digest of a document in the workspace, where others write, too.
    pub(super) hash: Option<String>,
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum WriteOutcome {
    Done,
    /// Another writer was first: read the document again.
    Outdated,
}

impl DocumentPlace {
    fn path(self, app: &App) -> Result<PathBuf, Failure> {
        Ok(match self {
            Self::Workspace(path) => DaemonState::of(app).workspace()?.join(path),
            Self::Data(path) => app.config.data_dir()?.join(path),
        })
    }

    /// The path, as clients see it: absolute in the workspace, whose path they know, and relative in the data directory.
    pub(crate) fn shown_path(self, app: &App) -> Result<String, Failure> {
        match self {
            Self::Workspace(_) => Ok(self.path(app)?.to_string_lossy().into_owned()),
            Self::Data(path) => Ok(path.to_owned()),
        }
    }

    /// The path in its directory.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Workspace(path) | Self::Data(path) => path,
        }
    }

    /// Whether a name of it in the workspace is a symbolic link.
    pub(crate) fn is_link(self, app: &App) -> Result<bool, Failure> {
        Ok(fs::symlink_metadata(self.path(app)?).is_ok_and(|found| found.is_symlink()))
    }
}

/// The document. `None` if there is none.
pub(crate) async fn read(app: &App, place: DocumentPlace) -> Result<Option<Document>, Failure> {
    let DocumentPlace::Workspace(name) = place else {
        let path = place.path(app)?;
        let bytes = blocking(move || read_data(&path)).await?;
        let document = |text| Document { text, hash: None };
        return bytes.map(|bytes| as_text(place.name(), bytes).map(document)).transpose();
    };
    let workspace = Workspace::open(app)?;
    let path = workspace.path(name)?;
    let window = match workspace.read_bytes(&path, 0, MEMORY_FILE_BYTES_MAX).await {
        Err(failure) if failure.broken_rule() == Some(Rule::FileUnknown) => return Ok(None),
        read => read.map_err(as_document_failure)?,
    };
    let hash = window.hash.ok_or_else(|| too_large(name))?;
    Ok(Some(Document { text: as_text(name, window.bytes)?, hash: Some(hash) }))
}

/// The text of a file's bytes.
fn as_text(name: &str, bytes: Vec<u8>) -> Result<String, Failure> {
    if bytes.len() > MEMORY_FILE_BYTES_MAX {
        return Err(too_large(name));
    }
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        invalid_file(name, &format!("the file is not UTF-8 text after byte {offset}")).detail("offset", offset)
    })
}

fn too_large(name: &str) -> Failure {
    invalid_file(name, &format!("the file is larger than {MEMORY_FILE_BYTES_MAX} bytes"))
}

/// The failure of a request that needs the content of a document, which cannot be used as it is.
pub(super) fn invalid_file(name: &str, problem: &str) -> Failure {
    Failure::rule(Rule::WorkspaceFileInvalid, format!("{name}: {problem}")).detail("path", name)
}

/// Replaces the document as a whole, unless it is no longer the one that was read; `None`: unless there is one.
pub(crate) async fn write(
    app: &App,
    place: DocumentPlace,
    text: String,
    over: Option<&Document>,
) -> Result<WriteOutcome, Failure> {
    let DocumentPlace::Workspace(name) = place else {
        let path = place.path(app)?;
        return blocking(move || write_data(&path, &text).map(|()| WriteOutcome::Done)).await;
    };
    let workspace = Workspace::open(app)?;
    if let Some((folder, _)) = name.rsplit_once('/') {
        workspace.create_directories(&workspace.path(folder)?).await.map_err(as_document_failure)?;
    }
    let expected = over.map_or(Expected::Absent, |document| match &document.hash {
        Some(hash) => Expected::Hash(hash.clone()),
        None => Expected::Anything,
    });
    match workspace.write_text_atomic(&workspace.path(name)?, text, expected).await {
        Ok(_) => Ok(WriteOutcome::Done),
        Err(failure) if matches!(failure.broken_rule(), Some(Rule::FileConflict | Rule::FileUnknown)) => {
            Ok(WriteOutcome::Outdated)
        }
        Err(failure) => Err(as_document_failure(failure)),
    }
}

/// A failure of the workspace's files, as clients of its documents know it.
pub(super) fn as_document_failure(failure: Failure) -> Failure {
    match failure.broken_rule() {
        Some(Rule::FilePath) => Failure::invalid(Rule::PathEscape, failure.message),
        _ => Failure { cause: failure.cause, ..file_error(failure.message) },
    }
}

fn file_error(message: impl Into<String>) -> Failure {
    Failure::rule(Rule::FileError, message)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await.map_err(Failure::internal)?;
    done.map_err(|error| file_error(error.to_string()))
}

/// The bytes of a file, up to one more than a document may have. `None` if there is none.
fn read_data(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(MEMORY_FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Writes a new file and renames it, so that a crash leaves the old one or the new one.
fn write_data(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        directories::create(folder)?;
    }
    let unfinished = path.with_extension("part");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&unfinished, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_the_server_is_replaced_whole_and_is_its_own() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("memory/global.md");
        assert_eq!(read_data(&path).unwrap(), None);
        for text in ["one", "two"] {
            write_data(&path, text).unwrap();
            assert_eq!(read_data(&path).unwrap().unwrap(), text.as_bytes());
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        fs::write(&path, "x".repeat(MEMORY_FILE_BYTES_MAX + 1)).unwrap();
        let failure = as_text("memory/global.md", read_data(&path).unwrap().unwrap()).unwrap_err();
        assert_eq!(failure.broken_rule(), Some(Rule::WorkspaceFileInvalid));
    }
}
