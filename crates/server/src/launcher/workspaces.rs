//! Workspaces of runs: the session's own directory, a directory of the machine below an allowed root, or a checkout. Created
//! workspaces are in the data directory and outlive runners. A run's workspace is deleted when the run has ended or was not used
//! for long; a session's workspace is deleted with the session's storage.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::SignedDuration;
use ostler_protocol::{
    Failure, RawJson, Rule,
    ids::{RunId, SessionId},
    json::canonical_hash,
    kernel::{
        runs::Run,
        workspaces::{GitRef, WorkspaceRef},
    },
};
use ostler_runner::{BundleCredential, Git};
use ostler_store as store;
use secrecy::{ExposeSecret, SecretString};

use crate::{app::App, dialect::Dialects, directories};

/// The directory in which a run's agent works, the one in which its changes are tracked, and those of its resource bundle.
pub(crate) struct Workspace {
    pub directory: PathBuf,
    pub changes: PathBuf,
    pub bundle: PathBuf,
    /// Where it is recorded what bundles have placed. `None`: in `bundle`.
    pub bundle_record: Option<PathBuf>,
}

/// Prepares a run's workspace. An existing one is reused, so that the agent continues where it was.
pub(crate) async fn ready(app: &App, run: &Run) -> Result<Workspace, Failure> {
    let wanted = WorkspaceRef::read(&run.workspace_ref)?;
    let own = match wanted {
        WorkspaceRef::None => directories::session_workspace(app, run.session)?,
        _ => directories::run_workspace(app, run.run_id)?,
    };
    directories::make(&own)?;
    let is_local = matches!(wanted, WorkspaceRef::Local { .. });
    let directory = match wanted {
        WorkspaceRef::None => {
            directories::make(&own.join("work"))?;
            own.join("work")
        }
        WorkspaceRef::Local { path } => check_local(app, &run.tenant_id, &path)?,
        WorkspaceRef::Git(wanted) => check_out(app, &wanted, &own, run).await?,
    };
    // Such a directory outlives the run, and other runs work in it, too.
    let bundle_record = is_local.then(|| directories::local_bundles(app, &directory)).transpose()?;
    Ok(Workspace { directory, changes: own.join("changes"), bundle: own.join("bundle"), bundle_record })
}

/// Rejects a reference that this server does not allow, before anything is created.
pub(crate) fn check(app: &App, tenant_id: &str, workspace: &WorkspaceRef) -> Result<(), Failure> {
    match workspace {
        WorkspaceRef::None => Ok(()),
        WorkspaceRef::Local { path } => check_local(app, tenant_id, path).map(drop),
        WorkspaceRef::Git(wanted) => check_repository(app, tenant_id, wanted),
    }
}

/// Rejects a repository that this server does not fetch for the tenant.
pub(crate) fn check_repository(app: &App, tenant_id: &str, wanted: &GitRef) -> Result<(), Failure> {
    if !app.config.workspaces.git_protocols.iter().any(|allowed| allowed == wanted.protocol) {
        let message = format!("this server does not fetch repositories by {}", wanted.protocol);
        return Err(Failure::rule(Rule::WorkspaceGitProtocol, message));
    }
    credential(app, tenant_id, wanted).map(drop)
}

/// The workspace that a launcher must serve to start a runner of the run. `None`: any launcher may.
pub(crate) fn placement_of(app: &App, workspace_ref: &RawJson) -> Option<String> {
    let bound = app.placement.as_deref()?;
    let WorkspaceRef::Local { path } = WorkspaceRef::read(workspace_ref).ok()? else { return None };
    let real = Path::new(&path).canonicalize().ok()?;
    (Path::new(bound) == real).then(|| bound.to_owned())
}

