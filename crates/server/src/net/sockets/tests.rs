use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_util::FutureExt;
use tokio::sync::mpsc;

use super::*;

const PATIENCE: Patience = Patience {
    ping: Duration::from_secs(30),
    dead: Duration::from_secs(90),
    probe: Duration::from_secs(4),
    write: Duration::from_secs(10),
};

/// The server's end of a socket. If the peer does not read, `outgoing` stays full.
struct Socket {
    incoming: mpsc::UnboundedReceiver<Result<Message, axum::Error>>,
    outgoing: mpsc::Sender<Message>,
    sending: Option<Pin<Box<dyn Future<Output = bool> + Send>>>,
}

impl Stream for Socket {
    type Item = Result<Message, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.incoming.poll_recv(context)
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
        let outgoing = self.outgoing.clone();
        self.sending = Some(Box::pin(async move { outgoing.send(message).await.is_ok() }));
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), ()>> {
        self.poll_ready(context)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), ()>> {
        self.poll_ready(context)
    }
}

/// Sends hello, and echoes every frame as soon as it may. A peer counts as introduced after its first reply. With `has_to_do`,
/// it has work of its own, which takes a while and then closes the connection.
#[derive(Default)]
struct Echo {
    is_stranger: bool,
    may_answer: Option<Arc<Notify>>,
    has_to_do: bool,
}

const DOING: Duration = Duration::from_secs(3);
const DONE: Close = Close { code: 4000, reason: "done" };

impl SocketDialect for Echo {
    async fn open(&mut self) -> Step {
        vec!["hello".into()].into()
    }

    fn is_introduced(&self) -> bool {
        !self.is_stranger
    }

    async fn handle_text(&mut self, text: &str) -> Step {
        if let Some(may_answer) = &self.may_answer {
            may_answer.notified().await;
        }
        self.is_stranger = false;
        vec![text.into()].into()
    }

    async fn wake(&mut self) {
        if !self.has_to_do {
            std::future::pending().await
        }
    }

    async fn process_pending(&mut self) -> Step {
        tokio::time::sleep(DOING).await;
        DONE.into()
    }
}

struct Peer {
    to: mpsc::UnboundedSender<Result<Message, axum::Error>>,
    from: mpsc::Receiver<Message>,
    outbox: Outbox,
    ended: tokio::task::JoinHandle<Close>,
}

fn connect() -> Peer {
    connect_to(Echo::default())
}

