//! `ostler output`, `ostler read` and `ostler sessions`: what people read of a session, the mark that it was read, and the
//! session itself.

use clap::{Subcommand, builder::NonEmptyStringValueParser};
use ostler_protocol::{
    Failure,
    kernel::{
        events::{EventType, EventView},
        session_storage::{SessionStorage, StorageKind, StorageQuery},
        sessions::{
            ControlSession, CreateSession, ReadSession, SessionEventsQuery, SessionQuery, SessionView, UpdateSession,
        },
    },
    limits::PAGE_ITEMS_MAX,
};

use crate::{
    completions,
    confirm::Confirm,
    connect::Connection,
    exit_codes,
    live::{phase_words, recovery_command},
    output::{self, Format, Output, harmless, line},
    targets::{SessionKey, Target, Within},
    times::{Times, iso, now},
};

/// Whose unread marks. Flattened where sessions are listed or read.
#[derive(clap::Args, Clone, Debug)]
pub struct Reader {
    /// Whose unread marks to use, where several people share a token
    #[arg(long, value_name = "NAME", env = "OSTLER_READER", hide_env_values = true)]
    reader: Option<String>,
}

impl Reader {
    pub fn id(&self) -> Option<String> {
        self.reader.clone().filter(|reader| !reader.is_empty())
    }
}

/// Show what people read of a session or a run: the agent's messages and its tools' output
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler output my-session\n  ostler output RUN > reply.md\n  \
    ostler output my-session -o jsonl | jq -r .payload.text")]
pub struct OutputArgs {
    #[arg(value_name = "SESSION|RUN", value_parser = NonEmptyStringValueParser::new(), add = completions::targets(),
        help = "What to show")]
    target: String,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    output: Output,
}

pub async fn output(connection: &Connection, args: &OutputArgs) -> Result<u8, Failure> {
    let finder = args.within.finder(connection)?;
    let (session, run_id) = match finder.any(&args.target).await? {
        Target::Session(key) => (key, None),
        Target::Run(id) => (finder.session(&id).await?, Some(id)),
    };
    let (limit, tenant_id) = (Some(PAGE_ITEMS_MAX), session.tenant);
    let mut query = SessionEventsQuery { run_id, limit, tenant_id, ..SessionEventsQuery::default() };
    let mut all = vec![];
    loop {
        let page = finder.client.session_output(&session.id, &query).await?;
        match args.output.format {
            // Only a JSON document has to be whole before it can be written.
            Format::Json => all.extend(page.events),
            Format::Jsonl => page.events.iter().for_each(|event| output::data(&output::json_line(event))),
            Format::Text => page.events.iter().for_each(|event| output::data(&said(event))),
        }
        if !page.has_more || page.next_after_seq <= query.after_seq {
            break;
        }
        query.after_seq = page.next_after_seq;
    }
    if args.output.format == Format::Json {
        output::data(&output::json(&all));
    }
    Ok(exit_codes::OK)
}

/// A message as it is; output of a tool under its stream's name.
fn said(event: &EventView) -> String {
    let payload = event.payload.to_value();
    let text = payload.get("text").and_then(|text| text.as_str()).unwrap_or_default();
    let text = harmless(text).trim_end().to_owned();
    if text.is_empty() {
        return String::new();
    }
    match event.event_type {
        EventType::CommandOutput => text.lines().map(|line| format!("  | {line}\n")).collect(),
        _ => format!("{text}\n"),
    }
}

/// Mark sessions as read, so that `ps` shows them no more
///
/// A session comes back as soon as something ends in it again. What runs is shown in any case.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler read my-session\n  ostler ps -o jsonl | jq -r .sessionId | xargs ostler read"
)]
pub struct ReadArgs {
    #[arg(value_name = "SESSION", required = true, value_parser = NonEmptyStringValueParser::new(), add = completions::targets(),
        help = "What was read; a run stands for its session")]
    sessions: Vec<String>,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    reader: Reader,
    #[command(flatten)]
    output: Output,
}

pub async fn read(connection: &Connection, args: &ReadArgs) -> Result<u8, Failure> {
    let finder = args.within.finder(connection)?;
    let mut all = vec![];
    for word in &args.sessions {
        let session = finder.session(word).await?;
        let read = ReadSession { reader_id: args.reader.id(), tenant_id: session.tenant, version: None };
        all.push(finder.client.read_session(&session.id, &read).await?);
    }
    args.output.many(&all, || {
        all.iter()
            .map(|session| format!("{} read up to version {}\n", line(&session.session_id, 200), session.read_version))
            .collect()
    });
    Ok(exit_codes::OK)
}

