//! The queue of one stream: frames that were published and not yet taken by its client. It is bounded; a client that lets it
//! overflow is evicted, which concerns no other stream.

use std::collections::VecDeque;

use bytes::Bytes;
use ostler_protocol::{Timestamp, daemon::frames};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

/// Bytes that one queue may hold. Frames are shared by all streams, but the slowest one determines how long they are kept.
const QUEUE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The client is warned when this much of the queue is full, and may be warned again when less than half of that is.
const WARNING_PERMILLE: usize = 750;
const REARMED_PERMILLE: usize = 375;

/// A frame as it is sent. All streams of a session share its bytes.
#[derive(Clone, Debug)]
pub(crate) struct SentFrame {
    pub id: i64,
    pub bytes: Bytes,
    /// Whether the stream ends with it.
    pub is_last: bool,
}

pub(crate) struct FrameQueue {
    max_queued: usize,
    state: Mutex<QueueState>,
    changed: Notify,
}

struct QueueState {
    /// Frames and warnings. A warning does not count to the limit.
    entries: VecDeque<QueueEntry>,
    frames: usize,
    bytes: usize,
    /// The id of the last frame that was added.
    last_id: i64,
    is_warned: bool,
    has_ended: bool,
    /// When the client last took something.
    written_at: Instant,
}

struct QueueEntry {
    bytes: Bytes,
    is_frame: bool,
}

impl FrameQueue {
    /// A queue for a client that has the frames up to `last_id`.
    pub(crate) fn new(max_queued: usize, last_id: i64) -> Self {
        let state = QueueState {
            entries: VecDeque::new(),
            frames: 0,
            bytes: 0,
            last_id,
            is_warned: false,
            has_ended: false,
            written_at: Instant::now(),
        };
        Self { max_queued, state: Mutex::new(state), changed: Notify::new() }
    }

    /// Adds a frame. Returns false if the stream takes no more: it has ended, or its queue has overflowed just now.
    pub(crate) fn push(&self, frame: &SentFrame, now: Timestamp) -> bool {
        let mut state = self.state.lock();
        if state.has_ended {
            return false;
        }
        let has_room = state.frames < self.max_queued && state.bytes + frame.bytes.len() <= QUEUE_BYTES_MAX;
        // A frame that is larger than the whole queue may be is sent if it is alone.
        if !has_room && state.frames > 0 {
            let evicted = frames::evicted_for_overflow(state.last_id, now);
            state.end(Some(evicted.to_sse().into()));
        } else {
            state.add(frame);
            if !state.is_warned && state.fill_permille(self.max_queued) >= WARNING_PERMILLE {
                state.is_warned = true;
                let warning = frames::slow_client_warning(state.frames, self.max_queued, frame.id, now);
                state.entries.push_back(QueueEntry { bytes: warning.to_sse().into(), is_frame: false });
            }
            state.has_ended = frame.is_last;
        }
        let is_open = !state.has_ended;
        drop(state);
        self.changed.notify_one();
        is_open
    }

    /// Ends the stream with this frame, after those that are queued.
    pub(crate) fn end(&self, last: Bytes) {
        self.state.lock().end(Some(last));
        self.changed.notify_one();
    }

    /// Ends the stream after the frames that are queued.
    pub(crate) fn finish(&self) {
        self.state.lock().end(None);
        self.changed.notify_one();
    }

    /// Ends the stream with this frame. Queued frames are dropped, because the client does not take them.
    pub(crate) fn abandon(&self, last: Bytes) {
        let mut state = self.state.lock();
        if !state.has_ended {
            state.entries.clear();
        }
        state.end(Some(last));
        drop(state);
        self.changed.notify_one();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state.lock().has_ended
    }

    /// The client has taken what it was sent.
    pub(crate) fn mark_written(&self) {
        self.state.lock().written_at = Instant::now();
    }

    pub(crate) fn written_at(&self) -> Instant {
        self.state.lock().written_at
    }

    /// The next frame. `None` after the last one.
    pub(crate) async fn next(&self) -> Option<Bytes> {
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.state.lock();
                if let Some(bytes) = state.pop(self.max_queued) {
                    return Some(bytes);
                }
                if state.has_ended {
                    return None;
                }
            }
            changed.await;
        }
    }
}

impl QueueState {
    fn add(&mut self, frame: &SentFrame) {
        self.frames += 1;
        self.bytes += frame.bytes.len();
        self.last_id = frame.id;
        self.entries.push_back(QueueEntry { bytes: frame.bytes.clone(), is_frame: true });
    }

