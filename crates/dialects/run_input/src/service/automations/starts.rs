//! Starts of automations: the run of a start, its end, and the history. A start has its thread and run ids before its run
//! exists, so that a start that is repeated finds the run instead of starting another.

use std::collections::HashMap;

use futures_util::future::join_all;
use jiff::SignedDuration;
use ostler_protocol::{
    Failure, FailureKind, Rule, Timestamp,
    cursors::{Cursor, Page, PageRequest},
    ids::{AutomationId, AutomationStartId, RunId, SessionId},
    json::canonical_hash,
    kernel::operations::{ChangeSessionOp, SessionChange},
    limits::SESSION_TITLE_BYTES_MAX,
    run_input::{
        agui::input::{ClientTime, RunInput, RuntimeMode, UserMessage, UserPart},
        automations::{
            Automation, AutomationStart, AutomationStartPage, ListAutomationStarts, StartStatus, StartTrigger,
        },
        local_times::{find_zone, local_text},
    },
    text::clip,
};
use ostler_store::{
    self as store,
    run_input::automation_starts::{RequestedStart, RunningStart, StartEnd},
};
use serde_json::{Map, json};

use super::{get, notices::notify_owner, tools, wake_schedulers};
use crate::{
    service::{
        owners,
        runs::{self, Accepted},
        threads,
    },
    state::RunInputState,
};
use ostler_server::{app::App, auth::Principal};

/// How long a server has to start a run that it has claimed.
pub(super) const CLAIM: SignedDuration = SignedDuration::from_secs(60);
/// Runs that are submitted concurrently.
const CONCURRENT_STARTS: usize = 64;
/// How often a start is tried.
const ATTEMPTS_MAX: i64 = 5;
/// Runs of one automation that may be open when a request starts another.
const OPEN_MAX: i64 = 10;
const MESSAGE_CHARS_MAX: usize = 500;

/// Starts an automation at once, whatever its schedule and status. Idempotent by the key, if there is one.
pub(crate) async fn request(
    app: &App,
    caller: &Principal,
    id: AutomationId,
    key: Option<String>,
) -> Result<AutomationStart, Failure> {
    app.accepting()?;
    let automation = get(app, caller, id).await?;
    if let Some(key) = &key {
        app.name("Idempotency-Key", key)?;
    }
    let start_id = AutomationStartId::new(app.ids.body());
    let start = AutomationStart {
        id: start_id,
        automation_id: id,
        trigger: StartTrigger::Request,
        due_at: None,
        status: StartStatus::Starting,
        message: None,
        thread_id: app.ids.body().to_string(),
        run_id: start_id.to_string(),
        task_id: None,
        created_at: app.wall(),
        ended_at: None,
    };
    let key = key.map_or_else(|| format!("id:{start_id}"), |key| format!("key:{key}"));
    let until = claimed_until(app);
    let owner_id = &automation.owner_id;
    match store::run_input::automation_starts::insert_requested(&app.db, &start, owner_id, &key, OPEN_MAX, until)
        .await?
    {
        RequestedStart::Existing(existing) => return Ok(*existing),
        RequestedStart::TooMany => {
            let message = format!("{OPEN_MAX} runs of this automation have not ended");
            return Err(Failure::rule(Rule::AutomationQuota, message));
        }
        RequestedStart::NoAutomation => {
            return Err(Failure::rule(Rule::AutomationUnknown, "you have no such automation"));
        }
        RequestedStart::New => {}
    }
    let claimed = ClaimedStart::first(start.clone());
    app.to_the_end(|app| async move {
        begin_all(&app, &[claimed]).await;
        Ok(())
    })
    .await?;
    // A scheduler records how the run ends. This server may have none.
    wake_schedulers(app);
    Ok(store::run_input::automation_starts::get(&app.db, start.id).await?.unwrap_or(start))
}

pub(super) fn claimed_until(app: &App) -> Timestamp {
    app.now().checked_add(CLAIM).unwrap_or(Timestamp::MAX)
}

/// A start that this server has claimed.
pub(super) struct ClaimedStart {
    pub start: AutomationStart,
    /// How often it was claimed.
    pub attempts: i64,
}

impl ClaimedStart {
    /// One that no server has claimed before.
    pub(super) fn first(start: AutomationStart) -> Self {
        Self { start, attempts: 1 }
    }
}

/// The run of a start.
struct BegunRun<'a> {
    claimed: &'a ClaimedStart,
    automation: &'a Automation,
    owner: Principal,
    accepted: Accepted,
}

/// Starts the runs of claimed starts. A start that fails for a reason that may pass is left: its claim expires, and a server tries
/// again.
pub(super) async fn begin_all(app: &App, claimed: &[ClaimedStart]) {
    for some in claimed.chunks(CONCURRENT_STARTS) {
        begin_some(app, some).await;
    }
}