/// Make, show, rename, close and evict sessions
///
/// `ostler ps` lists them.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler sessions create review --profile scripted\n  ostler sessions show review")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    Create(CreateArgs),
    Show(ShowArgs),
    Rename(RenameArgs),
    Close(CloseArgs),
    Evict(EvictArgs),
}

/// Make a session before its first run
///
/// `ostler run --session ID` makes one too. The same id again answers with the same session.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler sessions create review\n  ostler sessions create --profile scripted -o json"
)]
struct CreateArgs {
    #[arg(value_name = "ID", help = "Your own id for it; the server gives one when left out")]
    id: Option<String>,
    #[arg(long, default_value = "scripted", help = "The backend profile of its runs", add = completions::profiles())]
    profile: String,
    #[arg(long, help = "The tenant it belongs to [default: the context's, else local]")]
    tenant: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// Show one session, and where its active or latest run stands
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler sessions show review\n  ostler sessions show ses_01a1 -o json | jq .liveness"
)]
struct ShowArgs {
    #[arg(value_name = "SESSION", value_parser = NonEmptyStringValueParser::new(), add = completions::targets(),
        help = "Its id, the beginning of it, or one of its runs")]
    session: String,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    reader: Reader,
    #[command(flatten)]
    times: Times,
    #[command(flatten)]
    output: Output,
}

pub async fn sessions(connection: &Connection, args: &Args) -> Result<u8, Failure> {
    match &args.verb {
        Verb::Create(args) => create(connection, args).await,
        Verb::Show(args) => show(connection, args).await,
        Verb::Rename(args) => rename(connection, args).await,
        Verb::Close(args) => close(connection, args).await,
        Verb::Evict(args) => evict(connection, args).await,
    }
}

/// Give a session a title; its id stays
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler sessions rename review \"Review of Tuesday\"\n  ostler sessions rename review \"\""
)]
struct RenameArgs {
    #[arg(value_name = "SESSION", value_parser = NonEmptyStringValueParser::new(), add = completions::targets(),
        help = "Its id, the beginning of it, or one of its runs")]
    session: String,
    #[arg(help = "What people call it; an empty one takes the title away")]
    title: String,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    output: Output,
}

/// Close a session for good: it takes no more work, and can still be read
///
/// What is unfinished in it must end first.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler sessions close review --yes\n  ostler sessions close review --dry-run")]
struct CloseArgs {
    #[arg(value_name = "SESSION", value_parser = NonEmptyStringValueParser::new(), add = completions::targets(),
        help = "Its id, the beginning of it, or one of its runs")]
    session: String,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    output: Output,
}

/// Remove what a session's agent keeps of the conversation, and the session's own workspace with the files in it
///
/// What was said can still be read; the session takes no more work. `ostler sessions show` says how much its agent keeps and
/// until when.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler sessions evict review --dry-run\n  ostler sessions evict review --yes")]
struct EvictArgs {
    #[arg(value_name = "SESSION", value_parser = NonEmptyStringValueParser::new(), add = completions::targets(),
        help = "Its id, the beginning of it, or one of its runs")]
    session: String,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    output: Output,
}

async fn rename(connection: &Connection, args: &RenameArgs) -> Result<u8, Failure> {
    let finder = args.within.finder(connection)?;
    let SessionKey { id, tenant } = finder.session(&args.session).await?;
    let update = UpdateSession { title: Some(args.title.clone()), tenant_id: tenant };
    let session = finder.client.update_session(&id, &update).await?;
    args.output.one(&session, || match &session.title {
        Some(title) => format!("{} is now {:?}\n", line(&session.session_id, 200), line(title, 200)),
        None => format!("{} has no title\n", line(&session.session_id, 200)),
    });
    Ok(exit_codes::OK)
}

async fn close(connection: &Connection, args: &CloseArgs) -> Result<u8, Failure> {
    let finder = args.within.finder(connection)?;
    let key = finder.session(&args.session).await?;
    let session = finder.client.get_session(&key.id, &key.query()).await?;
    let (id, tenant) = (line(&session.session_id, 200), line(&session.tenant_id, 80));
    output::words(&format!("  session {id} of {tenant} · {}\n", session.execution_state.as_str()));
    if !args.confirm.ask("close this for good?")? {
        return Ok(exit_codes::OK);
    }
    let control = ControlSession { action: "close".into(), reason: None, tenant_id: Some(session.tenant_id) };
    let closed = finder.client.control_session(&key.id, &control).await?;
    args.output.one(&closed, || format!("{id} closed\n"));
    Ok(exit_codes::OK)
}

