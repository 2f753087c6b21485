//! Names of the mesh: certify, list, revoke, invite. For operators.

use ostler_protocol::{
    Failure,
    identities::{CreateInvite, Identity, IdentityPage, Invite, IssueCertificate, ListIdentities, RevokeIdentity},
};

use crate::{Client, path::Path};

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

    /// It is not kept, and not shown again.
    pub async fn create_invite(&self, asked: &CreateInvite) -> Result<Invite, Failure> {
        self.post(Path::api(&["identities", "invites"]), asked).await
    }
}