/// Submits the runs concurrently. What all of them need is read and written together.
async fn begin_some(app: &App, claimed: &[ClaimedStart]) {
    let ids: Vec<_> = claimed.iter().map(|claimed| claimed.start.automation_id).collect();
    let automations = match store::run_input::automations::list_by_ids(&app.db, &ids).await {
        Ok(automations) => automations,
        Err(error) => return all_failed(app, claimed.iter().collect(), &error.into()).await,
    };
    let automations: HashMap<_, _> = automations.into_iter().map(|automation| (automation.id, automation)).collect();
    let submissions = claimed.iter().map(|claimed| submit(app, claimed, automations.get(&claimed.start.automation_id)));
    let mut begun: Vec<BegunRun<'_>> = vec![];
    for (claimed, submitted) in claimed.iter().zip(join_all(submissions).await) {
        match submitted {
            Ok(run) => begun.extend(run),
            Err(failure) => failed(app, claimed, &failure).await,
        }
    }
    let ids = begun.iter().map(|run| (run.claimed.start.id, run.accepted.alias.command_id));
    let running: Vec<_> = ids.map(|(start_id, command_id)| RunningStart { start_id, command_id }).collect();
    if let Err(error) = store::run_input::automation_starts::update_running(&app.db, &running).await {
        return all_failed(app, begun.iter().map(|run| run.claimed).collect(), &error.into()).await;
    }
    join_all(begun.iter().map(|run| name_thread(app, run))).await;
}

async fn all_failed(app: &App, claimed: Vec<&ClaimedStart>, failure: &Failure) {
    for claimed in claimed {
        failed(app, claimed, failure).await;
    }
}

async fn failed(app: &App, ClaimedStart { start, attempts }: &ClaimedStart, failure: &Failure) {
    let may_pass = failure.kind.row().retry || failure.kind.row().status >= 500;
    if may_pass && *attempts < ATTEMPTS_MAX {
        tracing::warn!(%failure, cause = failure.cause.as_deref(), start = %start.id, "an automation could not be started; trying again later");
        return;
    }
    tracing::info!(%failure, start = %start.id, "an automation could not be started");
    let message = clip(&app.redactor.redact(&failure.message), MESSAGE_CHARS_MAX);
    if let Err(failure) = end(app, start, StartStatus::Failed, Some(&message)).await {
        tracing::warn!(%failure, cause = failure.cause.as_deref(), start = %start.id, "the end of a start could not be recorded; trying again later");
    }
}

/// `None` if the automation was deleted.
async fn submit<'a>(
    app: &App,
    claimed: &'a ClaimedStart,
    automation: Option<&'a Automation>,
) -> Result<Option<BegunRun<'a>>, Failure> {
    let start = &claimed.start;
    let Some(automation) = automation else {
        end(app, start, StartStatus::Cancelled, Some("the automation was deleted")).await?;
        return Ok(None);
    };
    let owner = owners::principal(app, &automation.owner_id).await?;
    let owner = owner.ok_or_else(|| Failure::rule(Rule::Owner, "the owner of the automation was removed"))?;
    let has_left = |_| Failure::rule(Rule::Tenant, "the owner of the automation is no longer in its tenant");
    owner.is_of(&automation.tenant_id).map_err(has_left)?;
    tools::check_start(app, &owner, automation).await?;
    let input = input(automation, start)?;
    let may_exist = claimed.attempts > 1;
    let accepted = runs::accept_start(app, &owner, &input, automation, may_exist).await?;
    Ok(Some(BegunRun { claimed, automation, owner, accepted }))
}

/// Gives the thread of a run its title, if it was created for the run.
async fn name_thread(app: &App, BegunRun { claimed, automation, owner, accepted }: &BegunRun<'_>) {
    if accepted.new_thread.is_none() {
        return;
    }
    // The log has the title, so that it is the same when the session is replayed.
    let title = Some(clip_bytes(&automation.title, SESSION_TITLE_BYTES_MAX));
    let change = SessionChange::Rename { title, origin: None };
    if let Err(failure) = change_thread(app, owner, &claimed.start, accepted.new_thread, change).await {
        tracing::warn!(%failure, cause = failure.cause.as_deref(), start = %claimed.start.id, "the thread of an automation gets no title");
    }
}

/// At most so many bytes of a text, in whole characters.
fn clip_bytes(text: &str, max: usize) -> String {
    text[..text.floor_char_boundary(max)].to_owned()
}

/// Changes the thread of a start. A run that could not be started has no thread. `thread`: the thread and its last run, if they are
/// known.
async fn change_thread(
    app: &App,
    owner: &Principal,
    start: &AutomationStart,
    mut thread: Option<(SessionId, Option<RunId>)>,
    change: SessionChange,
) -> Result<(), Failure> {
    let mut attempts = app.db.attempts(|| Failure::new(FailureKind::Overloaded, "the thread still has running work"));
    loop {
        attempts.start_next()?;
        if thread.is_none() {
            let found = threads::find(app, owner, &start.thread_id).await?;
            thread = found.map(|found| (found.session, found.last_run_id));
        }
        let Some((session, last_run_id)) = thread.take() else { return Ok(()) };
        let op = ChangeSessionOp { change: change.clone(), by: "scheduler".into() };
        match app.try_submit(session, last_run_id, op).await {
            Err(failure) if failure.broken_rule() == Some(Rule::SessionMovedOn) => {}
            outcome => return outcome.map(drop),
        }
    }
}

