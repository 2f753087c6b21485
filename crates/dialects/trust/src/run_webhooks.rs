//! Reports runs to the webhooks of the agents that they name. The log is the only source: the worker reads the events that a
//! run's cursor has not passed, and stores their deliveries together with the cursor. A hint of the hub names the runs to
//! read; a scan finds the runs of servers that died before they read them.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use ostler_protocol::{
    Failure, RawJson,
    ids::{PermissionId, RunId},
    kernel::{
        events::{Event, EventType},
        runs::Run,
    },
    trust::run_webhooks::{
        PERMISSION_REQUESTED, PermissionReport, RUN_ENDED, ReportedOption, ReportedRun, RunEndReport,
    },
};
use ostler_server::app::{App, RunRef};
use ostler_store::{
    self as store,
    trust::{
        run_webhooks::{RunCursor, UnreportedRun},
        webhooks::NewDelivery,
    },
};
use tokio::{
    sync::{
        Notify,
        broadcast::{Receiver, error::RecvError},
    },
    time::Instant,
};

use crate::{
    service::{lookup, webhooks::new_delivery},
    state::Trust,
};

/// Runs that are read together.
const RUNS_AT_ONCE: u32 = 200;
/// Events of one run that are reported together.
const EVENTS_AT_ONCE: u32 = 100;
/// A scan follows the one before after so many intervals in which deliveries are looked for.
const POLLS_PER_SCAN: u32 = 30;
/// A scan takes at most this part of the time.
const SCAN_SHARE: u32 = 20;

pub(crate) async fn run(app: App) {
    let (hints, has_webhooks) = (app.hub.subscribe_runs(), AtomicBool::new(true));
    // A long scan delays no hint. Both report a run on the condition that its cursor is where they read it.
    tokio::join!(report_hints(&app, hints, &has_webhooks), scan_at_intervals(&app, &has_webhooks));
}

/// Reports the runs that the hub names.
async fn report_hints(app: &App, mut hints: Receiver<RunId>, has_webhooks: &AtomicBool) {
    loop {
        let hinted = tokio::select! {
            () = app.drained() => return,
            hinted = next_hints(&mut hints) => hinted,
        };
        match hinted {
            None => Trust::of(app).run_scan.notify_one(),
            Some(runs) if has_webhooks.load(Ordering::Relaxed) => {
                report_hinted(app, &runs).await.unwrap_or_else(|failure| log_failure(&failure));
            }
            // While no agent has a webhook, the end of a turn causes no read.
            Some(_) => {}
        }
    }
}

/// Finds the runs of which no hint arrived.
async fn scan_at_intervals(app: &App, has_webhooks: &AtomicBool) {
    let trust = Trust::of(app);
    let pause = Duration::from_millis(trust.webhooks.poll_ms.max(1)) * POLLS_PER_SCAN;
    let scan = move || async move {
        let any_webhook = scan(app).await.unwrap_or_else(|failure| {
            log_failure(&failure);
            true
        });
        has_webhooks.store(any_webhook, Ordering::Relaxed);
        any_webhook
    };
    repeat_scans(app.drained(), pause, &trust.run_scan, scan).await;
}

/// Scans until `stopped` resolves, which does not interrupt a scan. `scan` returns whether any agent has a webhook.
async fn repeat_scans<F: Future<Output = bool>>(
    stopped: impl Future<Output = ()>,
    pause: Duration,
    requested: &Notify,
    mut scan: impl FnMut() -> F,
) {
    tokio::pin!(stopped);
    loop {
        let began = Instant::now();
        // Without a webhook a scan is one short read, even if the store was slow to answer it. Hints are ignored until the next
        // scan, so the first webhook must not wait for this one's share.
        let took = if scan().await { began.elapsed() } else { Duration::ZERO };
        tokio::select! {
            () = &mut stopped => return,
            () = next_scan(took, pause, requested) => {}
        }
    }
}

/// Waits for the next scan after one that took so long: for the pause, or for less if a scan is requested, but never so little
/// that scans take more than their share of the time.
async fn next_scan(took: Duration, pause: Duration, requested: &Notify) {
    let rest = took * SCAN_SHARE;
    tokio::time::sleep(rest).await;
    tokio::select! {
        () = tokio::time::sleep(pause.saturating_sub(rest)) => {}
        () = requested.notified() => {}
    }
}

