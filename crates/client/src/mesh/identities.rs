//! Names of the mesh: certify, list, revoke, invite. For operators.

use bytes::Bytes;
use http::{Method, StatusCode};
use ostler_crypto::{certificates::Certificate, keys::PublicKey};
use ostler_protocol::{
    Failure, Timestamp,
    identities::{CreateInvite, Identity, IdentityPage, Invite, IssueCertificate, ListIdentities, RevokeIdentity},
    mesh::pki::CertificateStatus,
};

use crate::{Client, answer, path::Path};

/// A name's newest certificate, as everybody may know it.
pub struct Certified {
    pub serial: String,
    pub not_after: Timestamp,
    pub is_revoked: bool,
}

impl Client {
    pub async fn issue_certificate(&self, asked: &IssueCertificate) -> Result<Identity, Failure> {
        self.post(Path::api(&["identities"]), asked).await
    }

    pub async fn list_identities(&self, query: &ListIdentities) -> Result<IdentityPage, Failure> {
        self.get(Path::api(&["identities"]).query(query)?).await
    }

    pub async fn revoke_identity(&self, aid: &str, asked: &RevokeIdentity) -> Result<Identity, Failure> {
        self.post(Path::api(&["identities", aid, "revoke"]), asked).await
    }

    /// `None`: nobody has this name.
    pub async fn find_certificate(&self, aid: &str) -> Result<Option<Certified>, Failure> {
        let path = Path::of(&["pki", "cert", aid]);
        let (status, bytes) = self.exchange(Method::GET, path, Bytes::new()).await?;
        if status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let pem = String::from_utf8_lossy(&answer::good(status, bytes)?).into_owned();
        let certificate = Certificate::from_pem(&pem).ok_or_else(|| Failure::internal("a certificate in PEM"))?;
        let serial = certificate.serial().to_string();
        let known: CertificateStatus = self.get(Path::of(&["pki", "ocsp", &serial])).await?;
        let (not_after, is_revoked) = (certificate.not_after(), known.status == "revoked");
        Ok(Some(Certified { serial, not_after, is_revoked }))
    }

    /// It is not kept, and not shown again.
    pub async fn create_invite(&self, asked: &CreateInvite) -> Result<Invite, Failure> {
        self.post(Path::api(&["identities", "invites"]), asked).await
    }
}

/// A public key in PEM, as the mesh sends keys. `None`: something else, such as a private one.
pub fn public_key(pem: &str) -> Option<String> {
    PublicKey::from_pem(pem.trim()).map(|key| key.to_base64())
}