/// Whether a run works in the workspace that the server is bound to.
pub(crate) fn is_bound(app: &App, run: &Run) -> bool {
    let (Some(bound), Ok(WorkspaceRef::Local { path })) =
        (&app.config.server.workspace, WorkspaceRef::read(&run.workspace_ref))
    else {
        return false;
    };
    check_local(app, &run.tenant_id, &path).is_ok_and(|directory| directory == *bound)
}

/// The canonical path of a directory in which a backend of the tenant may work, outside of a run.
pub(super) fn check_directory(app: &App, tenant_id: &str, path: &Path) -> Result<PathBuf, Failure> {
    check_local(app, tenant_id, &path.to_string_lossy())
}

/// The canonical path, if it is below one of the roots. Checked again when a runner starts, because a link may point elsewhere
/// by then.
fn check_local(app: &App, tenant_id: &str, path: &str) -> Result<PathBuf, Failure> {
    // The same failure whether the path exists or not, so that it reveals nothing about other directories.
    let refused = || {
        let message = format!(
            "workspaceRef.path {path:?} is no directory below a root that this server allows (workspaces.roots)"
        );
        Failure::rule(Rule::WorkspaceRoot, message)
    };
    let real = Path::new(path).canonicalize().map_err(|_| refused())?;
    let (roots, bound) = (&app.config.workspaces.roots, app.config.server.workspace.as_deref());
    let mut roots = roots.iter().map(Path::new).filter_map(|root| root.canonicalize().ok());
    // The workspace that the server is bound to is for the tenant of the dialect that serves it. What is below it is not allowed.
    let is_bound = bound.and_then(|bound| bound.canonicalize().ok()).is_some_and(|bound| real == bound)
        && Dialects::of(app).may_use_workspace(&app.config, tenant_id);
    let allowed = is_bound || roots.any(|root| real.starts_with(root));
    let data_dir = app.config.data_dir()?.canonicalize().map_err(|_| refused())?;
    // The data directory must not be a workspace, nor part of one.
    if !allowed || !real.is_dir() || real.starts_with(&data_dir) || data_dir.starts_with(&real) {
        return Err(refused());
    }
    Ok(real)
}

async fn check_out(app: &App, wanted: &GitRef, own: &Path, run: &Run) -> Result<PathBuf, Failure> {
    let directory = own.join("work");
    if directory.exists() {
        return Ok(directory);
    }
    let (section, outgoing) = (&app.config.workspaces, app.config.outgoing.rules()?);
    let git = Git {
        protocols: &section.git_protocols,
        timeout: Duration::from_millis(section.git_timeout_ms),
        outgoing: &outgoing,
        credential: credential(app, &run.tenant_id, wanted)?,
        redactor: &app.redactor,
    };
    // Commits that were fetched with a credential are only for runs that may use it: knowing a commit's id is no proof.
    let fetched_by = match &wanted.credential_ref {
        None => wanted.repo_url.as_str().into(),
        Some(name) => serde_json::json!([wanted.repo_url, name]),
    };
    let cache = app.config.data_dir()?.join("git").join(&canonical_hash(&fetched_by)[..32]);
    let (half, keep_as) = (own.join("half"), format!("refs/ostler/{}", run.run_id));
    directories::make(&cache)?;
    let commit = git.fetch(&cache, wanted, &keep_as).await?;
    // A directory that an earlier attempt left is not in use.
    directories::clear(half.clone()).await?;
    directories::make(&half)?;
    git.check_out(&cache, &commit, &half, &keep_as).await?;
    std::fs::rename(&half, &directory).map_err(Failure::internal)?;
    Ok(directory)
}

