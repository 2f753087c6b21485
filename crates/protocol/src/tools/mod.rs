//! Tools that this server offers to agents, whichever backend runs them: how a tool is defined, what its arguments must be, whether
//! a call is allowed, and the states of a call. Pure rules: the server finds the tools and executes the calls.

pub mod authorise;
pub mod calls;
pub mod definition;
pub mod enabled;
pub mod merge;
pub mod schema;
pub mod wire;

pub use authorise::{Authorisation, CallAuthority, authorise};
pub use calls::{CallAction, CallState, call_digest};
pub use definition::{ToolDefinition, ToolOrigin, is_offered_name};
pub use enabled::enabled_tools;
pub use merge::{Conflict, merge};
pub use schema::{ArgumentRules, SchemaBudget, SchemaProblem, SchemaSize};
