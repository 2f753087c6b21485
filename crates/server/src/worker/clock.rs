//! Steers the server's clock: it follows the wall clock of the machine, or on Postgres the clock of the database, so that
//! all servers of one store agree. Neither moves server time by jumping.
//!
//! A jump is detected because the other clock and the monotonic clock have not moved with it. It is logged, counted, and
//! compensated by a correction. The correction then fades: slowly while leases are held, so that no deadline comes early by
//! more than a twentieth, and faster while there are none. On Postgres the correction is stored beside the time when a
//! server last looked, for all servers alike.

use std::time::Duration;

use ostler_protocol::{Failure, Rule};
use ostler_store::{self as store, StoreError, clock::Sample};

use crate::{
    app::App,
    clock::{Clock, ClockReading, ServerClock, TOLERANCE_US},
    metrics::JumpedClock,
    startup::not_started,
};

/// Some server has looked at the database's clock this recently, so it has not jumped: this machine was suspended.
const FOLLOWED_US: i64 = 5_000_000;
/// When no server has looked for this long, the database's time is taken as it is.
const FORSAKEN_US: i64 = 60_000_000;
/// A sample that took longer is too imprecise.
const ROUND_TRIP_US_MAX: i64 = TOLERANCE_US;
const SAMPLES_MAX: usize = 3;
const SAMPLE_WAIT: Duration = Duration::from_secs(5);

/// Anchors the clock to the database's, where servers share one. Call it before anything is dated.
///
/// If no server has looked for [`FOLLOWED_US`], the database's clock may just have jumped and a running server may be about
/// to correct it. This server then waits for two looks of that server before it trusts what it read.
pub(crate) async fn anchor(db: &store::Db, clock: &dyn Clock) -> Result<(), Failure> {
    let Some(clock) = clock.adjustable().filter(|_| db.multi_replica()) else { return Ok(()) };
    let failed = |error: StoreError| not_started(Rule::Store, error);
    let contended = || not_started(Rule::Store, "other servers changed store_clock during each attempt to read it");
    let mut attempts = db.attempts(contended);
    loop {
        attempts.start_next()?;
        let (mut reading, found, _) = wait_for_other_servers(db, clock).await.map_err(failed)?;
        let unseen_us = found.raw_us - found.seen_us;
        if !(-TOLERANCE_US..=FORSAKEN_US).contains(&unseen_us) {
            // No server has looked for two intervals, so none is running.
            if !store::clock::update(db, &found, 0).await.map_err(failed)? {
                // Another server was first. It may have written a correction, which this one has to use.
                continue;
            }
            reading.correction_us = 0;
        }
        clock.anchor(&reading);
        return Ok(());
    }
}

/// Samples the database's clock until a server has looked at it recently, or none has for two intervals.
async fn wait_for_other_servers(
    db: &store::Db,
    clock: &ServerClock,
) -> Result<(ClockReading, Sample, i64), StoreError> {
    let first = sample(db, clock).await?;
    let (never_seen, waits_until_us) = (first.1.seen_us == 0, clock.monotonic_us() + 2 * interval_us(clock));
    let mut latest = first;
    while !(-TOLERANCE_US..=FOLLOWED_US).contains(&(latest.1.raw_us - latest.1.seen_us))
        && !never_seen
        && clock.monotonic_us() < waits_until_us
    {
        tokio::time::sleep(clock.check_every() / 8).await;
        latest = sample(db, clock).await?;
    }
    Ok(latest)
}

pub(crate) async fn run(app: App) {
    let Some(clock) = app.clock.adjustable() else { return };
    let mut ticks = tokio::time::interval(clock.check_every());
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut correction_us = 0;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = app.stopped() => return,
        }
        if let Some(jump_us) = clock.take_wall_jump_us() {
            jumped(&app, JumpedClock::Machine, jump_us);
        }
        if !app.db.multi_replica() {
            correction_us = follow_machine(&app, clock, correction_us).await;
        } else if let Ok(Err(error)) = tokio::time::timeout(SAMPLE_WAIT, follow_database(&app, clock)).await {
            tracing::debug!(%error, "the database's clock could not be read; until it can, this server uses its own");
        }
    }
}

fn jumped(app: &App, clock: JumpedClock, jump_us: i64) {
    app.metrics.clock_jumped(clock);
    let (clock, jump_ms) = (clock.as_str(), jump_us / 1_000);
    tracing::warn!(clock, jump_ms, "a clock jumped, or this machine was suspended; leases and deadlines are not moved");
}

fn interval_us(clock: &ServerClock) -> i64 {
    i64::try_from(clock.check_every().as_micros()).unwrap_or(i64::MAX)
}

