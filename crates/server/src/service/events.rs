//! Events: append, page.

use std::time::Duration;

use ostler_protocol::{
    Failure, Rule,
    cursors::{self, EventsQuery},
    ids::{CommandId, RunId, RunnerJobId},
    kernel::{
        events::{AppendEvent, AppendEvents, Appended, Event, NewEvent, page_json},
        facts::Facts,
        operations::AppendOp,
    },
    limits::{APPEND_BYTES_MAX, APPEND_EVENTS_MAX, JOB_SUMMARY_BYTES_MAX},
};
use ostler_store::{self as store, kernel::events::StoredEvents};
use tokio::time::Instant;

use crate::{app::App, auth::Principal, recheck::SessionWatch, service::requests::attempt};

/// Appends a runner's batch. The events are durable when this returns.
pub async fn append(app: &App, caller: &Principal, run_id: RunId, request: AppendEvents) -> Result<Appended, Failure> {
    let run = app.visible_run(caller, run_id).await?;
    caller.may_run(&run)?;
    check_size(&request)?;
    let attempt_id = attempt(request.attempt_id.as_deref())?;
    let bytes = request.events.iter().map(|event| event.payload.as_str().len()).sum();
    let events = app.compute(bytes, || receive(app, run_id, request.events)).await?;
    let calls: Vec<_> = events.iter().filter_map(call_of).collect();
    let of_jobs = app.job_redactors.of_run(run_id);
    let job_summary = request.job_summary.map(|summary| app.redacted_payload(&of_jobs.redact_json(summary)));
    let ends_job = job_of(caller).zip(job_summary.transpose()?);
    if let Some((job_id, _)) = &ends_job {
        // Until now the job was running, so that earlier claims have not missed it.
        app.held_jobs.forget_passed_over(*job_id);
    }
    let op = AppendOp {
        runner_id: request.runner_id,
        lease_epoch: request.lease_epoch,
        attempt_id,
        batch_no: request.batch_no,
        release_if_idle: request.release_if_idle,
        ends_job,
        voting: app.config.policy.voting_rules(),
        known_calls: None,
        events,
    };
    let appended = app.submit(&run, op).await?;
    app.calling_commands.recorded(&calls);
    Ok(appended)
}

/// The job that the runner was started for.
fn job_of(caller: &Principal) -> Option<RunnerJobId> {
    match caller {
        Principal::Runner { runner_job_id, .. } => Some(*runner_job_id),
        _ => None,
    }
}

/// The call that an event of a command is about.
fn call_of(event: &NewEvent) -> Option<(CommandId, String)> {
    match &event.facts {
        Facts::Tool(call) => Some((event.command_id?, call.tool_call_id.clone().unwrap_or_default())),
        _ => None,
    }
}

/// Turns what a runner sent into events. Checks all sizes first, so that a rejected batch is not redacted.
fn receive(app: &App, run_id: RunId, events: Vec<AppendEvent>) -> Result<Vec<NewEvent>, Failure> {
    let at = |index: usize| move |refused: Failure| refused.detail("event", index);
    for (index, event) in events.iter().enumerate() {
        event.check_size().map_err(at(index))?;
    }
    let of_jobs = app.job_redactors.of_run(run_id);
    let received = events.into_iter().enumerate().map(|(index, event)| {
        let event = AppendEvent { payload: of_jobs.redact_json(event.payload), ..event };
        NewEvent::receive(event, &app.redactor).map_err(at(index))
    });
    received.collect()
}

fn check_size(request: &AppendEvents) -> Result<(), Failure> {
    if request.events.is_empty() {
        return Err(Failure::invalid(Rule::EventsEmpty, "a batch needs at least one event"));
    }
    if request.events.len() > APPEND_EVENTS_MAX {
        let message = format!("a batch holds at most {APPEND_EVENTS_MAX} events");
        return Err(Failure::rule(Rule::AppendEvents, message));
    }
    let summary_bytes = request.job_summary.as_ref().map_or(0, |summary| summary.as_str().len());
    if summary_bytes > JOB_SUMMARY_BYTES_MAX {
        return Err(Failure::too_large(Rule::AppendBytes, "jobSummary", summary_bytes, JOB_SUMMARY_BYTES_MAX));
    }
    let bytes: usize = request.events.iter().map(|event| event.payload.as_str().len()).sum();
    if bytes > APPEND_BYTES_MAX {
        let message = format!("a batch holds at most {APPEND_BYTES_MAX} bytes of payload");
        return Err(Failure::rule(Rule::AppendBytes, message));
    }
    Ok(())
}

/// A page of the run's events, as JSON text. With `waitMs` an empty page waits for the first event.
pub async fn page(app: &App, caller: &Principal, run_id: RunId, request: EventsQuery) -> Result<String, Failure> {
    let run = app.visible_run(caller, run_id).await?;
    let (after, limit) = (cursors::after_seq(request.after_seq)?, cursors::limit(request.limit)?);
    let wait = Duration::from_millis(cursors::wait_ms(request.wait_ms)?);
    let read = async || store::kernel::events::list_by_run(&app.db, run.session, run_id, after, limit).await;
    let mut watch = (!wait.is_zero()).then(|| SessionWatch::new(app, run.session));
    let mut page = read().await?;
    if let Some(watch) = &mut watch {
        let deadline = Instant::now() + wait;
        while page.events.is_empty() && Instant::now() < deadline {
            let published = tokio::select! {
                published = watch.next(Some(deadline)) => published,
                () = app.drained() => break,
            };
            page = match published.and_then(|events| following(&events, run_id, after, limit)) {
                Some(page) => page,
                None => read().await?,
            };
        }
    }
    // Another server may have erased the session while this one still has the run in its cache.
    if page.events.iter().any(|event| event.payload.is_none())
        && store::kernel::runs::get(&app.db, run_id).await?.is_none()
    {
        return Err(Failure::not_found("run"));
    }
    let next = page.events.last().map_or(after, |event| event.seq());
    Ok(page_json(&page.events, next, page.has_more))
}

/// The page that a publication makes by itself. `None`: it does not follow what the caller has; read the store.
fn following(events: &[Event], run_id: RunId, after: i64, limit: u32) -> Option<StoredEvents> {
    let mine = || events.iter().filter(|event| event.run.is_some_and(|(id, seq)| id == run_id && seq > after));
    if mine().next().is_some_and(|first| first.seq() != after + 1) {
        return None;
    }
    let has_more = mine().count() > limit as usize;
    Some(StoredEvents { events: mine().take(limit as usize).cloned().collect(), has_more })
}
