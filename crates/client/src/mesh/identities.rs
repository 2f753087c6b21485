//! Identities of the mesh: certify, list, revoke, invite. For operators.

use bytes::Bytes;
use http::{Method, StatusCode};
use ostler_crypto::{certificates::Certificate, keys::PublicKey};
use ostler_protocol::{
    Failure, Timestamp,
    mesh::{
        identities::{CreateInvite, Identity, IdentityPage, Invite, IssueCertificate, ListIdentities, RevokeIdentity},
        pki::CertificateStatus,
    },
};

use crate::{client::Client, path::Path, response};

/// The newest published certificate of a name.
pub struct PublishedCertificate {
    pub serial: String,
    pub not_after: Timestamp,
    pub is_revoked: bool,
}

impl Client {
    pub async fn issue_certificate(&self, certificate: &IssueCertificate) -> Result<Identity, Failure> {
        self.post(Path::api(&["identities"]), certificate).await
    }

    pub async fn list_identities(&self, query: &ListIdentities) -> Result<IdentityPage, Failure> {
        self.get(Path::api(&["identities"]).query(query)?).await
    }

    pub async fn revoke_identity(&self, aid: &str, revocation: &RevokeIdentity) -> Result<Identity, Failure> {
        self.post(Path::api(&["identities", aid, "revoke"]), revocation).await
    }

    /// `None` if the name is not registered.
    pub async fn find_certificate(&self, aid: &str) -> Result<Option<PublishedCertificate>, Failure> {
        let path = Path::of(&["pki", "cert", aid]);
        let (status, bytes) = self.exchange(Method::GET, path, Bytes::new()).await?;
        if status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let pem = String::from_utf8_lossy(&response::success(status, bytes)?).into_owned();
        let certificate = Certificate::from_pem(&pem).ok_or_else(|| Failure::internal("a certificate in PEM"))?;
        let serial = certificate.serial().to_string();
        let ocsp: CertificateStatus = self.get(Path::of(&["pki", "ocsp", &serial])).await?;
        let (not_after, is_revoked) = (certificate.not_after(), ocsp.status == "revoked");
        Ok(Some(PublishedCertificate { serial, not_after, is_revoked }))
    }

    /// The invite is not stored, and not displayed again.
    pub async fn create_invite(&self, invite: &CreateInvite) -> Result<Invite, Failure> {
        self.post(Path::api(&["identities", "invites"]), invite).await
    }
}

/// A public key in PEM, converted to the form in which the mesh sends keys. `None` if it is not a public key.
pub fn public_key(pem: &str) -> Option<String> {
    PublicKey::from_pem(pem.trim()).map(|key| key.to_base64())
}
