//! Identities of the mesh, their logins, prekeys, messages and mailboxes.

pub mod agent_md;
mod certificates;
pub mod identities;
pub mod logins;
pub mod messages;
pub mod prekeys;
pub mod presence;
pub mod queue;
