//! Identities of the mesh as the operator sees them: whose names are registered, under which certificates, and what was
//! ever done to those. What identities themselves exchange is `mesh::auth`.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{Failure, Rule, Timestamp, mesh::Aid};

pub const INVITE_MS_DEFAULT: i64 = 7 * 86_400_000;
pub const INVITE_MS_MAX: i64 = 90 * 86_400_000;
pub const INVITE_BYTES_MAX: usize = 1024;

/// What is done to certificates. Every one is written down, and nothing that was written is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Operation)]
pub enum CertificateOperation {
    /// The first certificate of a name.
    Issue,
    /// The next one, for the same key.
    Renew,
    /// One for another key; the last one is revoked with it.
    Rekey,
    Revoke,
}

enum_words!(CertificateOperation {
    Issue => "issue",
    Renew => "renew",
    Rekey => "rekey",
    Revoke => "revoke",
});

/// Why a certificate was revoked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RevocationReason {
    #[default]
    Unspecified,
    KeyCompromise,
    /// A new key took its place.
    Superseded,
    CessationOfOperation,
}

enum_words!(RevocationReason {
    Unspecified => "unspecified",
    KeyCompromise => "key-compromise",
    Superseded => "superseded",
    CessationOfOperation => "cessation-of-operation",
});

/// A registered name, with its newest certificate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    #[schema(value_type = String)]
    pub aid: Aid,
    /// Of the certificate, in hexadecimal.
    pub serial: String,
    /// `sha256:` and the digest of the certificate.
    pub cert_fingerprint: String,
    /// PEM.
    pub certificate: String,
    #[schema(value_type = String, format = DateTime)]
    pub certified_at: Timestamp,
    /// Since when the certificate, and with it the name, is good no longer.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub revoked_at: Option<Timestamp>,
    pub revocation_reason: Option<RevocationReason>,
}

/// Gives a name its first certificate, or one for another key.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct IssueCertificate {
    #[schema(value_type = String)]
    pub aid: Aid,
    /// Base64 of the DER of a public key, on P-256.
    pub public_key: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RevokeIdentity {
    #[serde(default)]
    pub reason: RevocationReason,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListIdentities {
    /// At most this many, 100 by default and 1,000 at most.
    pub limit: Option<u32>,
    /// From the page before.
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct IdentityPage {
    pub identities: Vec<Identity>,
    pub next_cursor: Option<String>,
}

/// Allows a client to register a name where names require an invitation.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreateInvite {
    /// The name it is for; any, if left out.
    #[schema(value_type = Option<String>)]
    pub aid: Option<Aid>,
    /// Seven days by default, ninety at most.
    pub expires_in_ms: Option<i64>,
}

impl CreateInvite {
    pub fn life_ms(&self) -> Result<i64, Failure> {
        match self.expires_in_ms.unwrap_or(INVITE_MS_DEFAULT) {
            ms @ 1..=INVITE_MS_MAX => Ok(ms),
            _ => Err(Failure::invalid(Rule::InviteLife, format!("expiresInMs: 1 to {INVITE_MS_MAX}"))),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Invite {
    /// Valid for one name. It is not stored, and not shown again.
    pub invite: String,
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for operation in CertificateOperation::ALL {
            assert_eq!(CertificateOperation::parse(operation.as_str()), Some(operation));
        }
        for reason in RevocationReason::ALL {
            assert_eq!(RevocationReason::parse(reason.as_str()), Some(reason));
            assert_eq!(serde_json::json!(reason), reason.as_str());
        }
    }

    #[test]
    fn an_invitation_ends() {
        let life = |expires_in_ms| CreateInvite { aid: None, expires_in_ms }.life_ms().ok();
        assert_eq!(life(None), Some(INVITE_MS_DEFAULT));
        assert_eq!((life(Some(1)), life(Some(INVITE_MS_MAX))), (Some(1), Some(INVITE_MS_MAX)));
        assert_eq!((life(Some(0)), life(Some(INVITE_MS_MAX + 1))), (None, None));
    }
}
