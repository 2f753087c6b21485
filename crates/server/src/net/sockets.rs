//! One WebSocket, whatever is spoken over it: a bounded queue towards the peer, pings, and an end for whoever is dead, too
//! slow or unwelcome. It knows nothing of what the frames mean; that is its dialect's.

use std::{
    collections::VecDeque,
    error::Error,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocketUpgrade};
use futures_util::{Sink, SinkExt, Stream, StreamExt};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};
use tokio_tungstenite::tungstenite;

/// A text frame; cheap to clone, because one may go to thousands.
pub type Frame = Utf8Bytes;

/// The longest frame that people and agents may send. One up to twice as long is read to its end, so that its sender hears why
/// the connection ends: whoever is cut off while sending may not.
pub const HEARD_BYTES_MAX: usize = 64 * 1024;
/// What a connection keeps to read into and to write from, for as long as it lives; a longer frame has it grow.
const BUFFER_BYTES: usize = 4 * 1024;
/// Frames on their way to one peer, …
pub const QUEUE_FRAMES_MAX: usize = 256;
/// … and about how much they may weigh; one frame always fits. A peer that lets more gather is dropped, and told everything
/// again when it is back.
pub const QUEUE_BYTES_MAX: usize = 4 * 1024 * 1024;

#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// How often a peer is asked whether it is there.
    pub ping: Duration,
    /// One that has not been heard of for this long is dead.
    pub dead: Duration,
    /// The same, when somebody wants to know at once.
    pub probe: Duration,
    /// How long a peer may take to take one frame.
    pub write: Duration,
}

/// Why a connection ends, as its peer is told. Codes from 4000 on are ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Close {
    pub code: u16,
    pub reason: &'static str,
}

impl Close {
    /// The code for whoever is not let in, or not any more.
    pub const REFUSED_CODE: u16 = 4001;
    /// The peer went, or cannot be told anything any more.
    pub const GONE: Self = Self { code: 1005, reason: "gone" };
    pub const GOING: Self = Self { code: 1001, reason: "the server is stopping" };
    pub const TOO_LONG: Self = Self { code: 1009, reason: "the frame is too long" };
    pub const NOT_TEXT: Self = Self { code: 1003, reason: "frames are text" };
    pub const SLOW: Self = Self { code: 1013, reason: "too slow: what is pending comes again on the next connect" };
    /// Not 4008: on that, the mesh's published client never comes back.
    pub const DEAD: Self = Self { code: 4408, reason: "no pong" };
}

/// What a dialect does next: says something, then goes on or ends.
#[derive(Default)]
pub struct Step {
    pub say: Vec<Frame>,
    pub close: Option<Close>,
}

impl From<Vec<Frame>> for Step {
    fn from(say: Vec<Frame>) -> Self {
        Self { say, close: None }
    }
}

impl From<Close> for Step {
    fn from(close: Close) -> Self {
        Self { say: vec![], close: Some(close) }
    }
}

/// What is spoken over a connection.
pub trait Dialect: Send {
    /// Whoever speaks first does it here.
    fn open(&mut self) -> impl Future<Output = Step> + Send;

    /// Until the peer has said who it is and was answered, nothing else is said to it.
    fn is_introduced(&self) -> bool;

    /// A text frame has come.
    fn hear(&mut self, text: &str) -> impl Future<Output = Step> + Send;

    /// Resolves when there may be something to do that nobody asked for. It is dropped and called again at any time, so
    /// what it finds is kept in `self`.
    fn wake(&mut self) -> impl Future<Output = ()> + Send;

    /// Does what there is to do, and is finished once it has begun, whatever comes meanwhile.
    fn attend(&mut self) -> impl Future<Output = Step> + Send;
}

/// The way to one peer.
#[derive(Clone)]
pub struct Outbox(Arc<Queue>);

/// What waits to be said. Without it nothing more is taken.
pub struct Inbox(Arc<Queue>);

#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    some: Notify,
    emptied: Notify,
    /// Somebody wants to know whether the peer is there.
    probed: Notify,
    /// It was heard of, or is gone.
    settled: Notify,
}

#[derive(Default)]
struct Waiting {
    frames: VecDeque<Frame>,
    bytes: usize,
    /// Too much gathered, or nobody takes it any more.
    is_over: bool,
    /// The connection has ended.
    is_gone: bool,
    /// Somebody has more, and waits until this is said.
    is_awaited: bool,
    /// Nothing is for this peer yet.
    is_held: bool,
}

