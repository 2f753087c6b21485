//! Event streams: the frames of a session from where the client was, then as they come. A stream replays from the store at the pace
//! of its client, and joins the session's other streams when it is up to date.

mod broadcast;
mod prompts;
mod queue;
mod replay;
mod translator;

pub(crate) use broadcast::Streams;

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use ostler_protocol::{
    Failure,
    daemon::frames::{self, Frame, Resync},
    ids::SessionId,
    kernel::{events::Event, sessions::Session},
};
use ostler_server::{app::App, auth::Principal, net::permits::Permit, service::replay_throttle::SHORT_EVENTS_MAX};
use ostler_store::{self as store, kernel::events::Bounds};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};

use self::{
    broadcast::{Joining, StreamSlot, Subscription},
    queue::{FrameQueue, SentFrame},
    replay::ReplayPlan,
    translator::SessionTranslator,
};
use crate::{
    service::{
        clients,
        lookup::{check_client, open_session},
        sessions::current_model,
    },
    state::DaemonState,
};

/// How much a stream reads at once, which is also how much a stream whose client stopped reading holds in memory.
const PAGE: Bounds = Bounds { events: 128, bytes: 256 * 1024 };
/// The server counts as writing for this long after a flush.
const WRITING: Duration = Duration::from_millis(100);
/// How often an idle writer is looked for: this many times within the timeout, but within these bounds.
const IDLE_CHECKS: u32 = 4;
const IDLE_CHECK_MIN: Duration = Duration::from_millis(250);
const IDLE_CHECK_MAX: Duration = Duration::from_secs(5);

/// What a client asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamRequest {
    /// The last frame that the client has. `None`: it wants new ones only.
    pub last_event_id: Option<i64>,
    pub max_queued: usize,
    /// Whether the stream begins with the session's current settings.
    pub wants_snapshot: bool,
}

/// The frames of one session for one client.
pub(crate) struct EventStream {
    app: App,
    session: Session,
    session_id: String,
    phase: Phase,
    /// The frames of the events up to this one were sent, or are in `ready`.
    after: i64,
    /// Frames up to this id are left out.
    after_id: i64,
    ready: VecDeque<Bytes>,
    queue: Arc<FrameQueue>,
    /// Sent after the replay.
    snapshot: Option<Frame>,
    replayed: u64,
    /// Whether the client was notified that payloads were removed during the replay.
    has_gap: bool,
    _permit: Permit,
    _slot: StreamSlot,
}

enum Phase {
    /// Reads the events up to this one from the store.
    Replaying { until: i64, translator: SessionTranslator },
    /// Reads the events that were published during the replay.
    CatchingUp(SessionTranslator),
    /// Takes from the queue. `None`: the queue has ended, and nothing is added to it.
    Live(#[expect(dead_code, reason = "removes the queue when it is dropped")] Option<Subscription>),
}

/// Opens a stream.
pub(crate) async fn open(
    app: &App,
    caller: &Principal,
    id: &str,
    client: Option<&str>,
    request: StreamRequest,
) -> Result<EventStream, Failure> {
    app.accepting()?;
    let open = open_session(app, caller, id).await?;
    // Anyone who may see the session may follow it. Only a client of it counts as attached.
    let client = match check_client(app, caller, &open.session, client).await {
        Ok(client) => client.map(|client| client.client_id),
        Err(_) => None,
    };
    clients::record_activity(app, client.as_deref()).await?;
    store::daemon::sessions::update_followed(&app.db, open.session.session, app.now()).await?;
    let (current_model, mode) = (current_model(app, &open), open.daemon.approval_mode());
    let session = open.session;
    let config = &DaemonState::of(app).config;
    let limits = &app.config.limits;
    let slot = app.state::<Streams>().admit(session.session, client.clone(), config.streams_max)?;
    let permit = app.followers.admit(caller, limits.followers_max, limits.followers_per_caller_max)?;
    let session_id = session.public_id();
    let plan = match request.last_event_id {
        Some(id) => Some(ReplayPlan::new(app, &session, id, config.replay_frames_max).await?),
        None => None,
    };
    let snapshot = request.wants_snapshot.then(|| {
        let data =
            json!({"sessionId": session_id, "currentModelId": current_model, "currentApprovalMode": mode.as_str()});
        Frame::new("session_snapshot", data, app.now())
    });
    let queue = Arc::new(FrameQueue::new(request.max_queued, frames::last_id(session.last_seq)));
    if let Some(timeout_ms) = config.writer_idle_timeout_ms {
        tokio::spawn(evict_idle_writer(app.clone(), Arc::downgrade(&queue), timeout_ms));
    }
    let translator = SessionTranslator::new(app, session.session, &session_id);
    let mut stream = EventStream {
        app: app.clone(),
        after: plan.map_or(session.last_seq, |plan| plan.after),
        after_id: plan.map_or(0, |plan| plan.after_id),
        session,
        session_id,
        phase: Phase::CatchingUp(translator),
        ready: VecDeque::new(),
        queue,
        snapshot,
        replayed: 0,
        has_gap: false,
        _permit: permit,
        _slot: slot,
    };
    match plan {
        Some(plan) => stream.start_replay(plan),
        None => stream.ready.extend(stream.snapshot.take().map(|frame| frame.to_sse().into())),
    }
    Ok(stream)
}

impl EventStream {
    fn start_replay(&mut self, plan: ReplayPlan) {
        let translator = SessionTranslator::new(&self.app, self.session.session, &self.session_id);
        self.phase = Phase::Replaying { until: plan.until, translator };
        if let Some(resync) = plan.resync {
            self.ready.push_back(frames::resync_required(resync, self.app.now()).to_sse().into());
        }
    }

