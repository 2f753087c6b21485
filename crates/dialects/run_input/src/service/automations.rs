//! Automations: create, read, change, delete, and when they start. An automation belongs to one user; to others it does not
//! exist.

pub(crate) mod notices;
pub(crate) mod scheduler;
pub(crate) mod starts;
mod tools;

use ostler_protocol::{
    Failure, FailureKind, Rule, Timestamp,
    created::Created,
    cursors::{Cursor, Page, PageRequest},
    ids::AutomationId,
    retention::under_hold,
    run_input::{
        automations::{
            Automation, AutomationPage, AutomationStatus, CreateAutomation, DisabledReason, ListAutomations,
            ListNextTimes, NextTimes, Plan, UpdateAutomation,
        },
        local_times::{zone_name, zone_rules_version},
    },
};
use ostler_store::{self as store, run_input::automations::InsertedAutomation};

use super::threads;
use crate::state::RunInputState;
use ostler_server::{app::App, auth::Principal, dialect::Topic, service::users, traces::note_tenant};

/// An automation was created, changed or started on request, so that schedulers have to look earlier than they expect.
pub(crate) const PLANNED: Topic = Topic::new(
    "run_input.automations",
    |app, _| RunInputState::of(app).scheduler.notify_one(),
    |app| RunInputState::of(app).scheduler.notify_one(),
);
/// The one key of [`PLANNED`].
const PLANNED_KEY: &str = "planned";

/// Automations of removed users that are deleted at once.
const ORPHANS_AT_ONCE: u32 = 100;

/// Wakes the schedulers of all servers.
fn wake_schedulers(app: &App) {
    RunInputState::of(app).scheduler.notify_one();
    PLANNED.wake_others(app, &PLANNED_KEY);
}

/// Creates an automation, or returns the one with the same bootstrap key.
pub(crate) async fn create(
    app: &App,
    caller: &Principal,
    request: CreateAutomation,
) -> Result<Created<Automation>, Failure> {
    let (owner_id, tenant_id) = (threads::owner(caller)?, threads::tenant(app, caller)?.to_owned());
    caller.may_submit(&tenant_id)?;
    note_tenant(&tenant_id);
    let timezone = match request.check()? {
        Some(timezone) => timezone,
        None => zone_name(&users::time_zone(app, caller).await?).to_owned(),
    };
    if let Some(key) = &request.bootstrap_key {
        app.name("bootstrap_key", key)?;
        if let Some(existing) = store::run_input::automations::find_by_bootstrap_key(&app.db, &owner_id, key).await? {
            return Ok(Created::existing(existing));
        }
    }
    tools::check(app, caller, request.config.enabled_tools.as_deref()).await?;
    let now = app.wall();
    let status = request.status.unwrap_or(AutomationStatus::Active);
    let new = Automation {
        id: AutomationId::new(app.ids.body()),
        owner_id,
        tenant_id,
        title: request.title,
        bootstrap_key: request.bootstrap_key,
        config: request.config,
        timezone,
        next_run_at: None,
        last_run_at: None,
        status,
        disabled_reason: (status == AutomationStatus::Disabled).then_some(DisabledReason::Requested),
        failures: 0,
        created_at: app.now(),
        updated_at: app.now(),
        plan: Plan::default(),
        revision: 1,
    };
    let new = planned(redacted(app, new), now)?;
    let most = RunInputState::of(app).automations.per_user_max;
    match store::run_input::automations::insert(&app.db, &new, most).await? {
        InsertedAutomation::Yes => {
            wake_schedulers(app);
            Ok(Created::new(new))
        }
        InsertedAutomation::TooMany => {
            Err(Failure::rule(Rule::AutomationQuota, format!("you have the most automations that are allowed, {most}")))
        }
        // A concurrent request has created it.
        InsertedAutomation::KeyTaken => {
            let key = new.bootstrap_key.as_deref().unwrap_or_default();
            let existing = store::run_input::automations::find_by_bootstrap_key(&app.db, &new.owner_id, key).await?;
            existing
                .map(Created::existing)
                .ok_or_else(|| Failure::rule(Rule::AutomationUnknown, "you have no such automation"))
        }
    }
}

/// The automation with credentials removed from its texts.
fn redacted(app: &App, mut automation: Automation) -> Automation {
    automation.title = app.redactor.redact(&automation.title).into_owned();
    automation.config.input_template = app.redactor.redact(&automation.config.input_template).into_owned();
    automation
}

/// The automation with its next time after `now`, if it is active.
fn planned(mut automation: Automation, now: Timestamp) -> Result<Automation, Failure> {
    let next = match automation.status {
        AutomationStatus::Active => automation.next_after(now)?,
        AutomationStatus::Disabled => None,
    };
    automation.next_run_at = next.map(|next| next.at);
    automation.plan = Plan { after: now, zone_rules: zone_rules_version().to_owned(), ..automation.plan };
    Ok(automation)
}

