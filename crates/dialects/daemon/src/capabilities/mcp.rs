//! MCP servers and tools of the workspace.

use ostler_protocol::capabilities::{Capability, Toggle, capability};

use crate::toggles;

pub(super) const MCP: &[Capability] = &[
    capability(
        "workspace_mcp",
        &["GET /workspace/mcp", "GET /workspace/mcp/{server}/tools"],
        "The MCP servers of the workspace, their state and the tools that they listed last. Starts none of them.",
    )
    .when(&[toggles::WORKSPACE]),
    capability(
        "workspace_mcp_restart",
        &["POST /workspace/mcp/{server}/restart"],
        "Connects to an MCP server again. Followers of all open sessions are notified.",
    )
    .when(&[toggles::WORKSPACE]),
    capability(
        "workspace_mcp_manage",
        &[
            "POST /workspace/mcp/{server}/enable",
            "POST /workspace/mcp/{server}/disable",
            "POST /workspace/mcp/{server}/authenticate",
            "POST /workspace/mcp/{server}/clear-auth",
        ],
        "Switches an MCP server on or off, also for later starts of the server.",
    )
    .when(&[toggles::WORKSPACE]),
    capability(
        "mcp_guardrails",
        &["GET /workspace/mcp"],
        "A budget of MCP servers that are connected at once, and how much of it is used.",
    )
    .modes(&["off", "warn", "enforce"])
    .when(&[toggles::WORKSPACE]),
    capability(
        "mcp_guardrail_events",
        &["POST /workspace/mcp/{server}/restart"],
        "Notifies followers when most of the budget is used, and which servers were refused.",
    )
    .when(&[toggles::WORKSPACE]),
    capability(
        "mcp_server_runtime_mutation",
        &["POST /workspace/mcp/servers", "DELETE /workspace/mcp/servers/{name}"],
        "Adds an MCP server until this server ends, and removes it.",
    )
    .when(&[toggles::WORKSPACE]),
    capability(
        "mcp_workspace_pool",
        &["GET /workspace/mcp"],
        "The server has one connection to each MCP server for all sessions. Idle ones are closed, lost ones are made again. Agents connect to MCP servers themselves.",
    )
    .when(&[toggles::WORKSPACE, Toggle::MCP_POOL]),
    capability(
        "mcp_pool_restart",
        &["POST /workspace/mcp/{server}/restart"],
        "Restarts one connection of an MCP server that has several, or all of them.",
    )
    .when(&[toggles::WORKSPACE, Toggle::MCP_POOL]),
    capability(
        "workspace_tool_toggle",
        &["POST /workspace/tools/{name}/enable"],
        "Switches a tool off or on for agents that are started later.",
    )
    .when(&[toggles::WORKSPACE]),
];
