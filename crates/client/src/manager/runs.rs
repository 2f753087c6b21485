//! Runs: create, read, list, cancel, result, and the runner's status report.

use ostler_protocol::{
    Failure,
    kernel::{
        commands::{Command, PatchStatus},
        results::RunResult,
        run_views::{RunPage, RunView},
        runner_jobs::RunnerJob,
        runs::{Cancel, CreateRun, CreatedRun, ListRuns, Run, UpdateRun},
    },
};
use serde::{Deserialize, Serialize};

use crate::{
    client::{Client, json},
    path::Path,
    response,
};

/// The fields beside the run's own in the response to a creation. Parsed in a second pass, because raw JSON inside a
/// flattened struct cannot be parsed in one.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CreatedParts {
    command: Option<Command>,
    runner_job: Option<RunnerJob>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResultParams<'a> {
    command_id: Option<&'a str>,
}

impl Client {
    pub async fn create_run(&self, run: &CreateRun) -> Result<CreatedRun, Failure> {
        let bytes = self.call(http::Method::POST, Path::api(&["runs"]), json(run)?).await?;
        let CreatedParts { command, runner_job } = response::parse(&bytes)?;
        Ok(CreatedRun { run: response::parse(&bytes)?, command, runner_job })
    }

    pub async fn get_run(&self, run_id: &str) -> Result<RunView, Failure> {
        self.get(Path::api(&["runs", run_id])).await
    }

    pub async fn list_runs(&self, query: &ListRuns) -> Result<RunPage, Failure> {
        self.get(Path::api(&["runs"]).query(query)?).await
    }

    /// Changes labels of the run.
    pub async fn update_run(&self, run_id: &str, update: &UpdateRun) -> Result<Run, Failure> {
        self.patch(Path::api(&["runs", run_id]), update).await
    }

    /// Idempotent: cancelling a finished run returns how it ended.
    pub async fn cancel_run(&self, run_id: &str, cancel: &Cancel) -> Result<Run, Failure> {
        self.post(Path::api(&["runs", run_id, "cancel"]), cancel).await
    }

    /// The result of one command, or of the run's latest command.
    pub async fn run_result(&self, run_id: &str, command_id: Option<&str>) -> Result<RunResult, Failure> {
        self.get(Path::api(&["runs", run_id, "result"]).query(&ResultParams { command_id })?).await
    }

    /// A runner's report about the run as a whole.
    pub async fn patch_run_status(&self, run_id: &str, status: &PatchStatus) -> Result<Run, Failure> {
        self.patch(Path::api(&["runs", run_id, "status"]), status).await
    }
}
