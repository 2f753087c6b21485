//! Retention: limits, sweeps and legal holds, for the operator. A sweep goes through what the steps of the engine and the
//! dialects list, and removes it in small transactions with pauses between them, so that other writes are never kept waiting
//! for long. It has no state: one that was interrupted is continued by the next one, on whatever server.

pub(crate) mod steps;

use std::{collections::BTreeSet, time::Duration};

use jiff::SignedDuration;
use ostler_protocol::{
    Failure, Timestamp,
    cursors::{Cursor, Page, PageRequest},
    ids::HoldId,
    retention::{Hold, HoldPage, ListHolds, PlaceHold, RetentionCount, RetentionSweep, RetentionView, SweepRetention},
};
use ostler_store::{
    self as store,
    retention::{
        RetentionScope,
        space::{self, STEP_PAGES_MAX},
    },
};

use super::lookup;
use crate::{
    app::App,
    auth::{Access, Principal},
    dialect::{Dialects, ListRemovable, Ownership, RetentionStep},
    traces::{note_session, note_tenant},
};

/// Rows of a list that is read at once.
const PAGE: u32 = 200;
/// Most that a dry run counts of one noun of a tenant.
const COUNTED_MAX: usize = 100_000;
/// Steps of one request; the client repeats it.
const REQUEST_STEPS: u32 = 40;

/// The limits in force, and what a sweep would remove.
pub async fn get(app: &App, caller: &Principal) -> Result<RetentionView, Failure> {
    Access::Operate.admit(caller)?;
    let mut sweep = Sweep::new(app, 0);
    for target in targets(app, &SweepRetention::default()).await? {
        sweep.count(&target).await?;
    }
    let RetentionSweep { counts, has_more, .. } = sweep.finish(true);
    Ok(RetentionView { sweep_ms: app.config.retention.sweep_ms, counts, has_more })
}

/// Removes what is older than its limit, in a bounded number of steps, and returns freed space; or only counts it.
pub async fn sweep(app: &App, caller: &Principal, request: SweepRetention) -> Result<RetentionSweep, Failure> {
    Access::Operate.admit(caller)?;
    request.check()?;
    if let Some(tenant) = &request.tenant_id {
        check_tenant(app, tenant).await?;
    }
    let swept = sweep_in_steps(app, &request, REQUEST_STEPS).await?;
    if !request.dry_run && swept.counts.iter().any(|count| count.items > 0) {
        tracing::info!(by = caller.name(), "retention removed what is older than its limit");
    }
    Ok(swept)
}

/// As [`sweep`], for the server itself: until nothing is left, or the server stops.
pub(crate) async fn sweep_all(app: &App) -> Result<RetentionSweep, Failure> {
    sweep_in_steps(app, &SweepRetention::default(), u32::MAX).await
}

async fn sweep_in_steps(app: &App, request: &SweepRetention, steps: u32) -> Result<RetentionSweep, Failure> {
    let mut sweep = Sweep::new(app, steps);
    let mut failed = None;
    for target in targets(app, request).await? {
        let outcome = match request.dry_run {
            true => sweep.count(&target).await,
            false => sweep.remove(&target).await,
        };
        // One noun that fails must not keep the others.
        if let Err(failure) = outcome {
            failed.get_or_insert(failure);
        }
    }
    if let Some(failure) = failed {
        return Err(failure);
    }
    if !request.dry_run && !sweep.has_more {
        sweep.release_space().await?;
    }
    Ok(sweep.finish(request.dry_run))
}

/// One noun of one tenant, and its limit.
struct Target {
    step: RetentionStep,
    tenant_id: Option<String>,
    limit_ms: Option<i64>,
    before: Timestamp,
}

/// All steps: the engine's, then those of the dialects.
fn all_steps(app: &App) -> impl Iterator<Item = RetentionStep> {
    steps::engine().into_iter().chain(Dialects::of(app).retention_steps().cloned())
}

/// The tables that retention removes rows from, on a server with these dialects.
pub fn tables(dialects: &Dialects) -> Vec<&'static str> {
    let engine = steps::engine();
    let all = engine.iter().chain(dialects.retention_steps()).flat_map(|step| step.tables);
    all.copied().collect::<BTreeSet<_>>().into_iter().collect()
}

