//! One WebSocket, whatever is spoken over it: a bounded queue towards the peer, pings, and an end for whoever is dead, too
//! slow or unwelcome. It knows nothing of what the frames mean; that is its dialect's.

use std::{
    collections::VecDeque,
    future::Future,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocketUpgrade};
use futures_util::{Sink, SinkExt, Stream, StreamExt};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};

/// A text frame; cheap to clone, because one may go to thousands.
pub type Frame = Utf8Bytes;

/// The longest frame that is heard; the sender of a longer one is cut off.
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

    /// Resolves when there is something to say, or an end to make, that nobody asked for. It is dropped and called again
    /// at any time, so it keeps in `self` what it has begun.
    fn wake(&mut self) -> impl Future<Output = Step> + Send;
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
}

#[derive(Default)]
struct Waiting {
    frames: VecDeque<Frame>,
    bytes: usize,
    /// Too much gathered, or nobody takes it any more.
    is_over: bool,
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
        self.0.waiting().end();
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
pub async fn converse<S, E>(mut socket: S, mut inbox: Inbox, dialect: impl Dialect, patience: Patience) -> Close
where
    S: Stream<Item = Result<Message, E>> + Sink<Message> + Unpin,
{
    let close = speak(&mut socket, &mut inbox, dialect, patience).await;
    if close != Close::GONE {
        let frame = CloseFrame { code: close.code, reason: close.reason.into() };
        let _ = timeout(patience.write, socket.send(Message::Close(Some(frame)))).await;
    }
    close
}

async fn speak<S, E>(socket: &mut S, inbox: &mut Inbox, mut dialect: impl Dialect, patience: Patience) -> Close
where
    S: Stream<Item = Result<Message, E>> + Sink<Message> + Unpin,
{
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
                match heard {
                    Some(Ok(Message::Text(text))) => answer(socket, inbox, &mut dialect, &text, patience).await,
                    Some(Ok(Message::Binary(_))) => Close::NOT_TEXT.into(),
                    // The library answers pings by itself.
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => Step::default(),
                    Some(Ok(Message::Close(_)) | Err(_)) | None => Close::GONE.into(),
                }
            }
            frame = inbox.next(), if is_introduced => frame.map_or(Close::SLOW.into(), |frame| vec![frame].into()),
            step = dialect.wake() => step,
            () = sleep_until(ping_at) => {
                ping_at += patience.ping;
                let pinged = say(socket, Message::Ping(Default::default()), patience).await;
                Step { say: vec![], close: pinged.err() }
            }
            () = sleep_until(dead_at) => Close::DEAD.into(),
        };
    }
}