async fn follow_machine(app: &App, clock: &ServerClock, correction_us: i64) -> i64 {
    let mut reading = clock.read_wall(correction_us);
    let difference_us = clock.difference_us(&reading);
    if difference_us.abs() > TOLERANCE_US {
        reading.correction_us -= difference_us;
    }
    reading.correction_us = faded(app, reading.correction_us, interval_us(clock)).await;
    clock.adopt(&reading);
    reading.correction_us
}

async fn follow_database(app: &App, clock: &ServerClock) -> Result<(), StoreError> {
    let (reading, sample, round_trip_us) = sample(&app.db, clock).await?;
    if round_trip_us > ROUND_TRIP_US_MAX {
        return Ok(());
    }
    let (difference_us, unseen_us) = (clock.difference_us(&reading), sample.raw_us - sample.seen_us);
    if difference_us.abs() > TOLERANCE_US && !(0..=FOLLOWED_US).contains(&unseen_us) {
        // Whichever server is first corrects it for all; the next look adopts what it wrote.
        if store::clock::update(&app.db, &sample, sample.correction_us - difference_us).await? {
            jumped(app, JumpedClock::Database, difference_us);
        }
        return Ok(());
    }
    clock.adopt(&reading);
    if !(0..interval_us(clock)).contains(&unseen_us) {
        let correction_us = faded(app, sample.correction_us, unseen_us.clamp(0, FOLLOWED_US)).await;
        // If another server was first, the next look adopts what it wrote.
        let _: bool = store::clock::update(&app.db, &sample, correction_us).await?;
    }
    Ok(())
}

/// The quickest of a few samples of the database's clock, and how long it took.
async fn sample(db: &store::Db, clock: &ServerClock) -> Result<(ClockReading, Sample, i64), StoreError> {
    let mut best: Option<(ClockReading, Sample, i64)> = None;
    for _ in 0..SAMPLES_MAX {
        let before = clock.monotonic_us();
        let sample = store::clock::sample(db).await?;
        let round_trip_us = clock.monotonic_us() - before;
        let Sample { raw_us, correction_us, .. } = sample;
        let reading = ClockReading { raw_us, correction_us, monotonic_us: before + round_trip_us / 2 };
        if best.as_ref().is_none_or(|(_, _, least_us)| round_trip_us < *least_us) {
            best = Some((reading, sample, round_trip_us));
        }
        if round_trip_us <= ROUND_TRIP_US_MAX / 4 {
            break;
        }
    }
    best.ok_or(StoreError::Stopped)
}

async fn faded(app: &App, correction_us: i64, elapsed_us: i64) -> i64 {
    if correction_us == 0 {
        return 0;
    }
    let lease_us = app.config.runner.lease_ms.saturating_mul(1_000);
    fade(correction_us, elapsed_us, is_idle(app).await, lease_us)
}

/// Whether nothing in the store is being timed. False if the store does not respond.
async fn is_idle(app: &App) -> bool {
    let leases = store::kernel::leases::count_held(&app.db).await;
    let jobs = store::kernel::runner_jobs::count_open(&app.db).await;
    matches!((leases, jobs), (Ok(0), Ok((_, 0))))
}

/// What is left of a correction. Behind the other clock, time may run faster; ahead of it, only slower, never backwards.
/// A lease that is claimed right after `idle` was read loses a quarter at most.
fn fade(correction_us: i64, elapsed_us: i64, idle: bool, lease_us: i64) -> i64 {
    match (correction_us < 0, idle) {
        (true, true) => (correction_us + lease_us / 4).min(0),
        (true, false) => (correction_us + elapsed_us / 20).min(0),
        (false, true) => (correction_us - elapsed_us / 2).max(0),
        (false, false) => (correction_us - elapsed_us / 20).max(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_correction_fades_slowly_while_leases_are_held_and_faster_while_there_are_none() {
        let (hour_us, lease_us, elapsed_us) = (3_600_000_000, 30_000_000, 2_000_000);
        assert_eq!(fade(-hour_us, elapsed_us, false, lease_us), -hour_us + 100_000);
        assert_eq!(fade(-hour_us, elapsed_us, true, lease_us), -hour_us + 7_500_000);
        assert_eq!(fade(hour_us, elapsed_us, false, lease_us), hour_us - 100_000);
        assert_eq!(fade(hour_us, elapsed_us, true, lease_us), hour_us - 1_000_000);
        for idle in [true, false] {
            assert_eq!((fade(-1, elapsed_us, idle, lease_us), fade(1, elapsed_us, idle, lease_us)), (0, 0));
        }
    }
}
