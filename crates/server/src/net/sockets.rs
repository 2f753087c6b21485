//! One WebSocket, independent of its protocol: a bounded queue of frames to the peer, pings, and closing the connection of a
//! peer that is dead, too slow or not admitted. The meaning of frames is up to the dialect.

use std::{collections::VecDeque, error::Error, future::Future, pin::Pin, sync::Arc, time::Duration};

use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocketUpgrade};
use futures_util::{Sink, SinkExt, Stream, StreamExt};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};
use tokio_tungstenite::tungstenite;

use crate::config::LimitsSection;

/// A text frame; cheap to clone, because one may go to thousands of peers.
pub type Frame = Utf8Bytes;

/// The longest frame that people and agents may send. A frame up to twice as long is read to its end, so that its
/// sender receives the reason: a sender that is cut off while sending may not read it.
pub const HEARD_BYTES_MAX: usize = 64 * 1024;
/// Initial size of a connection's read and write buffers; they grow for a longer frame.
const BUFFER_BYTES: usize = 4 * 1024;
/// Maximum number of frames queued for one peer, …
pub const QUEUE_FRAMES_MAX: usize = 256;
/// … and about how many bytes they may have; one frame always fits. A peer that exceeds either is disconnected, and gets
/// what it missed when it reconnects.
pub const QUEUE_BYTES_MAX: usize = 4 * 1024 * 1024;

#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Interval of pings.
    pub ping: Duration,
    /// A peer that sent nothing for this long is dead.
    pub dead: Duration,
    /// The same after a probe.
    pub probe: Duration,
    /// Time limit for writing one frame to the peer.
    pub write: Duration,
}

impl Patience {
    /// The durations that the server is configured with.
    pub fn of(limits: &LimitsSection) -> Self {
        Self {
            ping: Duration::from_millis(limits.socket_ping_ms),
            dead: Duration::from_millis(limits.socket_dead_ms),
            probe: Duration::from_millis(limits.socket_probe_ms),
            write: Duration::from_millis(limits.slow_reader_ms),
        }
    }
}

/// Why a connection ends, as the close frame reports it. Codes from 4000 on are ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Close {
    pub code: u16,
    pub reason: &'static str,
}

impl Close {
    /// The code for a peer that is not admitted, or no longer.
    pub const REFUSED_CODE: u16 = 4001;
    /// The peer has disconnected, or cannot be written to any more. No close frame is sent.
    pub const GONE: Self = Self { code: 1005, reason: "gone" };
    pub const GOING: Self = Self { code: 1001, reason: "the server is stopping" };
    pub const TOO_LONG: Self = Self { code: 1009, reason: "the frame is too long" };
    pub const NOT_TEXT: Self = Self { code: 1003, reason: "frames are text" };
    pub const SLOW: Self = Self { code: 1013, reason: "too slow: what is pending comes again on the next connect" };
    /// Not 4008: after that code, the mesh's published client never reconnects.
    pub const DEAD: Self = Self { code: 4408, reason: "no pong" };
}

/// What a dialect does next: sends frames, then continues or closes the connection.
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

/// The protocol of a connection.
pub trait SocketDialect: Send {
    /// Called first. Returns the frames that the server sends before it has received any.
    fn open(&mut self) -> impl Future<Output = Step> + Send;

    /// Whether the peer has introduced itself and got its reply. Until then, queued frames are held back.
    fn is_introduced(&self) -> bool;

    /// Handles a text frame of the peer.
    fn handle_text(&mut self, text: &str) -> impl Future<Output = Step> + Send;

    /// Resolves when there may be work that the peer did not request. It is dropped and called again at any time, so it must
    /// keep what it finds in `self`.
    fn wake(&mut self) -> impl Future<Output = ()> + Send;

    /// Does that work. Once started, it runs to completion, whatever frames arrive in the meantime.
    fn process_pending(&mut self) -> impl Future<Output = Step> + Send;
}

/// The sending end of the queue of frames to one peer.
#[derive(Clone)]
pub struct Outbox(Arc<FrameQueue>);

/// The receiving end of the queue. After it is dropped, the queue accepts no frames.
pub struct Inbox(Arc<FrameQueue>);

#[derive(Default)]
struct FrameQueue {
    waiting: Mutex<WaitingFrames>,
    added: Notify,
    emptied: Notify,
    /// A caller of [`Outbox::probe`] waits for a sign of life.
    probed: Notify,
    /// A frame of the peer was received, or the connection has ended.
    settled: Notify,
}

#[derive(Default)]
struct WaitingFrames {
    frames: VecDeque<Frame>,
    bytes: usize,
    /// The queue has overflowed, or its receiving end was dropped.
    is_over: bool,
    /// The connection has ended.
    is_gone: bool,
    /// A sender has more frames, and waits until the queue is empty.
    is_awaited: bool,
    /// The queue accepts no frames yet.
    is_held: bool,
}

impl WaitingFrames {
    fn fits(&self, frame: &Frame) -> bool {
        let is_light = self.frames.is_empty() || self.bytes + frame.len() <= QUEUE_BYTES_MAX;
        is_light && self.frames.len() < QUEUE_FRAMES_MAX
    }

    /// Whether less than half of the queue is used. If not, the sender is notified when the queue is empty.
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

impl FrameQueue {
    fn waiting(&self) -> MutexGuard<'_, WaitingFrames> {
        self.waiting.lock()
    }
}

