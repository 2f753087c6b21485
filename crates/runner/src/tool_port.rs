//! The server's tools, as the turn of a backend reaches them. Calls are made under the lease of the runner, and each is executed once:
//! a request whose reply was lost is repeated under the same id, and the server finds the call.

use ostler_client::{Client, is_transient};
use ostler_protocol::{
    Failure, FailureKind,
    ids::CommandId,
    tools::wire::{CallStatus, CallTool, CalledTool, RunTools, RunToolsQuery},
};
use tokio::time::{Duration, Instant, sleep};

use crate::retries::retry;

/// How long one request waits for the end of a call.
const CALL_WAIT_MS: u64 = 25_000;
/// The pauses before a request is repeated: after one that reached no server, and between two that returned at once.
const PAUSE_MS: u64 = 100;
const PAUSE_MS_MAX: u64 = 2_000;

/// The tools of one command.
#[derive(Clone)]
pub(crate) struct ToolPort {
    pub(crate) client: Client,
    pub(crate) run_id: String,
    pub(crate) runner_id: String,
    pub(crate) lease_epoch: i64,
    pub(crate) attempt_id: String,
    pub(crate) command_id: CommandId,
    /// How long a server that does not respond is waited for.
    pub(crate) retry_for: Duration,
}

impl ToolPort {
    /// The tools that the command may use, and the calls of its earlier attempts. A server without tools has none.
    pub(crate) async fn list(&self) -> Result<RunTools, Failure> {
        self.list_by(RunToolsQuery { command_id: Some(self.command_id), without_calls: false }).await
    }

    /// As [`ToolPort::list`], without the calls, which the server would have to read.
    pub(crate) async fn list_without_calls(&self) -> Result<RunTools, Failure> {
        self.list_by(RunToolsQuery { command_id: Some(self.command_id), without_calls: true }).await
    }

    async fn list_by(&self, query: RunToolsQuery) -> Result<RunTools, Failure> {
        match retry(self.retry_for, || self.client.run_tools(&self.run_id, &query)).await {
            Err(failure) if failure.kind == FailureKind::NotFound => Ok(RunTools::default()),
            listed => listed,
        }
    }

    /// Calls a tool and waits for its end. `reply_calls`: all calls that the agent makes at once, if it makes several.
    pub(crate) async fn call(
        &self,
        call_id: &str,
        name: &str,
        arguments: &str,
        reply_calls: &[String],
    ) -> Result<CalledTool, Failure> {
        let mut request = CallTool {
            runner_id: self.runner_id.clone(),
            lease_epoch: self.lease_epoch,
            attempt_id: Some(self.attempt_id.clone()),
            command_id: self.command_id,
            call_id: call_id.to_owned(),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
            reply_calls: reply_calls.to_vec(),
            repeated: false,
            wait_ms: Some(CALL_WAIT_MS),
        };
        let (mut heard_at, mut pause) = (Instant::now(), Duration::from_millis(PAUSE_MS));
        loop {
            let sent_at = Instant::now();
            match self.client.call_tool(&self.run_id, &request).await {
                Ok(called) if called.status == CallStatus::Running => {
                    (heard_at, pause) = (Instant::now(), Duration::from_millis(PAUSE_MS));
                }
                Err(failure) if is_transient(&failure) && heard_at.elapsed() < self.retry_for => {
                    tracing::debug!(%failure, "the call of a tool failed; repeating it");
                }
                ended => return ended,
            }
            // A server that stops returns at once.
            if sent_at.elapsed() < pause {
                sleep(pause).await;
                pause = (pause * 2).min(Duration::from_millis(PAUSE_MS_MAX));
            }
            request.repeated = true;
        }
    }
}
