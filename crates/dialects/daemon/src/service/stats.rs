//! What a session has used.

use ostler_protocol::{
    Failure,
    daemon::stats::{FileStats, SessionStats, SkillStats, ToolStats},
    kernel::events::EventType,
    limits::CONVERSATION_EVENTS_MAX,
};
use ostler_server::{app::App, auth::Principal};
use ostler_store as store;

use super::{lookup, models::STATUS_VERSION};

/// How many of the newest turns are counted.
const TURNS_MAX: u32 = 1_000;
/// How many of the newest reports of usage of these turns are counted.
const REPORTS_MAX: u32 = 10_000;
/// How many of the newest events about tool calls are read for their times and the decisions about them.
const CALL_EVENTS_MAX: usize = 10_000;

pub(crate) async fn get(app: &App, caller: &Principal, id: &str) -> Result<SessionStats, Failure> {
    let open = lookup::open_session(app, caller, id).await?;
    let turns = store::daemon::turns::list_usage(&app.db, &open.session, TURNS_MAX).await?;
    let mut stats = SessionStats {
        v: STATUS_VERSION,
        session_id: open.session.public_id(),
        workspace_cwd: open.daemon.workspace,
        session_start_time_ms: open.session.created_at.as_millisecond(),
        duration_ms: app.now().duration_since(open.session.created_at).as_millis() as i64,
        prompt_count: 0,
        models: Default::default(),
        tools: ToolStats::default(),
        files: FileStats::default(),
        skills: SkillStats::default(),
    };
    turns.iter().for_each(|turn| stats.add(turn));
    let reports = store::daemon::turns::list_usage_reports(&app.db, &open.session, TURNS_MAX, REPORTS_MAX).await?;
    reports.iter().for_each(|report| stats.add_parts(report));
    let types = [EventType::ToolCall, EventType::PermissionRequest, EventType::PermissionResolved];
    let session = open.session.session;
    let newest = store::kernel::events::list_newest(&app.db, session, &types, CONVERSATION_EVENTS_MAX, CALL_EVENTS_MAX);
    let mut events = newest.await?.events;
    events.sort_by_key(|event| event.session_seq);
    stats.add_calls(&events);
    Ok(stats)
}