/// A later scan finds the same runs again.
fn log_failure(failure: &Failure) {
    tracing::warn!(%failure, cause = failure.cause.as_deref(), "runs cannot be reported to webhooks; trying again");
}

/// The runs of which the hub reports something, without repetition. `None` if hints were lost.
async fn next_hints(hints: &mut Receiver<RunId>) -> Option<Vec<RunId>> {
    let mut runs = match hints.recv().await {
        Ok(run_id) => vec![run_id],
        Err(RecvError::Lagged(_)) => return None,
        // The hub lives as long as the server.
        Err(RecvError::Closed) => return std::future::pending().await,
    };
    while runs.len() < RUNS_AT_ONCE as usize
        && let Ok(run_id) = hints.try_recv()
    {
        if !runs.contains(&run_id) {
            runs.push(run_id);
        }
    }
    Some(runs)
}

/// Reports all runs that have something to report, also if some of them cannot be read; then it fails with the last failure.
/// Returns whether any agent has a webhook.
async fn scan(app: &App) -> Result<bool, Failure> {
    if !store::trust::run_webhooks::any_webhook(&app.db).await? {
        return Ok(false);
    }
    let (mut after, mut outcome) = (None, Ok(true));
    loop {
        let runs = store::trust::run_webhooks::list_unreported(&app.db, after, RUNS_AT_ONCE).await?;
        let is_last = runs.len() < RUNS_AT_ONCE as usize;
        after = runs.last().map(|run| run.cursor.run_id);
        outcome = report_all(app, runs).await.and(outcome);
        if is_last || app.is_draining() {
            return outcome;
        }
    }
}

async fn report_hinted(app: &App, runs: &[RunId]) -> Result<(), Failure> {
    report_all(app, store::trust::run_webhooks::list_unreported_of(&app.db, runs).await?).await
}

/// Reports all of these runs, also if one of them cannot be read. Fails with the last failure.
async fn report_all(app: &App, runs: Vec<UnreportedRun>) -> Result<(), Failure> {
    let mut outcome = Ok(());
    for run in runs {
        outcome = report(app, run).await.and(outcome);
    }
    outcome
}

/// Reports the events of one run that its cursor has not passed.
async fn report(app: &App, mut run: UnreportedRun) -> Result<(), Failure> {
    while run.cursor.reported_seq < run.last_seq {
        let events = store::trust::run_webhooks::list_events(&app.db, &run, EVENTS_AT_ONCE).await?;
        let seq = match events.last() {
            Some(last) if events.len() == EVENTS_AT_ONCE as usize => last.seq(),
            _ => run.last_seq,
        };
        let deliveries = deliveries(app, &run, &events).await?;
        if !store::trust::run_webhooks::update_reported(&app.db, &run.cursor, seq, &deliveries).await? {
            // Another server reports this run.
            return Ok(());
        }
        if !deliveries.is_empty() {
            Trust::of(app).deliveries.notify_one();
        }
        run.cursor = RunCursor { reported_seq: seq, ..run.cursor };
    }
    Ok(())
}

/// The deliveries of these events. None, if the agent's owner may not read the run.
async fn deliveries(app: &App, unreported: &UnreportedRun, events: &[Event]) -> Result<Vec<NewDelivery>, Failure> {
    if events.is_empty() {
        return Ok(vec![]);
    }
    let Some(owner) = lookup::owner(app, &unreported.owner_id).await? else { return Ok(vec![]) };
    let Some(run) = store::kernel::runs::get(&app.db, unreported.cursor.run_id).await? else { return Ok(vec![]) };
    // An erased session is not found.
    let Some(session) = store::kernel::sessions::get(&app.db, run.session).await? else { return Ok(vec![]) };
    if owner.may_read(&RunRef::of(&run, &session)).is_err() {
        return Ok(vec![]);
    }
    let Some(reported) = ReportedRun::of(&run, &session) else { return Ok(vec![]) };
    let mut deliveries = vec![];
    for event in events {
        deliveries.extend(delivery(app, &run, reported.clone(), event).await?);
    }
    Ok(deliveries)
}