impl Waiting {
    fn fits(&self, frame: &Frame) -> bool {
        let is_light = self.frames.is_empty() || self.bytes + frame.len() <= QUEUE_BYTES_MAX;
        is_light && self.frames.len() < QUEUE_FRAMES_MAX
    }

    /// Less than half of it is used; else whoever asked waits.
    fn has_room(&mut self) -> bool {
        let has_room = self.frames.len() * 2 < QUEUE_FRAMES_MAX && self.bytes * 2 < QUEUE_BYTES_MAX;
        let has_room = has_room && !self.is_held;
        self.is_awaited |= !has_room;
        has_room && !self.is_over
    }

    fn add(&mut self, frame: Frame) {
        self.bytes += frame.len();
        self.frames.push_back(frame);
    }

    fn take(&mut self) -> Option<Frame> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.len();
        Some(frame)
    }

    fn end(&mut self) {
        *self = Self { is_over: true, ..Self::default() };
    }
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("never poisoned")
    }
}

impl Outbox {
    /// Never waits: a peer whose queue is full is cut off instead.
    pub fn put(&self, frame: Frame) {
        let mut waiting = self.0.waiting();
        match waiting.fits(&frame) {
            _ if waiting.is_over || waiting.is_held => return,
            true => waiting.add(frame),
            false => waiting.end(),
        }
        self.0.some.notify_one();
    }

    /// As [`Outbox::put`], of what can come later: it is taken only while there is room, and nobody is cut off for it.
    pub fn offer(&self, frame: &Frame) -> bool {
        let mut waiting = self.0.waiting();
        let has_room = waiting.has_room();
        if has_room {
            waiting.add(frame.clone());
            self.0.some.notify_one();
        }
        has_room
    }

    /// Whether what is offered now is taken.
    pub fn has_room(&self) -> bool {
        self.0.waiting().has_room()
    }

    /// Takes nothing, until it is opened: who the peer is may not be settled.
    pub fn hold(&self) {
        self.0.waiting().is_held = true;
    }

    pub fn open(&self) {
        let mut waiting = self.0.waiting();
        waiting.is_held = false;
        if std::mem::take(&mut waiting.is_awaited) {
            self.0.emptied.notify_one();
        }
    }

    /// Resolves when everything was taken after something was not.
    pub async fn emptied(&self) {
        self.0.emptied.notified().await;
    }

    /// Asks whether the peer is there. Resolves when it was heard of, or its connection has ended for want of that.
    pub async fn probe(&self) {
        let settled = self.0.settled.notified();
        if !self.0.waiting().is_gone {
            self.0.probed.notify_one();
            settled.await;
        }
    }
}

impl Inbox {
    /// The next frame; `None`: too many gathered.
    pub async fn next(&mut self) -> Option<Frame> {
        loop {
            {
                let mut waiting = self.0.waiting();
                if waiting.is_over {
                    return None;
                }
                let next = waiting.take();
                if waiting.frames.is_empty() && std::mem::take(&mut waiting.is_awaited) {
                    self.0.emptied.notify_one();
                }
                if next.is_some() {
                    return next;
                }
            }
            self.0.some.notified().await;
        }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting();
        waiting.end();
        waiting.is_gone = true;
        self.0.settled.notify_waiters();
    }
}

pub fn queue() -> (Outbox, Inbox) {
    let queue = Arc::<Queue>::default();
    (Outbox(queue.clone()), Inbox(queue))
}

/// As large as frames may be, and as small as thousands of silent connections want it.
pub fn fitted(upgrade: WebSocketUpgrade, heard_bytes_max: usize) -> WebSocketUpgrade {
    let upgrade = upgrade.max_message_size(heard_bytes_max).max_frame_size(heard_bytes_max);
    upgrade.read_buffer_size(BUFFER_BYTES).write_buffer_size(BUFFER_BYTES)
}

/// Speaks until somebody ends it; answers who and why.
pub async fn converse<S, E>(mut socket: S, mut inbox: Inbox, mut dialect: impl Dialect, patience: Patience) -> Close
where
    S: Stream<Item = Result<Message, E>> + Sink<Message> + Unpin,
    E: Error + 'static,
{
    let close = speak(&mut socket, &mut inbox, &mut dialect, patience).await;
    // What it held is free before anybody hears of its end.
    drop(dialect);
    drop(inbox);
    if close != Close::GONE {
        let frame = CloseFrame { code: close.code, reason: close.reason.into() };
        let _ = timeout(patience.write, socket.send(Message::Close(Some(frame)))).await;
    }
    close
}

