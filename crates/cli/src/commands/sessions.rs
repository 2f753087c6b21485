//! `ostler sessions`: makes, lists, shows, renames, labels, closes and evicts sessions.

use clap::{Subcommand, builder::NonEmptyStringValueParser};
use ostler_protocol::{
    Failure,
    ids::RunId,
    kernel::{
        session_storage::{SessionStorage, StorageKind, StorageQuery},
        sessions::{ControlSession, CreateSession, ListSessions, SessionQuery, SessionView, UpdateSession},
    },
};

use crate::{
    candidates,
    commands::{labels, list::ListFlags, read::ReaderArgs, session_table},
    connection::Connection,
    exit_codes,
    targets::{SessionKey, Within},
    terminal::{
        confirm::Confirm,
        output::{self, Output, line},
        paint::Paint,
        status::{liveness_words, next_step, recovery_command, short_words},
        times::{Times, iso, now},
    },
};

/// Make, list, show, rename, label, close and evict sessions
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler sessions create review --profile scripted\n  ostler sessions show review")]
pub(crate) struct SessionsArgs {
    #[command(subcommand)]
    verb: SessionsVerb,
}

#[derive(Subcommand, Debug)]
enum SessionsVerb {
    Create(CreateSessionArgs),
    List(ListSessionsArgs),
    Show(ShowSessionArgs),
    Rename(RenameSessionArgs),
    Label(LabelSessionArgs),
    Close(CloseSessionArgs),
    Evict(EvictSessionArgs),
}

impl SessionsArgs {
    pub(crate) fn needs_labels(&self) -> bool {
        match &self.verb {
            SessionsVerb::Create(args) => !args.label.is_empty(),
            SessionsVerb::List(args) => !args.label.is_empty(),
            SessionsVerb::Label(_) => true,
            _ => false,
        }
    }
}

/// Make a session before its first run
///
/// `ostler run --session ID` makes one too. An existing id returns the existing session.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler sessions create review\n  ostler sessions create --profile scripted -o json"
)]
struct CreateSessionArgs {
    #[arg(value_name = "ID", help = "An id of your choice; by default the server generates one")]
    id: Option<String>,
    #[arg(long, default_value = "scripted", help = "The backend profile of its runs", add = candidates::profiles())]
    profile: String,
    #[arg(
        long,
        help = "The tenant it belongs to [default: the context's, else OSTLER_TENANT, else the token's only one, else local if the token has it]"
    )]
    tenant: Option<String>,
    /// A label; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = labels::parse)]
    label: Vec<(String, String)>,
    #[command(flatten)]
    output: Output,
}

/// List sessions, newest first
///
/// `ostler ps` lists only those that run or are unread.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler sessions list\n  ostler sessions list --status failed\n  \
    ostler sessions list --label team=search -n 20")]
struct ListSessionsArgs {
    /// Only sessions whose active or latest turn is in this state: waiting, running, completed, failed, blocked or cancelled;
    /// several between commas
    #[arg(long, alias = "state", value_name = "STATE", hide_possible_values = true, value_delimiter = ',',
        value_parser = ["waiting", "running", "completed", "failed", "blocked", "cancelled"])]
    status: Vec<String>,
    #[arg(long, help = "Only sessions of this tenant")]
    tenant: Option<String>,
    #[arg(long, help = "Only sessions of this backend profile", add = candidates::profiles())]
    profile: Option<String>,
    /// Only sessions with this label; may be repeated
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = labels::parse)]
    label: Vec<(String, String)>,
    #[command(flatten)]
    reader: ReaderArgs,
    #[command(flatten)]
    list: ListFlags,
}

/// Show one session, and the state of its active or latest run
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler sessions show review\n  ostler sessions show ses_01a1 -o json | jq .liveness"
)]
struct ShowSessionArgs {
    #[arg(value_name = "SESSION", value_parser = NonEmptyStringValueParser::new(), add = candidates::targets(),
        help = "Its id, the beginning of it, or one of its runs")]
    session: String,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    reader: ReaderArgs,
    #[command(flatten)]
    times: Times,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn sessions(connection: &Connection, args: &SessionsArgs) -> Result<u8, Failure> {
    match &args.verb {
        SessionsVerb::Create(args) => create(connection, args).await,
        SessionsVerb::List(args) => list(connection, args).await,
        SessionsVerb::Show(args) => show(connection, args).await,
        SessionsVerb::Rename(args) => rename(connection, args).await,
        SessionsVerb::Label(args) => label(connection, args).await,
        SessionsVerb::Close(args) => close(connection, args).await,
        SessionsVerb::Evict(args) => evict(connection, args).await,
    }
}

/// Give a session a title; its id stays
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler sessions rename review \"Review of Tuesday\"\n  ostler sessions rename review \"\""
)]
struct RenameSessionArgs {
    #[arg(value_name = "SESSION", value_parser = NonEmptyStringValueParser::new(), add = candidates::targets(),
        help = "Its id, the beginning of it, or one of its runs")]
    session: String,
    #[arg(help = "The title; an empty one removes it")]
    title: String,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    output: Output,
}

