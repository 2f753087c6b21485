//! Following a run: the store up to now, then the hub; back to the store whenever the hub cannot vouch for the next
//! number. No event is skipped, none comes twice, and no follower can slow an appender.

use std::{collections::VecDeque, sync::atomic::Ordering, time::Duration};

use ostler_protocol::{
    Failure, FailureKind,
    events::{Event, EventType},
    ids::RunId,
};
use ostler_store as store;
use tokio::time::Instant;

use crate::{
    app::{App, RunRef, store_failure},
    auth::Principal,
    hub::Subscription,
};

/// A wake-up is a hint: every follower reads the store this often even without one.
pub const RECHECK: Duration = Duration::from_secs(2);
const CATCH_UP_EVENTS: u32 = 256;

pub struct Follower {
    app: App,
    run: RunRef,
    after: i64,
    subscription: Subscription,
    ready: VecDeque<Event>,
    behind: bool,
    ended: bool,
    /// Kept across calls: whoever waits for less than this must not put it off for ever.
    recheck_at: Instant,
}

/// Follows a run's events numbered above `after`.
pub async fn run(app: &App, caller: &Principal, run_id: RunId, after: i64) -> Result<Follower, Failure> {
    let known = app.run_ref(run_id).await?;
    caller.may_read(&known)?;
    let after = ostler_protocol::cursors::after_seq(after)?;
    let before = app.followers.fetch_add(1, Ordering::Relaxed);
    // From here on the follower's drop gives the place back.
    let subscription = app.hub.subscribe(known.session);
    let follower = Follower {
        app: app.clone(),
        run: known,
        after,
        subscription,
        ready: VecDeque::new(),
        behind: true,
        ended: false,
        recheck_at: Instant::now() + RECHECK,
    };
    if before >= app.config.limits.followers_max {
        let failure = Failure::rule(FailureKind::RateLimited, "followers", "too many event streams are open");
        return Err(failure.detail("retryAfterMs", 1_000));
    }
    Ok(follower)
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.app.followers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Follower {
    /// The next event. `None`: the run has ended, or the server stops.
    pub async fn next(&mut self) -> Result<Option<Event>, Failure> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.after = event.seq();
                // The run's own end is its last event.
                self.ended |= event.event_type == EventType::TerminalStatus && event.command_id.is_none();
                return Ok(Some(event));
            }
            if self.ended {
                return Ok(None);
            }
            if self.behind {
                self.catch_up().await?;
            } else if !self.listen().await {
                return Ok(None);
            }
        }
    }

    async fn catch_up(&mut self) -> Result<(), Failure> {
        let page =
            store::events::list_by_run(&self.app.db, self.run.session, self.run.run_id, self.after, CATCH_UP_EVENTS);
        let page = page.await.map_err(store_failure)?;
        self.behind = page.has_more;
        self.recheck_at = Instant::now() + RECHECK;
        if page.events.is_empty() && self.after > 0 && self.run_is_over().await? {
            self.ended = true;
        }
        self.ready.extend(page.events);
        Ok(())
    }

    /// A follower that starts behind the end must not wait for it.
    async fn run_is_over(&self) -> Result<bool, Failure> {
        let run = store::runs::get(&self.app.db, self.run.run_id).await.map_err(store_failure)?;
        Ok(run.is_none_or(|run| run.status.is_terminal() && run.last_seq <= self.after))
    }

    /// Waits for the hub. False: the server stops.
    async fn listen(&mut self) -> bool {
        tokio::select! {
            published = self.subscription.next() => match published {
                None => self.behind = true,
                Some(events) => {
                    let run_id = self.run.run_id;
                    let mine = events.iter().filter(|event| event.run.is_some_and(|(id, seq)| id == run_id && seq > self.after));
                    self.ready.extend(mine.cloned());
                    if self.ready.front().is_some_and(|first| first.seq() != self.after + 1) {
                        self.ready.clear();
                        self.behind = true;
                    }
                }
            },
            () = tokio::time::sleep_until(self.recheck_at) => self.behind = true,
            () = self.app.stopped() => return false,
        }
        true
    }
}