async fn targets(app: &App, request: &SweepRetention) -> Result<Vec<Target>, Failure> {
    let tenants = match &request.tenant_id {
        Some(tenant) => vec![tenant.clone()],
        None => {
            let known = store::retention::list_tenants(&app.db).await?;
            known
                .into_iter()
                .chain(app.config.policy.tenants.iter().cloned())
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect()
        }
    };
    let now = app.now();
    let mut targets = vec![];
    for step in all_steps(app).filter(|step| request.noun.is_none_or(|noun| noun == step.noun)) {
        let own = tenants.iter().cloned().map(Some).filter(|_| step.ownership != Ownership::NoTenant);
        let none = (step.ownership != Ownership::Tenant && request.tenant_id.is_none()).then_some(None);
        for tenant_id in own.chain(none) {
            let limit_ms = app.config.retention.limit_ms(step.noun, tenant_id.as_deref());
            let age = SignedDuration::from_millis(limit_ms.unwrap_or(i64::MAX));
            let before = now.checked_sub(age).unwrap_or(Timestamp::MIN);
            targets.push(Target { step: step.clone(), tenant_id, limit_ms, before });
        }
    }
    Ok(targets)
}

impl Target {
    fn scope(&self) -> RetentionScope {
        RetentionScope { tenant_id: self.tenant_id.clone(), before: self.before }
    }

    fn nothing(&self) -> RetentionCount {
        let (noun, tenant_id, limit_ms) = (self.step.noun, self.tenant_id.clone(), self.limit_ms);
        RetentionCount { noun, tenant_id, limit_ms, items: 0, bytes: 0, held: 0 }
    }
}

struct Sweep<'a> {
    app: &'a App,
    steps_left: u32,
    counts: Vec<RetentionCount>,
    /// Tables that rows were removed from.
    touched: BTreeSet<&'static str>,
    has_more: bool,
}

impl<'a> Sweep<'a> {
    fn new(app: &'a App, steps_left: u32) -> Self {
        Self { app, steps_left, counts: vec![], touched: BTreeSet::new(), has_more: false }
    }

    fn finish(self, dry_run: bool) -> RetentionSweep {
        RetentionSweep { dry_run, counts: self.counts, has_more: self.has_more }
    }

    async fn count(&mut self, target: &Target) -> Result<(), Failure> {
        let mut count = target.nothing();
        let (mut after, mut counted) = (None, 0);
        while target.limit_ms.is_some() {
            let page = ListRemovable { scope: target.scope(), after: after.take(), limit: PAGE };
            let found = target.step.list(self.app, page).await?;
            for removable in &found {
                match removable.is_held {
                    true => count.held += removable.items,
                    false => {
                        count.items += removable.items;
                        count.bytes += removable.bytes;
                    }
                }
            }
            counted += found.len();
            after = found.last().map(|last| last.key.clone());
            if found.len() < PAGE as usize {
                break;
            }
            if counted >= COUNTED_MAX {
                self.has_more = true;
                break;
            }
        }
        self.add(count);
        Ok(())
    }

    /// A noun may have several steps, which are counted together.
    fn add(&mut self, count: RetentionCount) {
        let same = |other: &&mut RetentionCount| other.noun == count.noun && other.tenant_id == count.tenant_id;
        match self.counts.iter_mut().find(same) {
            Some(other) => {
                other.items += count.items;
                other.bytes += count.bytes;
                other.held += count.held;
            }
            None => self.counts.push(count),
        }
    }

    async fn remove(&mut self, target: &Target) -> Result<(), Failure> {
        let mut count = target.nothing();
        let outcome = self.remove_counted(target, &mut count).await;
        if count.items > 0 {
            self.touched.extend(target.step.tables);
        }
        self.add(count);
        outcome
    }

    async fn remove_counted(&mut self, target: &Target, count: &mut RetentionCount) -> Result<(), Failure> {
        let bulk = if target.step.is_bulk { self.app.config.retention.step_rows } else { 1 };
        let limit = if target.step.is_bulk { bulk } else { PAGE };
        let mut after = None;
        while target.limit_ms.is_some() {
            let page = ListRemovable { scope: target.scope(), after: after.take(), limit };
            let found = target.step.list(self.app, page).await?;
            count.held += found.iter().filter(|one| one.is_held).map(|one| one.items).sum::<i64>();
            let keys: Vec<String> = found.iter().filter(|one| !one.is_held).map(|one| one.key.clone()).collect();
            for keys in keys.chunks(bulk.max(1) as usize) {
                if !self.remove_keys(target, keys, count).await? {
                    return Ok(());
                }
            }
            after = found.last().map(|last| last.key.clone());
            if found.len() < limit as usize {
                break;
            }
        }
        Ok(())
    }

