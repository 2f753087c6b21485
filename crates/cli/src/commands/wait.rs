//! `ostler wait`: waits until a run is in a state, for scripts. It prints that state and nothing of the run's events.

use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use ostler_client::{Client, is_transient};
use ostler_protocol::{
    Failure, FailureKind, Rule,
    kernel::{run_views::RunView, runs::RunState},
};
use tokio::time::{Instant, sleep, timeout_at};

use crate::{
    candidates,
    connection::Connection,
    errors, exit_codes,
    follow::{ATTEMPTS_MAX, backoff_ms, lost_line, regained_line},
    targets::Within,
    terminal::{
        output::{self, Output, short_id},
        screen::Screen,
        status::run_words,
        times::parse_ms,
    },
};

/// How often the state is requested.
const POLL: Duration = Duration::from_millis(500);
/// How long a request may take if the deadline is nearer, so that the last one can be answered.
const LAST_RESPONSE: Duration = Duration::from_secs(2);

/// Wait until a run is completed, or in another state
///
/// The exit code is 0 if the run reached the state, the code of its outcome if it ended in another one, 9 if the time has
/// passed, and 7 if the server is lost and does not come back.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler wait RUN\n  ostler wait RUN --for completed --timeout 60s\n  \
    ostler wait RUN --for completed,failed\n  \
    ostler wait my-session --for waiting && ostler approve my-session --yes")]
pub(crate) struct WaitArgs {
    #[arg(value_name = "RUN", value_parser = NonEmptyStringValueParser::new(), add = candidates::targets(),
        help = "The run, or a session for its active or latest one [default: the latest run]")]
    run: Option<String>,
    /// The state to wait for: waiting, running, completed, failed, blocked or cancelled; several between commas
    #[arg(long = "for", value_name = "STATE", default_value = "completed", value_parser = state, value_delimiter = ',')]
    states: Vec<RunState>,
    /// Give up after this time, such as `60s` or `20m`
    #[arg(long, value_name = "TIME", value_parser = parse_ms)]
    timeout: Option<i64>,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    output: Output,
}

fn state(text: &str) -> Result<RunState, String> {
    RunState::parse(text).ok_or_else(|| format!("valid states: {}", RunState::ALL.map(RunState::as_str).join(", ")))
}

pub(crate) async fn wait(connection: &Connection, args: &WaitArgs) -> Result<u8, Failure> {
    let finder = args.within.finder(connection)?;
    let run_id = finder.run_or_latest(args.run.as_deref()).await.map_err(without_outcome)?;
    let deadline = args.timeout.map(|ms| Instant::now() + Duration::from_millis(ms.unsigned_abs()));
    let mut last = get_run(&finder.client, &run_id, deadline).await.map_err(without_outcome)?;
    let again = args.command(&connection.invocation(), &run_id);
    let began = Instant::now();
    let mut screen = Screen::new(false);
    let mut outage: Option<Outage> = None;
    let mut is_noted = false;
    loop {
        if let Some(code) = verdict(last.standing.state, &args.states) {
            screen.close();
            args.output.one(&last, || format!("{}\n", last.standing.state.as_str()));
            return Ok(code);
        }
        let needs_answer = last.standing.open_permissions > 0;
        if needs_answer && !is_noted {
            screen.note(&answer_line(&last, &connection.invocation()));
        }
        // The next request is noted again.
        is_noted = needs_answer;
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            screen.close();
            // Nothing is known about the run since the connection was lost.
            if let Some(outage) = outage {
                return Err(lost("the state of the run is unknown", outage.last, &again));
            }
            args.output.one(&last, || format!("{}\n", last.standing.state.as_str()));
            output::message(&format!("the run is still {}\n", run_words(&last)));
            return Ok(exit_codes::UNFINISHED);
        }
        if outage.is_none() && screen.has_status() {
            let seconds = began.elapsed().as_secs();
            screen.status(&format!("{} · {seconds}s · Ctrl-C stops waiting", run_words(&last)), false);
        }
        let pause = outage.as_ref().map_or(POLL, Outage::pause);
        sleep(deadline.map_or(pause, |deadline| pause.min(deadline.saturating_duration_since(Instant::now())))).await;
        match get_run(&finder.client, &run_id, deadline).await {
            Ok(found) => {
                last = found;
                if let Some(outage) = outage.take() {
                    screen.note(&format!("{}\n", regained_line(outage.since.elapsed())));
                }
            }
            Err(failure) if is_transient(&failure) => {
                // One message for each loss, however many attempts it takes to reconnect.
                if outage.is_none() {
                    let line = lost_line(&failure, "reconnecting…", connection.is_verbose());
                    screen.note(&format!("{line}\n"));
                }
                let next = Outage::new(outage.take(), failure);
                if deadline.is_none() && next.attempts > ATTEMPTS_MAX {
                    screen.close();
                    return Err(lost(&format!("gave up waiting after {ATTEMPTS_MAX} attempts"), next.last, &again));
                }
                outage = Some(next);
            }
            Err(failure) => {
                screen.close();
                return Err(failure);
            }
        }
    }
}

