//! What a gateway publishes about its domain (authorities, certificates, revocations), and which certificates are trusted.
//! Results are cached: a certificate is identified by its digest, and a revocation may be noticed a minute late.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::{Request, StatusCode};
use jiff::{SignedDuration, Timestamp};
use ostler_crypto::{
    certificates::{Certificate, CertificateFault, Chain, FaultKind, Peer, Serial},
    crl::{LIST_BYTES_MAX, Revocations},
};
use ostler_protocol::{Failure, Rule, mesh::Aid};
use tokio::{sync::OnceCell, time::timeout};

use super::gateway::GatewayClient;
use crate::{failures, response, transport};

/// Time limit for a page of a gateway.
const PAGE_MAX: Duration = Duration::from_secs(15);
/// Size limit of a page.
const PAGE_BYTES_MAX: usize = 1024 * 1024;
/// Size limit of the revocation list, which grows with its domain. Base64 and line ends make it half as long again.
const REVOCATIONS_PAGE_BYTES_MAX: usize = LIST_BYTES_MAX / 2 * 3;
/// How long a revocation list is cached.
const REVOCATIONS_CACHED: SignedDuration = SignedDuration::from_secs(60);
const CERTIFICATES_CACHED_MAX: usize = 1_000;

/// What was read from a gateway.
#[derive(Default)]
pub(super) struct GatewayCache {
    chain: OnceCell<Chain>,
    revocations: Mutex<Option<(Timestamp, Arc<Revocations>)>>,
    /// By fingerprint.
    certificates: Mutex<HashMap<String, Certificate>>,
}

/// Whether a certificate is trusted. If that could not be determined, the result is a failure instead, and may differ later.
pub enum CertificateTrust {
    Trusted(Box<Peer>),
    Untrusted {
        certificate: Box<Certificate>,
        why: String,
    },
    /// The name is not registered, or has no such certificate.
    Unknown,
}

impl GatewayClient {
    /// The authorities of the domain, verified up to the root.
    pub async fn chain(&self) -> Result<&Chain, Failure> {
        let read = async || {
            let text =
                self.page("/pki/chain").await?.ok_or_else(|| untrusted("the gateway publishes no authorities"))?;
            let authorities = Certificate::list_from_pem(&text).ok_or_else(|| untrusted("the chain cannot be read"))?;
            Chain::verify(authorities, std::slice::from_ref(&self.root), self.ambient.now())
                .map_err(|fault| fault_failure(&fault))
        };
        self.cache.chain.get_or_try_init(read).await
    }

    /// Whether the newest certificate of a name is trusted, or the one with this fingerprint.
    pub async fn check_certificate(&self, aid: &Aid, fingerprint: Option<&str>) -> Result<CertificateTrust, Failure> {
        let Some(certificate) = self.certificate(aid, fingerprint).await? else {
            return Ok(CertificateTrust::Unknown);
        };
        let untrusted = |why: String| CertificateTrust::Untrusted { certificate: Box::new(certificate.clone()), why };
        match self.chain().await?.verify_identity(certificate.clone(), aid.as_str(), self.ambient.now()) {
            Err(fault) if fault.kind == FaultKind::NotYetValid => Err(fault_failure(&fault)),
            Err(fault) => Ok(untrusted(fault.to_string())),
            Ok(_) if self.is_revoked(&certificate.serial()).await? => {
                Ok(untrusted(format!("the certificate of {aid} was revoked")))
            }
            Ok(peer) => Ok(CertificateTrust::Trusted(Box::new(peer))),
        }
    }

    pub(super) async fn is_revoked(&self, serial: &Serial) -> Result<bool, Failure> {
        Ok(self.revocations().await?.revoked_at(serial).is_some())
    }

    async fn certificate(&self, aid: &Aid, fingerprint: Option<&str>) -> Result<Option<Certificate>, Failure> {
        // The sender chooses the fingerprint, so it must not inject anything else into the address.
        if fingerprint.is_some_and(|named| !is_fingerprint(named)) {
            return Ok(None);
        }
        let cached = |named| lock(&self.cache.certificates).get(named).cloned();
        if let Some(cached) = fingerprint.and_then(cached) {
            return Ok(Some(cached));
        }
        let query = fingerprint.map_or_else(String::new, |named| format!("?cert_fingerprint={named}"));
        let Some(text) = self.page(&format!("/pki/cert/{aid}{query}")).await? else { return Ok(None) };
        let certificate = Certificate::from_pem(&text);
        let certificate =
            certificate.ok_or_else(|| Failure::rule(Rule::MeshGateway, "the gateway's certificate cannot be read"))?;
        let digest = certificate.fingerprint();
        if fingerprint.is_some_and(|named| named != digest) {
            return Err(Failure::rule(
                Rule::MeshGateway,
                "the gateway returned another certificate than the requested one",
            ));
        }
        let mut cached = lock(&self.cache.certificates);
        if cached.len() >= CERTIFICATES_CACHED_MAX {
            cached.clear();
        }
        cached.insert(digest, certificate.clone());
        Ok(Some(certificate))
    }

