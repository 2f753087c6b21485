//! Runs as AG-UI clients name them: one turn of a thread, or what a resume brought on. A thread is a session with an owner;
//! everything else about such a run is translated from its session's events (`agui`).

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{Failure, Rule};

/// The answer to an accepted run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskAccepted {
    /// The command behind the run.
    pub task_id: String,
    pub thread_id: String,
    pub run_id: String,
    /// This request made the thread.
    pub created: bool,
}

/// A cancel was requested; the run has not necessarily stopped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CancelAccepted {
    pub thread_id: String,
    pub run_id: String,
    pub accepted: bool,
}

/// How long a stream stays open in which nothing happens.
pub const IDLE_LIMIT_S_DEFAULT: u64 = 300;
pub const IDLE_LIMIT_S_MAX: u64 = 3_600;

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct RunEventsQuery {
    #[serde(rename = "runId", skip_serializing_if = "Option::is_none")]
    #[param(required, nullable = false)]
    run_id: Option<String>,
    /// Seconds without an event after which the stream ends: 1 to 3600, 300 when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    idle_limit: Option<u64>,
}

impl RunEventsQuery {
    pub fn run_id(&self) -> &str {
        self.run_id.as_deref().unwrap_or_default()
    }

    pub fn idle(&self) -> Result<Duration, Failure> {
        match self.idle_limit.unwrap_or(IDLE_LIMIT_S_DEFAULT) {
            seconds @ 1..=IDLE_LIMIT_S_MAX => Ok(Duration::from_secs(seconds)),
            _ => Err(Failure::invalid(Rule::IdleLimit, format!("idle_limit must be 1 to {IDLE_LIMIT_S_MAX}"))),
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct CancelRunQuery {
    #[serde(rename = "runId", skip_serializing_if = "Option::is_none")]
    #[param(required, nullable = false)]
    run_id: Option<String>,
}

impl CancelRunQuery {
    pub fn run_id(&self) -> &str {
        self.run_id.as_deref().unwrap_or_default()
    }
}

/// The body of `POST /api/v1/agent/runs`, for the document: `agui::input` reads it, field by field in the order of its
/// rules. Every name may be in snake_case too, and fields that are not listed are ignored.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub struct RunAgentInput {
    /// A UUID.
    pub thread_id: String,
    /// At most 128 characters; unique in its thread.
    pub run_id: String,
    #[schema(nullable = false)]
    pub parent_run_id: Option<String>,
    #[schema(value_type = Option<Object>)]
    pub state: Option<serde_json::Value>,
    /// At most 200, of which exactly one is a user's, and that the first; none, if all of them are results of the front
    /// end's tools. On a stream, what comes before the last user message, or before the results, is compared with the
    /// thread's history and dropped.
    #[schema(value_type = Vec<Object>)]
    pub messages: Vec<serde_json::Value>,
    /// The front end's own tools, at most 64. The agent is offered them in this run; a call ends the run, and the next run
    /// answers it.
    #[schema(value_type = Option<Vec<Object>>, nullable = false)]
    pub tools: Option<Vec<serde_json::Value>>,
    /// Given to the agent with the message, and not kept as history.
    #[schema(value_type = Option<Vec<Object>>, nullable = false)]
    pub context: Option<Vec<serde_json::Value>>,
    pub forwarded_props: ForwardedProps,
    /// Answers to the thread's interrupts, all of them; then no user message is needed.
    #[schema(value_type = Option<Vec<Object>>, nullable = false)]
    pub resume: Option<Vec<serde_json::Value>>,
}

/// Closed: other fields are refused.
#[derive(ToSchema)]
pub struct ForwardedProps {
    /// `chat`, or `automation` in a thread that an automation of the user has started.
    pub runtime_mode: String,
    #[schema(value_type = Option<Object>, nullable = false)]
    pub client_time: Option<serde_json::Value>,
}
