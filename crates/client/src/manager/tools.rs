//! Tools: lists and calls.

use ostler_protocol::{
    Failure,
    tools::{
        definition::DEADLINE_MS_MAX,
        wire::{CallTool, CalledTool, RunTools, RunToolsQuery, ToolList, TryTool},
    },
};

use crate::{client::Client, path::Path};

impl Client {
    pub async fn tools(&self) -> Result<ToolList, Failure> {
        self.get(Path::api(&["tools"])).await
    }

    /// Calls a tool outside of any run. The response is waited for longer than any tool may take.
    pub async fn try_tool(&self, name: &str, request: &TryTool) -> Result<CalledTool, Failure> {
        self.post_work(Path::api(&["tools", name, "calls"]), request, DEADLINE_MS_MAX).await
    }

    /// The tools of a run, for its runner.
    pub async fn run_tools(&self, run_id: &str, query: &RunToolsQuery) -> Result<RunTools, Failure> {
        self.get(Path::api(&["runs", run_id, "tools"]).query(query)?).await
    }

    /// Calls a tool in a run. Idempotent by `callId`; a repeated request must say so.
    pub async fn call_tool(&self, run_id: &str, request: &CallTool) -> Result<CalledTool, Failure> {
        self.post(Path::api(&["runs", run_id, "tools", "calls"]), request).await
    }
}
