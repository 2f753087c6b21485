//! Starts of automations: the run of a start, its end, and the history. A start has its thread and run ids before its run
//! exists, so that a start that is repeated finds the run instead of starting another.

use jiff::SignedDuration;
use ostler_protocol::{
    Failure, FailureKind, Rule, Timestamp,
    cursors::{Cursor, Page, PageRequest},
    ids::{AutomationId, AutomationStartId},
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
    run_input::automation_starts::{RequestedStart, StartEnd},
};
use serde_json::{Map, json};

use super::{get, wake_schedulers};
use crate::{
    service::{owners, runs, threads},
    state::RunInputState,
};
use ostler_server::{app::App, auth::Principal, net::Locality};

/// How long a server has to start a run that it has claimed.
pub(super) const CLAIM: SignedDuration = SignedDuration::from_secs(60);
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
    let begun = start.clone();
    app.to_the_end(|app| async move {
        begin(&app, &begun, 1).await;
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

/// Starts the run of a claimed start. A start that fails for a reason that may pass is left: its claim expires, and a server
/// tries again.
pub(super) async fn begin(app: &App, start: &AutomationStart, attempts: i64) {
    let Err(failure) = submit(app, start).await else { return };
    let may_pass = failure.kind.row().retry || failure.kind.row().status >= 500;
    if may_pass && attempts < ATTEMPTS_MAX {
        tracing::warn!(%failure, cause = failure.cause.as_deref(), start = %start.id, "an automation could not be started; trying again later");
        return;
    }
    tracing::info!(%failure, start = %start.id, "an automation could not be started");
    let message = clip(&app.redactor.redact(&failure.message), MESSAGE_CHARS_MAX);
    if let Err(failure) = end(app, start, StartStatus::Failed, Some(&message)).await {
        tracing::warn!(%failure, cause = failure.cause.as_deref(), start = %start.id, "the end of a start could not be recorded; trying again later");
    }
}

async fn submit(app: &App, start: &AutomationStart) -> Result<(), Failure> {
    let Some(automation) = store::run_input::automations::get(&app.db, start.automation_id).await? else {
        return end(app, start, StartStatus::Cancelled, Some("the automation was deleted")).await;
    };
    let owner = owners::principal(app, &automation.owner_id).await?;
    let owner = owner.ok_or_else(|| Failure::rule(Rule::Owner, "the owner of the automation was removed"))?;
    let has_left = |_| Failure::rule(Rule::Tenant, "the owner of the automation is no longer in its tenant");
    owner.is_of(&automation.tenant_id).map_err(has_left)?;
    let input = input(&automation, start)?;
    // The scheduler submits the run, so no caller on this machine can answer its permission requests.
    let accepted = runs::accept(app, &owner, Locality(false), &input).await?;
    store::run_input::automation_starts::update_running(&app.db, start.id, accepted.alias.command_id).await?;
    if accepted.created {
        // The log has the title, so that it is the same when the session is replayed.
        let title = Some(clip_bytes(&automation.title, SESSION_TITLE_BYTES_MAX));
        if let Err(failure) = change_thread(app, &owner, start, SessionChange::Rename { title, origin: None }).await {
            tracing::warn!(%failure, cause = failure.cause.as_deref(), start = %start.id, "the thread of an automation gets no title");
        }
    }
    Ok(())
}

/// At most so many bytes of a text, in whole characters.
fn clip_bytes(text: &str, max: usize) -> String {
    text[..text.floor_char_boundary(max)].to_owned()
}

/// Changes the thread of a start. A run that could not be started has no thread.
async fn change_thread(
    app: &App,
    owner: &Principal,
    start: &AutomationStart,
    change: SessionChange,
) -> Result<(), Failure> {
    let mut attempts = app.attempts(|| Failure::new(FailureKind::Overloaded, "the thread did not come to rest"));
    loop {
        attempts.start_next()?;
        let Some(thread) = threads::find(app, owner, &start.thread_id).await? else { return Ok(()) };
        let op = ChangeSessionOp { change: change.clone(), by: "scheduler".into() };
        match app.try_submit(thread.session, thread.last_run_id, op).await {
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
        if let Err(failure) = notify(app, &automation, start).await {
            tracing::warn!(%failure, cause = failure.cause.as_deref(), automation = %automation.id, "the owner could not be notified");
        }
    }
    Ok(())
}

/// Records in the thread of the last run that its automation was paused. The owner's inbox has that thread, because its run
/// failed, and clients that follow the thread receive the note.
async fn notify(app: &App, automation: &Automation, start: &AutomationStart) -> Result<(), Failure> {
    let Some(owner) = owners::principal(app, &automation.owner_id).await? else { return Ok(()) };
    let data = json!({"automationId": automation.id, "title": automation.title, "failures": automation.failures,
        "reason": automation.disabled_reason});
    change_thread(app, &owner, start, SessionChange::Note { note: "automation_paused".into(), data }).await
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
    let Page { items: starts, next_cursor } = page.page(found, |last| Cursor::after(last.created_at, last.id));
    Ok(AutomationStartPage { starts, next_cursor })
}
