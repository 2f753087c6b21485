//! A replica that answers reads which tolerate staleness, as long as it is known to lag less than a bound. It is measured, not
//! assumed: the primary's position in its log is noted with the time, and a replica that has replayed up to there has everything
//! that was acknowledged before that time. A replica that is cut off from its primary therefore becomes stale by itself. Positions
//! can be compared only within one history: after a failover, a replica that has not followed the new primary is not used, however
//! far it is.

use std::{collections::VecDeque, time::Duration};

use parking_lot::Mutex;
use sqlx::{Row, postgres::PgRow};
use tokio::time::{Instant, timeout};

use super::{address::Purpose, connections::Connections};
use crate::{
    config::ReplicaConfig,
    error::StoreError,
    record::{Sql, Value},
};

/// How often the lag is measured, as a part of the bound.
const CHECKS_PER_BOUND: u32 = 8;
const CHECK_INTERVAL_MAX: Duration = Duration::from_secs(1);
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(10);
/// A reader gets the primary's answer instead if the replica takes longer than this.
const REPLICA_ANSWER_MAX: Duration = Duration::from_secs(2);
/// A replica that failed is left alone for this long.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// What is flushed includes every write that was acknowledged. The name of a file of the log begins with its timeline, in eight
/// hexadecimal digits; the control file has the timeline only after the first checkpoint.
const PRIMARY_POSITION: &str = "SELECT (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint AS bytes, \
    ('x' || substr(pg_walfile_name(pg_current_wal_flush_lsn()), 1, 8))::bit(32)::bigint AS timeline";
/// The position is null on a host that is no standby. Postgres does not report the timeline of what it replayed last. Each of these
/// three values is a timeline that the standby has followed, because Postgres does not stream a timeline to a standby that is already
/// past its beginning. Only roles that may read all statistics see `received_tli`; for others the value changes with the next checkpoint.
const REPLAYED_POSITION: &str = "SELECT CASE WHEN pg_is_in_recovery() THEN (pg_last_wal_replay_lsn() - '0/0'::pg_lsn)::bigint END AS bytes, \
    GREATEST((SELECT timeline_id FROM pg_control_checkpoint()), \
        (SELECT min_recovery_end_timeline FROM pg_control_recovery()), \
        (SELECT received_tli FROM pg_stat_wal_receiver))::bigint AS timeline";

pub(crate) struct Replica {
    connections: Connections,
    lag_max: Duration,
    state: Mutex<ReplicaState>,
    /// Held by the reader that measures; others go by what is known.
    measuring: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct ReplicaState {
    freshness: Freshness,
    /// The primary's timeline, which the measured positions belong to.
    timeline: Option<i64>,
    measured_at: Option<Instant>,
    failed_at: Option<Instant>,
    /// Whether the last read could go to the replica, to log each change once.
    is_used: Option<bool>,
}

impl Replica {
    pub(crate) fn new(config: &ReplicaConfig) -> Result<Self, StoreError> {
        let connections = Connections::for_purpose(&config.url, Purpose::Read)?;
        Ok(Self {
            connections,
            lag_max: config.lag_max,
            state: Mutex::default(),
            measuring: tokio::sync::Mutex::default(),
        })
    }

    /// The replica's rows. `None` if it is away or may lag too much: then the primary has to be asked.
    pub(crate) async fn read(&self, primary: &Connections, sql: Sql, args: &[Value]) -> Option<Vec<PgRow>> {
        let is_fresh = self.is_fresh(primary).await;
        self.log_change(is_fresh);
        if !is_fresh {
            return None;
        }
        match timeout(REPLICA_ANSWER_MAX, self.connections.read(sql, args)).await {
            Ok(Ok(rows)) => Some(rows),
            // Also a statement that the replica cancelled because replaying the log had to go on.
            Ok(Err(_)) | Err(_) => {
                self.state.lock().failed_at = Some(Instant::now());
                None
            }
        }
    }

    pub(crate) async fn close(&self) {
        self.connections.close().await;
    }

    async fn is_fresh(&self, primary: &Connections) -> bool {
        let interval = (self.lag_max / CHECKS_PER_BOUND).clamp(CHECK_INTERVAL_MIN, CHECK_INTERVAL_MAX);
        let is_due = {
            let state = self.state.lock();
            if state.failed_at.is_some_and(|at| at.elapsed() < RETRY_AFTER) {
                return false;
            }
            state.measured_at.is_none_or(|at| at.elapsed() >= interval)
        };
        if is_due && let Ok(_measuring) = self.measuring.try_lock() {
            let measured = timeout(REPLICA_ANSWER_MAX, self.measure(primary)).await;
            let mut state = self.state.lock();
            state.measured_at = Some(Instant::now());
            match measured {
                Ok(Ok(())) => state.failed_at = None,
                Ok(Err(_)) | Err(_) => {
                    state.failed_at = Some(Instant::now());
                    return false;
                }
            }
        }
        self.state.lock().freshness.is_within(Instant::now(), self.lag_max)
    }

