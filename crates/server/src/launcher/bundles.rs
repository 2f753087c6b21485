//! Resource bundles of runs, and workspaces that are checked out in pods: what the runner needs to fetch one. The runner places the
//! files itself, so that it works in the same way in this process, in its own, and in a pod.

use std::time::Duration;

use ostler_protocol::{
    Failure, RawJson,
    kernel::{
        resource_bundles::ResourceBundle,
        runs::Run,
        workspaces::{GitRef, GitWant},
    },
};
use ostler_runner::{BundleOrder, Git};
use ostler_store::{self as store, kernel::bundle_commits::CommitPurpose};

#[cfg(feature = "kubernetes")]
use super::ref_lookups;
use super::workspaces::{self, Workspace};
use crate::{app::App, directories};

/// Time limit of looking up the commit of a branch or tag. The start of the runner waits for it.
const LOOKUP: Duration = Duration::from_secs(10);

/// What the runner of a run gets to place the run's bundle. `None` if the run names none. `workspace` is the run's own, if the runner
/// runs on this machine.
pub(super) async fn order(app: &App, run: &Run, workspace: Option<&Workspace>) -> Result<Option<BundleOrder>, Failure> {
    let Some(reference) = &run.resource_bundle_ref else { return Ok(None) };
    let source = ResourceBundle::read(reference)?.source;
    let order = fetch_order(app, run, CommitPurpose::Bundle, reference, &source).await?;
    let directory = workspace.map(|workspace| workspace.bundle.clone());
    let record_directory = workspace.and_then(|workspace| workspace.bundle_record.clone());
    Ok(Some(BundleOrder { directory, record_directory, ..order }))
}

/// What a runner in a pod gets to check out the run's workspace. `None` if the workspace is empty, or cannot be made in a pod.
#[cfg(feature = "kubernetes")]
pub(super) async fn checkout(app: &App, run: &Run) -> Result<Option<BundleOrder>, Failure> {
    use ostler_protocol::kernel::workspaces::WorkspaceRef;
    let WorkspaceRef::Git(source) = WorkspaceRef::read(&run.workspace_ref)? else { return Ok(None) };
    fetch_order(app, run, CommitPurpose::Workspace, &run.workspace_ref, &source).await.map(Some)
}

async fn fetch_order(
    app: &App,
    run: &Run,
    purpose: CommitPurpose,
    reference: &RawJson,
    source: &GitRef,
) -> Result<BundleOrder, Failure> {
    // Checked again, because the config or the credential may have changed since the run was created.
    workspaces::check_repository(app, &run.tenant_id, source)?;
    let section = &app.config.workspaces;
    Ok(BundleOrder {
        reference: reference.clone(),
        commit_id: commit(app, run, purpose, source).await?,
        directory: None,
        record_directory: None,
        protocols: section.git_protocols.clone(),
        timeout_ms: section.git_timeout_ms,
        outgoing: app.config.outgoing.rules()?,
        credential: workspaces::open_credential(app, &run.tenant_id, source)?,
    })
}

/// The commit of a run's bundle or workspace: the same for all starts of the run, whatever becomes of the branch or tag.
async fn commit(app: &App, run: &Run, purpose: CommitPurpose, source: &GitRef) -> Result<String, Failure> {
    if let GitWant::Commit(commit) = &source.want {
        return Ok(commit.clone());
    }
    if let Some(commit) = store::kernel::bundle_commits::get(&app.db, run.run_id, purpose).await? {
        return Ok(commit);
    }
    #[cfg(feature = "kubernetes")]
    let _lookup = ref_lookups::enter(app, &run.tenant_id).await?;
    let (section, outgoing) = (&app.config.workspaces, app.config.outgoing.rules()?);
    let git = Git {
        protocols: &section.git_protocols,
        timeout: Duration::from_millis(section.git_timeout_ms).min(LOOKUP),
        outgoing: &outgoing,
        credential: workspaces::credential(app, &run.tenant_id, source)?,
        redactor: &app.redactor,
    };
    let directory = app.config.data_dir()?.join("git");
    directories::make(&directory)?;
    let commit = git.resolve(&directory, source).await?;
    let now = app.now();
    Ok(store::kernel::bundle_commits::insert(&app.db, run.run_id, purpose, run.session, &commit, now).await?)
}
