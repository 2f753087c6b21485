//! Places the files of a run's resource bundle into the workspace, before the backend starts. The files come from a repository of
//! strangers, and the workspace may have been written by an agent: nothing of either is followed out of its directory, and
//! nothing is replaced that an earlier bundle has not placed.

mod checkout;
mod copy;
mod placement;

use std::{
    fs::{DirBuilder, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use ostler_protocol::{
    Failure, RawJson, Rule,
    kernel::{
        events::PHASE_BUNDLE_READY,
        resource_bundles::{BundlePart, ResourceBundle},
        workspaces::{GitRef, GitWant},
    },
    outgoing::OutgoingRules,
    redaction::Redactor,
};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};
use tokio::time::{Duration, timeout};

use crate::git::Git;
use placement::{Placed, Placement, StopOnDrop};

/// The ref that keeps the commit while its files are copied.
const KEEP_AS: &str = "refs/ostler/bundle";
/// In the runner's own directory, while git fetches.
const CREDENTIAL_FILE: &str = "credential";
/// Fetching and checking out takes at most this many times the time limit of a single git command.
const FETCH_TIMEOUTS: u32 = 4;

/// What a runner needs to place the bundle of its run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BundleOrder {
    /// `resourceBundleRef` of the run, or its `workspaceRef` if the repository is to be the workspace.
    pub reference: RawJson,
    /// The commit to take the files from, whatever the reference names.
    pub commit_id: String,
    /// A directory of the runner's own for the fetched repository, and for a record of what was placed. A backend does not see
    /// it. `None`: the system's temporary directory; nothing was placed before.
    pub directory: Option<PathBuf>,
    /// Where the record is instead, if other runs use the same workspace: they share its record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record_directory: Option<PathBuf>,
    pub protocols: Vec<String>,
    /// Time limit of each git command.
    pub timeout_ms: u64,
    pub outgoing: OutgoingRules,
    #[serde(default)]
    pub credential: Option<BundleCredential>,
}

/// The credential for the repository's server.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BundleCredential {
    /// The only address that it is sent to.
    pub origin: String,
    pub username: String,
    #[serde(serialize_with = "expose_password")]
    pub password: SecretString,
}

/// In clear: the reader is the runner that it is for.
fn expose_password<S: Serializer>(password: &SecretString, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(password.expose_secret())
}

/// A file that is removed when this is dropped.
struct RemovedFile(PathBuf);

impl Drop for RemovedFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl BundleOrder {
    /// Places all parts of the bundle that are not there yet. Returns the payload of the event that records it.
    pub(crate) async fn place(&self, workspace: &Path) -> Result<Value, Failure> {
        let bundle = ResourceBundle::read(&self.reference)?;
        let directory = self.make_directory("bundle").map_err(Failure::internal)?;
        // A runner that was killed may have left a credential.
        clear(&directory).map_err(Failure::internal)?;
        if let Some(shared) = &self.record_directory {
            make_private(shared).map_err(Failure::internal)?;
        }
        let parts = bundle.parts.iter().map(|part| (part.clone(), self.placed(&bundle, part)));
        let placement = Placement {
            workspace: workspace.to_owned(),
            checkout: directory.join("checkout"),
            record_directory: self.record_directory.clone().unwrap_or_else(|| directory.clone()),
            parts: parts.collect(),
        };
        if !placement.is_complete() {
            self.fetch_and_place(&bundle, placement, &directory).await?;
        }
        Ok(json!({
            "phase": PHASE_BUNDLE_READY,
            "repoUrl": bundle.source.repo_url,
            "commitId": self.commit_id,
            "bundles": bundle.parts,
        }))
    }

