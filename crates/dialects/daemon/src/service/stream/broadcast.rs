//! One follower per session and process, shared by all streams of the session. Each event is translated and serialised once, and
//! the frame's bytes are added to the queue of every stream. The follower ends with the last stream.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Weak},
};

use ostler_protocol::{Failure, Rule, daemon::frames, ids::SessionId};
use ostler_server::{
    app::App,
    service::follow::{self, Follower},
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    prompts::Prompts,
    queue::{FrameQueue, SentFrame},
    translator::SessionTranslator,
};

/// When a client whose stream was refused may try again.
const RETRY_AFTER_MS: u64 = 5_000;

/// The streams of this process.
#[derive(Default)]
pub(crate) struct Streams {
    pub(super) prompts: Prompts,
    sessions: Mutex<HashMap<SessionId, Arc<Broadcast>>>,
    /// How many streams each session has, also those that are not yet up to date.
    open: Arc<Mutex<OpenStreams>>,
}

/// The streams of each session, by their clients. A client that is not registered in the session is `None`.
type OpenStreams = HashMap<SessionId, Vec<Option<String>>>;

/// One of a session's streams. Dropping it lets another client have one.
pub(crate) struct StreamSlot {
    open: Arc<Mutex<OpenStreams>>,
    session: SessionId,
    client: Option<String>,
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut open = self.open.lock();
        if let Some(clients) = open.get_mut(&self.session) {
            if let Some(place) = clients.iter().position(|client| *client == self.client) {
                clients.swap_remove(place);
            }
            if clients.is_empty() {
                open.remove(&self.session);
            }
        }
    }
}

struct Broadcast {
    state: Mutex<BroadcastState>,
    /// A stream has left.
    left: Notify,
}

struct BroadcastState {
    /// The number of the last event that was published.
    head: i64,
    subscribers: Vec<Subscriber>,
    /// The follower has ended and publishes nothing more.
    has_ended: bool,
}

struct Subscriber {
    queue: Arc<FrameQueue>,
    /// The stream has sent the frames of the events up to this one.
    after: i64,
}

/// A queue's place among the subscribers. Dropping it removes the queue.
pub(super) struct Subscription {
    broadcast: Weak<Broadcast>,
    queue: Arc<FrameQueue>,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let Some(broadcast) = self.broadcast.upgrade() else { return };
        broadcast.state.lock().subscribers.retain(|subscriber| !Arc::ptr_eq(&subscriber.queue, &self.queue));
        broadcast.left.notify_one();
    }
}

/// What is followed, from where.
pub(super) struct Joining<'a> {
    pub session: SessionId,
    /// The id that clients use for the session.
    pub session_id: &'a str,
    /// The stream has sent the frames of the events up to this one.
    pub after: i64,
    pub queue: &'a Arc<FrameQueue>,
}

impl Streams {
    /// Admits one more stream of the session.
    pub(super) fn admit(
        &self,
        session: SessionId,
        client: Option<String>,
        streams_max: usize,
    ) -> Result<StreamSlot, Failure> {
        let mut open = self.open.lock();
        let clients = open.entry(session).or_default();
        if clients.len() >= streams_max {
            let message = format!("the session has {streams_max} event streams");
            return Err(Failure::rule(Rule::SubscriberLimitExceeded, message)
                .detail("limit", streams_max)
                .detail("retryAfterMs", RETRY_AFTER_MS));
        }
        clients.push(client.clone());
        drop(open);
        Ok(StreamSlot { open: self.open.clone(), session, client })
    }

    /// The sessions with streams of this process, and the clients that follow each.
    pub(crate) fn followed(&self) -> Vec<(SessionId, BTreeSet<String>)> {
        let open = self.open.lock();
        open.iter().map(|(session, clients)| (*session, clients.iter().flatten().cloned().collect())).collect()
    }

    /// Whether the client has a stream of this process.
    pub(crate) fn is_followed_by(&self, session: SessionId, client_id: &str) -> bool {
        let open = self.open.lock();
        open.get(&session).is_some_and(|clients| clients.iter().flatten().any(|client| client == client_id))
    }

