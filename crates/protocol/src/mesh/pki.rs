//! What a gateway serves about itself over HTTP: where its WebSocket is, and which certificates are still valid.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

pub const GATEWAY_PATH: &str = "/aun";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Discovery {
    pub gateways: Vec<Gateway>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Gateway {
    pub url: String,
    /// The lowest is tried first.
    pub priority: u32,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct CertificateQuery {
    /// A version: `sha256:` and the digest of the certificate. The newest, if left out.
    pub cert_fingerprint: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RevocationList {
    /// An X.509 revocation list, PEM.
    pub crl_pem: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CertificateStatus {
    /// `good`, `revoked` or `unknown`.
    pub status: String,
    /// Base64 of an OCSP response in DER, in the form that the published client reads.
    pub ocsp_response: String,
}

/// `agent.md` was taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = AgentMdKept)]
pub struct AgentMdDigest {
    pub ok: bool,
    pub aid: String,
    /// Of the text, in hexadecimal.
    pub agent_md_sha256: String,
}