    /// Records that the client has taken what was sent before.
    pub(crate) fn write_mark(&self) -> impl Fn() + Send + Sync + use<> {
        let queue = self.queue.clone();
        move || queue.mark_written()
    }

    /// The next bytes. `None`: the stream ends.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        loop {
            let is_live = matches!(self.phase, Phase::Live(_));
            if !is_live && self.queue.has_ended() {
                self.ready.clear();
                self.phase = Phase::Live(None);
            }
            if let Some(bytes) = self.ready.pop_front() {
                return Some(bytes);
            }
            if is_live {
                return self.queue.next().await;
            }
            if let Err(failure) = Box::pin(self.advance()).await {
                tracing::warn!(%failure, session = self.session_id, "an event stream ended");
                let message = "the session's events could not be read";
                self.queue.end(frames::stream_error(message, self.app.now()).to_sse().into());
            }
        }
    }

    /// Reads more events, or goes on to the next phase.
    async fn advance(&mut self) -> Result<(), Failure> {
        if self.app.is_draining() {
            self.queue.end(frames::server_stops(&self.session_id, self.app.now()).to_sse().into());
            return Ok(());
        }
        match &self.phase {
            Phase::Replaying { until, .. } if self.after < *until => self.read_page().await,
            Phase::Replaying { .. } => self.finish_replay().await,
            Phase::CatchingUp(_) => {
                let Self { session, session_id, after, queue, .. } = &*self;
                let joining = Joining { session: session.session, session_id, after: *after, queue };
                match self.app.state::<Streams>().join(&self.app, &joining) {
                    Some(subscription) => {
                        self.phase = Phase::Live(Some(subscription));
                        Ok(())
                    }
                    None => self.read_page().await,
                }
            }
            Phase::Live(_) => Ok(()),
        }
    }

    async fn read_page(&mut self) -> Result<(), Failure> {
        let db = &self.app.db;
        let page = store::kernel::events::list_by_session(db, self.session.session, self.after, PAGE);
        // Streams that are far behind read in turn with other replays, so that they do not slow down the writers.
        let page = match self.session.last_seq - self.after > SHORT_EVENTS_MAX {
            true => self.app.replays.take_turn(|| db.write_health().wrote_within(WRITING), page).await?,
            false => page.await?,
        };
        if page.events.is_empty() {
            // Numbered events are never missing, unless the whole session was deleted.
            return Err(Failure::not_found("session"));
        }
        let until = match &self.phase {
            Phase::Replaying { until, .. } => *until,
            _ => i64::MAX,
        };
        let removed = last_removed(&self.app, self.session.session, &page.events, (self.after, until)).await?;
        if let Some(removed) = removed {
            self.skip_removed(removed);
        }
        let after = self.after;
        let replayed = page.events.iter().skip_while(|event| event.session_seq <= after);
        let prompts = &self.app.state::<Streams>().prompts;
        let mut sent = vec![];
        for event in replayed.take_while(|event| event.session_seq <= until) {
            let (Phase::Replaying { translator, .. } | Phase::CatchingUp(translator)) = &mut self.phase else { break };
            // The session was open after the events that are replayed, so an earlier closing does not end the stream.
            let is_past = |frame: &SentFrame| frame.is_last && until < i64::MAX;
            sent.extend(translator.sent_frames(prompts, event).await?.into_iter().filter(|frame| !is_past(frame)));
            self.after = event.session_seq;
        }
        self.add(sent);
        Ok(())
    }

    /// Goes on after this event. The client is notified once.
    fn skip_removed(&mut self, removed: i64) {
        let last_delivered_id = frames::last_id(self.after).max(self.after_id);
        self.after = removed;
        if !std::mem::replace(&mut self.has_gap, true) {
            let earliest_available_id = frames::first_id(removed + 1);
            let gap = Resync::RingEvicted { last_delivered_id, earliest_available_id };
            self.ready.push_back(frames::resync_required(gap, self.app.now()).to_sse().into());
        }
    }

    fn add(&mut self, sent: Vec<SentFrame>) {
        for frame in sent.into_iter().filter(|frame| frame.id > self.after_id) {
            self.replayed += 1;
            if frame.is_last {
                self.ready.push_back(frame.bytes);
                self.phase = Phase::Live(None);
                self.queue.finish();
                return;
            }
            self.ready.push_back(frame.bytes);
        }
    }

    async fn finish_replay(&mut self) -> Result<(), Failure> {
        // How far behind the stream is now, after a replay that may have taken long.
        if let Some(session) = store::kernel::sessions::get(&self.app.db, self.session.session).await? {
            self.session.last_seq = session.last_seq;
        }
        let now = self.app.now();
        self.ready.push_back(frames::replay_complete(self.replayed, now).to_sse().into());
        self.ready.extend(self.snapshot.take().map(|frame| frame.to_sse().into()));
        // The events so far are known to the translator, which goes on with those that were published since.
        let live = Phase::Live(None);
        if let Phase::Replaying { translator, .. } = std::mem::replace(&mut self.phase, live) {
            self.phase = Phase::CatchingUp(translator);
        }
        Ok(())
    }
}