impl Outbox {
    /// Never waits: a peer whose queue is full is disconnected instead.
    pub fn put(&self, frame: Frame) {
        let mut waiting = self.0.waiting();
        match waiting.fits(&frame) {
            _ if waiting.is_over || waiting.is_held => return,
            true => waiting.add(frame),
            false => waiting.end(),
        }
        self.0.added.notify_one();
    }

    /// As [`Outbox::put`], for a frame that can be sent later: it is accepted only while there is room, and never causes a
    /// disconnect.
    pub fn offer(&self, frame: &Frame) -> bool {
        let mut waiting = self.0.waiting();
        let has_room = waiting.has_room();
        if has_room {
            waiting.add(frame.clone());
            self.0.added.notify_one();
        }
        has_room
    }

    /// Whether a frame that is offered now is accepted.
    pub fn has_room(&self) -> bool {
        self.0.waiting().has_room()
    }

    /// Accepts no frames until [`Outbox::open`], because it may not be settled yet who the peer is.
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

    /// Resolves when the queue is empty again after it has rejected an offer.
    pub async fn emptied(&self) {
        self.0.emptied.notified().await;
    }

    /// Pings the peer. Resolves when a frame of the peer is received, or when the connection has ended without one.
    pub async fn probe(&self) {
        let settled = self.0.settled.notified();
        if !self.0.waiting().is_gone {
            self.0.probed.notify_one();
            settled.await;
        }
    }
}

impl Inbox {
    /// The next frame. `None` if the queue has overflowed.
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
            self.0.added.notified().await;
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
    let queue = Arc::<FrameQueue>::default();
    (Outbox(queue.clone()), Inbox(queue))
}

/// Limits the size of frames, and keeps buffers small for the sake of thousands of silent connections.
pub fn fitted(upgrade: WebSocketUpgrade, frame_bytes_max: usize) -> WebSocketUpgrade {
    let upgrade = upgrade.max_message_size(frame_bytes_max).max_frame_size(frame_bytes_max);
    upgrade.read_buffer_size(BUFFER_BYTES).write_buffer_size(BUFFER_BYTES)
}

/// Serves a connection until one side ends it. Returns the reason.
pub async fn converse<S, E>(
    mut socket: S,
    mut inbox: Inbox,
    mut dialect: impl SocketDialect,
    patience: Patience,
) -> Close
where
    S: Stream<Item = Result<Message, E>> + Sink<Message> + Unpin,
    E: Error + 'static,
{
    let close = exchange(&mut socket, &mut inbox, &mut dialect, patience).await;
    // Release what the connection holds before the peer can learn of its end.
    drop(dialect);
    drop(inbox);
    if close != Close::GONE {
        let frame = CloseFrame { code: close.code, reason: close.reason.into() };
        let _ = timeout(patience.write, socket.send(Message::Close(Some(frame)))).await;
    }
    close
}

async fn exchange<S, E>(
    socket: &mut S,
    inbox: &mut Inbox,
    dialect: &mut impl SocketDialect,
    patience: Patience,
) -> Close
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
            if let Err(close) = send_message(socket, Message::Text(frame), patience).await {
                return close;
            }
        }
        if let Some(close) = step.close {
            return close;
        }
        let is_introduced = dialect.is_introduced();
        step = tokio::select! {
            received = socket.next() => {
                dead_at = Instant::now() + patience.dead;
                // For a peer that disconnects, a probe resolves only after its slot is released.
                if let Some(Ok(Message::Text(_) | Message::Ping(_) | Message::Pong(_))) = &received {
                    queue.settled.notify_waiters();
                }
                match received {
                    Some(Ok(Message::Text(text))) => {
                        finish(socket, inbox, is_introduced, Box::pin(dialect.handle_text(&text)), patience).await
                    }
                    Some(Ok(Message::Binary(_))) => Close::NOT_TEXT.into(),
                    // The library replies to pings by itself.
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => Step::default(),
                    Some(Err(why)) if is_too_long(&why) => Close::TOO_LONG.into(),
                    Some(Ok(Message::Close(_)) | Err(_)) | None => Close::GONE.into(),
                }
            }
            frame = inbox.next(), if is_introduced => frame.map_or(Close::SLOW.into(), |frame| vec![frame].into()),
            () = dialect.wake() => finish(socket, inbox, is_introduced, Box::pin(dialect.process_pending()), patience).await,
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

/// Whether the library rejected a frame for its length. Its error may be wrapped in others.
fn is_too_long(why: &(dyn Error + 'static)) -> bool {
    matches!(why.downcast_ref(), Some(tungstenite::Error::Capacity(_))) || why.source().is_some_and(is_too_long)
}

/// Runs the dialect's work to completion. Queued frames are sent to the peer in the meantime, however long it takes. The work is
/// boxed, so that the many silent connections do not carry its size.
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
            // Work that was started is finished, even if the peer can no longer receive the reply.
            step = &mut work => return end.map_or(step, Step::from),
            frame = inbox.next(), if is_introduced && end.is_none() => end = match frame {
                Some(frame) => send_message(socket, Message::Text(frame), patience).await.err(),
                None => Some(Close::SLOW),
            },
        }
    }
}

async fn ping<S, E>(socket: &mut S, patience: Patience) -> Step
where
    S: Stream<Item = Result<Message, E>> + Sink<Message> + Unpin,
{
    let pinged = send_message(socket, Message::Ping(Default::default()), patience).await;
    Step { say: vec![], close: pinged.err() }
}

async fn send_message<S, E>(socket: &mut S, message: Message, patience: Patience) -> Result<(), Close>
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
