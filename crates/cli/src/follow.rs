//! Follows runs and sessions live, across lost connections: each new stream continues after the last received event, so
//! that no event is missed or repeated. The number of consecutive attempts is bounded.

use std::time::Duration;

use futures_util::{StreamExt, stream::BoxStream};
use ostler_client::{CAUSES, Client, EventStream, is_transient, is_unreachable};
use ostler_protocol::{
    Failure, FailureKind, Rule,
    cursors::EventsQuery,
    kernel::{
        events::{EventPage, EventView},
        run_views::RunView,
        sessions::SessionEventsQuery,
    },
    limits::PAGE_ITEMS_MAX,
};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};

use crate::{
    errors,
    targets::{SessionKey, Target},
    terminal::{output::line, shell_words::positional},
};

/// What a list that refreshes does about a lost connection.
pub(crate) const REFRESHED_LATER: &str = "the list is refreshed when it is back";
/// Consecutive attempts without a single event.
pub(crate) const ATTEMPTS_MAX: u32 = 10;
const BACKOFF_MS_MIN: u64 = 250;
const BACKOFF_MS_MAX: u64 = 5_000;
/// A stream that was open for this long was no failed attempt, even if nothing happened on it.
const OPEN_MS_MIN: u64 = 1_000;
/// How long to wait for the reason why a stream was closed.
const READINESS_WAIT: Duration = Duration::from_secs(2);
/// How long the stream is silent before the run is checked for its end.
const QUIET: Duration = Duration::from_millis(500);
/// The capacity of the channel: a reader that is slower than the stream delays the stream.
const EVENTS_WAITING_MAX: usize = 64;
/// Characters of the message of a failure, and of its causes, in a line about the connection.
const CAUSE_CHARS_MAX: usize = 400;

pub(crate) enum Followed<E = EventView> {
    Event(Box<E>),
    /// The connection was lost, for this reason; attempts to reconnect follow.
    Lost(Failure),
    /// The connection works again, after this time.
    Regained(Duration),
    /// Every event has been read, or the target cannot be followed any longer.
    Over(Result<(), Failure>),
}

/// Something whose events arrive as a stream that can be opened again after any of them.
pub(crate) trait Source: Send + Sync + 'static {
    type Event: Send + 'static;

    /// The sequence number of an event. `None` if the event has none.
    fn number(&self, event: &Self::Event) -> Option<i64>;

    /// Opens the stream of the events after `after`.
    fn open(
        &self,
        client: &Client,
        after: i64,
    ) -> impl Future<Output = Result<BoxStream<'static, Result<Self::Event, Failure>>, Failure>> + Send;

    /// Whether no more events will come after number `after`. `false` if the server cannot be reached.
    fn is_over(&self, client: &Client, after: i64) -> impl Future<Output = Result<bool, Failure>> + Send;

    /// The command that follows it again.
    fn command(&self) -> String;
}

impl<E> Followed<E> {
    /// A line about the connection. `None` if this is not about the connection.
    pub(crate) fn connection_line(&self, is_verbose: bool) -> Option<String> {
        match self {
            Self::Lost(failure) => Some(lost_line(failure, "the run goes on. Reconnecting…", is_verbose)),
            Self::Regained(after) => Some(regained_line(*after)),
            Self::Event(_) | Self::Over(_) => None,
        }
    }
}

/// One quiet line about a connection that works again.
pub(crate) fn regained_line(after: Duration) -> String {
    format!("connected again after {} s", after.as_secs().max(1))
}

/// One quiet line about a lost connection, or about a server that cannot answer. The cause is for people who want to know it.
pub(crate) fn lost_line(failure: &Failure, next: &str, is_verbose: bool) -> String {
    let message = line(&failure.message, CAUSE_CHARS_MAX);
    if failure.kind != FailureKind::Draining && !is_connection_lost(failure) {
        return format!("the server cannot answer: {message}; {next}");
    }
    let what = match failure.kind {
        FailureKind::Draining => "the server is stopping; waiting for it to come back".to_owned(),
        _ => format!("connection lost; {next}"),
    };
    if !is_verbose {
        return what;
    }
    let causes = failure.details.as_ref().and_then(|details| details.get(CAUSES)?.as_str());
    let causes = causes.map(|causes| format!(": {}", line(causes, CAUSE_CHARS_MAX))).unwrap_or_default();
    format!("{what} ({message}{causes})")
}

