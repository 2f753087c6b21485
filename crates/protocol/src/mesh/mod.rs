//! The mesh dialect, as pure rules: names, the JSON-RPC calls that a gateway accepts, the one table of its methods with
//! their parameters and results, and `agent.md`. Which certificate is trusted is decided in `ostler-crypto`; sealed
//! contents of a message are never read here.

pub mod agent_md;
pub mod aids;
pub mod auth;
pub mod calls;
pub mod connections;
pub mod health;
pub mod identities;
pub mod mailbox;
pub mod messages;
pub mod meta;
pub mod methods;
pub mod pki;
pub mod prekeys;

pub use aids::{Aid, Domain};
