//! The outbox: events on their way to the server, in order. It joins the pieces of a streamed message that have not been
//! sent yet, so that a fast backend causes few events. It decides when the next batch is due: at once, except for further
//! pieces of a message that was just sent. The end of a piece that might be half a credential is held back until more
//! arrives or the message is complete. The outbox sends nothing and reads no clock.

use std::collections::VecDeque;

use ostler_protocol::{
    FailureKind, RawJson,
    kernel::events::{AppendEvent, EventType},
    limits::{APPEND_BYTES_MAX, APPEND_EVENTS_MAX, EVENT_BYTES_MAX},
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::{Duration, Instant};

use crate::text::safe_prefix_len;

/// After a piece of a message was sent, the next one waits this long.
const DELTA_WINDOW_MS: u64 = 20;
/// Raw bytes of one piece; even if each must be escaped the event stays within its limit.
const DELTA_BYTES_MAX: usize = 32 * 1024;
/// Size of the fields around a payload in an append's body, at most.
const ENVELOPE_BYTES_MAX: usize = 160;
const BATCH_BYTES_MAX: usize = APPEND_BYTES_MAX - 64 * 1024;
/// A backend that is this far ahead of the server has to wait.
const QUEUE_EVENTS_MAX: usize = APPEND_EVENTS_MAX;
const QUEUE_BYTES_MAX: usize = 2 * 1024 * 1024;

enum QueuedEvents {
    Event(AppendEvent),
    Delta(Delta),
}

/// A piece of a streamed message.
struct Delta {
    event_type: EventType,
    command_id: String,
    message_id: String,
    text: String,
}

impl Delta {
    fn belongs_to(&self, event_type: EventType, message_id: &str) -> bool {
        self.event_type == event_type && self.message_id == message_id
    }
}

#[derive(Default)]
pub(crate) struct EventOutbox {
    queue: VecDeque<QueuedEvents>,
    bytes: usize,
    /// The ends of streamed messages that are held back.
    held: Vec<Delta>,
    /// The message whose piece was sent last, and the time.
    last_delta: Option<(String, Instant)>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DeltaPayload<'a> {
    message_id: &'a str,
    delta: &'a str,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MessageRef {
    message_id: Option<String>,
}

impl EventOutbox {
    pub(crate) fn push(&mut self, event_type: EventType, command_id: &str, payload: RawJson) {
        let (event_type, payload) = match payload.size() {
            0..=EVENT_BYTES_MAX => (event_type, payload),
            // One event that is too large would make the server reject the whole batch.
            size => (EventType::Error, oversized_payload(event_type, size)),
        };
        self.bytes += payload.as_str().len() + ENVELOPE_BYTES_MAX;
        match event_type {
            EventType::AssistantMessage | EventType::Reasoning => {
                let whole = payload.view::<MessageRef>().and_then(|of| of.message_id);
                self.release(|delta| Some(&delta.message_id) == whole.as_ref());
            }
            EventType::TerminalStatus => self.release(|_| true),
            _ => {}
        }
        let event_type = event_type.as_str().to_owned();
        self.queue.push_back(QueuedEvents::Event(AppendEvent {
            event_type,
            command_id: Some(command_id.to_owned()),
            payload,
        }));
    }

    /// Adds a piece of a streamed message. It is joined to the last piece if that belongs to the same message and has not
    /// been sent.
    pub(crate) fn push_delta(&mut self, event_type: EventType, command_id: &str, message_id: &str, text: &str) {
        let held = self.held.iter().position(|held| held.belongs_to(event_type, message_id));
        let mut text = held.map(|at| self.held.swap_remove(at).text).unwrap_or_default() + text;
        let rest = text.split_off(safe_prefix_len(&text));
        let delta =
            |text| Delta { event_type, command_id: command_id.to_owned(), message_id: message_id.to_owned(), text };
        if !rest.is_empty() {
            self.held.push(delta(rest));
        }
        self.queue_delta(delta(text));
    }

    /// Queues the held-back ends of these messages, because they are complete.
    fn release(&mut self, whole: impl Fn(&Delta) -> bool) {
        let (whole, held) = std::mem::take(&mut self.held).into_iter().partition(whole);
        self.held = held;
        let whole: Vec<Delta> = whole;
        whole.into_iter().for_each(|delta| self.queue_delta(delta));
    }

    fn queue_delta(&mut self, delta: Delta) {
        let mut rest = delta.text.as_str();
        while !rest.is_empty() {
            let piece = &rest[..rest.floor_char_boundary(DELTA_BYTES_MAX)];
            rest = &rest[piece.len()..];
            self.bytes += piece.len();
            if let Some(QueuedEvents::Delta(open)) = self.queue.back_mut()
                && open.belongs_to(delta.event_type, &delta.message_id)
                && open.text.len() + piece.len() <= DELTA_BYTES_MAX
            {
                open.text.push_str(piece);
                continue;
            }
            self.bytes += ENVELOPE_BYTES_MAX;
            let (command_id, message_id) = (delta.command_id.clone(), delta.message_id.clone());
            let text = piece.to_owned();
            self.queue.push_back(QueuedEvents::Delta(Delta {
                event_type: delta.event_type,
                command_id,
                message_id,
                text,
            }));
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.queue.len() < QUEUE_EVENTS_MAX && self.bytes < QUEUE_BYTES_MAX
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        self.held.clear();
        self.bytes = 0;
    }

    /// When the next batch should be sent. `None` if there is nothing to send.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        match (self.queue.front()?, &self.last_delta) {
            (QueuedEvents::Delta(delta), Some((last, sent))) if self.queue.len() == 1 && delta.message_id == *last => {
                Some(*sent + Duration::from_millis(DELTA_WINDOW_MS))
            }
            _ => Some(now),
        }
    }

    /// Takes the next batch: everything, up to the limits of one append.
    pub(crate) fn take(&mut self, now: Instant) -> Vec<AppendEvent> {
        let mut batch = Vec::with_capacity(self.queue.len().min(APPEND_EVENTS_MAX));
        let mut bytes = 0;
        while batch.len() < APPEND_EVENTS_MAX {
            let Some(queued) = self.queue.pop_front() else { break };
            let event = match queued {
                QueuedEvents::Event(event) => event,
                QueuedEvents::Delta(Delta { event_type, command_id, message_id, text }) => {
                    let payload = RawJson::of(&DeltaPayload { message_id: &message_id, delta: &text });
                    self.last_delta = Some((message_id, now));
                    AppendEvent { event_type: event_type.as_str().to_owned(), command_id: Some(command_id), payload }
                }
            };
            let size = event.payload.as_str().len() + ENVELOPE_BYTES_MAX;
            if bytes + size > BATCH_BYTES_MAX && !batch.is_empty() {
                self.queue.push_front(QueuedEvents::Event(event));
                break;
            }
            bytes += size;
            batch.push(event);
        }
        // Escaping makes a piece larger than it was counted.
        self.bytes = if self.queue.is_empty() { 0 } else { self.bytes.saturating_sub(bytes) };
        batch
    }
}

