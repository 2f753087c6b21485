//! Runner job requests, as a client of the manager dialect makes them.

use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

use crate::calls::{create_command, create_run};
use crate::http::{Connection, request};
use crate::machine::{now, since};
use crate::outcome::Outcome;
use crate::server::Server;

/// How long a job may take to show what is waited for.
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(20);

/// A run with a command that waits, and the request that orders its runner.
pub(crate) struct PreparedOrder {
    pub run_id: String,
    pub command_id: String,
    pub request: Vec<u8>,
}

/// A runner job, as the server's response names it.
pub(crate) struct OrderedRunner {
    pub job_name: String,
    pub runner_id: String,
    /// Where to look at it.
    path: String,
}

pub(crate) async fn prepare(connection: &mut Connection, server: &Server) -> Outcome<PreparedOrder> {
    let run_id = create_run(connection, server).await?;
    let command_id = create_command(connection, server, &run_id).await?;
    let body = format!(r#"{{"commandId":"{command_id}"}}"#);
    let request = request(server, "POST", &format!("/api/v1/runs/{run_id}/runner-jobs"), &body);
    Ok(PreparedOrder { run_id, command_id, request })
}

pub(crate) async fn order(connection: &mut Connection, order: &PreparedOrder) -> Outcome<OrderedRunner> {
    OrderedRunner::read(connection.call(&order.request).await?)
}

impl OrderedRunner {
    pub(crate) fn read(response: &[u8]) -> Outcome<Self> {
        let job: Value = serde_json::from_slice(response)?;
        let text = |at: &str| {
            let text = job.pointer(at).and_then(Value::as_str).map(str::to_owned);
            text.ok_or_else(|| format!("a runner job without {at}: {job}"))
        };
        Ok(Self { job_name: text("/jobName")?, runner_id: text("/runnerId")?, path: text("/poll/job")? })
    }

    /// Waits until the server has seen the Job's pod, and returns its name.
    pub(crate) async fn wait_for_pod(&self, connection: &mut Connection, server: &Server) -> Outcome<String> {
        let job = self.wait(connection, server, |job| job["podName"].is_string()).await?;
        Ok(job["podName"].as_str().unwrap_or_default().to_owned())
    }

    /// Waits until the server has stored how the runner has ended.
    pub(crate) async fn wait_for_end(&self, connection: &mut Connection, server: &Server) -> Outcome<()> {
        let job = self.wait(connection, server, |job| job["phase"] != "pending" && job["phase"] != "running").await?;
        if job["phase"] == "succeeded" && job["observed"]["exitCode"] == 0 {
            return Ok(());
        }
        Err(format!("a runner job did not succeed: {job}").into())
    }

    async fn wait(
        &self,
        connection: &mut Connection,
        server: &Server,
        is_shown: impl Fn(&Value) -> bool,
    ) -> Outcome<Value> {
        let look = request(server, "GET", &self.path, "");
        let started = now();
        loop {
            let job: Value = serde_json::from_slice(connection.call(&look).await?)?;
            if is_shown(&job) {
                return Ok(job);
            }
            if since(started) > WAIT_TIMEOUT {
                return Err(format!("a runner job does not continue: {job}").into());
            }
            sleep(PAUSE).await;
        }
    }
}
