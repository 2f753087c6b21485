//! Following a run or a session: first the store, then the hub, and the store again whenever the hub does not have the next
//! event. No event is skipped or delivered twice, and no follower can slow an appender.

use std::collections::VecDeque;

use ostler_protocol::{
    Failure, Rule,
    ids::{RunId, SessionId},
    kernel::{
        events::{Event, EventType},
        sessions::Session,
    },
};
use ostler_store::{self as store, kernel::events::Bounds};
use tokio::time::Duration;

use crate::{
    app::App, auth::Principal, net::permits::Permit, recheck::SessionWatch, service::replay_throttle::SHORT_EVENTS_MAX,
};

/// How much a follower reads at once, which is also how much a stalled follower holds in memory.
const CATCH_UP: Bounds = Bounds { events: 256, bytes: 256 * 1024 };
/// The server counts as writing for this long after a flush.
const WRITING: Duration = Duration::from_millis(100);

/// What is followed, and which sequence numbers its events have.
#[derive(Clone, Copy)]
enum FollowScope {
    /// Ends with the run.
    Run(RunId),
    /// Continues until the client disconnects.
    Session,
}

pub struct Follower {
    app: App,
    session: SessionId,
    scope: FollowScope,
    after: i64,
    watch: SessionWatch,
    ready: VecDeque<Event>,
    behind: bool,
    /// So far behind that its pages are read in turn with others.
    replaying: bool,
    ended: bool,
    _permit: Option<Permit>,
}

/// Follows a run's events numbered above `after`.
pub async fn run(app: &App, caller: &Principal, run_id: RunId, after: i64) -> Result<Follower, Failure> {
    let session = app.visible_run(caller, run_id).await?.session;
    let mut follower = Follower::start(app, caller, session, FollowScope::Run(run_id), after)?;
    let run = store::kernel::runs::get(&app.db, run_id).await?;
    let run = run.ok_or_else(|| Failure::not_found("run"))?;
    within_log(after, run.last_seq)?;
    // A follower that starts behind the end must not wait for it.
    follower.ended = after > 0 && run.status.is_terminal() && run.last_seq == after;
    follower.replaying = run.last_seq - after > SHORT_EVENTS_MAX;
    Ok(follower)
}

/// Rejects a number that the log has not reached: the client followed another log, for example before this one was restored
/// from a backup.
fn within_log(after: i64, last: i64) -> Result<(), Failure> {
    if after <= last {
        return Ok(());
    }
    let message = format!("the log ends at {last}; nothing numbered {after} was ever written to it");
    Err(Failure::invalid(Rule::AfterBeyondEnd, message).detail("lastSeq", last))
}

/// Follows the events of a session that the caller was found to see.
pub fn session(app: &App, caller: &Principal, session: &Session, after: i64) -> Result<Follower, Failure> {
    within_log(after, session.last_seq)?;
    let mut follower = Follower::start(app, caller, session.session, FollowScope::Session, after)?;
    follower.replaying = session.last_seq - after > SHORT_EVENTS_MAX;
    Ok(follower)
}

/// Follows a thread's events numbered above `after`, with a permit that was already acquired.
pub fn thread(app: &App, permit: Permit, session: SessionId, after: i64) -> Follower {
    Follower::at(app, Some(permit), session, FollowScope::Session, after)
}

/// Follows a session for several streams, each of which has a permit of its own.
pub fn shared(app: &App, session: SessionId, after: i64) -> Follower {
    Follower::at(app, None, session, FollowScope::Session, after)
}

impl Follower {
    fn start(
        app: &App,
        caller: &Principal,
        session: SessionId,
        scope: FollowScope,
        after: i64,
    ) -> Result<Self, Failure> {
        app.accepting()?;
        let after = ostler_protocol::cursors::after_seq(after)?;
        let limits = &app.config.limits;
        let permit = app.followers.admit(caller, limits.followers_max, limits.followers_per_caller_max)?;
        Ok(Self::at(app, Some(permit), session, scope, after))
    }

    fn at(app: &App, permit: Option<Permit>, session: SessionId, scope: FollowScope, after: i64) -> Self {
        Self {
            app: app.clone(),
            session,
            scope,
            after,
            watch: SessionWatch::new(app, session),
            ready: VecDeque::new(),
            behind: true,
            replaying: false,
            ended: false,
            _permit: permit,
        }
    }

    /// The number an event has here.
    pub fn number(&self, event: &Event) -> i64 {
        match self.scope {
            FollowScope::Run(_) => event.seq(),
            FollowScope::Session => event.session_seq,
        }
    }

    fn is_followed(&self, event: &Event) -> bool {
        match self.scope {
            FollowScope::Run(run_id) => event.run.is_some_and(|(id, _)| id == run_id),
            FollowScope::Session => true,
        }
    }

    /// The next event, if it is already in memory.
    pub fn try_next(&mut self) -> Option<Event> {
        let event = self.ready.pop_front()?;
        self.after = self.number(&event);
        Some(event)
    }

    /// The next event. `None`: the run has ended, or the server stops.
    pub async fn next(&mut self) -> Result<Option<Event>, Failure> {
        loop {
            if let Some(event) = self.try_next() {
                // The run's own end is its last event.
                let is_end = event.event_type == EventType::TerminalStatus && event.command_id.is_none();
                self.ended |= is_end && matches!(self.scope, FollowScope::Run(_));
                return Ok(Some(event));
            }
            if self.ended {
                return Ok(None);
            }
            if self.behind {
                // Boxed, because thousands of followers carry this future, and few of them read at the same time.
                Box::pin(self.catch_up()).await?;
            } else if !self.listen().await {
                return Ok(None);
            }
        }
    }

    async fn catch_up(&mut self) -> Result<(), Failure> {
        let (db, after) = (&self.app.db, self.after);
        let page = async {
            match self.scope {
                FollowScope::Run(run_id) => {
                    store::kernel::events::list_by_run(db, self.session, run_id, after, CATCH_UP).await
                }
                FollowScope::Session => store::kernel::events::list_by_session(db, self.session, after, CATCH_UP).await,
            }
        };
        let page = match self.replaying {
            true => self.app.replays.take_turn(|| db.write_health().wrote_within(WRITING), page).await,
            false => page.await,
        };
        let page = page?;
        self.behind = page.has_more;
        self.replaying = page.has_more;
        self.watch.recheck.restart();
        self.ready.extend(page.events);
        Ok(())
    }

    /// Waits for the hub. False: the server stops.
    async fn listen(&mut self) -> bool {
        tokio::select! {
            published = self.watch.next(None) => match published {
                None => self.behind = true,
                Some(events) => {
                    let mine = events.iter().filter(|event| self.is_followed(event) && self.number(event) > self.after);
                    self.ready = mine.cloned().collect();
                    match self.ready.front().map(|first| self.number(first) == self.after + 1) {
                        Some(true) => self.watch.recheck.restart(),
                        Some(false) => {
                            self.ready.clear();
                            self.behind = true;
                        }
                        None => {}
                    }
                }
            },
            () = self.app.drained() => return false,
        }
        true
    }
}
