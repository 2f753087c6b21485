//! Verbs of the mesh: who has which name, who is logged in, what is believed and what agents say of themselves. Messages
//! between them are `mesh_messages`.

pub mod agent_md;
pub mod auth;
pub mod identities;
pub mod messages;
pub mod meta;
pub mod pki;
pub mod presence;
mod tokens;

use ostler_protocol::{
    Timestamp,
    mesh::{
        Aid,
        connections::{DeliveryMode, Place},
    },
};

pub use tokens::{is_live, sweep, whose};

/// An agent on a connection that it has introduced as its own.
#[derive(Clone, Debug)]
pub struct MeshCaller {
    pub aid: Aid,
    pub login_id: String,
    /// Both of its parts are empty on a legacy connection, which stands for the agent as a whole.
    pub place: Place,
    pub delivery_mode: DeliveryMode,
    pub connected_at: Timestamp,
}
