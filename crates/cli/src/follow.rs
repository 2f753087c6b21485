//! Following a run live, through lost connections: each new stream goes on after the last event that arrived, so
//! nothing is missed and nothing comes twice. The number of attempts in a row is bounded.

use std::time::Duration;

use futures_util::StreamExt;
use ostler_client::{Client, is_transient};
use ostler_protocol::{
    Failure, FailureKind,
    events::{EventType, EventView},
};
use tokio::sync::mpsc;

use crate::errors;

/// Attempts in a row without a single event.
const ATTEMPTS_MAX: u32 = 10;
const BACKOFF_MS_MIN: u64 = 250;
const BACKOFF_MS_MAX: u64 = 5_000;
/// A reader that is slower than the stream holds the stream back.
const EVENTS_WAITING_MAX: usize = 64;

pub enum Followed {
    Event(Box<EventView>),
    /// The connection is gone; another attempt follows after a pause.
    Lost(String),
    /// The run has ended and everything has been read, or it cannot be followed any more.
    Over(Result<(), Failure>),
}

/// Follows a run after event `after_seq`, in a task of its own, so that a reader may wait for other things as well.
pub fn follow(client: Client, run_id: String, after_seq: i64) -> mpsc::Receiver<Followed> {
    let (sender, receiver) = mpsc::channel(EVENTS_WAITING_MAX);
    tokio::spawn(async move {
        let over = pump(&client, &run_id, after_seq, &sender).await;
        let _ = sender.send(Followed::Over(over)).await;
    });
    receiver
}

async fn pump(client: &Client, run_id: &str, after_seq: i64, to: &mpsc::Sender<Followed>) -> Result<(), Failure> {
    let mut at = Position { seq: after_seq, run_ended: false };
    let mut attempt = 0;
    loop {
        let before = at.seq;
        let lost = match read(client, run_id, &mut at, to).await {
            // The reader has left.
            Ok(false) => return Ok(()),
            Ok(true) if at.run_ended || has_ended(client, run_id, at.seq).await? => return Ok(()),
            Ok(true) => Failure::new(FailureKind::InfraFailed, "the server closed the stream"),
            Err(failure) if !is_transient(&failure) => return Err(failure),
            Err(failure) => failure,
        };
        attempt = if at.seq > before { 1 } else { attempt + 1 };
        if attempt > ATTEMPTS_MAX {
            return Err(gave_up(run_id, &lost));
        }
        let pause_ms = backoff_ms(attempt);
        let line = format!("{}; trying again in {pause_ms} ms ({attempt} of {ATTEMPTS_MAX})", lost.message);
        if to.send(Followed::Lost(line)).await.is_err() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
    }
}

struct Position {
    seq: i64,
    run_ended: bool,
}

/// Reads one stream to its end. `false`: the reader has left.
async fn read(client: &Client, run_id: &str, at: &mut Position, to: &mpsc::Sender<Followed>) -> Result<bool, Failure> {
    let mut stream = client.follow_run(run_id, at.seq).await?;
    while let Some(event) = stream.next().await {
        let event = event?;
        at.seq = at.seq.max(event.seq.unwrap_or(0));
        at.run_ended |= event.event_type == EventType::TerminalStatus && event.command_id.is_none();
        if to.send(Followed::Event(Box::new(event))).await.is_err() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a stream that closed had nothing more to say. A server that cannot be asked is asked again later.
async fn has_ended(client: &Client, run_id: &str, seq: i64) -> Result<bool, Failure> {
    match client.get_run(run_id).await {
        Ok(run) => Ok(run.status.is_terminal() && run.last_seq <= seq),
        Err(failure) if is_transient(&failure) => Ok(false),
        Err(failure) => Err(failure),
    }
}

fn gave_up(run_id: &str, last: &Failure) -> Failure {
    errors::hinted(
        last.kind,
        format!("gave up following after {ATTEMPTS_MAX} attempts: {}", last.message),
        format!("the run goes on without us; `ostler trace -f {run_id}` follows it again"),
    )
}

fn backoff_ms(attempt: u32) -> u64 {
    (BACKOFF_MS_MIN << attempt.saturating_sub(1).min(16)).min(BACKOFF_MS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_are_bounded() {
        assert_eq!([1, 2, 3, 5, 6, 60].map(backoff_ms), [250, 500, 1_000, 4_000, 5_000, 5_000]);
    }
}