/// Set or remove labels of a session
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler sessions label review team=search\n  ostler sessions label review team-")]
struct LabelSessionArgs {
    #[arg(value_name = "SESSION", value_parser = NonEmptyStringValueParser::new(), add = candidates::targets(),
        help = "Its id, the beginning of it, or one of its runs")]
    session: String,
    #[command(flatten)]
    labels: labels::LabelChanges,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    output: Output,
}

async fn label(connection: &Connection, args: &LabelSessionArgs) -> Result<u8, Failure> {
    let finder = args.within.finder(connection)?;
    let SessionKey { id, tenant } = finder.session(&args.session).await?;
    let labels = Some(args.labels.patch());
    let update = UpdateSession { labels, tenant_id: tenant, ..UpdateSession::default() };
    let session = finder.client.update_session(&id, &update).await?;
    args.output.one(&session, || labels::sentence(&session.session_id, &session.labels));
    Ok(exit_codes::OK)
}

/// Close a session permanently: it accepts no more work, and can still be read
///
/// Its unfinished commands must end first.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler sessions close review --yes\n  ostler sessions close review --dry-run")]
struct CloseSessionArgs {
    #[arg(value_name = "SESSION", value_parser = NonEmptyStringValueParser::new(), add = candidates::targets(),
        help = "Its id, the beginning of it, or one of its runs")]
    session: String,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    output: Output,
}

/// Remove the backend's stored conversation and the session's own workspace with its files
///
/// The messages can still be read; the session accepts no more work. `ostler sessions show` shows how much is stored and
/// until when.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler sessions evict review --dry-run\n  ostler sessions evict review --yes")]
struct EvictSessionArgs {
    #[arg(value_name = "SESSION", value_parser = NonEmptyStringValueParser::new(), add = candidates::targets(),
        help = "Its id, the beginning of it, or one of its runs")]
    session: String,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    output: Output,
}

async fn rename(connection: &Connection, args: &RenameSessionArgs) -> Result<u8, Failure> {
    let finder = args.within.finder(connection)?;
    let SessionKey { id, tenant } = finder.session(&args.session).await?;
    let update = UpdateSession { title: Some(args.title.clone()), tenant_id: tenant, ..UpdateSession::default() };
    let session = finder.client.update_session(&id, &update).await?;
    args.output.one(&session, || match &session.title {
        Some(title) => format!("{} is now {:?}\n", line(&session.session_id, 200), line(title, 200)),
        None => format!("{} has no title\n", line(&session.session_id, 200)),
    });
    Ok(exit_codes::OK)
}

async fn close(connection: &Connection, args: &CloseSessionArgs) -> Result<u8, Failure> {
    let finder = args.within.finder(connection)?;
    let key = finder.session(&args.session).await?;
    let session = finder.client.get_session(&key.id, &key.query()).await?;
    let (id, tenant) = (line(&session.session_id, 200), line(&session.tenant_id, 80));
    let state = match &session.liveness {
        Some(liveness) if liveness.active => short_words(liveness),
        _ => "nothing runs in it",
    };
    output::message(&format!("  session {id} of {tenant} · {state}\n"));
    if !args.confirm.ask("close this permanently?")? {
        return Ok(exit_codes::OK);
    }
    let control = ControlSession { action: "close".into(), reason: None, tenant_id: Some(session.tenant_id) };
    let closed = finder.client.control_session(&key.id, &control).await?;
    args.output.one(&closed, || format!("{id} closed\n"));
    Ok(exit_codes::OK)
}

async fn evict(connection: &Connection, args: &EvictSessionArgs) -> Result<u8, Failure> {
    let finder = args.within.finder(connection)?;
    let key = finder.session(&args.session).await?;
    let query = StorageQuery { tenant_id: key.query().tenant_id };
    let found = finder.client.session_storage(&key.id, &query).await?;
    let id = line(&found.session_id, 200);
    let held = storage(&found.storage, Times::default());
    output::message(&format!("  session {id} of {} · {held}\n", line(&found.tenant_id, 80)));
    if !args.confirm.ask("remove this, and the session's own workspace, permanently?")? {
        return Ok(exit_codes::OK);
    }
    let evicted = finder.client.delete_session_storage(&key.id, &query).await?;
    args.output.one(&evicted, || format!("{id} evicted\n"));
    Ok(exit_codes::OK)
}

async fn create(connection: &Connection, args: &CreateSessionArgs) -> Result<u8, Failure> {
    let session = CreateSession {
        tenant_id: connection.tenant(args.tenant.as_deref()).await?,
        session_id: args.id.clone(),
        backend_profile: Some(args.profile.clone()),
        labels: labels::of_new(&args.label),
        ..CreateSession::default()
    };
    let made = connection.client()?.create_session(&session).await?;
    args.output.one(&made, || format!("{}\n", line(&made.session_id, 200)));
    Ok(exit_codes::OK)
}