    /// False: the sweep has done its steps, or the server stops.
    async fn remove_keys(
        &mut self,
        target: &Target,
        keys: &[String],
        count: &mut RetentionCount,
    ) -> Result<bool, Failure> {
        loop {
            if self.steps_left == 0 || !self.pause().await {
                self.has_more = true;
                return Ok(false);
            }
            self.steps_left -= 1;
            let removed = target.step.remove(self.app, &target.scope(), keys).await?;
            count.items += removed.items;
            count.bytes += removed.bytes;
            if !removed.has_more {
                return Ok(true);
            }
        }
    }

    /// Returns freed space to the file system, in steps as well. Space that is left after the last step is more to do: the next
    /// request finds nothing to remove, and continues here.
    async fn release_space(&mut self) -> Result<(), Failure> {
        let tables: Vec<&str> = self.touched.iter().copied().collect();
        let pages = self.app.config.retention.step_rows.min(STEP_PAGES_MAX);
        let mut steps_left = self.steps_left.max(REQUEST_STEPS);
        while space::release(&self.app.db, &tables, pages).await? {
            steps_left -= 1;
            if steps_left == 0 || !self.pause().await {
                self.has_more = true;
                break;
            }
        }
        Ok(())
    }

    /// Lets other writes go first. False: the server stops.
    async fn pause(&self) -> bool {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(self.app.config.retention.pause_ms)) => true,
            () = self.app.stopped() => false,
        }
    }
}

/// Places a hold. When this returns, no row that it covers is removed any more. A file that is being deleted at that moment is
/// not restored.
pub async fn place_hold(app: &App, caller: &Principal, request: PlaceHold) -> Result<Hold, Failure> {
    Access::Operate.admit(caller)?;
    request.check()?;
    let PlaceHold { mut tenant_id, session_id, identity, reason } = request;
    let mut session = None;
    if let Some(name) = &session_id {
        let found = lookup::session(app, caller, name, tenant_id.as_deref()).await?;
        session = Some(found.session);
        tenant_id = Some(found.tenant_id);
    } else if let Some(tenant) = &tenant_id {
        check_tenant(app, tenant).await?;
    }
    let hold = Hold {
        hold_id: HoldId::new(app.ids.body()),
        tenant_id,
        session,
        session_id,
        identity,
        reason: app.redactor.redact(&reason).into_owned(),
        placed_by: caller.name(),
        placed_at: app.now(),
        released_by: None,
        released_at: None,
    };
    store::retention::insert_hold(&app.db, &hold).await?;
    tracing::info!(hold = %hold.hold_id, by = caller.name(), "a legal hold was placed");
    Ok(hold)
}

/// A hold for a misspelt tenant would protect nothing, and a sweep of it would remove nothing. Rows of a tenant that the policy
/// no longer lists still count.
async fn check_tenant(app: &App, tenant: &str) -> Result<(), Failure> {
    note_tenant(tenant);
    let Err(unknown) = app.config.policy.tenant(tenant) else { return Ok(()) };
    let stored = store::retention::list_tenants(&app.db).await?;
    if stored.iter().any(|stored| stored == tenant) { Ok(()) } else { Err(unknown) }
}

/// Newest first, also those that were released.
pub async fn list_holds(app: &App, caller: &Principal, request: ListHolds) -> Result<HoldPage, Failure> {
    Access::Operate.admit(caller)?;
    let page = PageRequest::new("holds", &(), request.limit, request.cursor.as_deref())?;
    let holds = store::retention::list_holds(&app.db, page.after.as_ref(), page.rows_max()).await?;
    let Page { items: holds, next_cursor } = page.page(holds, |hold| Cursor::after(hold.placed_at, hold.hold_id));
    Ok(HoldPage { holds, next_cursor })
}

/// Idempotent: the first release counts.
pub async fn release_hold(app: &App, caller: &Principal, hold_id: HoldId) -> Result<Hold, Failure> {
    Access::Operate.admit(caller)?;
    let released = store::retention::update_released(&app.db, hold_id, &caller.name(), app.now()).await?;
    let released = released.ok_or_else(|| Failure::not_found("hold"))?;
    match (&released.tenant_id, released.session) {
        (Some(tenant_id), Some(session)) => note_session(tenant_id, session),
        (Some(tenant_id), None) => note_tenant(tenant_id),
        (None, _) => {}
    }
    tracing::info!(hold = %hold_id, by = caller.name(), "a legal hold was released");
    Ok(released)
}
