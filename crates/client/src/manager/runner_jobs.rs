//! Runner jobs: orders to start a runner, and their outcome.

use ostler_protocol::{
    Failure,
    kernel::runner_jobs::{CreateRunnerJob, JobLogQuery, ListRunnerJobs, RunnerJob, RunnerJobLog, RunnerJobPage},
};

use crate::{client::Client, path::Path};

impl Client {
    pub async fn create_runner_job(&self, run_id: &str, job: &CreateRunnerJob) -> Result<RunnerJob, Failure> {
        self.post(Path::api(&["runs", run_id, "runner-jobs"]), job).await
    }

    pub async fn list_runner_jobs(&self, run_id: &str, query: &ListRunnerJobs) -> Result<RunnerJobPage, Failure> {
        self.get(Path::api(&["runs", run_id, "runner-jobs"]).query(query)?).await
    }

    pub async fn get_runner_job(&self, run_id: &str, job_id: &str) -> Result<RunnerJob, Failure> {
        self.get(Path::api(&["runs", run_id, "runner-jobs", job_id])).await
    }

    /// A part of the log of a job's runner.
    pub async fn runner_job_log(
        &self,
        run_id: &str,
        job_id: &str,
        query: &JobLogQuery,
    ) -> Result<RunnerJobLog, Failure> {
        self.get(Path::api(&["runs", run_id, "runner-jobs", job_id, "log"]).query(query)?).await
    }
}