/// The last event within the range whose payload was removed, if this page has one: retention may go on during a replay.
async fn last_removed(
    app: &App,
    session: SessionId,
    page: &[Event],
    (after, until): (i64, i64),
) -> Result<Option<i64>, Failure> {
    let is_removed = |event: &&Event| event.session_seq <= until && event.payload.is_none();
    let Some(last) = page.iter().rev().find(is_removed) else { return Ok(None) };
    let recorded = store::daemon::frames::last_removed(&app.db, session, after, until).await?;
    Ok(Some(recorded.unwrap_or_default().max(last.session_seq)))
}

/// Ends the stream if its client takes nothing for too long, also if it takes nothing because nothing is sent. Bytes that were
/// written before stay with the connection, which has a limit of its own.
async fn evict_idle_writer(app: App, queue: Weak<FrameQueue>, timeout_ms: u64) {
    let idle = tokio::select! {
        idle = idle_writer(queue, Duration::from_millis(timeout_ms)) => idle,
        () = app.drained() => return,
    };
    if let Some((queue, idle)) = idle {
        let idle_ms = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        queue.abandon(frames::evicted_for_idle_writer(idle_ms, timeout_ms, app.now()).to_sse().into());
    }
}

/// Waits until the client of a queue has taken nothing for `timeout`. Returns the queue and how long it was. `None` if the stream
/// ends before.
async fn idle_writer(queue: Weak<FrameQueue>, timeout: Duration) -> Option<(Arc<FrameQueue>, Duration)> {
    let mut checks = interval((timeout / IDLE_CHECKS).clamp(IDLE_CHECK_MIN, IDLE_CHECK_MAX));
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        checks.tick().await;
        let queue = queue.upgrade().filter(|queue| !queue.has_ended())?;
        let idle = queue.written_at().elapsed();
        if idle >= timeout {
            return Some((queue, idle));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);
    const CHECK: Duration = Duration::from_millis(2_500);

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_idle_within_a_check_of_the_timeout() {
        let (queue, started) = (Arc::new(FrameQueue::new(16, 0)), Instant::now());
        sleep(Duration::from_secs(1)).await;
        queue.mark_written();
        let (_, idle) = idle_writer(Arc::downgrade(&queue), TIMEOUT).await.expect("the stream is open");
        assert_eq!((idle, started.elapsed()), (TIMEOUT, Duration::from_secs(1) + TIMEOUT));
        assert!(idle < TIMEOUT + CHECK);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_something_in_time_is_not_idle() {
        let queue = Arc::new(FrameQueue::new(16, 0));
        let mut waiting = Box::pin(idle_writer(Arc::downgrade(&queue), TIMEOUT));
        for _ in 0..100 {
            tokio::select! {
                _ = &mut waiting => panic!("it took something a second before the timeout"),
                () = sleep(TIMEOUT - Duration::from_secs(1)) => queue.mark_written(),
            }
        }
        let taken = Instant::now();
        waiting.await.expect("the stream is open");
        assert!((TIMEOUT..TIMEOUT + CHECK).contains(&taken.elapsed()), "{:?}", taken.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_waits_for_a_stream_that_has_ended_or_was_dropped() {
        let queue = Arc::new(FrameQueue::new(16, 0));
        queue.finish();
        assert!(idle_writer(Arc::downgrade(&queue), TIMEOUT).await.is_none());
        let dropped = Arc::downgrade(&Arc::new(FrameQueue::new(16, 0)));
        assert!(idle_writer(dropped, TIMEOUT).await.is_none());
    }
}
