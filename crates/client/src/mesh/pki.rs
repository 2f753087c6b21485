//! What a gateway shows of its domain (authorities, certificates, revocations), and whom that makes believable. What was
//! read is kept for a while: a certificate is named by its digest, and a revocation may be known a minute late.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Request, StatusCode};
use jiff::{SignedDuration, Timestamp};
use ostler_crypto::{
    certificates::{Certificate, Chain, Fault, FaultKind, Peer, Serial},
    crl::{LIST_BYTES_MAX, Revocations},
};
use ostler_protocol::{Failure, FailureKind, mesh::Aid};
use tokio::{sync::OnceCell, time::timeout};

use super::{Gateway, not_believed};
use crate::{answer, transport};

/// A gateway that takes longer for a page is given up.
const PAGE_MAX: Duration = Duration::from_secs(15);
/// Longer pages are none of a gateway's, …
const PAGE_BYTES_MAX: usize = 1024 * 1024;
/// … but for the list of revocations, which grows with its domain: base64 and line ends make it half as long again.
const REVOCATIONS_PAGE_BYTES_MAX: usize = LIST_BYTES_MAX / 2 * 3;
/// How long a list of revocations is believed before it is read again.
const REVOCATIONS_KEPT: SignedDuration = SignedDuration::from_secs(60);
const CERTIFICATES_KEPT_MAX: usize = 1_000;

/// What was read of a gateway.
#[derive(Default)]
pub(super) struct Known {
    chain: OnceCell<Chain>,
    revocations: Mutex<Option<(Timestamp, Arc<Revocations>)>>,
    /// By fingerprint.
    certificates: Mutex<HashMap<String, Certificate>>,
}

/// How somebody's certificate stands. That nobody could find out is a failure instead, and may be otherwise later.
pub enum Standing {
    Believed(Box<Peer>),
    NotBelieved {
        certificate: Box<Certificate>,
        why: String,
    },
    /// Nobody has this name, or the name no such certificate.
    Unknown,
}

impl Gateway {
    /// The authorities of the domain, checked up to the root.
    pub async fn chain(&self) -> Result<&Chain, Failure> {
        let read = async || {
            let text =
                self.page("/pki/chain").await?.ok_or_else(|| not_believed("the gateway shows no authorities"))?;
            let authorities =
                Certificate::list_from_pem(&text).ok_or_else(|| not_believed("the chain cannot be read"))?;
            Chain::verify(authorities, std::slice::from_ref(&self.root), self.ambient.now())
                .map_err(|fault| doubtful(&fault))
        };
        self.known.chain.get_or_try_init(read).await
    }

    /// How somebody's newest certificate stands, or the one with a fingerprint.
    pub async fn standing(&self, aid: &Aid, fingerprint: Option<&str>) -> Result<Standing, Failure> {
        let Some(certificate) = self.certificate(aid, fingerprint).await? else { return Ok(Standing::Unknown) };
        let not_believed = |why: String| Standing::NotBelieved { certificate: Box::new(certificate.clone()), why };
        match self.chain().await?.verify_agent(certificate.clone(), aid.as_str(), self.ambient.now()) {
            Err(fault) if fault.kind == FaultKind::NotYetValid => Err(doubtful(&fault)),
            Err(fault) => Ok(not_believed(fault.to_string())),
            Ok(_) if self.is_revoked(&certificate.serial()).await? => {
                Ok(not_believed(format!("the certificate of {aid} was revoked")))
            }
            Ok(peer) => Ok(Standing::Believed(Box::new(peer))),
        }
    }

    pub(super) async fn is_revoked(&self, serial: &Serial) -> Result<bool, Failure> {
        Ok(self.revocations().await?.revoked_at(serial).is_some())
    }