/// The input of a start's run. It is the same for the same start, so that a repeated start is the same request.
fn input(automation: &Automation, start: &AutomationStart) -> Result<RunInput, Failure> {
    // The message and its clock are those of the time that it is for, also if it is started late.
    let at = start.due_at.unwrap_or(start.created_at);
    let zone = find_zone(&automation.timezone)?;
    let client_time = ClientTime {
        device_timezone: automation.timezone.clone(),
        client_now_iso: local_text(at, &zone),
        client_epoch_ms: at.as_millisecond(),
    };
    let parts = vec![UserPart::Text(automation.message_at(at)?)];
    Ok(RunInput {
        thread_id: start.thread_id.clone(),
        run_id: start.run_id.clone(),
        parent_run_id: None,
        user: Some(UserMessage { id: format!("msg_{}", start.id), parts, fields: Map::new(), part_fields: vec![] }),
        // The run reads the context of the automation itself.
        others: vec![],
        replies: vec![],
        transcript: vec![],
        state: None,
        tools: vec![],
        context: vec![],
        client_time: Some(client_time),
        resume: vec![],
        mode: RuntimeMode::Automation,
        hash: canonical_hash(&json!({"automationStart": start.id})),
    })
}

/// Records how a start has ended. An automation that failed too often in a row is paused, and its owner is notified.
pub(super) async fn end(
    app: &App,
    start: &AutomationStart,
    status: StartStatus,
    message: Option<&str>,
) -> Result<(), Failure> {
    let failures_max = RunInputState::of(app).automations.failures_max;
    let ended = StartEnd { id: start.id, automation_id: start.automation_id, status, message, failures_max };
    let disabled = store::run_input::automation_starts::update_ended(&app.db, ended, app.wall()).await?;
    if let Some(automation) = disabled {
        tracing::warn!(automation = %automation.id, failures = automation.failures, "an automation was paused after repeated failures");
        if let Err(failure) = note_pause(app, &automation, start).await {
            tracing::warn!(%failure, cause = failure.cause.as_deref(), automation = %automation.id, "the pause could not be noted in the thread");
        }
        notify_owner(app, &automation);
    }
    Ok(())
}

/// What the thread of the last run shows to people.
fn paused_text(automation: &Automation) -> String {
    format!("the automation {:?} was paused after {} failed runs", automation.title, automation.failures)
}

/// Why the run of a start has ended as it did, as its command has it. It is not copied into the start, where neither retention nor
/// erasure would remove it.
async fn end_message(app: &App, start: &AutomationStart) -> Result<Option<String>, Failure> {
    let Some(command_id) = start.task_id else { return Ok(None) };
    let command = store::kernel::commands::get(&app.db, command_id).await?;
    let Some(terminal) = command.and_then(|command| command.terminal) else { return Ok(None) };
    let meaning = || terminal.failure_kind.map(|kind| kind.row().meaning.to_owned());
    let message = terminal.message.clone().filter(|message| !message.is_empty()).or_else(meaning);
    Ok(message.map(|message| clip(&app.redactor.redact(&message), MESSAGE_CHARS_MAX)))
}

/// Records in the thread of the last run that its automation was paused. The owner's inbox has that thread, because its run
/// failed, and clients that follow the thread receive the note.
async fn note_pause(app: &App, automation: &Automation, start: &AutomationStart) -> Result<(), Failure> {
    let Some(owner) = owners::principal(app, &automation.owner_id).await? else { return Ok(()) };
    let data = json!({"automationId": automation.id, "title": automation.title, "failures": automation.failures,
        "reason": automation.disabled_reason, "message": paused_text(automation)});
    let note = SessionChange::Note { note: "automation_paused".into(), data, is_use: true };
    change_thread(app, &owner, start, None, note).await
}

/// The starts of an automation, the newest first.
pub(crate) async fn list(
    app: &App,
    caller: &Principal,
    id: AutomationId,
    request: ListAutomationStarts,
) -> Result<AutomationStartPage, Failure> {
    let automation = get(app, caller, id).await?;
    let page = PageRequest::new("automation_starts", &automation.id, request.limit, request.cursor.as_deref())?;
    let found = store::run_input::automation_starts::list(&app.db, id, page.after.as_ref(), page.rows_max()).await?;
    let Page { items: mut starts, next_cursor } = page.page(found, |last| Cursor::after(last.created_at, last.id));
    let has_reason =
        |status: StartStatus| matches!(status, StartStatus::Failed | StartStatus::Blocked | StartStatus::Cancelled);
    for start in starts.iter_mut().filter(|start| start.message.is_none() && has_reason(start.status)) {
        start.message = end_message(app, start).await?;
    }
    Ok(AutomationStartPage { starts, next_cursor })
}