    async fn measure(&self, primary: &Connections) -> Result<(), StoreError> {
        // Taken before the position is read, so that the position cannot be older.
        let at = Instant::now();
        let current = LogPosition::read(&primary.read(PRIMARY_POSITION.into(), &[]).await?)?;
        let replayed = LogPosition::read(&self.connections.read(REPLAYED_POSITION.into(), &[]).await?)?;
        let mut state = self.state.lock();
        if state.timeline != current.timeline {
            // Positions of another primary say nothing about this one.
            (state.freshness, state.timeline) = (Freshness::default(), current.timeline);
        }
        match (current.bytes, replayed.bytes) {
            (Some(position), Some(replayed_to)) if replayed.timeline == current.timeline => {
                state.freshness.note(at, position, replayed_to, self.lag_max);
            }
            // It was promoted, is another primary, or has not followed the current one: it may have another history. The next
            // connections may find another standby.
            _ => {
                state.freshness = Freshness::default();
                self.connections.drop_idle();
            }
        }
        Ok(())
    }

    fn log_change(&self, is_used: bool) {
        if self.state.lock().is_used.replace(is_used) == Some(is_used) {
            return;
        }
        if is_used {
            tracing::info!("lists and histories are read from the replica");
        } else {
            tracing::warn!("the replica is away or lags; lists and histories are read from the primary");
        }
    }
}

/// A place in the log of a host.
struct LogPosition {
    bytes: Option<i64>,
    timeline: Option<i64>,
}

impl LogPosition {
    fn read(rows: &[PgRow]) -> Result<Self, StoreError> {
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(Self { bytes: row.try_get("bytes")?, timeline: row.try_get("timeline")? })
    }
}

/// Up to which time a replica is known to have everything.
#[derive(Default)]
struct Freshness {
    /// Positions of the primary that the replica had not replayed, oldest first.
    open: VecDeque<(Instant, i64)>,
    complete_at: Option<Instant>,
}

impl Freshness {
    /// Notes where the primary was at this time, and how far the replica is now.
    fn note(&mut self, at: Instant, position: i64, replayed: i64, lag_max: Duration) {
        self.open.push_back((at, position));
        while let Some((open_at, _)) = self.open.front().filter(|(_, position)| *position <= replayed) {
            self.complete_at = Some(*open_at);
            self.open.pop_front();
        }
        // To have replayed an older one would not make the replica fresh.
        while self.open.front().is_some_and(|(open_at, _)| at.duration_since(*open_at) > lag_max) {
            self.open.pop_front();
        }
    }

    fn is_within(&self, now: Instant, lag_max: Duration) -> bool {
        self.complete_at.is_some_and(|at| now.duration_since(at) <= lag_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAG_MAX: Duration = Duration::from_millis(1_000);

    fn after(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_is_fresh_as_of_the_last_position_that_it_has_replayed() {
        let (start, mut freshness) = (Instant::now(), Freshness::default());
        assert!(!freshness.is_within(start, LAG_MAX), "nothing is known yet");
        freshness.note(start, 100, 90, LAG_MAX);
        assert!(!freshness.is_within(start, LAG_MAX));
        // It has replayed the first position, which was taken 100 ms ago, and not the second.
        freshness.note(after(start, 100), 200, 150, LAG_MAX);
        assert!(freshness.is_within(after(start, 1_000), LAG_MAX));
        assert!(!freshness.is_within(after(start, 1_001), LAG_MAX));
        freshness.note(after(start, 200), 200, 200, LAG_MAX);
        assert!(freshness.is_within(after(start, 1_200), LAG_MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_does_not_advance_becomes_stale_and_holds_few_positions() {
        let (start, mut freshness) = (Instant::now(), Freshness::default());
        freshness.note(start, 0, 0, LAG_MAX);
        for number in 1..1_000_u64 {
            freshness.note(after(start, number * 125), number as i64, 0, LAG_MAX);
        }
        assert!(!freshness.is_within(after(start, 125_000), LAG_MAX));
        assert!(freshness.open.len() <= 9, "{}", freshness.open.len());
    }
}
