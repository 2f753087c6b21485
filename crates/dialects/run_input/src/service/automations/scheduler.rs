//! The scheduler: starts automations that are due, starts again what a server that died had claimed, and records how runs
//! have ended. Any number of servers may do this at once.
//!
//! After downtime each automation that is due starts once, however many of its times have passed.
//!
//! A scheduler sleeps until the next automation is due. A created or changed automation wakes the schedulers of all servers. While a
//! start has not ended, the scheduler checks in short intervals; otherwise in long ones, because a wake-up may be lost.

use std::time::Duration;

use ostler_protocol::{
    Failure, Timestamp,
    ids::AutomationStartId,
    run_input::{
        automations::{Automation, AutomationStatus, DisabledReason, StartStatus, schedule::next_after_date},
        local_times::{find_zone, zone_rules_version},
    },
};
use ostler_store::{self as store, run_input::automation_starts::DueStart};
use tokio::time::Instant;

use super::{
    notices::notify_owner,
    starts::{self, ClaimedStart},
};
use crate::state::RunInputState;
use ostler_server::app::App;

/// Automations that are claimed together.
const CLAIMED_AT_ONCE: u32 = 250;
/// Ends that are recorded in one pass.
const ENDS_AT_ONCE: u32 = 500;
/// Migrations name it.
const THREAD_ERASED: &str = "the thread of the run was erased";
/// Short intervals in one long interval.
const POLLS_PER_RECHECK: u32 = 30;
/// The shortest sleep of the scheduler, before it starts an automation that became due during its pass.
const PAUSE_MIN: Duration = Duration::from_millis(10);

pub(crate) async fn run(app: App) {
    let state = RunInputState::of(&app);
    if !state.automations.scheduler {
        return;
    }
    let (poll, mut replanned_at) = (state.automations.poll(), None);
    loop {
        let outcome = match is_recent(replanned_at, poll) {
            true => Ok(()),
            false => replan(&app).await.map(|()| replanned_at = Some(Instant::now())),
        };
        let began = app.wall();
        if let Err(failure) = outcome.and(pass(&app).await) {
            tracing::warn!(%failure, cause = failure.cause.as_deref(), "automations cannot be started; trying again");
        }
        tokio::select! {
            () = app.drained() => return,
            () = state.scheduler.notified() => {}
            () = tokio::time::sleep(pause(&app, began, poll).await) => {}
        }
    }
}

/// How long to sleep if nothing wakes the scheduler, after a pass that began at this time.
async fn pause(app: &App, began: Timestamp, poll: Duration) -> Duration {
    let next = store::run_input::automations::find_next_due(&app.db).await;
    let has_open = store::run_input::automation_starts::any_open(&app.db).await;
    let (Ok(next), Ok(has_open)) = (next, has_open) else { return poll };
    let left = next.map(|next| time_left(next, began, app.wall(), poll));
    pause_for(left, has_open, poll)
}

/// How long to sleep until the next automation is due, after a pass that began at this time. What was due in the pass could not be
/// started, because the store did not take it or another server is about to: it is tried again after the short interval.
fn time_left(next: Timestamp, began: Timestamp, now: Timestamp, poll: Duration) -> Duration {
    if next <= began {
        return poll;
    }
    // Zero if it became due during the pass.
    Duration::try_from(next.duration_since(now)).unwrap_or_default()
}

/// Until the next automation is due, and no longer than the interval.
fn pause_for(left: Option<Duration>, has_open: bool, poll: Duration) -> Duration {
    let interval = if has_open { poll } else { long_interval(poll) };
    left.map_or(interval, |left| left.min(interval)).max(PAUSE_MIN)
}

fn long_interval(poll: Duration) -> Duration {
    poll.saturating_mul(POLLS_PER_RECHECK)
}

/// Whether next times were compared with the rules of time zones within the long interval.
fn is_recent(replanned_at: Option<Instant>, poll: Duration) -> bool {
    replanned_at.is_some_and(|at| at.elapsed() < long_interval(poll))
}

async fn pass(app: &App) -> Result<(), Failure> {
    start_due(app).await?;
    start_abandoned(app).await?;
    record_ends(app).await
}

async fn start_due(app: &App) -> Result<(), Failure> {
    loop {
        let now = app.wall();
        let due = store::run_input::automations::list_due(&app.db, now, CLAIMED_AT_ONCE).await?;
        let is_last = due.len() < CLAIMED_AT_ONCE as usize;
        let mut planned = vec![];
        for automation in &due {
            match due_start(app, automation, now) {
                Some(start) => planned.push(start),
                None => pause_without_zone(app, automation).await?,
            }
        }
        if planned.is_empty() || app.is_draining() {
            return Ok(());
        }
        let until = starts::claimed_until(app);
        let claimed = store::run_input::automation_starts::claim(&app.db, &planned, until, now).await?;
        // Another server has claimed the rest.
        let is_last = is_last || claimed.is_empty();
        starts::begin_all(app, &claimed.into_iter().map(ClaimedStart::first).collect::<Vec<_>>()).await;
        if is_last {
            return Ok(());
        }
    }
}