fn connect_to(echo: Echo) -> Peer {
    let (to, incoming) = mpsc::unbounded_channel();
    let (outgoing, from) = mpsc::channel(1);
    let (outbox, inbox) = queue();
    let socket = Socket { incoming, outgoing, sending: None };
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
async fn frames_of_the_peer_do_not_keep_the_server_from_finishing_its_work() {
    let Peer { to, mut from, outbox, ended } = connect_to(Echo { has_to_do: true, ..Echo::default() });
    let noise = async {
        for _ in 0..1_000 {
            let _ = to.send(Ok(Message::Text("again".into())));
            outbox.put("news".into());
            tokio::time::sleep(DOING / 10).await;
        }
    };
    let reading = async { while from.recv().await.is_some() {} };
    tokio::select! {
        ((), ()) = async { tokio::join!(noise, reading) } => panic!("the work was never finished"),
        ended = ended => assert_eq!(ended.unwrap(), DONE),
    }
}

#[tokio::test(start_paused = true)]
async fn the_server_may_send_first_and_replies_to_frames() {
    let mut peer = connect();
    assert_eq!(peer.text().await, "hello");
    peer.to.send(Ok(Message::Text("you".into()))).unwrap();
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
    peer.to.send(Ok(Message::Pong(Default::default()))).unwrap();
    for ping in 3..=4 {
        assert!(matches!(peer.from.recv().await, Some(Message::Ping(_))));
        assert_eq!(began.elapsed().as_secs(), 30 * ping, "the pong at 60 s was received");
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
async fn a_probed_peer_responds_at_once_or_is_dead_after_4_s() {
    let mut peer = connect();
    let began = Instant::now();
    assert_eq!(peer.text().await, "hello");
    let probe = tokio::spawn({
        let outbox = peer.outbox.clone();
        async move { outbox.probe().await }
    });
    assert!(matches!(peer.from.recv().await, Some(Message::Ping(_))));
    assert!(!probe.is_finished(), "nothing was received yet");
    peer.to.send(Ok(Message::Pong(Default::default()))).unwrap();
    probe.await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 0);
    peer.outbox.probe().await;
    drop(peer.from);
    assert_eq!((peer.ended.await.unwrap(), began.elapsed().as_secs()), (Close::DEAD, 4));
    peer.outbox.probe().await;
    assert_eq!(began.elapsed().as_secs(), 4, "a probe does not wait for a connection that has ended");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_reads_nothing_is_disconnected() {
    let peer = connect();
    let began = Instant::now();
    // One frame is in the peer's channel and one is being sent; the rest is queued.
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
    let mut received = 0;
    let close = loop {
        match peer.from.recv().await {
            Some(Message::Text(_)) => received += 1,
            Some(Message::Close(Some(frame))) => break frame.code,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(close, Close::SLOW.code);
    assert!(received <= QUEUE_FRAMES_MAX + 1, "{received}");
}

#[tokio::test(start_paused = true)]
async fn a_peer_receives_queued_frames_while_its_call_is_handled() {
    let may_answer = Arc::<Notify>::default();
    let mut peer = connect_to(Echo { may_answer: Some(may_answer.clone()), ..Echo::default() });
    assert_eq!(peer.text().await, "hello");
    peer.to.send(Ok(Message::Text("call".into()))).unwrap();
    for number in 0..2 * QUEUE_FRAMES_MAX {
        peer.outbox.put(number.to_string().into());
        let received = timeout(PATIENCE.dead, peer.text()).await.expect("queued frames do not wait for the reply");
        assert_eq!(received, number.to_string());
    }
    may_answer.notify_one();
    assert_eq!(peer.text().await, "call");
}

#[tokio::test(start_paused = true)]
async fn a_peer_receives_no_queued_frames_before_it_is_introduced() {
    let may_answer = Arc::<Notify>::default();
    let mut peer = connect_to(Echo { is_stranger: true, may_answer: Some(may_answer.clone()), ..Echo::default() });
    assert_eq!(peer.text().await, "hello");
    peer.to.send(Ok(Message::Text("call".into()))).unwrap();
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
    assert!(inbox.next().await.is_some(), "the queue is exactly full");
    (0..2).for_each(|_| outbox.put(large()));
    assert!(inbox.next().await.is_none(), "an overflow drops the whole queue");
    assert!(!outbox.offer(&"more".into()));
}

#[tokio::test]
async fn offers_are_rejected_until_the_queue_is_empty_again() {
    let (outbox, mut inbox) = queue();
    let accepted = (0..10 * QUEUE_FRAMES_MAX).take_while(|_| outbox.offer(&"x".into())).count();
    assert_eq!(accepted, QUEUE_FRAMES_MAX / 2, "half of the queue is left for frames that cannot wait");
    for _ in 0..accepted {
        assert!(outbox.emptied().now_or_never().is_none());
        inbox.next().await.unwrap();
    }
    outbox.emptied().now_or_never().expect("the sender is notified");
    assert!(outbox.offer(&"x".into()));
    drop(inbox);
    assert!(!outbox.offer(&"x".into()), "the receiving end is gone");
}

#[tokio::test]
async fn a_held_queue_accepts_nothing() {
    let (outbox, mut inbox) = queue();
    outbox.hold();
    outbox.put("word".into());
    assert!(!outbox.offer(&"letter".into()));
    outbox.open();
    outbox.emptied().now_or_never().expect("the sender is notified");
    outbox.put("next".into());
    assert_eq!(inbox.next().await.unwrap().as_str(), "next");
}

#[tokio::test(start_paused = true)]
async fn the_sender_of_a_frame_that_is_too_long_receives_the_reason() {
    let mut peer = connect();
    assert_eq!(peer.text().await, "hello");
    let too_long = tungstenite::error::CapacityError::MessageTooLong { size: 2, max_size: 1 };
    peer.to.send(Err(axum::Error::new(tungstenite::Error::from(too_long)))).unwrap();
    let Some(Message::Close(Some(frame))) = peer.from.recv().await else { panic!("no close frame") };
    assert_eq!((frame.code, peer.ended.await.unwrap()), (1009, Close::TOO_LONG));
    let peer = connect();
    peer.to.send(Err(axum::Error::new(tungstenite::Error::ConnectionClosed))).unwrap();
    let mut from = peer.from;
    tokio::spawn(async move { while from.recv().await.is_some() {} });
    assert_eq!(peer.ended.await.unwrap(), Close::GONE);
}

#[tokio::test(start_paused = true)]
async fn binary_frames_are_rejected() {
    let peer = connect();
    peer.to.send(Ok(Message::Binary(vec![1].into()))).unwrap();
    let mut from = peer.from;
    tokio::spawn(async move { while from.recv().await.is_some() {} });
    assert_eq!(peer.ended.await.unwrap(), Close::NOT_TEXT);
}