    async fn revocations(&self) -> Result<Arc<Revocations>, Failure> {
        let now = self.ambient.now();
        let cached = lock(&self.cache.revocations).clone();
        let is_fresh =
            |read_at: Timestamp| (SignedDuration::ZERO..REVOCATIONS_CACHED).contains(&now.duration_since(read_at));
        if let Some((_, cached)) = cached.filter(|(read_at, _)| is_fresh(*read_at)) {
            return Ok(cached);
        }
        let address = format!("{}/pki/crl.json", self.base);
        let text = page(&self.web, &address, REVOCATIONS_PAGE_BYTES_MAX).await?.unwrap_or_default();
        let list: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let pem = list["crl_pem"].as_str().unwrap_or_default();
        let read = Revocations::from_pem(pem, self.chain().await?.issuer(), now).map(Arc::new);
        let read = read.ok_or_else(|| {
            Failure::rule(Rule::MeshRevocations, "the revocation list is not the issuer's, or not currently valid")
        })?;
        *lock(&self.cache.revocations) = Some((now, read.clone()));
        Ok(read)
    }

    pub(super) async fn page(&self, path: &str) -> Result<Option<String>, Failure> {
        page(&self.web, &format!("{}{path}", self.base), PAGE_BYTES_MAX).await
    }
}

/// Locks a cache. No code panics in the middle of a change while it holds the lock.
fn lock<T>(cache: &Mutex<T>) -> MutexGuard<'_, T> {
    cache.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fetches the root certificate of a server.
pub(super) async fn fetch_root(web: &reqwest::Client, base: &str) -> Result<Option<String>, Failure> {
    page(web, &format!("{base}/pki/root.crt"), PAGE_BYTES_MAX).await
}

/// The text of a page. `None` if there is no such page.
async fn page(web: &reqwest::Client, address: &str, bytes_max: usize) -> Result<Option<String>, Failure> {
    let request = Request::get(address).body(bytes::Bytes::new());
    let request =
        request.map_err(|_| Failure::invalid(Rule::Address, format!("{address:?} is not a valid address")))?;
    let read = async {
        let (head, body) = transport::send(web, request).await?.into_parts();
        match head.status {
            StatusCode::OK => response::read(body, bytes_max).await.map(Some),
            StatusCode::NOT_FOUND => Ok(None),
            status => Err(Failure::rule(Rule::MeshPage, format!("{address}: {status}"))),
        }
    };
    let read =
        timeout(PAGE_MAX, read).await.unwrap_or_else(|_| Err(failures::timed_out(PAGE_MAX.as_millis() as u64)))?;
    let text = read.map(|bytes| String::from_utf8(bytes.into())).transpose();
    text.map_err(|_| Failure::rule(Rule::MeshPage, format!("{address}: not text")))
}

/// Whether it has the form of a fingerprint: `sha256:` and 64 hexadecimal digits.
fn is_fingerprint(named: &str) -> bool {
    let digits = named.strip_prefix("sha256:").unwrap_or_default().as_bytes();
    digits.len() == 64 && digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// The failure for a certificate that is not trusted, or not yet valid.
pub(super) fn fault_failure(fault: &CertificateFault) -> Failure {
    match fault.kind {
        // An issuer does not date certificates ahead, so our clock is behind.
        FaultKind::NotYetValid => Failure::rule(Rule::MeshClock, format!("{fault}; is this machine's clock right?")),
        _ => untrusted(&fault.to_string()),
    }
}

/// The failure for a peer that is not trusted. There is no communication with it.
pub(super) fn untrusted(why: &str) -> Failure {
    Failure::rule(Rule::MeshNotBelieved, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_has_one_written_form() {
        let digits = "0a".repeat(32);
        assert!(is_fingerprint(&format!("sha256:{digits}")));
        for named in ["", &digits, "sha256:", &format!("sha256:{digits}&x=1"), &format!("sha256:{}", "0A".repeat(32))] {
            assert!(!is_fingerprint(named), "{named:?}");
        }
    }
}