async fn evict(connection: &Connection, args: &EvictArgs) -> Result<u8, Failure> {
    let finder = args.within.finder(connection)?;
    let key = finder.session(&args.session).await?;
    let query = StorageQuery { tenant_id: key.query().tenant_id };
    let found = finder.client.session_storage(&key.id, &query).await?;
    let id = line(&found.session_id, 200);
    let held = storage(&found.storage, Times::default());
    output::words(&format!("  session {id} of {} · {held}\n", line(&found.tenant_id, 80)));
    if !args.confirm.ask("remove this, and the session's own workspace, for good?")? {
        return Ok(exit_codes::OK);
    }
    let evicted = finder.client.delete_session_storage(&key.id, &query).await?;
    args.output.one(&evicted, || format!("{id} evicted\n"));
    Ok(exit_codes::OK)
}

async fn create(connection: &Connection, args: &CreateArgs) -> Result<u8, Failure> {
    let session = CreateSession {
        tenant_id: Some(connection.tenant(args.tenant.as_deref())?),
        session_id: args.id.clone(),
        backend_profile: Some(args.profile.clone()),
        ..CreateSession::default()
    };
    let made = connection.client()?.create_session(&session).await?;
    args.output.one(&made, || format!("{}\n", line(&made.session_id, 200)));
    Ok(exit_codes::OK)
}

async fn show(connection: &Connection, args: &ShowArgs) -> Result<u8, Failure> {
    let finder = args.within.finder(connection)?;
    let key = finder.session(&args.session).await?;
    let query = SessionQuery { reader_id: args.reader.id(), ..key.query() };
    let session = finder.client.get_session(&key.id, &query).await?;
    args.output.one(&session, || render(&session, args.times));
    Ok(exit_codes::OK)
}

fn render(session: &SessionView, times: Times) -> String {
    let id = |run: Option<ostler_protocol::ids::RunId>| run.map_or_else(|| "-".to_owned(), |run| run.to_string());
    let unread = if session.unread { "unread" } else { "read" };
    let mut fields = vec![
        ("session", line(&session.session_id, 200)),
        ("tenant", line(&session.tenant_id, 200)),
        ("title", session.title.as_deref().map_or_else(|| "-".into(), |title| line(title, 200))),
        ("profile", line(&session.backend_profile, 63)),
        ("state", session.execution_state.as_str().to_owned()),
        ("version", format!("{}, {unread}", session.version)),
        ("active", id(session.active_run_id)),
        ("latest", id(session.last_run_id)),
        ("events", session.last_seq.to_string()),
        ("storage", storage(&session.storage, times)),
        ("chain", line(&session.chain_head.hash, 64)),
        ("made", times.ago(session.created_at, now())),
        ("changed", times.ago(session.updated_at, now())),
    ];
    if let Some(at) = session.closed_at {
        fields.push(("closed", times.ago(at, now())));
    }
    if let Some(liveness) = &session.liveness {
        fields.push(("phase", phase_words(liveness.phase).to_owned()));
        fields.push(("next", line(&liveness.suggested_action, 200)));
        fields.extend(liveness.recovery.as_ref().map(|recovery| ("recover", recovery_command(recovery))));
    }
    fields.into_iter().map(|(name, value)| format!("{name:<9}{value}\n")).collect()
}

/// What the session's agent keeps of it.
fn storage(storage: &SessionStorage, times: Times) -> String {
    let kind = storage.storage_kind.as_str();
    let mut words = vec![match (storage.storage_kind, storage.storage_evicted_at) {
        (StorageKind::Evicted, Some(at)) => format!("{kind} {}", times.ago(at, now())),
        _ => kind.to_owned(),
    }];
    if storage.storage_kind == StorageKind::Local {
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
    use crate::events::fixtures::event;

    #[test]
    fn a_message_stands_alone_and_a_tools_output_is_set_apart() {
        assert_eq!(said(&event(1, EventType::AssistantMessage, json!({"text": "hello\n"}))), "hello\n");
        assert_eq!(said(&event(1, EventType::CommandOutput, json!({"text": "a\nb\x1b[2J\n"}))), "  | a\n  | b[2J\n");
        assert_eq!(said(&event(1, EventType::AssistantMessage, json!({}))), "");
    }
}