impl WaitArgs {
    /// The command that waits again in the same way.
    fn command(&self, invocation: &str, run_id: &str) -> String {
        let states: Vec<_> = self.states.iter().map(|state| state.as_str()).collect();
        let timeout = self.timeout.map(|ms| format!(" --timeout {}s", ms / 1_000)).unwrap_or_default();
        format!("{invocation} wait {run_id} --for {}{timeout}", states.join(","))
    }
}

/// What a person can do about a run that waits for them.
fn answer_line(run: &RunView, invocation: &str) -> String {
    format!("the run needs an answer: {invocation} approve {}\n", short_id(&run.run.run_id))
}

/// The run. A request that is not answered by the deadline fails.
async fn get_run(client: &Client, run_id: &str, deadline: Option<Instant>) -> Result<RunView, Failure> {
    let Some(deadline) = deadline else { return client.get_run(run_id).await };
    let until = deadline.max(Instant::now() + LAST_RESPONSE);
    let response = timeout_at(until, client.get_run(run_id)).await;
    response.unwrap_or_else(|_| Err(Failure::rule(Rule::ServerTimeout, "the server did not respond in time")))
}

/// A lost connection: since when, the failed attempts so far, and the failure of the last one.
struct Outage {
    since: Instant,
    attempts: u32,
    last: Failure,
}

impl Outage {
    /// The outage after one more failed attempt.
    fn new(former: Option<Self>, last: Failure) -> Self {
        let (since, attempts) = former.map_or_else(|| (Instant::now(), 0), |former| (former.since, former.attempts));
        Self { since, attempts: attempts.saturating_add(1), last }
    }

    fn pause(&self) -> Duration {
        Duration::from_millis(backoff_ms(self.attempts))
    }
}

/// The failure of a wait whose server does not come back. `again` is the command that waits again.
///
/// Whatever the server responded last, nothing is known about the run, so the exit code must not be that of a failed run.
fn lost(what: &str, last: Failure, again: &str) -> Failure {
    let message = format!("{what}: {}", last.message);
    let failure = Failure { kind: FailureKind::ServerUnreachable, message, ..last };
    errors::with_hint(failure, format!("the work continues on the server; `{again}` waits again"))
}

/// A failure of the first requests. One of the server's machinery has the exit code of a failed run, which it is not.
fn without_outcome(failure: Failure) -> Failure {
    match failure.kind {
        FailureKind::InfraFailed => Failure { kind: FailureKind::ServerUnreachable, ..failure },
        _ => failure,
    }
}

/// The exit code, if the wait is over.
fn verdict(current: RunState, wanted: &[RunState]) -> Option<u8> {
    match current {
        _ if wanted.contains(&current) => Some(exit_codes::OK),
        RunState::Waiting | RunState::Running => None,
        RunState::Completed => Some(exit_codes::BROKEN),
        RunState::Failed => Some(exit_codes::FAILED),
        RunState::Blocked => Some(exit_codes::BLOCKED),
        RunState::Cancelled => Some(exit_codes::CANCELLED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pauses_of_an_outage_grow_with_its_attempts() {
        let unreachable = || Failure::new(FailureKind::ServerUnreachable, "http://x does not answer");
        let mut outage = Outage::new(None, unreachable());
        assert_eq!(outage.pause(), Duration::from_millis(250));
        for _ in 0..ATTEMPTS_MAX {
            outage = Outage::new(Some(outage), unreachable());
        }
        assert_eq!((outage.attempts, outage.pause()), (11, Duration::from_secs(5)));
    }

    #[test]
    fn a_lost_server_is_never_reported_as_a_failed_run() {
        let last = || Failure::rule(Rule::StoreUnreachable, "the store cannot be reached");
        assert_eq!(exit_codes::of_failure(&last()), exit_codes::FAILED);
        let failure = lost("gave up waiting after 10 attempts", last(), "ostler wait run_1 --for completed");
        assert_eq!(exit_codes::of_failure(&failure), exit_codes::UNREACHABLE);
        assert_eq!(failure.message, "gave up waiting after 10 attempts: the store cannot be reached");
        let hint = "the work continues on the server; `ostler wait run_1 --for completed` waits again";
        assert_eq!(errors::hint_of(&failure).as_deref(), Some(hint));
        assert_eq!(exit_codes::of_failure(&without_outcome(last())), exit_codes::UNREACHABLE);
        let missing = Failure::new(FailureKind::NotFound, "no such run");
        assert_eq!(exit_codes::of_failure(&without_outcome(missing)), 4);
    }

    #[test]
    fn a_wait_ends_with_the_state_or_with_the_run() {
        use RunState::*;
        assert_eq!(verdict(Completed, &[Completed]), Some(0));
        assert_eq!(verdict(Failed, &[Failed]), Some(0));
        assert_eq!(
            [Failed, Cancelled, Blocked].map(|state| verdict(state, &[Completed])),
            [Some(10), Some(11), Some(12)]
        );
        assert_eq!(verdict(Completed, &[Failed]), Some(1));
        assert_eq!([Waiting, Running].map(|state| verdict(state, &[Completed])), [None, None]);
        assert_eq!(verdict(Waiting, &[Waiting]), Some(0));
        assert_eq!([Completed, Failed].map(|state| verdict(state, &[Completed, Failed])), [Some(0), Some(0)]);
    }
}
