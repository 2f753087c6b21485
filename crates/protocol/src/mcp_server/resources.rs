//! The resources: runs and their traces, by addresses of a scheme of our own.

use serde_json::{Value, json};

use crate::{Failure, Rule, ids::RunId};

const RUNS: &str = "ostler://runs/";
const TRACE: &str = "/trace";
const AFTER_SEQ: &str = "?afterSeq=";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedResource {
    Run(RunId),
    /// The run's events numbered above `after_seq`.
    Trace {
        run_id: RunId,
        after_seq: i64,
    },
}

impl ServedResource {
    pub fn parse(uri: &str) -> Result<Self, Failure> {
        Self::read(uri).ok_or_else(|| Failure::rule(Rule::McpResource, "no such resource"))
    }

    fn read(uri: &str) -> Option<Self> {
        let rest = uri.strip_prefix(RUNS)?;
        let Some((run_id, query)) = rest.split_once(TRACE) else { return rest.parse().ok().map(Self::Run) };
        let after_seq = match query.strip_prefix(AFTER_SEQ) {
            Some(number) => number.parse().ok().filter(|seq| *seq >= 0)?,
            None if query.is_empty() => 0,
            None => return None,
        };
        Some(Self::Trace { run_id: run_id.parse().ok()?, after_seq })
    }
}

/// The address of a run.
pub fn run_uri(run_id: RunId) -> String {
    format!("{RUNS}{run_id}")
}

/// The result of `resources/templates/list`.
pub fn templates() -> Value {
    json!({"resourceTemplates": [
        {
            "uriTemplate": format!("{RUNS}{{runId}}"), "name": "run", "title": "A run",
            "description": "The run with its state, as GET /api/v1/runs/{runId} returns it.", "mimeType": "application/json",
        },
        {
            "uriTemplate": format!("{RUNS}{{runId}}{TRACE}{{?afterSeq}}"), "name": "trace", "title": "The trace of a run",
            "description": "The run's events, numbered above afterSeq. Read on with nextAfterSeq while hasMore is true.",
            "mimeType": "application/json",
        },
    ]})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_run_or_its_trace_and_nothing_else() {
        let run_id: RunId = format!("run_{:032x}", 7).parse().unwrap();
        assert_eq!(ServedResource::parse(&run_uri(run_id)).unwrap(), ServedResource::Run(run_id));
        for (query, after_seq) in [("", 0), ("?afterSeq=17", 17)] {
            let uri = format!("ostler://runs/{run_id}/trace{query}");
            assert_eq!(ServedResource::parse(&uri).unwrap(), ServedResource::Trace { run_id, after_seq });
        }
        for other in [
            "".to_owned(),
            "ostler://runs/".into(),
            "file:///etc/passwd".into(),
            format!("ostler://runs/{run_id}/"),
            format!("ostler://runs/{run_id}/../x"),
            format!("ostler://runs/{run_id}/trace/"),
            format!("ostler://runs/{run_id}/trace?afterSeq=-1"),
            format!("ostler://runs/{run_id}/trace?limit=1"),
            format!("OSTLER://runs/{run_id}"),
        ] {
            let failure = ServedResource::parse(&other).unwrap_err();
            assert_eq!(failure.broken_rule(), Some(Rule::McpResource), "{other}");
        }
    }
}