    /// Adds a queue to the session's subscribers. `None` if events after `joining.after` were already published: the stream must
    /// read them from the store first.
    pub(super) fn join(&self, app: &App, joining: &Joining<'_>) -> Option<Subscription> {
        loop {
            let broadcast = self.find_or_start(app, joining);
            let mut state = broadcast.state.lock();
            if state.has_ended {
                drop(state);
                self.forget(joining.session, &broadcast);
                continue;
            }
            if state.head > joining.after {
                return None;
            }
            state.subscribers.push(Subscriber { queue: joining.queue.clone(), after: joining.after });
            drop(state);
            return Some(Subscription { broadcast: Arc::downgrade(&broadcast), queue: joining.queue.clone() });
        }
    }

    fn find_or_start(&self, app: &App, joining: &Joining<'_>) -> Arc<Broadcast> {
        let mut sessions = self.sessions.lock();
        if let Some(broadcast) = sessions.get(&joining.session) {
            return broadcast.clone();
        }
        let state = BroadcastState { head: joining.after, subscribers: vec![], has_ended: false };
        let broadcast = Arc::new(Broadcast { state: Mutex::new(state), left: Notify::new() });
        sessions.insert(joining.session, broadcast.clone());
        drop(sessions);
        let follower = follow::shared(app, joining.session, joining.after);
        let translator = SessionTranslator::new(app, joining.session, joining.session_id);
        let (app, session, task) = (app.clone(), joining.session, broadcast.clone());
        // A stream joins it right after this. Until then nothing tells the task that it has no subscribers.
        tokio::spawn(async move {
            task.run(&app, follower, translator).await;
            app.state::<Self>().forget(session, &task);
        });
        broadcast
    }

    fn forget(&self, session: SessionId, broadcast: &Arc<Broadcast>) {
        let mut sessions = self.sessions.lock();
        if sessions.get(&session).is_some_and(|current| Arc::ptr_eq(current, broadcast)) {
            sessions.remove(&session);
        }
    }
}

impl Broadcast {
    async fn run(&self, app: &App, mut follower: Follower, mut translator: SessionTranslator) {
        let prompts = &app.state::<Streams>().prompts;
        loop {
            let event = tokio::select! {
                () = self.left.notified() => match self.end_if_empty() {
                    true => return,
                    false => continue,
                },
                event = follower.next() => event,
            };
            let published = match event {
                Ok(Some(event)) => {
                    let sent = translator.sent_frames(prompts, &event).await;
                    sent.map(|sent| self.publish(app, event.session_seq, &sent))
                }
                Ok(None) => {
                    let frame = frames::server_stops(translator.session_id(), app.now());
                    return self.end_all(&frame);
                }
                Err(failure) => Err(failure),
            };
            match published {
                Ok(true) => {}
                Ok(false) => return,
                Err(failure) => {
                    tracing::warn!(%failure, session = translator.session_id(), "the event streams of a session ended");
                    return self.end_all(&frames::stream_error("the session's events could not be read", app.now()));
                }
            }
            // The streams send what was published before more is.
            tokio::task::yield_now().await;
        }
    }

    /// Adds the frames of an event to every queue. Returns false if the follower must end.
    fn publish(&self, app: &App, seq: i64, sent: &[SentFrame]) -> bool {
        let now = app.now();
        let mut state = self.state.lock();
        state.head = seq;
        state
            .subscribers
            .retain(|subscriber| seq <= subscriber.after || sent.iter().all(|frame| subscriber.queue.push(frame, now)));
        // The last frame of a session that was closed has ended the queues that took it. Streams that were opened after the session
        // was loaded again go on.
        state.has_ended |= state.subscribers.is_empty();
        !state.has_ended
    }

    fn end_if_empty(&self) -> bool {
        let mut state = self.state.lock();
        state.has_ended |= state.subscribers.is_empty();
        state.has_ended
    }

    fn end_all(&self, last: &frames::Frame) {
        let bytes = bytes::Bytes::from(last.to_sse());
        let mut state = self.state.lock();
        state.has_ended = true;
        state.subscribers.drain(..).for_each(|subscriber| subscriber.queue.end(bytes.clone()));
    }
}
