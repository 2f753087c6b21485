//! `ostler wait`: waits until a run is in a state, for scripts. It prints that state and nothing of the run's events.

use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use ostler_client::is_transient;
use ostler_protocol::{Failure, kernel::runs::RunState};
use tokio::time::{Instant, sleep};

use crate::{
    candidates,
    connection::Connection,
    exit_codes,
    targets::Within,
    terminal::{
        output::{self, Output},
        screen::Screen,
        status::run_words,
        times::parse_ms,
    },
};

/// How often the state is requested.
const POLL: Duration = Duration::from_millis(500);

/// Wait until a run is completed, or in another state
///
/// The exit code is 0 if the run reached the state, the code of its outcome if it ended in another one, and 9 if the time has
/// passed.
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
    let run_id = finder.run_or_latest(args.run.as_deref()).await?;
    let deadline = args.timeout.map(|ms| Instant::now() + Duration::from_millis(ms.unsigned_abs()));
    let mut last = finder.client.get_run(&run_id).await?;
    let began = Instant::now();
    let mut screen = Screen::new(false);
    loop {
        if let Some(code) = verdict(last.standing.state, &args.states) {
            screen.close();
            args.output.one(&last, || format!("{}\n", last.standing.state.as_str()));
            return Ok(code);
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            screen.close();
            args.output.one(&last, || format!("{}\n", last.standing.state.as_str()));
            output::message(&format!("the run is still {}\n", last.standing.state.as_str()));
            return Ok(exit_codes::UNFINISHED);
        }
        if screen.has_status() {
            let seconds = began.elapsed().as_secs();
            screen.status(&format!("{} · {seconds}s · Ctrl-C stops waiting", run_words(&last)), false);
        }
        sleep(deadline.map_or(POLL, |deadline| POLL.min(deadline - Instant::now()))).await;
        last = match finder.client.get_run(&run_id).await {
            // The server may be restarting; without a deadline this waits for as long as it takes.
            Err(failure) if is_transient(&failure) => last,
            found => found?,
        };
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
