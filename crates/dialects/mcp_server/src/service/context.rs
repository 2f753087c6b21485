//! A request of a client: who calls, from where, and in which session and revision.

use std::net::IpAddr;

use ostler_protocol::{
    Failure,
    ids::{McpSessionId, TraceId},
    mcp_server::{
        failures::{McpFailureData, rpc_error},
        results::failed_result,
        revisions::McpRevision,
    },
    rpc::{RpcFrame, RpcId},
};
use ostler_server::{
    app::App,
    auth::Principal,
    net::{Locality, problem::reported},
};

#[derive(Clone)]
pub(crate) struct RequestContext {
    pub app: App,
    pub caller: Principal,
    pub locality: Locality,
    pub peer: IpAddr,
    pub trace_id: TraceId,
    pub revision: McpRevision,
    /// `None` for clients that send no session id.
    pub session: Option<McpSessionId>,
}

impl RequestContext {
    /// The result of a call that the tool has refused. Counted, logged and redacted like every failure.
    pub(crate) fn failed_call(&self, id: RpcId, failure: Failure, tool: &str) -> RpcFrame {
        let failure = reported(&self.app, failure, self.trace_id, tool, self.peer);
        let data = McpFailureData::of(&failure, &self.trace_id.to_string());
        RpcFrame::Answer { id, result: failed_result(&data) }
    }

    /// The error of a request that cannot be handled.
    pub(crate) fn error(&self, id: RpcId, failure: Failure) -> RpcFrame {
        let failure = reported(&self.app, failure, self.trace_id, "/mcp", self.peer);
        RpcFrame::Error { id: Some(id), error: rpc_error(&failure, &self.trace_id.to_string()) }
    }
}
