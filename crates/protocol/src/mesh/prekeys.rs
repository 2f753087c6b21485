//! Prekeys on the wire. A server keeps the newest of each device and hands them out; reading takes none away. Whether its
//! owner signed one is checked before it is kept.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Aid, messages::is_printable};
use crate::{Failure, Rule};

pub const PREKEY_FIELD_BYTES_MAX: usize = 512;
/// Devices of an identity whose prekeys are kept; the one longest unused goes first.
pub const PREKEY_DEVICES_MAX: usize = 32;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Prekey {
    pub prekey_id: String,
    /// Base64 of the DER of a public key, on P-256.
    pub public_key: String,
    /// Base64 of a signature in DER, by the identity's key, over `{prekey_id}|{public_key}|{created_at}`.
    pub signature: String,
    /// Milliseconds.
    pub created_at: i64,
    /// Of the certificate whose key signed it.
    pub cert_fingerprint: String,
    /// Of the connection, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_id: Option<String>,
}

impl Prekey {
    /// Sizes and characters; the signature is checked where the certificate is known.
    pub fn check(&self) -> Result<(), Failure> {
        for (name, field) in [
            ("prekey_id", &self.prekey_id),
            ("public_key", &self.public_key),
            ("signature", &self.signature),
            ("cert_fingerprint", &self.cert_fingerprint),
        ] {
            if !is_printable(field, PREKEY_FIELD_BYTES_MAX) {
                let message = format!("{name}: 1 to {PREKEY_FIELD_BYTES_MAX} bytes without control characters");
                return Err(Failure::invalid(Rule::PrekeyField, message).detail("field", name));
            }
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PutPrekeyResult {
    pub ok: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GetPrekeyParams {
    #[schema(value_type = String)]
    pub aid: Aid,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GetPrekeyResult {
    pub found: bool,
    /// The newest of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prekey: Option<Prekey>,
    /// The newest of each device: a sender seals one copy for each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_prekeys: Vec<Prekey>,
}