/// Pauses an automation whose zone is unknown, because the rules of time zones do not have it any more: it has no next time.
async fn pause_without_zone(app: &App, automation: &Automation) -> Result<(), Failure> {
    let mut paused = automation.clone();
    (paused.status, paused.disabled_reason) = (AutomationStatus::Disabled, Some(DisabledReason::UnknownZone));
    (paused.next_run_at, paused.revision, paused.updated_at) = (None, automation.revision + 1, app.now());
    // False if it was changed in the meantime.
    if store::run_input::automations::update(&app.db, &paused, automation.revision).await? {
        tracing::warn!(automation = %automation.id, timezone = automation.timezone, "an automation was paused, because its time zone is unknown");
        notify_owner(app, &paused);
    }
    Ok(())
}

/// The start of a due automation. Its next time is after now, so that what was missed is made up for once. `None` if its zone is
/// unknown.
fn due_start(app: &App, automation: &Automation, now: Timestamp) -> Option<DueStart> {
    let due = automation.next_run_at?;
    let zone = find_zone(&automation.timezone).ok()?;
    let date = due.to_zoned(zone.clone()).date();
    let next = next_after_date(&automation.config.schedule, &zone, now.max(due), Some(date));
    Some(DueStart {
        automation_id: automation.id,
        due_us: due.as_microsecond(),
        next_us: next.map(|next| next.at.as_microsecond()),
        last_date: Some(date.to_string()),
        zone_rules: zone_rules_version().to_owned(),
        start_id: AutomationStartId::new(app.ids.body()),
        thread_id: app.ids.body().to_string(),
    })
}

/// Starts what a server has claimed and not started: it died, or a reason that may have passed kept it from starting.
async fn start_abandoned(app: &App) -> Result<(), Failure> {
    if !store::run_input::automation_starts::any_expired(&app.db, app.now()).await? {
        return Ok(());
    }
    let until = starts::claimed_until(app);
    let claimed =
        store::run_input::automation_starts::claim_expired(&app.db, until, app.now(), CLAIMED_AT_ONCE).await?;
    let claimed =
        claimed.into_iter().map(|reclaimed| ClaimedStart { start: reclaimed.start, attempts: reclaimed.attempts });
    starts::begin_all(app, &claimed.collect::<Vec<_>>()).await;
    Ok(())
}

async fn record_ends(app: &App) -> Result<(), Failure> {
    for (start, state) in store::run_input::automation_starts::list_ended(&app.db, ENDS_AT_ONCE).await? {
        match state.map(StartStatus::of_command) {
            // The command has the reason: retention and erasure remove it from there.
            Some(Some(ended)) => starts::end(app, &start, ended, None).await?,
            Some(None) => {}
            None => starts::end(app, &start, StartStatus::Cancelled, Some(THREAD_ERASED)).await?,
        }
    }
    Ok(())
}

/// Computes next times again that were computed by older rules of time zones than those of this program. A time that is due by the new
/// rules starts at once; a date that had its start gets no second one. Servers of the earlier release may plan automations by the older
/// rules for as long as they run, so this is done at intervals. Times by newer rules stay: otherwise two releases would replace each
/// other's times.
async fn replan(app: &App) -> Result<(), Failure> {
    let rules = zone_rules_version();
    loop {
        let stale = store::run_input::automations::list_planned_before(&app.db, rules, CLAIMED_AT_ONCE).await?;
        if stale.is_empty() {
            return Ok(());
        }
        for mut automation in stale {
            let (revision, now) = (automation.revision, app.wall());
            if automation.next_run_at.is_some_and(|next| next > now) {
                let (after, date) = (automation.plan.after, automation.plan.last_date());
                // An automation whose zone was removed keeps the time that it has, and is paused when it is due.
                if let Ok(zone) = find_zone(&automation.timezone) {
                    let next = next_after_date(&automation.config.schedule, &zone, after, date);
                    automation.next_run_at = next.map(|next| next.at);
                }
            }
            automation.plan.zone_rules = rules.to_owned();
            automation.revision += 1;
            // False if it was changed in the meantime. If that was by the older rules, it is listed again.
            store::run_input::automations::update(&app.db, &automation, revision).await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_scheduler_sleeps_until_something_is_due() {
        let seconds = |seconds: u64| Duration::from_secs(seconds);
        assert_eq!(pause_for(None, false, seconds(1)), seconds(30));
        assert_eq!(pause_for(Some(seconds(3_600)), false, seconds(1)), seconds(30), "wake-ups may be lost");
        assert_eq!(pause_for(Some(seconds(7)), false, seconds(1)), seconds(7));
        assert_eq!(pause_for(Some(seconds(7)), true, seconds(1)), seconds(1), "runs end at any time");
        assert_eq!(pause_for(None, false, Duration::MAX), Duration::MAX);
    }

    #[test]
    fn what_was_due_and_could_not_be_started_is_tried_again_after_the_short_interval() {
        let (at, poll) = (|second| Timestamp::from_second(second).unwrap(), Duration::from_secs(1));
        let sleep = |next| pause_for(Some(time_left(at(next), at(100), at(103), poll)), false, poll);
        assert_eq!((sleep(50), sleep(100)), (poll, poll), "it was due when the pass began");
        assert_eq!(sleep(102), PAUSE_MIN, "it became due during the pass");
        assert_eq!(sleep(107), Duration::from_secs(4));
    }
}