/// Has the dialect answer. However long that takes, what waits for the peer does not gather meanwhile.
async fn answer<S, E>(
    socket: &mut S,
    inbox: &mut Inbox,
    dialect: &mut impl Dialect,
    text: &str,
    patience: Patience,
) -> Step
where
    S: Stream<Item = Result<Message, E>> + Sink<Message> + Unpin,
{
    let is_introduced = dialect.is_introduced();
    let mut answer = pin!(dialect.hear(text));
    let mut end: Option<Close> = None;
    loop {
        tokio::select! {
            biased;
            // What was begun is finished, even if nobody hears the answer.
            step = &mut answer => return end.map_or(step, Step::from),
            frame = inbox.next(), if is_introduced && end.is_none() => end = match frame {
                Some(frame) => say(socket, Message::Text(frame), patience).await.err(),
                None => Some(Close::SLOW),
            },
        }
    }
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
mod tests {
    use std::{
        convert::Infallible,
        pin::Pin,
        task::{Context, Poll, ready},
    };

    use futures_util::FutureExt;
    use tokio::sync::mpsc;

    use super::*;

    const PATIENCE: Patience =
        Patience { ping: Duration::from_secs(30), dead: Duration::from_secs(90), write: Duration::from_secs(10) };

    /// The server's end of a socket. A peer that reads nothing leaves its way out full.
    struct Socket {
        heard: mpsc::UnboundedReceiver<Message>,
        said: mpsc::Sender<Message>,
        sending: Option<Pin<Box<dyn Future<Output = bool> + Send>>>,
    }

    impl Stream for Socket {
        type Item = Result<Message, Infallible>;

        fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            self.heard.poll_recv(context).map(|message| message.map(Ok))
        }
    }

    impl Sink<Message> for Socket {
        type Error = ();

        fn poll_ready(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), ()>> {
            let Some(sending) = &mut self.sending else { return Poll::Ready(Ok(())) };
            let sent = ready!(sending.as_mut().poll(context));
            self.sending = None;
            Poll::Ready(sent.then_some(()).ok_or(()))
        }

        fn start_send(mut self: Pin<&mut Self>, message: Message) -> Result<(), ()> {
            let said = self.said.clone();
            self.sending = Some(Box::pin(async move { said.send(message).await.is_ok() }));
            Ok(())
        }

        fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), ()>> {
            self.poll_ready(context)
        }

        fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), ()>> {
            self.poll_ready(context)
        }
    }

    /// Says hello, and everything back, as soon as it may; nothing wakes it. Whoever was answered is no stranger.
    #[derive(Default)]
    struct Echo {
        is_stranger: bool,
        may_answer: Option<Arc<Notify>>,
    }

    impl Dialect for Echo {
        async fn open(&mut self) -> Step {
            vec!["hello".into()].into()
        }

        fn is_introduced(&self) -> bool {
            !self.is_stranger
        }

        async fn hear(&mut self, text: &str) -> Step {
            if let Some(may_answer) = &self.may_answer {
                may_answer.notified().await;
            }
            self.is_stranger = false;
            vec![text.into()].into()
        }

        async fn wake(&mut self) -> Step {
            std::future::pending().await
        }
    }

    struct Peer {
        to: mpsc::UnboundedSender<Message>,
        from: mpsc::Receiver<Message>,
        outbox: Outbox,
        ended: tokio::task::JoinHandle<Close>,
    }

    fn connect() -> Peer {
        speaking(Echo::default())
    }

    fn speaking(echo: Echo) -> Peer {
        let (to, heard) = mpsc::unbounded_channel();
        let (said, from) = mpsc::channel(1);
        let (outbox, inbox) = queue();
        let socket = Socket { heard, said, sending: None };
        let ended = tokio::spawn(async move { converse(socket, inbox, echo, PATIENCE).await });
        Peer { to, from, outbox, ended }
    }

    impl Peer {
        async fn text(&mut self) -> String {
            match self.from.recv().await {
                Some(Message::Text(text)) => text.to_string(),
                other => panic!("{other:?}"),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_server_may_speak_first_and_is_answered() {
        let mut peer = connect();
        assert_eq!(peer.text().await, "hello");
        peer.to.send(Message::Text("you".into())).unwrap();
        assert_eq!(peer.text().await, "you");
        peer.outbox.put("news".into());
        assert_eq!(peer.text().await, "news");
        drop(peer.to);
        assert_eq!(peer.ended.await.unwrap(), Close::GONE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_is_pinged_every_30_s_and_dead_after_90_s_of_silence() {
        let mut peer = connect();
        let began = Instant::now();
        assert_eq!(peer.text().await, "hello");
        for ping in 1..=2 {
            assert!(matches!(peer.from.recv().await, Some(Message::Ping(_))));
            assert_eq!(began.elapsed().as_secs(), 30 * ping);
        }
        peer.to.send(Message::Pong(Default::default())).unwrap();
        for ping in 3..=4 {
            assert!(matches!(peer.from.recv().await, Some(Message::Ping(_))));
            assert_eq!(began.elapsed().as_secs(), 30 * ping, "the pong at 60 s was heard");
        }
        loop {
            match peer.from.recv().await {
                Some(Message::Ping(_)) => {}
                Some(Message::Close(Some(frame))) => break assert_eq!(frame.code, Close::DEAD.code),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((peer.ended.await.unwrap(), began.elapsed().as_secs()), (Close::DEAD, 150));
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_is_dropped() {
        let peer = connect();
        let began = Instant::now();
        // One frame is in its hands and one on the way; the rest gathers.
        for number in 0..3 {
            peer.outbox.put(number.to_string().into());
        }
        assert_eq!(peer.ended.await.unwrap(), Close::SLOW);
        assert!(began.elapsed() <= 3 * PATIENCE.write, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_that_overflows_ends_the_connection_and_never_grows() {
        let mut peer = connect();
        for number in 0..10 * QUEUE_FRAMES_MAX {
            peer.outbox.put(number.to_string().into());
        }
        let mut told = 0;
        let close = loop {
            match peer.from.recv().await {
                Some(Message::Text(_)) => told += 1,
                Some(Message::Close(Some(frame))) => break frame.code,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(close, Close::SLOW.code);
        assert!(told <= QUEUE_FRAMES_MAX + 1, "{told}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_is_told_news_while_its_call_is_answered() {
        let may_answer = Arc::<Notify>::default();
        let mut peer = speaking(Echo { may_answer: Some(may_answer.clone()), ..Echo::default() });
        assert_eq!(peer.text().await, "hello");
        peer.to.send(Message::Text("call".into())).unwrap();
        for number in 0..2 * QUEUE_FRAMES_MAX {
            peer.outbox.put(number.to_string().into());
            let told = timeout(PATIENCE.dead, peer.text()).await.expect("nobody waits for the answer");
            assert_eq!(told, number.to_string());
        }
        may_answer.notify_one();
        assert_eq!(peer.text().await, "call");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stranger_hears_nothing_before_its_answer() {
        let may_answer = Arc::<Notify>::default();
        let mut peer = speaking(Echo { is_stranger: true, may_answer: Some(may_answer.clone()) });
        assert_eq!(peer.text().await, "hello");
        peer.to.send(Message::Text("call".into())).unwrap();
        peer.outbox.put("news".into());
        tokio::task::yield_now().await;
        may_answer.notify_one();
        assert_eq!((peer.text().await, peer.text().await), ("call".into(), "news".into()));
    }

    #[tokio::test]
    async fn a_queue_is_bounded_in_bytes_and_takes_one_frame_of_any_size() {
        let large = || Frame::from("x".repeat(QUEUE_BYTES_MAX / 4));
        let (outbox, mut inbox) = queue();
        outbox.put("x".repeat(2 * QUEUE_BYTES_MAX).into());
        assert_eq!(inbox.next().await.unwrap().len(), 2 * QUEUE_BYTES_MAX);
        (0..4).for_each(|_| outbox.put(large()));
        assert!(inbox.next().await.is_some(), "as much as it may be");
        (0..2).for_each(|_| outbox.put(large()));
        assert!(inbox.next().await.is_none(), "too much is nothing at all");
        assert!(!outbox.offer(&"more".into()));
    }

    #[tokio::test]
    async fn what_can_come_later_is_not_taken_until_the_queue_is_empty_again() {
        let (outbox, mut inbox) = queue();
        let taken = (0..10 * QUEUE_FRAMES_MAX).take_while(|_| outbox.offer(&"x".into())).count();
        assert_eq!(taken, QUEUE_FRAMES_MAX / 2, "there is room left for what cannot");
        for _ in 0..taken {
            assert!(outbox.emptied().now_or_never().is_none());
            inbox.next().await.unwrap();
        }
        outbox.emptied().now_or_never().expect("whoever had more is told");
        assert!(outbox.offer(&"x".into()));
        drop(inbox);
        assert!(!outbox.offer(&"x".into()), "nobody takes it");
    }

    #[tokio::test]
    async fn a_queue_that_is_held_takes_nothing() {
        let (outbox, mut inbox) = queue();
        outbox.hold();
        outbox.put("word".into());
        assert!(!outbox.offer(&"letter".into()));
        outbox.open();
        outbox.emptied().now_or_never().expect("whoever had something is told");
        outbox.put("next".into());
        assert_eq!(inbox.next().await.unwrap().as_str(), "next");
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_are_not_spoken_here() {
        let peer = connect();
        peer.to.send(Message::Binary(vec![1].into())).unwrap();
        let mut from = peer.from;
        tokio::spawn(async move { while from.recv().await.is_some() {} });
        assert_eq!(peer.ended.await.unwrap(), Close::NOT_TEXT);
    }
}
