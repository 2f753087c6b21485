//! What only a coding agent has. These tags are advertised while the agent of the daemon's profile has it.

use ostler_protocol::capabilities::{Capability, capability};

use crate::toggles;

pub(super) const AGENTS: &[Capability] = &[
    capability(
        "session_supported_commands",
        &["GET /session/{sessionId}/supported-commands"],
        "The slash commands and skills of the session's agent.",
    )
    .when(&[toggles::AGENT]),
    capability("session_lsp", &["GET /session/{sessionId}/lsp"], "The language servers of the session's agent.")
        .when(&[toggles::AGENT]),
    capability("session_hooks", &["GET /session/{sessionId}/hooks"], "The hooks that run in the session.")
        .when(&[toggles::AGENT]),
    capability(
        "session_approval_mode_control",
        &["POST /session/{sessionId}/approval-mode"],
        "A client sets how much the agent does without asking, within the server's policy; followers receive the change.",
    )
    .modes(&["plan", "default", "auto-edit", "auto", "yolo"])
    .when(&[toggles::AGENT]),
    capability("workspace_skills", &["GET /workspace/skills"], "The skills of the agent.").when(&[toggles::AGENT]),
    capability("workspace_hooks", &["GET /workspace/hooks"], "The hooks of the workspace, and the events they are for.")
        .when(&[toggles::AGENT]),
    capability(
        "workspace_extensions",
        &[
            "GET /workspace/extensions",
            "POST /workspace/extensions/install",
            "POST /workspace/extensions/check-updates",
            "POST /workspace/extensions/refresh",
            "POST /workspace/extensions/{name}/enable",
            "POST /workspace/extensions/{name}/disable",
            "POST /workspace/extensions/{name}/update",
            "DELETE /workspace/extensions/{name}",
            "GET /workspace/extensions/operations/{operationId}",
        ],
        "The extensions of the agent. Changes are queued and polled; each is sent to all open sessions.",
    )
    .when(&[toggles::AGENT]),
    capability(
        "workspace_agents",
        &[
            "GET /workspace/agents",
            "POST /workspace/agents",
            "GET /workspace/agents/{agentType}",
            "POST /workspace/agents/{agentType}",
            "DELETE /workspace/agents/{agentType}",
        ],
        "The subagents of the workspace and of the agent's home. A change is sent to all open sessions.",
    )
    .when(&[toggles::AGENT]),
    capability(
        "workspace_agent_generate",
        &["POST /workspace/agents/generate"],
        "The agent's model writes the definition of a subagent; it is not stored.",
    )
    .when(&[toggles::AGENT]),
];
