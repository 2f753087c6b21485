//! Services of the mesh: identities and their certificates, logins, presence, messages and descriptions.

pub mod agent_md;
pub mod auth;
pub mod identities;
pub mod messages;
pub mod meta;
pub mod pki;
pub mod presence;
pub mod tokens;

use ostler_protocol::{
    Timestamp,
    mesh::{
        Aid,
        connections::{DeliveryMode, DeviceSlot},
    },
};

pub use tokens::{find_by_token, is_live, sweep};

/// An identity on a connection after `auth.connect`.
#[derive(Clone, Debug)]
pub struct MeshCaller {
    pub aid: Aid,
    pub login_id: String,
    /// The device slot. Both of its parts are empty on a legacy connection, which is for the identity as a whole.
    pub place: DeviceSlot,
    pub delivery_mode: DeliveryMode,
    pub connected_at: Timestamp,
}
