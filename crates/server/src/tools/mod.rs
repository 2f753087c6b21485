//! The toolkit: tools that every backend can call, registered in one place. A source offers tools and executes their calls; the
//! toolkit checks the arguments, decides whether a run may make the call, asks a person where the policy wants it, records the call in
//! the log before and after it is executed, and never executes it twice.
//!
//! Sources are the server itself (`built_in`), the MCP servers whose `expose` is `toolkit` (`mcp_source`), and dialects: a dialect
//! crate implements [`ToolSource`] and registers it with [`Dialect::tool_source`](crate::dialect::Dialect::tool_source). Its `list`
//! returns [`ToolDefinition`](ostler_protocol::tools::ToolDefinition)s with the origin `ToolOrigin::Dialect`, made once and kept
//! behind `Arc`; its `call` gets checked arguments together with the run, the command and the user, and returns a text or a
//! [`ToolError`]. It neither authorises nor records nor redacts: that is done for it.

mod built_in;
mod call_redactor;
mod calls;
mod checks;
mod edited_arguments;
mod edits;
mod execute;
mod mcp_source;
mod outcome;
mod record;
mod recover;
mod reply_sets;
mod scopes;
mod source;
mod toolkit;

pub(crate) use built_in::{SettlingCommands, StartLocks, settle_lost_runs};
pub use edits::complete_edits;
pub use source::{Invocation, McpAccess, ToolContext, ToolError, ToolSource};
pub use toolkit::Toolkit;
