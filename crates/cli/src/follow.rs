//! Following runs and sessions live, through lost connections: each new stream goes on after the last event that arrived,
//! so nothing is missed and nothing comes twice. The number of attempts in a row is bounded.

use std::time::Duration;

use futures_util::StreamExt;
use ostler_client::{Client, EventStream, is_transient};
use ostler_protocol::{
    Failure, FailureKind,
    cursors::EventsQuery,
    kernel::{
        events::{EventPage, EventView},
        sessions::SessionEventsQuery,
    },
    limits::PAGE_ITEMS_MAX,
};
use tokio::{sync::mpsc, time::timeout};

use crate::{
    errors,
    targets::{SessionKey, Target},
};

/// Attempts in a row without a single event.
const ATTEMPTS_MAX: u32 = 10;
const BACKOFF_MS_MIN: u64 = 250;
const BACKOFF_MS_MAX: u64 = 5_000;
/// How long nothing comes before the server is asked whether anything will.
const QUIET: Duration = Duration::from_millis(500);
/// A reader that is slower than the stream holds the stream back.
const EVENTS_WAITING_MAX: usize = 64;

pub enum Followed {
    Event(Box<EventView>),
    /// The connection is gone; another attempt follows after a pause.
    Lost(String),
    /// Everything there will be has been read, or it cannot be followed any more.
    Over(Result<(), Failure>),
}

impl Target {
    /// The number an event has here: a run's own, or the session's.
    pub fn number(&self, event: &EventView) -> i64 {
        match self {
            Self::Run(_) => event.seq.unwrap_or(0),
            Self::Session(_) => event.session_seq,
        }
    }

    pub fn id(&self) -> &str {
        match self {
            Self::Run(id) => id,
            Self::Session(session) => &session.id,
        }
    }

    pub async fn page(&self, client: &Client, after_seq: i64) -> Result<EventPage, Failure> {
        let limit = Some(PAGE_ITEMS_MAX);
        match self {
            Self::Run(id) => client.run_events(id, &EventsQuery { after_seq, limit, ..EventsQuery::default() }).await,
            Self::Session(SessionKey { id, tenant }) => {
                let tenant_id = tenant.clone();
                let query = SessionEventsQuery { after_seq, limit, tenant_id, ..SessionEventsQuery::default() };
                client.session_trace(id, &query).await
            }
        }
    }

    async fn open(&self, client: &Client, after_seq: i64) -> Result<EventStream, Failure> {
        match self {
            Self::Run(id) => client.follow_run(id, after_seq).await,
            Self::Session(session) => client.follow_session(&session.id, &session.query(), after_seq).await,
        }
    }

    /// Whether there is nothing more to come: every command of the run has ended, and all was read. A session goes on from
    /// run to run. A server that cannot be asked is asked again later.
    async fn is_over(&self, client: &Client, seq: i64) -> Result<bool, Failure> {
        let Self::Run(id) = self else { return Ok(false) };
        match client.get_run(id).await {
            Ok(run) => {
                let is_idle = run.command_count > 0 && run.unfinished_commands == 0;
                Ok((run.status.is_terminal() || is_idle) && run.last_seq <= seq)
            }
            Err(failure) if is_transient(&failure) => Ok(false),
            Err(failure) => Err(failure),
        }
    }
}

/// Follows one thing behind event `after_seq`, in a task of its own, so that a reader may wait for other things as well.
pub fn follow(client: Client, target: Target, after_seq: i64) -> mpsc::Receiver<(usize, Followed)> {
    follow_all(&client, vec![target], after_seq)
}

/// Follows several things at once; what comes says which of them it is about.
pub fn follow_all(client: &Client, targets: Vec<Target>, after_seq: i64) -> mpsc::Receiver<(usize, Followed)> {
    let (sender, receiver) = mpsc::channel(EVENTS_WAITING_MAX);
    for (index, target) in targets.into_iter().enumerate() {
        let pump = Pump { client: client.clone(), target, index, to: sender.clone() };
        tokio::spawn(async move {
            let over = pump.run(after_seq).await;
            let _ = pump.to.send((pump.index, Followed::Over(over))).await;
        });
    }
    receiver
}

struct Pump {
    client: Client,
    target: Target,
    index: usize,
    to: mpsc::Sender<(usize, Followed)>,
}

struct Position {
    seq: i64,
    ended: bool,
}

impl Pump {
    async fn run(&self, after_seq: i64) -> Result<(), Failure> {
        let mut at = Position { seq: after_seq, ended: false };
        let mut attempt = 0;
        loop {
            let before = at.seq;
            let lost = match self.read(&mut at).await {
                // The reader has left.
                Ok(false) => return Ok(()),
                Ok(true) if at.ended || self.target.is_over(&self.client, at.seq).await? => return Ok(()),
                Ok(true) => Failure::new(FailureKind::InfraFailed, "the server closed the stream"),
                Err(failure) if !is_transient(&failure) => return Err(failure),
                Err(failure) => failure,
            };
            attempt = if at.seq > before { 1 } else { attempt + 1 };
            if attempt > ATTEMPTS_MAX {
                return Err(gave_up(self.target.id(), lost));
            }
            let pause_ms = backoff_ms(attempt);
            let line = format!("{}; trying again in {pause_ms} ms ({attempt} of {ATTEMPTS_MAX})", lost.message);
            if self.to.send((self.index, Followed::Lost(line))).await.is_err() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        }
    }

    /// Reads one stream to its end. `false`: the reader has left.
    async fn read(&self, at: &mut Position) -> Result<bool, Failure> {
        let mut stream = self.target.open(&self.client, at.seq).await?;
        loop {
            // What ends a run is an event, so once per silence is enough to ask; a run may have been idle from the start.
            let next = match timeout(QUIET, stream.next()).await {
                Ok(next) => next,
                Err(_) if self.target.is_over(&self.client, at.seq).await? => {
                    at.ended = true;
                    return Ok(true);
                }
                Err(_) => stream.next().await,
            };
            let Some(event) = next.transpose()? else { return Ok(true) };
            at.seq = at.seq.max(self.target.number(&event));
            if self.to.send((self.index, Followed::Event(Box::new(event)))).await.is_err() {
                return Ok(false);
            }
        }
    }
}

/// Keeps what the last attempt said about itself, so that the exit code says whether there was an answer at all.
fn gave_up(id: &str, mut last: Failure) -> Failure {
    last.message = format!("gave up following after {ATTEMPTS_MAX} attempts: {}", last.message);
    errors::with_hint(last, format!("the work goes on without us; `ostler trace -f {id}` follows it again"))
}

/// How long to wait before this attempt.
pub fn backoff_ms(attempt: u32) -> u64 {
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