/// The caller's automation. Another user's is reported like an absent one.
pub(crate) async fn get(app: &App, caller: &Principal, id: AutomationId) -> Result<Automation, Failure> {
    let owner_id = threads::owner(caller)?;
    let found = store::run_input::automations::get(&app.db, id).await?;
    let own = found.filter(|found| found.owner_id == owner_id && caller.is_of(&found.tenant_id).is_ok());
    let own = own.ok_or_else(|| Failure::rule(Rule::AutomationUnknown, "you have no such automation"))?;
    note_tenant(&own.tenant_id);
    Ok(own)
}

pub(crate) async fn list(app: &App, caller: &Principal, request: ListAutomations) -> Result<AutomationPage, Failure> {
    let owner_id = threads::owner(caller)?;
    let no_status = || Failure::invalid(Rule::QueryShape, "status must be active or disabled");
    let status =
        request.status.as_deref().map(|word| AutomationStatus::parse(word).ok_or_else(no_status)).transpose()?;
    let page = PageRequest::new("automations", &(&owner_id, status), request.limit, request.cursor.as_deref())?;
    let found =
        store::run_input::automations::list(&app.db, &owner_id, status, page.after.as_ref(), page.rows_max()).await?;
    let Page { items, next_cursor } = page.page(found, |last| Cursor::after(last.created_at, last.id));
    let automations = items.into_iter().filter(|found| caller.is_of(&found.tenant_id).is_ok()).collect();
    Ok(AutomationPage { automations, next_cursor })
}

/// Changes an automation. Its next time is computed again if its schedule, its zone or its status changes.
pub(crate) async fn update(
    app: &App,
    caller: &Principal,
    id: AutomationId,
    request: UpdateAutomation,
) -> Result<Automation, Failure> {
    let timezone = request.check()?;
    if let Some(config) = &request.config {
        tools::check(app, caller, config.enabled_tools.as_deref()).await?;
    }
    let mut attempts =
        app.db.attempts(|| Failure::new(FailureKind::Overloaded, "the automation was changed too often; try again"));
    loop {
        attempts.start_next()?;
        let old = get(app, caller, id).await?;
        let mut new = old.clone();
        new.title = request.title.clone().unwrap_or(new.title);
        new.config = request.config.clone().unwrap_or(new.config);
        new.timezone = timezone.clone().unwrap_or(new.timezone);
        match request.status {
            Some(AutomationStatus::Active) if old.status == AutomationStatus::Disabled => {
                (new.status, new.disabled_reason, new.failures) = (AutomationStatus::Active, None, 0);
            }
            // Also of one that the server has paused: its owner leaves it paused, and is no longer notified of it.
            Some(AutomationStatus::Disabled) if old.disabled_reason != Some(DisabledReason::Requested) => {
                (new.status, new.disabled_reason) = (AutomationStatus::Disabled, Some(DisabledReason::Requested));
            }
            _ => {}
        }
        let is_same_plan =
            (&new.config.schedule, &new.timezone, new.status) == (&old.config.schedule, &old.timezone, old.status);
        let mut new = redacted(app, new);
        if !is_same_plan {
            new = planned(new, app.wall())?;
        }
        if new == old {
            return Ok(old);
        }
        (new.revision, new.updated_at) = (old.revision + 1, app.now());
        if store::run_input::automations::update(&app.db, &new, old.revision).await? {
            wake_schedulers(app);
            return Ok(new);
        }
    }
}

/// Deletes an automation and its history. Runs that it has started go on, and their threads stay.
pub(crate) async fn delete(app: &App, caller: &Principal, id: AutomationId) -> Result<(), Failure> {
    let tenant_id = get(app, caller, id).await?.tenant_id;
    let is_deleted = store::run_input::automations::delete(&app.db, id, &tenant_id).await?;
    if !is_deleted && store::retention::is_tenant_held(&app.db, &tenant_id).await? {
        return Err(under_hold("this automation"));
    }
    Ok(())
}

pub(crate) async fn next(
    app: &App,
    caller: &Principal,
    id: AutomationId,
    request: &ListNextTimes,
) -> Result<NextTimes, Failure> {
    NextTimes::of(&get(app, caller, id).await?, request, app.wall())
}

/// Deletes the automations of removed users.
pub(crate) async fn delete_orphaned(app: &App) -> Result<(), Failure> {
    loop {
        let orphaned = store::run_input::automations::list_orphaned(&app.db, ORPHANS_AT_ONCE).await?;
        for (id, tenant_id) in &orphaned {
            store::run_input::automations::delete(&app.db, *id, tenant_id).await?;
        }
        if orphaned.len() < ORPHANS_AT_ONCE as usize {
            return Ok(());
        }
    }
}