    fn end(&mut self, last: Option<Bytes>) {
        if !std::mem::replace(&mut self.has_ended, true) {
            self.entries.extend(last.map(|bytes| QueueEntry { bytes, is_frame: false }));
        }
    }

    fn pop(&mut self, max_queued: usize) -> Option<Bytes> {
        let QueueEntry { bytes, is_frame } = self.entries.pop_front()?;
        if is_frame {
            self.frames -= 1;
            self.bytes -= bytes.len();
            self.is_warned &= self.fill_permille(max_queued) >= REARMED_PERMILLE;
        }
        Some(bytes)
    }

    fn fill_permille(&self, max_queued: usize) -> usize {
        (self.frames * 1_000 / max_queued.max(1)).max(self.bytes * 1_000 / QUEUE_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(id: i64) -> SentFrame {
        SentFrame { id, bytes: format!("frame {id}").into(), is_last: false }
    }

    fn push(queue: &FrameQueue, ids: impl IntoIterator<Item = i64>) -> bool {
        ids.into_iter().all(|id| queue.push(&frame(id), Timestamp::UNIX_EPOCH))
    }

    async fn take(queue: &FrameQueue, count: usize) -> Vec<String> {
        let mut taken = vec![];
        while taken.len() < count {
            let bytes = queue.next().await.expect("a frame");
            taken.push(String::from_utf8(bytes.to_vec()).expect("text"));
        }
        taken
    }

    #[tokio::test]
    async fn a_slow_client_is_warned_once_until_it_has_caught_up() {
        let queue = FrameQueue::new(16, 0);
        assert!(push(&queue, 1..=14));
        let taken = take(&queue, 15).await;
        assert_eq!(taken.iter().filter(|text| text.contains("slow_client_warning")).count(), 1);
        assert!(taken[12].contains(r#"{"lastEventId":12,"maxQueued":16,"queueSize":12}"#), "{taken:?}");
        assert!(push(&queue, 15..=26));
        assert!(take(&queue, 13).await[12].contains("slow_client_warning"), "rearmed");
    }

    #[tokio::test]
    async fn a_client_between_the_marks_is_not_warned_again() {
        let queue = FrameQueue::new(16, 0);
        assert!(push(&queue, 1..=12));
        take(&queue, 6).await;
        assert!(push(&queue, 13..=20));
        let rest = take(&queue, 15).await;
        assert_eq!(rest.iter().filter(|text| text.contains("slow_client_warning")).count(), 1);
    }

    #[tokio::test]
    async fn an_overflowing_client_gets_what_was_queued_and_is_evicted() {
        let queue = FrameQueue::new(16, 0);
        assert!(push(&queue, 1..=16));
        assert!(!push(&queue, [17]) && !push(&queue, [18]));
        let taken = take(&queue, 18).await;
        assert_eq!((taken[0].as_str(), taken[16].as_str()), ("frame 1", "frame 16"));
        assert!(taken[17].contains(r#"{"droppedAfter":16,"reason":"queue_overflow"}"#), "{taken:?}");
        assert!(queue.next().await.is_none());
    }

    #[tokio::test]
    async fn a_queue_holds_a_bounded_number_of_bytes() {
        let queue = FrameQueue::new(2_048, 0);
        let large = |id| SentFrame { id, bytes: vec![b'x'; 5 * 1024 * 1024].into(), is_last: false };
        let pushed: Vec<bool> = (1..=4).map(|id| queue.push(&large(id), Timestamp::UNIX_EPOCH)).collect();
        assert_eq!(pushed, [true, true, true, false]);
    }

    #[tokio::test]
    async fn an_abandoned_queue_holds_only_its_last_frame() {
        let queue = FrameQueue::new(16, 0);
        assert!(push(&queue, 1..=5));
        queue.abandon("evicted".into());
        assert_eq!(take(&queue, 1).await, ["evicted"]);
        assert!(queue.next().await.is_none() && !push(&queue, [6]));
    }

    #[tokio::test]
    async fn the_last_frame_of_a_session_ends_the_stream() {
        let queue = FrameQueue::new(16, 0);
        let last = SentFrame { is_last: true, ..frame(1) };
        assert!(!queue.push(&last, Timestamp::UNIX_EPOCH));
        queue.end("another end".into());
        assert_eq!(take(&queue, 1).await, ["frame 1"]);
        assert!(queue.next().await.is_none());
    }
}
