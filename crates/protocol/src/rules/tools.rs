//! Rules of the tools that this server offers to agents.

macro_rules! tools_rules {
    ([$next:ident $($rest:ident)*] $($rows:tt)*) => { $next! { [$($rest)*] $($rows)*
        ToolScope "tool-scope" Forbidden "The agent was not granted the scope that the tool requires.",
            hint: Some("the person grants it with `ostler consent`");
        ToolNetwork "tool-network" TenantPolicyDenied "The tool uses the network, and the policy of the run disables it.",
            hint: Some("start the run with `network` enabled in its execution policy");
        ToolReadOnly "tool-read-only" TenantPolicyDenied "The tool changes something, and the run may only read.",
            hint: Some("start the run with a wider sandbox, or leave the mode `plan`");
        ToolCallId "tool-call-id" SchemaInvalid "The id of a call is empty, too long or has other characters than it may have.";
        ToolCallReused "tool-call-reused" StateConflict "The id of a call was used for another call.",
            hint: Some("give each call an id of its own");
        ToolCallsOpen "tool-calls-open" Overloaded "The run has as many open calls of tools as it may have.",
            hint: Some("wait until one of them has ended");
        ToolUnknown "tool-unknown" NotFound "There is no such tool.",
            hint: Some("`ostler tools list` lists those that exist");
        ToolUnavailable "tool-unavailable" Overloaded "The MCP server of the tool is not connected.",
            hint: Some("`ostler mcp list` shows why; try again at the time that the message names");
        ToolArguments "tool-arguments" SchemaInvalid "The arguments do not match the tool's schema.",
            hint: Some("`ostler tools list -o json` shows the schemas");
        ToolCallSize "tool-call-size" PayloadTooLarge "The name or the arguments of the tool call are too long.",
            hint: Some("a tool takes at most 256 KiB of arguments");
        ToolFailed "tool-failed" BackendFailed "The tool had no result.";
        ToolOutcomeUnknown "tool-outcome-unknown" BackendTimeout "The tool did not respond, and it is not known what it did.",
            hint: Some("look at what the tool changes before you call it again");
    } };
}
