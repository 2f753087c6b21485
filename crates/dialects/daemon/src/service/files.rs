//! Verbs on the files of the workspace. Every caller that may submit work in the daemon's tenant may read them. Routes that write
//! also require a token, and for configuration the right to change settings.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use ostler_protocol::{
    Failure, Rule,
    daemon::files::{
        ERROR_KIND, EditWorkspaceFile, EditedWorkspaceFile, FILE_READ_BYTES_MAX, FILE_SCAN_BYTES_MAX, FileError,
        FileProfile, GlobPattern, GlobQuery, ListQuery, ReadBytesQuery, ReadFileQuery, StatQuery, TextRequest,
        WorkspaceFile, WorkspaceFileBytes, WorkspaceGlob, WorkspaceListing, WorkspaceStat, WriteMode,
        WriteWorkspaceFile, WrittenWorkspaceFile, file_failure, text_window,
    },
    kernel::provider_profiles::ProfileOwner,
};
use ostler_server::{app::App, auth::Principal, traces::note_tenant};

use super::lookup;
use crate::{
    files::{ByteWindow, Entries, EntryStat, Expected, Matches, Workspace, WriteScope, WrittenText, elapsed_ms},
    state::DaemonState,
};

const ENCODING: &str = "utf-8";
/// What is wrong if the server is bound to no workspace, as other routes report it.
const NO_WORKSPACE: &str = "no_workspace";

/// The workspace, if the caller may use it.
fn admit(app: &App, caller: &Principal) -> Result<Workspace, Failure> {
    let tenant_id = &DaemonState::of(app).config.tenant;
    caller.may_submit(tenant_id)?;
    note_tenant(tenant_id);
    Workspace::open(app).map_err(|failure| match failure.broken_rule() {
        // As other failures of these routes.
        Some(Rule::NoWorkspace) => failure.detail(ERROR_KIND, NO_WORKSPACE),
        _ => failure,
    })
}

/// The files that the caller may write. Configuration takes the same right here as on its own routes.
fn write_scope(app: &App, caller: &Principal) -> WriteScope {
    let tenant = DaemonState::of(app).config.tenant.clone();
    match caller.may_provide(&ProfileOwner::Tenant(tenant)) {
        Ok(()) => WriteScope::Everything,
        Err(_) => WriteScope::Ordinary,
    }
}

pub(crate) async fn read(app: &App, caller: &Principal, query: &ReadFileQuery) -> Result<WorkspaceFile, Failure> {
    let workspace = admit(app, caller)?;
    let (path, request) = (workspace.path(&query.path)?, query.window()?);
    let bytes_max = if request.is_part() { FILE_SCAN_BYTES_MAX } else { FILE_READ_BYTES_MAX };
    let file = workspace.read_text(&path, bytes_max).await?;
    let (profile, content) = FileProfile::of(&file.text);
    let most = request.max_bytes.unwrap_or(FILE_READ_BYTES_MAX as u64);
    let window = text_window(content, TextRequest { max_bytes: Some(most), ..request });
    Ok(WorkspaceFile {
        kind: "file".into(),
        path: path.to_string(),
        content: window.content.to_owned(),
        encoding: ENCODING.into(),
        bom: profile.bom,
        line_ending: profile.line_ending(),
        size_bytes: file.text.len() as u64,
        returned_bytes: window.content.len() as u64,
        truncated: window.truncated,
        hash: file.hash,
        matched_ignore: None,
        original_line_count: window.line_count,
    })
}

pub(crate) async fn read_bytes(
    app: &App,
    caller: &Principal,
    query: &ReadBytesQuery,
) -> Result<WorkspaceFileBytes, Failure> {
    let workspace = admit(app, caller)?;
    let (path, (offset, count)) = (workspace.path(&query.path)?, query.window()?);
    let ByteWindow { bytes, size_bytes, hash } = workspace.read_bytes(&path, offset, count).await?;
    let returned_bytes = bytes.len() as u64;
    Ok(WorkspaceFileBytes {
        kind: "file_bytes".into(),
        path: path.to_string(),
        offset,
        size_bytes,
        returned_bytes,
        truncated: offset.saturating_add(returned_bytes) < size_bytes,
        content_base64: BASE64.encode(&bytes),
        hash,
    })
}