async fn delivery(app: &App, run: &Run, reported: ReportedRun, event: &Event) -> Result<Option<NewDelivery>, Failure> {
    let agent_id = reported.agent_id;
    let new = match (event.event_type, event.command_id) {
        (EventType::PermissionRequest, _) => permission(app, reported, event)
            .await?
            .map(|report| new_delivery(app, agent_id, PERMISSION_REQUESTED, &report)),
        (EventType::TerminalStatus, Some(command_id)) => {
            let command = store::kernel::commands::get(&app.db, command_id).await?;
            let report = command.and_then(|command| RunEndReport::of_turn(reported, &command, event.seq()));
            report.map(|report| new_delivery(app, agent_id, RUN_ENDED, &report))
        }
        (EventType::TerminalStatus, None) => RunEndReport::of_run(reported, run, event.seq())
            .map(|report| new_delivery(app, agent_id, RUN_ENDED, &report)),
        _ => None,
    };
    Ok(new.map(|new| NewDelivery { run_id: Some(run.run_id), ..new }))
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct RequestedPermission {
    permission_id: PermissionId,
}

/// The request that an event made. `None` if it could not be read, or its payload was removed.
async fn permission(app: &App, reported: ReportedRun, event: &Event) -> Result<Option<PermissionReport>, Failure> {
    let payload = event.payload.as_ref().and_then(|text| RawJson::parse(text.to_string()).ok());
    let Some(RequestedPermission { permission_id }) = payload.and_then(|payload| payload.view()) else {
        return Ok(None);
    };
    let request = store::kernel::permissions::get(&app.db, reported.run_id, permission_id).await?;
    let report = request.and_then(|request| PermissionReport::of(reported, &request));
    // These texts were redacted when they were stored; this removes secrets that were added since. Ids and the digest stay, because
    // an answer names them. Labels are redacted only when they are stored.
    let redacted = |text: String| app.redactor.redact(&text).into_owned();
    let redacted_option = |option: ReportedOption| ReportedOption { name: redacted(option.name), ..option };
    Ok(report.map(|report| PermissionReport {
        title: redacted(report.title),
        command: report.command.map(redacted),
        options: report.options.into_iter().map(redacted_option).collect(),
        ..report
    }))
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, future::pending};

    use tokio::time::{sleep, timeout};

    use super::*;

    const TOOK: Duration = Duration::from_secs(1);
    const PAUSE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_requested_scan_waits_until_scans_have_used_less_than_their_share() {
        let (began, requested) = (Instant::now(), Notify::new());
        requested.notify_one();
        next_scan(TOOK, PAUSE, &requested).await;
        assert_eq!(began.elapsed(), TOOK * SCAN_SHARE);
        next_scan(TOOK, PAUSE, &requested).await;
        assert_eq!(began.elapsed(), TOOK * SCAN_SHARE + PAUSE, "a request is for one scan");
        next_scan(PAUSE, PAUSE, &requested).await;
        assert_eq!(began.elapsed(), TOOK * SCAN_SHARE + PAUSE + PAUSE * SCAN_SHARE);
    }

    /// When each scan begins, if each takes [`TOOK`], the first one finds no webhook, and one is set during it.
    #[tokio::test(start_paused = true)]
    async fn the_scan_for_the_first_webhook_does_not_wait_for_the_share_of_the_one_before() {
        let (began, requested, begins) = (Instant::now(), &Notify::new(), &RefCell::new(vec![]));
        let scan = move || async move {
            begins.borrow_mut().push(began.elapsed());
            sleep(TOOK).await;
            requested.notify_one();
            begins.borrow().len() > 1
        };
        timeout(PAUSE, repeat_scans(pending(), PAUSE, requested, scan)).await.expect_err("scans go on");
        let second = TOOK;
        let third = second + TOOK + TOOK * SCAN_SHARE;
        assert_eq!(begins.borrow()[..3], [Duration::ZERO, second, third]);
    }
}
