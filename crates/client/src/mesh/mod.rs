//! The mesh, from the side of an identity: registers a name, logs in, holds a session with the gateway, and encrypts messages
//! end to end. The root certificate that the caller pins decides which peers are trusted; the caller stores the keys.

mod ambient;
mod gateway;
mod identities;
mod pki;
mod sealing;
mod session;
mod stored_identity;

pub use ambient::Ambient;
pub use gateway::{GatewayClient, LoginTokens, RegisterError, is_slot_in_use};
pub use identities::{PublishedCertificate, public_key};
pub use pki::CertificateTrust;
pub use sealing::{IdentityKeys, OpenError, OpenedMessage, OwnPrekey, Sealer, SealerEvent};
pub use session::{GatewayEvent, MeshSession};
pub use stored_identity::StoredIdentity;
