//! MCP servers: programs and services whose tools agents can use. Some are configured by the operator, and callers with the
//! right to do so can add others until this process ends. A connection is made on first use, shared, and closed when it is
//! idle. A server may be slow, huge, wrong or gone; every step has a bound and a deadline, and none blocks another server.

mod attempts;
mod backoff;
mod bounded_lines;
mod callable;
mod connect;
mod entry;
mod events;
mod http_client;
pub(crate) mod offers;
mod pool;
mod problem;
mod process;
mod registered;
mod relists;
mod servers;
mod slots;
mod tool_listing;
mod values;

pub(crate) use callable::CallableServers;
pub use entry::{ConnectionView, Lease};
pub use events::{BudgetUse, McpNotice};
pub use pool::{Mcp, McpConnection, Refused};
pub use problem::McpProblem;
pub use registered::{RegisteredServer, ServerOrigin};
pub use servers::{AddRefused, McpAddition, RestartSkipped, Restarted, disabled_tools, switch_tool};