async fn list(connection: &Connection, args: &ListSessionsArgs) -> Result<u8, Failure> {
    let (limit, times, output) = args.list.parts();
    let client = connection.client()?;
    let query = ListSessions {
        state: Some(if args.status.is_empty() { "all".to_owned() } else { args.status.join(",") }),
        reader_id: args.reader.id(),
        tenant_id: args.tenant.clone(),
        backend_profile: args.profile.clone(),
        label: labels::filter(&args.label),
        limit: Some(limit),
        ..ListSessions::default()
    };
    let page = client.list_sessions(&query).await?;
    let sessions = session_table::with_liveness(&client, args.reader.id(), page.sessions).await;
    let (width, paint) = (output::width(), Paint::stdout());
    let has_filters =
        !args.status.is_empty() || !args.label.is_empty() || args.tenant.is_some() || args.profile.is_some();
    let nothing = match has_filters {
        true => "no session matches these filters\n",
        false => "no sessions yet; start one: ostler run --session NAME \"say hello\"\n",
    };
    output.page(&sessions, page.next_cursor.is_some(), nothing, || {
        session_table::render(&sessions, times, now(), width, paint)
    });
    Ok(exit_codes::OK)
}

async fn show(connection: &Connection, args: &ShowSessionArgs) -> Result<u8, Failure> {
    let finder = args.within.finder(connection)?;
    let key = finder.session(&args.session).await?;
    let query = SessionQuery { reader_id: args.reader.id(), ..key.query() };
    let session = finder.client.get_session(&key.id, &query).await?;
    args.output.one(&session, || output::folded(&render(&session, args.times), output::width()));
    Ok(exit_codes::OK)
}

fn render(session: &SessionView, times: Times) -> String {
    let state = match &session.liveness {
        Some(liveness) if liveness.active => liveness_words(liveness),
        _ => session_table::ended_words(session).unwrap_or("closed").to_owned(),
    };
    let id = |run: Option<RunId>| run.map_or_else(|| "-".to_owned(), |run| run.to_string());
    let unread = if session.unread { "unread" } else { "read" };
    let mut fields = vec![
        ("session", line(&session.session_id, 200)),
        ("tenant", line(&session.tenant_id, 200)),
        ("title", session.title.as_deref().map_or_else(|| "-".into(), |title| line(title, 200))),
        ("profile", line(&session.backend_profile, 63)),
        ("state", format!("{state}, {unread}")),
        ("active", id(session.active_run_id)),
        ("latest", id(session.last_run_id)),
        ("events", session.last_seq.to_string()),
        ("storage", storage(&session.storage, times)),
        ("chain", line(&session.chain_head.hash, 64)),
        ("made", times.ago(session.created_at, now())),
        ("changed", times.ago(session.updated_at, now())),
    ];
    fields.extend(labels::pairs(&session.labels).map(|pairs| ("labels", pairs)));
    if let Some(at) = session.closed_at {
        fields.push(("closed", times.ago(at, now())));
    }
    let active = session.liveness.as_ref().filter(|liveness| liveness.active);
    if let (Some(liveness), Some(run)) = (active, session.active_run_id.or(session.last_run_id)) {
        fields.push(("next", next_step(liveness, run, now())));
        fields.extend(recovery_command(liveness, run).map(|command| ("recover", command)));
    }
    fields.into_iter().map(|(name, value)| format!("{name:<9}{value}\n")).collect()
}

/// The stored conversation of the session's backend.
fn storage(storage: &SessionStorage, times: Times) -> String {
    let kind = storage.storage_kind.as_str();
    let mut words = vec![match (storage.storage_kind, storage.storage_evicted_at) {
        (StorageKind::Evicted, Some(at)) => format!("{kind} {}", times.ago(at, now())),
        _ => kind.to_owned(),
    }];
    words.extend(storage.storage_pvc_name.clone().filter(|_| storage.storage_kind == StorageKind::Pvc));
    if storage.storage_kind.is_kept() {
        if let (Some(files), Some(bytes)) = (storage.storage_files_count, storage.storage_size_bytes) {
            words.push(format!("{}, {}", output::count(files, "file"), output::count(bytes, "byte")));
        }
        words.extend(storage.expires_at.map(|at| format!("kept until {}", iso(at))));
    }
    words.join(" · ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::commands::session_table::fixtures::session;

    #[test]
    fn labels_are_shown_if_there_are_any() {
        let labelled = session(|body| body["labels"] = json!({"stage": "live", "team": "search"}));
        assert!(render(&labelled, Times::default()).contains("\nlabels   stage=live, team=search\n"));
        assert!(!render(&session(|_| ()), Times::default()).contains("labels"));
    }
}