/// Whether the failure is one of the connection, and not a response of the server.
fn is_connection_lost(failure: &Failure) -> bool {
    let is_closed = matches!(failure.broken_rule(), Some(Rule::MeshClosed | Rule::MeshSilent | Rule::StreamClosed));
    is_closed || failure.kind == FailureKind::ServerUnreachable || is_unreachable(failure)
}

impl Target {
    /// The sequence number of an event: within the run, or within the session.
    pub(crate) fn number(&self, event: &EventView) -> i64 {
        match self {
            Self::Run(_) => event.seq.unwrap_or(0),
            Self::Session(_) => event.session_seq,
        }
    }

    pub(crate) fn id(&self) -> &str {
        match self {
            Self::Run(id) => id,
            Self::Session(session) => &session.id,
        }
    }

    pub(crate) async fn page(&self, client: &Client, after_seq: i64) -> Result<EventPage, Failure> {
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
}

impl Source for Target {
    type Event = EventView;

    fn number(&self, event: &EventView) -> Option<i64> {
        Some(Self::number(self, event))
    }

    async fn open(&self, client: &Client, after_seq: i64) -> Result<EventStream, Failure> {
        match self {
            Self::Run(id) => client.follow_run(id, after_seq).await,
            Self::Session(session) => client.follow_session(&session.id, &session.query(), after_seq).await,
        }
    }