fn oversized_payload(event_type: EventType, bytes: usize) -> RawJson {
    let message =
        format!("a {} event of {bytes} bytes was left out: the limit is {EVENT_BYTES_MAX}", event_type.as_str());
    RawJson::of(&json!({"failureKind": FailureKind::PayloadTooLarge, "message": message}))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_millis(DELTA_WINDOW_MS);

    fn delta(outbox: &mut EventOutbox, message: &str, text: &str) {
        outbox.push_delta(EventType::AssistantDelta, "cmd", message, text);
    }

    fn texts(batch: &[AppendEvent]) -> Vec<String> {
        batch.iter().map(|e| e.payload.to_value()["delta"].as_str().unwrap_or(&e.event_type).to_owned()).collect()
    }

    #[tokio::test]
    async fn pieces_that_have_not_been_sent_are_joined() {
        let (mut outbox, now) = (EventOutbox::default(), Instant::now());
        for piece in ["one ", "two ", "three "] {
            delta(&mut outbox, "m1", piece);
        }
        delta(&mut outbox, "m2", "other ");
        assert_eq!(texts(&outbox.take(now)), ["one two three ", "other "]);
        assert!(outbox.is_empty() && outbox.due(now).is_none());
    }

    #[tokio::test]
    async fn the_first_piece_is_due_at_once_and_the_next_after_a_window() {
        let (mut outbox, now) = (EventOutbox::default(), Instant::now());
        delta(&mut outbox, "m1", "a ");
        assert_eq!(outbox.due(now), Some(now));
        outbox.take(now);
        delta(&mut outbox, "m1", "b ");
        delta(&mut outbox, "m1", "c ");
        assert_eq!(outbox.due(now), Some(now + WINDOW));
        assert_eq!(texts(&outbox.take(now + WINDOW)), ["b c "]);
    }

    #[tokio::test]
    async fn another_event_flushes_a_waiting_piece_in_order() {
        let (mut outbox, now) = (EventOutbox::default(), Instant::now());
        delta(&mut outbox, "m1", "a ");
        outbox.take(now);
        delta(&mut outbox, "m1", "b ");
        outbox.push(EventType::Step, "cmd", RawJson::of(&json!({})));
        delta(&mut outbox, "m1", "c ");
        assert_eq!(outbox.due(now), Some(now));
        assert_eq!(texts(&outbox.take(now)), ["b ", "step", "c "]);
    }

    #[tokio::test]
    async fn half_a_word_is_held_back_across_other_events() {
        let (mut outbox, now) = (EventOutbox::default(), Instant::now());
        delta(&mut outbox, "m1", "key sk-ant");
        outbox.push(EventType::Step, "cmd", RawJson::of(&json!({})));
        delta(&mut outbox, "m1", "-0123");
        delta(&mut outbox, "m2", "aside");
        delta(&mut outbox, "m1", "4567 and");
        assert_eq!(texts(&outbox.take(now)), ["key ", "step", "sk-ant-01234567 "]);
        outbox.push(EventType::AssistantMessage, "cmd", RawJson::of(&json!({"messageId": "m1"})));
        assert_eq!(texts(&outbox.take(now)), ["and", "assistant_message"]);
        outbox.push(EventType::TerminalStatus, "cmd", RawJson::of(&json!({})));
        assert_eq!(texts(&outbox.take(now)), ["aside", "terminal_status"]);
    }

    #[tokio::test]
    async fn another_message_does_not_wait_for_the_window() {
        let (mut outbox, now) = (EventOutbox::default(), Instant::now());
        delta(&mut outbox, "m1", "a ");
        outbox.take(now);
        delta(&mut outbox, "m2", "b ");
        assert_eq!(outbox.due(now), Some(now));
    }

    #[tokio::test]
    async fn batches_stay_within_the_limits_and_lose_nothing() {
        let (mut outbox, now) = (EventOutbox::default(), Instant::now());
        let text = "\u{1}".repeat(200 * 1024);
        delta(&mut outbox, "m1", &text);
        for _ in 0..1_200 {
            outbox.push(EventType::Custom, "cmd", RawJson::of(&json!({"pad": "x".repeat(10_000)})));
        }
        assert!(!outbox.has_room());
        let mut events = vec![];
        while !outbox.is_empty() {
            let batch = outbox.take(now);
            assert!(batch.len() <= APPEND_EVENTS_MAX);
            assert!(serde_json::to_vec(&batch).unwrap().len() <= APPEND_BYTES_MAX - 1024);
            assert!(batch.iter().all(|e| e.payload.as_str().len() <= EVENT_BYTES_MAX));
            events.extend(batch);
        }
        assert_eq!(texts(&events[..7]).concat(), text);
        assert_eq!(events.len(), 1_207);
        assert!(outbox.has_room());
    }

    #[test]
    fn an_event_that_is_too_large_becomes_an_error_event() {
        let mut outbox = EventOutbox::default();
        outbox.push(EventType::Custom, "cmd", RawJson::of(&json!({"pad": "x".repeat(EVENT_BYTES_MAX)})));
        let batch = outbox.take(Instant::now());
        assert_eq!(batch[0].event_type, "error");
        assert!(batch[0].payload.as_str().contains("payload-too-large"));
    }
}