    async fn certificate(&self, aid: &Aid, fingerprint: Option<&str>) -> Result<Option<Certificate>, Failure> {
        // A sender chooses what it calls its certificate: nothing else may get into an address by that.
        if fingerprint.is_some_and(|named| !is_fingerprint(named)) {
            return Ok(None);
        }
        let known = |named| self.known.certificates.lock().expect("never poisoned").get(named).cloned();
        if let Some(known) = fingerprint.and_then(known) {
            return Ok(Some(known));
        }
        let query = fingerprint.map_or_else(String::new, |named| format!("?cert_fingerprint={named}"));
        let Some(text) = self.page(&format!("/pki/cert/{aid}{query}")).await? else { return Ok(None) };
        let certificate = Certificate::from_pem(&text);
        let certificate = certificate
            .ok_or_else(|| unknowable("mesh-gateway", "the gateway gave no certificate that can be read"))?;
        let digest = certificate.fingerprint();
        if fingerprint.is_some_and(|named| named != digest) {
            return Err(unknowable("mesh-gateway", "the gateway gave another certificate than the one asked for"));
        }
        let mut kept = self.known.certificates.lock().expect("never poisoned");
        if kept.len() >= CERTIFICATES_KEPT_MAX {
            kept.clear();
        }
        kept.insert(digest, certificate.clone());
        Ok(Some(certificate))
    }

    async fn revocations(&self) -> Result<Arc<Revocations>, Failure> {
        let now = self.ambient.now();
        let known = self.known.revocations.lock().expect("never poisoned").clone();
        let is_fresh =
            |read_at: Timestamp| (SignedDuration::ZERO..REVOCATIONS_KEPT).contains(&now.duration_since(read_at));
        if let Some((_, known)) = known.filter(|(read_at, _)| is_fresh(*read_at)) {
            return Ok(known);
        }
        let address = format!("{}/pki/crl.json", self.base);
        let text = page(&self.web, &address, REVOCATIONS_PAGE_BYTES_MAX).await?.unwrap_or_default();
        let list: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let pem = list["crl_pem"].as_str().unwrap_or_default();
        let read = Revocations::from_pem(pem, self.chain().await?.issuer(), now).map(Arc::new);
        let read = read.ok_or_else(|| {
            unknowable("mesh-revocations", "the list of revocations is not the issuer's, or not of this time")
        })?;
        *self.known.revocations.lock().expect("never poisoned") = Some((now, read.clone()));
        Ok(read)
    }

    pub(super) async fn page(&self, path: &str) -> Result<Option<String>, Failure> {
        page(&self.web, &format!("{}{path}", self.base), PAGE_BYTES_MAX).await
    }
}

/// The root certificate that a server shows.
pub(super) async fn root(web: &reqwest::Client, base: &str) -> Result<Option<String>, Failure> {
    page(web, &format!("{base}/pki/root.crt"), PAGE_BYTES_MAX).await
}

/// A page's text. `None`: there is none.
async fn page(web: &reqwest::Client, address: &str, bytes_max: usize) -> Result<Option<String>, Failure> {
    let request = Request::get(address).body(bytes::Bytes::new());
    let request = request.map_err(|_| Failure::invalid("address", format!("{address:?} is no address")))?;
    let read = async {
        let (head, body) = transport::send(web, request).await?.into_parts();
        match head.status {
            StatusCode::OK => answer::read(body, bytes_max).await.map(Some),
            StatusCode::NOT_FOUND => Ok(None),
            status => Err(unknowable("mesh-page", &format!("{address}: {status}"))),
        }
    };
    let read = timeout(PAGE_MAX, read).await.unwrap_or_else(|_| Err(answer::timed_out(PAGE_MAX.as_millis() as u64)))?;
    let text = read.map(|bytes| String::from_utf8(bytes.into())).transpose();
    text.map_err(|_| unknowable("mesh-page", &format!("{address}: no text")))
}

/// `sha256:` and 64 digits, as certificates are called.
fn is_fingerprint(named: &str) -> bool {
    let digits = named.strip_prefix("sha256:").unwrap_or_default().as_bytes();
    digits.len() == 64 && digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// Why a certificate is not believed, or not yet.
pub(super) fn doubtful(fault: &Fault) -> Failure {
    match fault.kind {
        // An issuer dates nothing ahead, so it is our clock that is behind.
        FaultKind::NotYetValid => unknowable("mesh-clock", &format!("{fault}; is this machine's clock right?")),
        _ => not_believed(&fault.to_string()),
    }
}

/// Whether somebody is to be believed could not be found out.
fn unknowable(rule: &'static str, why: &str) -> Failure {
    Failure::rule(FailureKind::InfraFailed, rule, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_has_one_way_to_be_written() {
        let digits = "0a".repeat(32);
        assert!(is_fingerprint(&format!("sha256:{digits}")));
        for named in ["", &digits, "sha256:", &format!("sha256:{digits}&x=1"), &format!("sha256:{}", "0A".repeat(32))] {
            assert!(!is_fingerprint(named), "{named:?}");
        }
    }
}
