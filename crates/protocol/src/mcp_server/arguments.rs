//! The arguments of the tools. A field that a tool does not know is rejected: a model that misspells one learns it at once.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    Failure, RawJson, Rule, cursors,
    ids::RunId,
    json::read_shape,
    kernel::{labels::Labels, policy::Approval},
};

/// Events that one call of `follow_run` returns.
pub const FOLLOW_EVENTS_DEFAULT: u32 = 50;
pub const FOLLOW_EVENTS_MAX: u32 = 200;
/// Runs that one call of `list_runs` returns.
pub const LIST_RUNS_DEFAULT: u32 = 20;
pub const LIST_RUNS_MAX: u32 = 100;

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubmitRunArguments {
    pub profile: String,
    pub prompt: String,
    pub session: Option<String>,
    pub tenant_id: Option<String>,
    pub project_id: Option<String>,
    pub workspace: Option<RawJson>,
    pub approval: Option<Approval>,
    pub labels: Option<Labels>,
    pub idempotency_key: Option<String>,
    pub wait_ms: Option<u64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FollowRunArguments {
    pub run_id: String,
    #[serde(default)]
    pub after_seq: i64,
    pub limit: Option<u32>,
    pub wait_ms: Option<u64>,
    #[serde(default)]
    pub until: WaitUntil,
}

/// What a call waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WaitUntil {
    /// The first new event.
    #[default]
    Event,
    /// The end of the run's latest turn, or a permission request.
    End,
}

enum_words!(WaitUntil { Event => "event", End => "end" });

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunResultArguments {
    pub run_id: String,
    pub command_id: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListRunsArguments {
    pub tenant_id: Option<String>,
    pub session: Option<String>,
    pub state: Option<String>,
    pub label: Option<String>,
    pub limit: Option<u32>,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CancelRunArguments {
    pub run_id: String,
    pub reason: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListPermissionRequestsArguments {
    pub run_id: String,
    #[serde(default)]
    pub all: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AnswerPermissionRequestArguments {
    pub run_id: String,
    pub permission_id: String,
    pub option_id: String,
    pub digest: String,
}

/// Reads the arguments of a tool.
pub fn read<T: DeserializeOwned>(arguments: Option<&RawJson>) -> Result<T, Failure> {
    let text = arguments.filter(|arguments| !arguments.is_null()).map_or("{}", RawJson::as_str);
    read_shape(Rule::McpArguments, "arguments", text)
}

/// An id that does not parse is unknown.
pub fn read_run_id(text: &str) -> Result<RunId, Failure> {
    text.parse().map_err(|_| Failure::not_found("run"))
}

impl FollowRunArguments {
    pub fn events_max(&self) -> Result<u32, Failure> {
        within(self.limit, FOLLOW_EVENTS_DEFAULT, FOLLOW_EVENTS_MAX)
    }

    pub fn wait_ms(&self) -> Result<u64, Failure> {
        cursors::wait_ms(self.wait_ms)
    }
}

impl ListRunsArguments {
    pub fn runs_max(&self) -> Result<u32, Failure> {
        within(self.limit, LIST_RUNS_DEFAULT, LIST_RUNS_MAX)
    }
}

fn within(limit: Option<u32>, default: u32, max: u32) -> Result<u32, Failure> {
    match limit.unwrap_or(default) {
        limit if (1..=max).contains(&limit) => Ok(limit),
        _ => Err(Failure::invalid(Rule::PageLimit, format!("limit must be 1 to {max}"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_unknown_or_misshapen_argument_is_named() {
        let read = |value: serde_json::Value| read::<FollowRunArguments>(Some(&RawJson::of(&value)));
        assert_eq!(read(json!({"runId": "run_1"})).unwrap().until, WaitUntil::Event);
        for (arguments, named) in [
            (json!({"runId": 7}), "arguments.runId"),
            (json!({"runId": "r", "waitMillis": 1}), "waitMillis"),
            (json!({}), "runId"),
            (json!([]), "arguments"),
        ] {
            let failure = read(arguments).unwrap_err();
            assert_eq!(failure.broken_rule(), Some(Rule::McpArguments));
            assert!(failure.message.contains(named), "{}", failure.message);
        }
    }

    #[test]
    fn a_limit_is_refused_one_past_its_bounds() {
        let follow = |limit| FollowRunArguments {
            run_id: String::new(),
            after_seq: 0,
            limit,
            wait_ms: None,
            until: WaitUntil::End,
        };
        assert_eq!(follow(None).events_max().unwrap(), FOLLOW_EVENTS_DEFAULT);
        assert_eq!(follow(Some(FOLLOW_EVENTS_MAX)).events_max().unwrap(), FOLLOW_EVENTS_MAX);
        for limit in [0, FOLLOW_EVENTS_MAX + 1] {
            assert_eq!(follow(Some(limit)).events_max().unwrap_err().broken_rule(), Some(Rule::PageLimit));
        }
    }
}