/// The origin that a credential is for, and its file. It is sent only to a server that its file names, for a tenant that may use
/// it, and never in clear text over a network.
pub(super) fn credential(app: &App, tenant_id: &str, wanted: &GitRef) -> Result<Option<(String, PathBuf)>, Failure> {
    let Some(name) = &wanted.credential_ref else { return Ok(None) };
    let file = app.config.data_dir()?.join("git-credentials").join(name);
    let host = wanted.authority();
    let is_private = wanted.protocol == "https" || wanted.protocol == "http" && is_loopback(wanted);
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let values =
        |field: &'static str| text.lines().filter_map(move |line| line.trim().strip_prefix(field)?.strip_prefix('='));
    let is_for_host = values("host").any(|named| named.eq_ignore_ascii_case(host));
    let is_for_tenant = values("tenant").next().is_none() || values("tenant").any(|named| named == tenant_id);
    if !text.is_empty() && values("host").next().is_none() {
        tracing::warn!(name, "a git credential names no host and is not used; add a line such as host=git.example");
    }
    if !is_private || !is_for_host || !is_for_tenant {
        // The same message whether the credential does not exist or belongs to another tenant.
        let message = "credentialRef names no credential of this server for this repository's host and this \
            tenant, or the repository is neither on https nor on this machine";
        return Err(Failure::rule(Rule::WorkspaceGitCredential, message));
    }
    app.redactor.learn(values("password"));
    Ok(Some((format!("{}://{host}", wanted.protocol), file)))
}

/// The values of a credential, for a runner that fetches the repository itself.
pub(super) fn open_credential(
    app: &App,
    tenant_id: &str,
    wanted: &GitRef,
) -> Result<Option<BundleCredential>, Failure> {
    let Some((origin, file)) = credential(app, tenant_id, wanted)? else { return Ok(None) };
    let text = SecretString::from(std::fs::read_to_string(&file).map_err(Failure::internal)?);
    let value = |field: &str| {
        let mut values =
            text.expose_secret().lines().filter_map(|line| line.trim().strip_prefix(field)?.strip_prefix('='));
        values.next_back().unwrap_or_default().to_owned()
    };
    Ok(Some(BundleCredential { origin, username: value("username"), password: value("password").into() }))
}

fn is_loopback(wanted: &GitRef) -> bool {
    let Some(server) = &wanted.server else { return false };
    server.host == "localhost" || server.host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Deletes the workspaces of runs that have ended or were not used for long, and of sessions that accept no more work.
pub(crate) async fn clear_unused(app: &App) -> Result<(), Failure> {
    let Ok(entries) = std::fs::read_dir(directories::all_workspaces(app)?) else { return Ok(()) };
    for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        let unused = match (name.parse::<RunId>(), name.parse::<SessionId>()) {
            (Ok(run_id), _) => is_unused(app, run_id).await?,
            (_, Ok(session)) => is_unused_by_session(app, session).await?,
            _ => false,
        };
        if unused {
            directories::clear(directories::all_workspaces(app)?.join(name)).await?;
        }
    }
    Ok(())
}

async fn is_unused(app: &App, run_id: RunId) -> Result<bool, Failure> {
    let run = store::kernel::runs::get(&app.db, run_id).await?;
    let lease = store::kernel::leases::get(&app.db, run_id).await?;
    let is_leased = lease.is_some_and(|lease| lease.is_live(app.now()));
    let Some(run) = run else { return Ok(!is_leased) };
    Ok(!is_leased && is_over(app, &run) && !store::retention::is_held(&app.db, run.session).await?)
}

/// A session's workspace is kept for as long as the session can be continued, whatever the state of its runs.
async fn is_unused_by_session(app: &App, session: SessionId) -> Result<bool, Failure> {
    if store::retention::is_held(&app.db, session).await? {
        return Ok(false);
    }
    let session = store::kernel::sessions::get(&app.db, session).await?;
    Ok(session.is_none_or(|session| !session.storage.storage_kind.is_kept()))
}

fn is_over(app: &App, run: &Run) -> bool {
    let kept = SignedDuration::from_millis(app.config.workspaces.keep_ms);
    let over = run.updated_at.checked_add(kept).is_ok_and(|until| until <= app.now());
    run.status.is_terminal() || run.unfinished_commands == 0 && over
}
