//! The closed list of event types, and the phases of `backend_status` events that have a meaning.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

// A name is a bare token here: as a `literal` it would reach the schema's derive wrapped, and be overlooked.
macro_rules! event_types {
    ($($variant:ident $name:tt;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
        pub enum EventType { $(#[serde(rename = $name)] $variant,)* }

        impl EventType {
            pub const ALL: &'static [EventType] = &[$(Self::$variant,)*];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            pub fn parse(text: &str) -> Option<Self> {
                match text { $($name => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

event_types! {
    UserMessage "user_message";
    AssistantDelta "assistant_delta";
    AssistantMessage "assistant_message";
    ReasoningDelta "reasoning_delta";
    Reasoning "reasoning";
    ToolCall "tool_call";
    CommandOutput "command_output";
    Step "step";
    State "state";
    Activity "activity";
    Usage "usage";
    BackendStatus "backend_status";
    Lease "lease";
    PermissionRequest "permission_request";
    PermissionResolved "permission_resolved";
    Error "error";
    TerminalStatus "terminal_status";
    Session "session";
    Audit "audit";
    Custom "custom";
}

impl EventType {
    /// Facts only the server may state. A runner that could write them could forge an answer or a lease.
    pub fn is_reserved(self) -> bool {
        matches!(self, Self::Lease | Self::PermissionResolved | Self::UserMessage | Self::Audit)
    }
}

/// The phase the server writes when a later attempt takes a command over; the fold restarts its reply there.
pub const PHASE_ATTEMPT_RESTARTED: &str = "attempt-restarted";
/// The phase a runner writes when the backend accepted a steer.
pub const PHASE_STEER_ACCEPTED: &str = "turn/steer:completed";
/// The backend reported a change of its own session: `notification` names it, `data` has its parts.
pub const PHASE_NOTIFIED: &str = "notified";
pub const PHASE_TRANSPORT_DISCONNECTED: &str = "transport-disconnected";
/// The phase of the `lease` event of a successful claim, new or taken over.
pub const PHASE_RUN_CLAIMED: &str = "run-claimed";
/// A runner is gone before it was done; the event records how it ended.
pub const PHASE_RUNNER_ENDED: &str = "runner-ended";
/// The phase a runner writes when the session's storage is on a volume that was mounted for it.
pub const PHASE_STORAGE_MOUNTED: &str = "codex-rollout-storage-mounted";
/// The phase a runner writes when the files of the run's resource bundle are in the workspace: `repoUrl`, `commitId`, `bundles`.
pub const PHASE_BUNDLE_READY: &str = "resource-bundle-ready";
/// The phase a runner writes when a turn has changed the workspace; the event lists the changes.
pub const PHASE_WORKSPACE_CHANGED: &str = "workspace-changed";
/// The phase the server writes when a turn was rolled back: clients no longer see the turn.
pub const PHASE_ROLLED_BACK: &str = "turn-rolled-back";
/// A request of the agent was refused without asking a person: `command`, `reason`, `toolCallId`.
pub const PHASE_APPROVAL_DECLINED: &str = "approval:declined";
/// A cost budget is set, but the price of the model is unknown.
pub const PHASE_COST_UNKNOWN: &str = "budget:cost-unknown";
pub const PHASE_WAITING_PROVIDER: &str = "waiting-provider";
/// The server has charged a command for runs whose calls were lost. The payload has what all of its runs have used.
pub const PHASE_RUNS_CHARGED: &str = "runs:charged";
/// The router of a turn has made a plan: `tools`, `context`, and in `message` the worker's instructions.
pub const PHASE_ROUTER_PLANNED: &str = "router:planned";
/// The router made no usable plan, so that the worker gets everything: `reason`, `message`.
pub const PHASE_ROUTER_FALLBACK: &str = "router:fallback";