    /// Whether no more events will come: every command of the run has ended, and every event was read. A session never
    /// ends. `false` if the server cannot be reached.
    async fn is_over(&self, client: &Client, seq: i64) -> Result<bool, Failure> {
        let Self::Run(id) = self else { return Ok(false) };
        match client.get_run(id).await {
            Ok(RunView { run, .. }) => {
                let is_idle = run.command_count > 0 && run.unfinished_commands == 0;
                Ok((run.status.is_terminal() || is_idle) && run.last_seq <= seq)
            }
            Err(failure) if is_transient(&failure) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    fn command(&self) -> String {
        format!("ostler trace -f {}", positional(Self::id(self)))
    }
}

/// What happens, each with the index of its source.
pub(crate) type FollowedReceiver<E> = mpsc::Receiver<(usize, Followed<E>)>;

/// Follows one target after event `after_seq`, in its own task, so that the reader can wait for other things as well.
pub(crate) fn follow<S: Source>(client: Client, target: S, after_seq: i64) -> FollowedReceiver<S::Event> {
    follow_all(&client, vec![(target, after_seq)])
}

/// Follows several targets at once, each after an event of its own. Each message carries the index of its target.
pub(crate) fn follow_all<S: Source>(client: &Client, targets: Vec<(S, i64)>) -> FollowedReceiver<S::Event> {
    let (sender, receiver) = mpsc::channel(EVENTS_WAITING_MAX);
    for (index, (target, after_seq)) in targets.into_iter().enumerate() {
        let pump = Follower { client: client.clone(), target, index, to: sender.clone() };
        tokio::spawn(async move {
            let over = pump.run(after_seq).await;
            let _ = pump.to.send((pump.index, Followed::Over(over))).await;
        });
    }
    receiver
}

struct Follower<S: Source> {
    client: Client,
    target: S,
    index: usize,
    to: mpsc::Sender<(usize, Followed<S::Event>)>,
}

struct FollowPosition {
    seq: i64,
    ended: bool,
    /// Since when there is no connection, if there is none.
    lost_at: Option<Instant>,
}

impl<S: Source> Follower<S> {
    async fn run(&self, after_seq: i64) -> Result<(), Failure> {
        let mut at = FollowPosition { seq: after_seq, ended: false, lost_at: None };
        let mut attempt = 0;
        loop {
            let (before, started) = (at.seq, Instant::now());
            let lost = match self.read(&mut at).await {
                // The reader is gone.
                Ok(false) => return Ok(()),
                Ok(true) if at.ended || self.target.is_over(&self.client, at.seq).await? => return Ok(()),
                Ok(true) => closed(&self.client).await,
                Err(failure) if !is_transient(&failure) => return Err(failure),
                Err(failure) => failure,
            };
            let was_open = at.lost_at.is_none() && started.elapsed() >= Duration::from_millis(OPEN_MS_MIN);
            attempt = if at.seq > before || was_open { 1 } else { attempt + 1 };
            if attempt > ATTEMPTS_MAX {
                return Err(gave_up(&self.target.command(), lost));
            }
            // One message for each loss, however many attempts it takes to reconnect.
            if at.lost_at.is_none() {
                at.lost_at = Some(Instant::now());
                if self.to.send((self.index, Followed::Lost(lost))).await.is_err() {
                    return Ok(());
                }
            }
            tokio::time::sleep(Duration::from_millis(backoff_ms(attempt))).await;
        }
    }

    /// Reads one stream to its end. `false` if the reader is gone.
    async fn read(&self, at: &mut FollowPosition) -> Result<bool, Failure> {
        let mut stream = self.target.open(&self.client, at.seq).await?;
        if let Some(lost_at) = at.lost_at.take()
            && self.to.send((self.index, Followed::Regained(lost_at.elapsed()))).await.is_err()
        {
            return Ok(false);
        }
        loop {
            // An event ends a run, so one request per silence is enough; a run may have been idle from the start.
            let next = match timeout(QUIET, stream.next()).await {
                Ok(next) => next,
                Err(_) if self.target.is_over(&self.client, at.seq).await? => {
                    at.ended = true;
                    return Ok(true);
                }
                Err(_) => stream.next().await,
            };
            let Some(event) = next.transpose()? else { return Ok(true) };
            at.seq = at.seq.max(self.target.number(&event).unwrap_or(0));
            if self.to.send((self.index, Followed::Event(Box::new(event)))).await.is_err() {
                return Ok(false);
            }
        }
    }
}

/// Why a server ended a stream in order although its target goes on. A server that is stopping ends its streams first, and reports it
/// for as long as it responds; one that does not respond any more has stopped.
async fn closed(client: &Client) -> Failure {
    let is_stopping = match timeout(READINESS_WAIT, client.readiness()).await {
        Ok(Ok(readiness)) => readiness.status == "draining",
        Ok(Err(failure)) => is_unreachable(&failure),
        Err(_) => false,
    };
    match is_stopping {
        true => Failure::new(FailureKind::Draining, "the server is stopping"),
        // It is no failure to reach the server, which has responded.
        false => Failure::rule(Rule::StreamClosed, "the server closed the stream"),
    }
}

/// Keeps the kind of the last failure, so that the exit code tells whether the server responded at all.
fn gave_up(command: &str, mut last: Failure) -> Failure {
    last.message = format!("gave up following after {ATTEMPTS_MAX} attempts: {}", last.message);
    errors::with_hint(last, format!("the work continues on the server; `{command}` follows it again"))
}

/// How long to wait before this attempt.
pub(crate) fn backoff_ms(attempt: u32) -> u64 {
    (BACKOFF_MS_MIN << attempt.saturating_sub(1).min(16)).min(BACKOFF_MS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_connection_is_one_line_and_its_cause_is_for_those_who_ask() {
        let failure = Failure::new(FailureKind::ServerUnreachable, "http://x does not answer (connection refused)");
        let lost: Followed = Followed::Lost(failure.detail(CAUSES, "error sending request: refused"));
        assert_eq!(lost.connection_line(false).unwrap(), "connection lost; the run goes on. Reconnecting…");
        assert_eq!(
            lost.connection_line(true).unwrap(),
            "connection lost; the run goes on. Reconnecting… (http://x does not answer (connection refused): error \
             sending request: refused)"
        );
        let hostile =
            Failure::new(FailureKind::ServerUnreachable, "\x1b]0;x\x07gone\nerror: you").detail(CAUSES, "a\x1b[2Jb");
        assert_eq!(lost_line(&hostile, "x", true), "connection lost; x (]0;xgone error: you: a[2Jb)");
        let failed = Failure::new(FailureKind::InfraFailed, "the disk is\x1b[2J full");
        for is_verbose in [false, true] {
            let said = lost_line(&failed, REFRESHED_LATER, is_verbose);
            assert_eq!(said, "the server cannot answer: the disk is[2J full; the list is refreshed when it is back");
        }
        let closed = Failure::rule(Rule::MeshClosed, "the gateway closed the connection");
        for lost in [closed, Failure::rule(Rule::StreamClosed, "the server closed the stream")] {
            assert_eq!(lost_line(&lost, "x", false), "connection lost; x");
        }
        let stopping: Followed = Followed::Lost(Failure::new(FailureKind::Draining, "it stops"));
        assert_eq!(stopping.connection_line(false).unwrap(), "the server is stopping; waiting for it to come back");
        let again: Followed = Followed::Regained(Duration::from_millis(5_400));
        assert_eq!(again.connection_line(false).unwrap(), "connected again after 5 s");
    }

    #[test]
    fn pauses_grow_and_are_bounded() {
        assert_eq!([1, 2, 3, 5, 6, 60].map(backoff_ms), [250, 500, 1_000, 4_000, 5_000, 5_000]);
    }
}