async fn speak<S, E>(socket: &mut S, inbox: &mut Inbox, dialect: &mut impl Dialect, patience: Patience) -> Close
where
    S: Stream<Item = Result<Message, E>> + Sink<Message> + Unpin,
    E: Error + 'static,
{
    let queue = inbox.0.clone();
    let mut ping_at = Instant::now() + patience.ping;
    let mut dead_at = Instant::now() + patience.dead;
    let mut step = dialect.open().await;
    loop {
        for frame in step.say {
            if let Err(close) = say(socket, Message::Text(frame), patience).await {
                return close;
            }
        }
        if let Some(close) = step.close {
            return close;
        }
        let is_introduced = dialect.is_introduced();
        step = tokio::select! {
            heard = socket.next() => {
                dead_at = Instant::now() + patience.dead;
                // Of one that goes, it is settled when its place is free.
                if let Some(Ok(Message::Text(_) | Message::Ping(_) | Message::Pong(_))) = &heard {
                    queue.settled.notify_waiters();
                }
                match heard {
                    Some(Ok(Message::Text(text))) => {
                        finish(socket, inbox, is_introduced, Box::pin(dialect.hear(&text)), patience).await
                    }
                    Some(Ok(Message::Binary(_))) => Close::NOT_TEXT.into(),
                    // The library answers pings by itself.
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => Step::default(),
                    Some(Err(why)) if is_too_long(&why) => Close::TOO_LONG.into(),
                    Some(Ok(Message::Close(_)) | Err(_)) | None => Close::GONE.into(),
                }
            }
            frame = inbox.next(), if is_introduced => frame.map_or(Close::SLOW.into(), |frame| vec![frame].into()),
            () = dialect.wake() => finish(socket, inbox, is_introduced, Box::pin(dialect.attend()), patience).await,
            () = sleep_until(ping_at) => {
                ping_at += patience.ping;
                ping(socket, patience).await
            }
            () = queue.probed.notified() => {
                dead_at = dead_at.min(Instant::now() + patience.probe);
                ping(socket, patience).await
            }
            () = sleep_until(dead_at) => Close::DEAD.into(),
        };
    }
}

/// Whether the library would not read a frame for its length; what wraps its error does not matter.
fn is_too_long(why: &(dyn Error + 'static)) -> bool {
    matches!(why.downcast_ref(), Some(tungstenite::Error::Capacity(_))) || why.source().is_some_and(is_too_long)
}

/// Has the dialect finish what it does. However long that takes, what waits for the peer does not gather meanwhile. The work
/// lies apart: the many connections that are silent have none.
async fn finish<S, E>(
    socket: &mut S,
    inbox: &mut Inbox,
    is_introduced: bool,
    mut work: Pin<Box<impl Future<Output = Step>>>,
    patience: Patience,
) -> Step
where
    S: Stream<Item = Result<Message, E>> + Sink<Message> + Unpin,
{
    let mut end: Option<Close> = None;
    loop {
        tokio::select! {
            biased;
            // What was begun is finished, even if nobody hears the answer.
            step = &mut work => return end.map_or(step, Step::from),
            frame = inbox.next(), if is_introduced && end.is_none() => end = match frame {
                Some(frame) => say(socket, Message::Text(frame), patience).await.err(),
                None => Some(Close::SLOW),
            },
        }
    }
}

async fn ping<S, E>(socket: &mut S, patience: Patience) -> Step
where
    S: Stream<Item = Result<Message, E>> + Sink<Message> + Unpin,
{
    let pinged = say(socket, Message::Ping(Default::default()), patience).await;
    Step { say: vec![], close: pinged.err() }
}

async fn say<S, E>(socket: &mut S, message: Message, patience: Patience) -> Result<(), Close>
where
    S: Stream<Item = Result<Message, E>> + Sink<Message> + Unpin,
{
    match timeout(patience.write, socket.send(message)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Close::GONE),
        Err(_) => Err(Close::SLOW),
    }
}

#[cfg(test)]
mod tests;
