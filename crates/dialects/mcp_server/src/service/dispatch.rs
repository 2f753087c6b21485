//! Dispatches each method of the protocol to its verb.

use ostler_protocol::{
    Failure, RawJson, Rule,
    mcp_server::{
        event_ids::WaitPoint,
        failures::{unknown_method, unknown_tool},
        messages::{CallToolParams, CancelledParams, InitializeParams, ListParams, ReadResourceParams, read_params},
        resources::templates,
        results::tool_result,
        revisions::McpRevision,
        tools::ServedTool,
    },
    rpc::{RpcFrame, RpcId},
};
use ostler_server::traces::note_operation;
use serde_json::json;

use super::{calls, context::RequestContext, resources, tools};

pub(crate) const INITIALIZE: &str = "initialize";
/// The methods that traces name. Calls of tools are traced by the name of the tool.
const METHODS: [&str; 6] =
    [INITIALIZE, "ping", "tools/list", "resources/list", "resources/templates/list", "resources/read"];
const INSTRUCTIONS: &str = "Ostler runs agents. submit_run starts one and follow_run waits for what it does; run_result has its \
    reply. When a run waits for a permission, show the user the exact command of list_permission_requests before \
    answer_permission_request. A run continues when this client disconnects.";

/// What a message leads to.
pub(crate) enum HandledMessage {
    /// A notification or a response: there is no reply.
    Accepted,
    Reply(Box<RpcFrame>),
    /// The reply follows when the wait is over.
    Waits(Box<WaitPoint>),
}

pub(crate) async fn handle(context: &RequestContext, message: RpcFrame) -> HandledMessage {
    let (id, method, params) = match message {
        RpcFrame::Request { id, method, params } => (id, method, params),
        RpcFrame::Notification { method, params } => {
            notified(context, &method, &params);
            return HandledMessage::Accepted;
        }
        // The server sends no requests.
        RpcFrame::Answer { .. } | RpcFrame::Error { .. } => return HandledMessage::Accepted,
    };
    if method == "tools/call" {
        return call_tool(context, id, &params).await;
    }
    HandledMessage::Reply(Box::new(match request(context, &method, &params).await {
        Ok(result) => RpcFrame::Answer { id, result },
        Err(failure) => context.error(id, failure),
    }))
}

fn notified(context: &RequestContext, method: &str, params: &RawJson) {
    if method == "notifications/cancelled"
        && let Some(CancelledParams { request_id }) = params.view()
    {
        calls::cancel(context, &request_id);
    }
}

async fn request(context: &RequestContext, method: &str, params: &RawJson) -> Result<RawJson, Failure> {
    if let Some(known) = METHODS.into_iter().find(|known| *known == method) {
        note_operation(known);
    }
    match method {
        INITIALIZE => initialize(params),
        "ping" => Ok(RawJson::of(&json!({}))),
        "tools/list" => {
            only_page(params)?;
            Ok(RawJson::of(&json!({"tools": tools::list(&context.caller)})))
        }
        "resources/list" => resources::list(context, read_params::<ListParams>(params)?.cursor).await,
        "resources/templates/list" => {
            only_page(params)?;
            Ok(RawJson::of(&templates()))
        }
        "resources/read" => resources::read(context, &read_params::<ReadResourceParams>(params)?.uri).await,
        _ => Err(unknown_method()),
    }
}

fn initialize(params: &RawJson) -> Result<RawJson, Failure> {
    let InitializeParams { protocol_version } = read_params(params)?;
    Ok(RawJson::of(&json!({
        "protocolVersion": McpRevision::negotiate(&protocol_version).as_str(),
        "capabilities": {"tools": {"listChanged": false}, "resources": {"listChanged": false, "subscribe": false}},
        "serverInfo": {"name": "ostler", "title": "Ostler", "version": env!("CARGO_PKG_VERSION")},
        "instructions": INSTRUCTIONS,
    })))
}

/// For lists of one page.
fn only_page(params: &RawJson) -> Result<(), Failure> {
    match read_params::<ListParams>(params)?.cursor {
        None => Ok(()),
        Some(_) => Err(Failure::invalid(Rule::McpCursor, "this list has one page")),
    }
}

async fn call_tool(context: &RequestContext, id: RpcId, params: &RawJson) -> HandledMessage {
    let found = read_params::<CallToolParams>(params).and_then(|mut params| {
        let tool = ServedTool::find(&params.name).ok_or_else(unknown_tool)?;
        let progress_token = params.take_progress_token()?;
        Ok((tool, params.arguments, progress_token))
    });
    let (tool, arguments, progress_token) = match found {
        Ok(found) => found,
        Err(failure) => return HandledMessage::Reply(Box::new(context.error(id, failure))),
    };
    note_operation(tool.name());
    match tools::call(context, tool, arguments.as_ref()).await {
        Ok(tools::ToolOutcome::Done(value)) => {
            HandledMessage::Reply(Box::new(RpcFrame::Answer { id, result: tool_result(&value) }))
        }
        Ok(tools::ToolOutcome::Waits(wait)) => {
            let notified_seq = wait.after_seq;
            HandledMessage::Waits(Box::new(WaitPoint { request_id: id, progress_token, wait: *wait, notified_seq }))
        }
        Err(failure) => HandledMessage::Reply(Box::new(context.failed_call(id, failure, tool.name()))),
    }
}