pub(crate) async fn stat(app: &App, caller: &Principal, query: &StatQuery) -> Result<WorkspaceStat, Failure> {
    let workspace = admit(app, caller)?;
    let path = workspace.path(&query.path)?;
    let EntryStat { kind: entry, size_bytes, modified_ms } = workspace.stat(&path).await?;
    Ok(WorkspaceStat { kind: "stat".into(), path: path.to_string(), entry, size_bytes, modified_ms })
}

pub(crate) async fn list(app: &App, caller: &Principal, query: &ListQuery) -> Result<WorkspaceListing, Failure> {
    let workspace = admit(app, caller)?;
    let path = workspace.path(&query.path)?;
    let listed = workspace.list(&path).await;
    let is_unknown = |failure: &Failure| failure.broken_rule() == Some(Rule::FileUnknown);
    if listed.as_ref().is_err_and(is_unknown) && workspace.stat(&path).await.is_ok() {
        return Err(file_failure(FileError::Parse, format!("{path}: this is not a directory")));
    }
    let Entries { entries, truncated } = listed?;
    Ok(WorkspaceListing { kind: "list".into(), path: path.to_string(), entries, truncated, matched_ignore: None })
}

pub(crate) async fn glob(app: &App, caller: &Principal, query: &GlobQuery) -> Result<WorkspaceGlob, Failure> {
    let workspace = admit(app, caller)?;
    let cwd = query.cwd.as_deref().filter(|cwd| !cwd.is_empty());
    let (start, results_max) = (workspace.path(cwd.unwrap_or("."))?, query.results_max()?);
    let pattern = GlobPattern::parse(&query.pattern)?;
    let begun_at = app.now();
    let Matches { paths, truncated } = workspace.glob(&start, pattern, results_max).await?;
    Ok(WorkspaceGlob {
        kind: "glob".into(),
        pattern: query.pattern.clone(),
        cwd: cwd.unwrap_or_default().to_owned(),
        count: paths.len() as u64,
        matches: paths,
        truncated,
        duration_ms: elapsed_ms(begun_at, app.now()).max(0) as u64,
    })
}

pub(crate) async fn write(
    app: &App,
    caller: &Principal,
    client: Option<&str>,
    body: WriteWorkspaceFile,
) -> Result<WrittenWorkspaceFile, Failure> {
    let workspace = admit(app, caller)?;
    lookup::check_any_client(app, caller, client).await?;
    let (path, encoding) = (workspace.path(&body.path)?, body.check()?);
    let expected = match (body.mode, body.expected_hash) {
        (WriteMode::Replace, Some(hash)) => Expected::Hash(hash),
        _ => Expected::Absent,
    };
    let how = (encoding, write_scope(app, caller));
    let WrittenText { created, size_bytes, hash, profile } =
        workspace.write_text(&path, body.content, how, expected).await?;
    Ok(WrittenWorkspaceFile {
        kind: "file_write".into(),
        path: path.to_string(),
        mode: body.mode,
        created,
        size_bytes,
        hash,
        encoding: ENCODING.into(),
        bom: profile.bom,
        line_ending: profile.line_ending(),
        matched_ignore: None,
    })
}

pub(crate) async fn edit(
    app: &App,
    caller: &Principal,
    client: Option<&str>,
    body: EditWorkspaceFile,
) -> Result<EditedWorkspaceFile, Failure> {
    let workspace = admit(app, caller)?;
    lookup::check_any_client(app, caller, client).await?;
    body.check()?;
    let path = workspace.path(&body.path)?;
    let (texts, scope) = ((body.old_text, body.new_text), write_scope(app, caller));
    let edited = workspace.edit_text(&path, texts, body.expected_hash, scope).await?;
    Ok(EditedWorkspaceFile {
        kind: "file_edit".into(),
        path: path.to_string(),
        replacements: 1,
        size_bytes: edited.size_bytes,
        hash: edited.hash,
        encoding: ENCODING.into(),
        bom: edited.profile.bom,
        line_ending: edited.profile.line_ending(),
        matched_ignore: None,
    })
}
