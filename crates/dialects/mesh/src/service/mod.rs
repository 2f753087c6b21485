//! Services of the mesh: identities and their certificates, logins, presence, messages and descriptions.

pub(crate) mod agent_md;
pub(crate) mod auth;
pub(crate) mod identities;
pub(crate) mod messages;
pub(crate) mod meta;
pub(crate) mod pki;
pub(crate) mod presence;
pub(crate) mod tokens;

use ostler_protocol::{
    Timestamp,
    mesh::{
        Aid,
        connections::{DeliveryMode, DeviceSlot},
    },
};

pub(crate) use tokens::{find_by_token, is_live, sweep};

/// An identity on a connection after `auth.connect`.
#[derive(Clone, Debug)]
pub(crate) struct MeshCaller {
    pub aid: Aid,
    pub login_id: String,
    /// The device slot. Both of its parts are empty on a legacy connection, which is for the identity as a whole.
    pub place: DeviceSlot,
    pub delivery_mode: DeliveryMode,
    pub connected_at: Timestamp,
}