    /// The runner's own directory for the repository.
    fn make_directory(&self, purpose: &str) -> io::Result<PathBuf> {
        if let Some(directory) = &self.directory {
            return make_private(directory).map(|()| directory.clone());
        }
        // It must be new: others may write in the temporary directory.
        let directory = std::env::temp_dir().join(format!("ostler-{purpose}-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&directory).map(|()| directory)
    }

    async fn fetch_and_place(
        &self,
        bundle: &ResourceBundle,
        placement: Placement,
        directory: &Path,
    ) -> Result<(), Failure> {
        let fetched = self.fetch(&bundle.source, directory, &placement.checkout, Some(&bundle.parts));
        let limit = Duration::from_millis(self.timeout_ms).saturating_mul(FETCH_TIMEOUTS);
        let fetched = timeout(limit, fetched).await.unwrap_or_else(|_| {
            Err(Failure::rule(Rule::WorkspaceGit, "fetching the repository of the resource bundle took too long"))
        });
        let placed = match fetched {
            Ok(()) => {
                // If this future is dropped, because the lease was lost, the copy must not go on beside another runner's.
                let stop = StopOnDrop(Arc::default());
                let is_stopped = stop.0.clone();
                let copied = tokio::task::spawn_blocking(move || placement.place(&is_stopped)).await;
                copied.map_err(Failure::internal).flatten()
            }
            Err(failure) => Err(failure),
        };
        // Nothing of the repository and of its credential stays, however it ended.
        let directory = directory.to_owned();
        let cleared = tokio::task::spawn_blocking(move || clear(&directory)).await.map_err(io::Error::other).flatten();
        if let Err(error) = cleared {
            tracing::warn!(%error, "the fetched repository of a resource bundle could not be deleted");
        }
        placed
    }

    /// Checks out the commit in a directory: these parts of it, or all of it as a repository of its own.
    async fn fetch(
        &self,
        source: &GitRef,
        directory: &Path,
        checkout: &Path,
        parts: Option<&[BundlePart]>,
    ) -> Result<(), Failure> {
        clear(directory).map_err(Failure::internal)?;
        let repository = directory.join("repository");
        for made in [repository.as_path(), checkout] {
            make_private(made).map_err(Failure::internal)?;
        }
        let password = self.credential.as_ref().map(|credential| credential.password.expose_secret());
        let redactor = Redactor::new(password.as_slice());
        // Also if this future is dropped in the middle of a fetch.
        let _removal = RemovedFile(directory.join(CREDENTIAL_FILE));
        let credential = self.credential.as_ref().map(|credential| write_credential(directory, credential));
        let git = Git {
            protocols: &self.protocols,
            timeout: Duration::from_millis(self.timeout_ms),
            outgoing: &self.outgoing,
            credential: credential.transpose().map_err(Failure::internal)?,
            redactor: &redactor,
        };
        let wanted = GitRef { want: GitWant::Commit(self.commit_id.clone()), ..source.clone() };
        let commit = git.fetch_shallow(&repository, &wanted, KEEP_AS).await?;
        match parts {
            Some(parts) => check_out_parts(&git, &repository, &commit, checkout, parts).await,
            None => git.check_out(&repository, &commit, checkout, KEEP_AS).await,
        }
    }

    /// The entry of the record for a part that is placed as a whole.
    fn placed(&self, bundle: &ResourceBundle, part: &BundlePart) -> Placed {
        let source = [&bundle.source.repo_url, &self.commit_id, &part.subpath].map(String::clone);
        Placed { source: source.into(), is_whole: true }
    }
}

/// Checks out the parts of a bundle. Their sizes are checked before any file is written.
async fn check_out_parts(
    git: &Git<'_>,
    repository: &Path,
    commit: &str,
    checkout: &Path,
    parts: &[BundlePart],
) -> Result<(), Failure> {
    for part in parts {
        let sizes = git.list_sizes(repository, commit, &part.subpath).await?;
        copy::check_sizes(sizes.as_deref()).map_err(|error| error.into_failure(part))?;
    }
    let paths: Vec<&str> = parts.iter().map(|part| part.subpath.as_str()).collect();
    git.check_out_paths(repository, commit, checkout, &paths).await
}

/// Writes the credential where only this user reads it, for git's helper.
fn write_credential(directory: &Path, credential: &BundleCredential) -> io::Result<(String, PathBuf)> {
    let file = directory.join(CREDENTIAL_FILE);
    let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file)?;
    writeln!(out, "username={}\npassword={}", credential.username, credential.password.expose_secret())?;
    Ok((credential.origin.clone(), file))
}

fn make_private(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// Deletes everything that a fetch has left, except the record.
fn clear(directory: &Path) -> io::Result<()> {
    let absent = |error: io::Error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) };
    std::fs::remove_file(directory.join(CREDENTIAL_FILE)).or_else(absent)?;
    for name in ["repository", "checkout"] {
        std::fs::remove_dir_all(directory.join(name)).or_else(absent)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
