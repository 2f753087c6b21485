//! Resources: runs and their traces.

use ostler_protocol::{
    Failure, RawJson,
    json::text_of,
    kernel::runs::ListRuns,
    mcp_server::{
        arguments::{FOLLOW_EVENTS_MAX, LIST_RUNS_DEFAULT},
        resources::ServedResource,
        results::ListedRun,
    },
};
use ostler_server::service;
use serde_json::{Value, json};

use super::{context::RequestContext, runs};

/// The newest runs that the caller sees.
pub(super) async fn list(context: &RequestContext, cursor: Option<String>) -> Result<RawJson, Failure> {
    let request = ListRuns { limit: Some(LIST_RUNS_DEFAULT), cursor, ..ListRuns::default() };
    let page = service::runs::list(&context.app, &context.caller, request).await?;
    let resources: Vec<Value> = page.runs.into_iter().map(|run| ListedRun::from(run).resource()).collect();
    let mut result = json!({"resources": resources});
    if let Some(cursor) = page.next_cursor {
        result["nextCursor"] = cursor.into();
    }
    Ok(RawJson::of(&result))
}

pub(super) async fn read(context: &RequestContext, uri: &str) -> Result<RawJson, Failure> {
    let text = match ServedResource::parse(uri)? {
        ServedResource::Run(run_id) => text_of(&service::runs::get_view(&context.app, &context.caller, run_id).await?),
        ServedResource::Trace { run_id, after_seq } => {
            text_of(&runs::events(context, run_id, after_seq, FOLLOW_EVENTS_MAX).await?)
        }
    };
    Ok(RawJson::of(&json!({"contents": [{"uri": uri, "mimeType": "application/json", "text": text}]})))
}
