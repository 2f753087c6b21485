//! A gateway of the mesh: registers names, logs in, and opens sessions. Trust follows from the root certificate that the
//! caller pins.

use std::sync::Arc;

use jiff::Timestamp;
use ostler_crypto::{
    certificates::{Certificate, Chain},
    envelope::EnvelopeIdentity,
    keys::PrivateKey,
    proofs,
};
use ostler_protocol::{
    Failure, Rule,
    mesh::{
        Aid,
        auth::{CreateAidParams, CreateAidResult, Login1Params, Login1Result, Login2Params, Login2Result},
        connections::{
            Client as ClientPart, ConnectParams, ConnectResult, DeliveryMode, Device, DeviceSlot, Token, Versions,
        },
    },
};
use secrecy::SecretString;
use serde::{Serialize, de::DeserializeOwned};

use super::{
    ambient::Ambient,
    pki::{GatewayCache, fault_failure, fetch_root, untrusted},
    session::MeshSession,
};
use crate::{
    failures::is_transient,
    transport::{web_client, web_socket_client},
};

/// A gateway of the mesh, and the root certificate that it is verified against.
#[derive(Clone)]
pub struct GatewayClient {
    pub(super) web: reqwest::Client,
    pub(super) base: String,
    pub(super) root: Certificate,
    pub(super) ambient: Ambient,
    pub(super) cache: Arc<GatewayCache>,
}

/// The result of a login.
pub struct LoginTokens {
    pub access: SecretString,
    pub refresh: SecretString,
    /// The next certificate, if the current one is past half its validity.
    pub new_certificate: Option<Certificate>,
}

/// Why a name could not be registered.
#[derive(Debug)]
pub enum RegisterError {
    /// The name belongs to another key, and nothing was changed.
    Refused(Failure),
    /// The name may have been registered. Register it again to find out.
    Unsettled(Failure),
}

impl From<Failure> for RegisterError {
    fn from(failure: Failure) -> Self {
        Self::Unsettled(failure)
    }
}

impl GatewayClient {
    /// The gateway of the server at `base_url`, trusted if its certificates come from this root (PEM).
    pub fn new(base_url: &str, root: &str, ambient: Ambient) -> Result<Self, Failure> {
        let root = Certificate::from_pem(root).ok_or_else(|| untrusted("the root certificate cannot be read"))?;
        let base = base_url.trim_end_matches('/').to_owned();
        Ok(Self { web: web_socket_client(&base)?, base, root, ambient, cache: Arc::default() })
    }

    /// Fetches the root certificate of a server. Whether to trust it is for the caller to decide.
    pub async fn fetch_root(base_url: &str) -> Result<String, Failure> {
        let base = base_url.trim_end_matches('/');
        fetch_root(&web_client(base)?, base).await?.ok_or_else(|| Failure::not_found("root certificate"))
    }

    pub fn ambient(&self) -> Ambient {
        self.ambient
    }

    /// Registers a name for a key. Idempotent with the same key.
    pub async fn register(
        &self,
        aid: &Aid,
        key: &PrivateKey,
        invite: Option<String>,
    ) -> Result<EnvelopeIdentity, RegisterError> {
        let params = CreateAidParams {
            aid: aid.clone(),
            public_key: key.public_key().to_base64(),
            curve: key.curve().name().into(),
            invite,
        };
        let cert = match self.call_once::<CreateAidResult>("auth.create_aid", &params).await {
            Ok(result) => result.cert,
            Err(failure) if failure.message.contains("already exists") => {
                let path = format!("/pki/cert/{aid}");
                self.page(&path).await?.ok_or(failure)?
            }
            Err(failure) if is_transient(&failure) => return Err(failure.into()),
            Err(failure) => return Err(RegisterError::Refused(failure)),
        };
        let certificate = Certificate::from_pem(&cert).ok_or_else(|| untrusted("the certificate cannot be read"))?;
        let identity = EnvelopeIdentity::new(key.clone(), certificate.clone()).ok_or_else(|| {
            let message = format!("{aid} is already registered for another key");
            RegisterError::Refused(Failure::rule(Rule::AidTaken, message))
        })?;
        let verified = self.chain().await?.verify_identity(certificate, aid.as_str(), self.ambient.now());
        verified.map_err(|fault| fault_failure(&fault))?;
        Ok(identity)
    }

    /// Logs in. The auth service first proves its identity by a certificate that is not revoked.
    pub async fn login(&self, identity: &EnvelopeIdentity) -> Result<LoginTokens, Failure> {
        let chain = self.chain().await?;
        let aid: Aid = identity.name().parse().map_err(Failure::internal)?;
        let mut nonce = [0; 12];
        (self.ambient.fill)(&mut nonce);
        let client_nonce = proofs::nonce(&nonce);
        let cert = identity.certificate().to_pem();
        let params = Login1Params { aid: aid.clone(), cert, client_nonce: client_nonce.clone() };
        let begun: Login1Result = self.call_once("auth.aid_login1", &params).await?;
        let auth =
            Certificate::from_pem(&begun.auth_cert).ok_or_else(|| untrusted("its certificate cannot be read"))?;
        let service = format!("auth.{}", aid.domain());
        let now = self.ambient.now();
        chain.verify_service(&auth, &service, now).map_err(|fault| fault_failure(&fault))?;
        if self.is_revoked(&auth.serial()).await? {
            return Err(untrusted(&format!("the certificate of {service} was revoked")));
        }
        if !auth.public_key().verifies_base64(client_nonce.as_bytes(), &begun.client_nonce_signature) {
            return Err(untrusted("the auth service did not sign our nonce"));
        }
        let client_time = format!("{:.3}", now.as_millisecond() as f64 / 1_000.0);
        let signature = identity.key().sign_base64(&proofs::login(&begun.nonce, &client_time));
        let Login1Result { request_id, nonce, .. } = begun;
        let params = Login2Params { aid, request_id, nonce, client_time, signature };
        let ended: Login2Result = self.call_once("auth.aid_login2", &params).await?;
        let new_certificate = match ended.new_cert.as_deref().and_then(Certificate::from_pem) {
            Some(new) if self.is_next_certificate(&new, identity).await? => Some(new),
            _ => None,
        };
        Ok(LoginTokens { access: ended.access_token, refresh: ended.refresh_token, new_certificate })
    }

    /// Whether a certificate is the identity's next one: of its name and key, valid, and not revoked. Any other that a login
    /// returns is ignored.
    async fn is_next_certificate(&self, new: &Certificate, identity: &EnvelopeIdentity) -> Result<bool, Failure> {
        let fits = is_successor(self.chain().await?, new, identity.certificate(), self.ambient.now());
        Ok(fits && !self.is_revoked(&new.serial()).await?)
    }

    /// Opens a session in one of the identity's device slots.
    pub async fn connect(
        &self,
        access: &SecretString,
        place: &DeviceSlot,
        delivery_mode: DeliveryMode,
    ) -> Result<MeshSession, Failure> {
        let mut session = self.open().await?;
        let params = ConnectParams {
            nonce: session.nonce().to_owned(),
            auth: Token { method: "kite_token".into(), token: access.clone() },
            protocol: Versions::default(),
            device: Device { id: place.device_id.clone() },
            client: ClientPart { slot_id: place.slot_id.clone() },
            delivery_mode,
        };
        let connected: ConnectResult = session.call("auth.connect", &params).await.map_err(slot_failure)?;
        match connected.status.as_str() {
            "ok" => Ok(session),
            other => Err(Failure::internal(format!("the reply to auth.connect has the status {other:?}"))),
        }
    }

    /// Makes one call on a separate connection, before there is a session.
    async fn call_once<T: DeserializeOwned>(&self, method: &str, params: &impl Serialize) -> Result<T, Failure> {
        self.open().await?.call(method, params).await
    }

    async fn open(&self) -> Result<MeshSession, Failure> {
        MeshSession::open(&self.web, &self.base, self.ambient).await
    }
}

/// Whether another session is connected from this device slot.
pub fn is_slot_in_use(failure: &Failure) -> bool {
    failure.broken_rule() == Some(Rule::MeshPlaceTaken)
}

fn slot_failure(failure: Failure) -> Failure {
    match failure.message.as_str() {
        "device_singleton_conflict" | "slot_conflict" => {
            let message = "this identity is already connected from this device slot";
            Failure::rule(Rule::MeshPlaceTaken, message)
        }
        _ => failure,
    }
}

fn is_successor(chain: &Chain, new: &Certificate, old: &Certificate, now: Timestamp) -> bool {
    chain.verify_identity(new.clone(), old.name(), now).is_ok() && new.public_key() == old.public_key()
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use ostler_crypto::{
        certificates::{Authority, CertificateKind, Serial},
        keys::Curve,
    };

    use super::*;

    /// Fixed numbers instead of random ones: every key and serial is different.
    struct Drawn(u8);

    impl Drawn {
        fn key(&mut self, curve: Curve) -> PrivateKey {
            self.0 += 1;
            PrivateKey::generate(curve, &mut |bytes| bytes.fill(self.0))
        }

        fn serial(&mut self) -> Serial {
            self.0 += 1;
            Serial::random(&mut |bytes| bytes.fill(self.0))
        }

        fn authorities(&mut self, now: Timestamp) -> (Authority, Chain) {
            let root = Authority::root("Root", self.key(Curve::P384), &self.serial(), now);
            let mut below = |above: &Authority, kind, name: &str| {
                let key = self.key(Curve::P384);
                let made = above.issue(kind, name, &key.public_key(), &self.serial(), now).unwrap();
                Authority::new(kind, key, made).unwrap()
            };
            let registry = below(&root, CertificateKind::Registry, "Registry");
            let issuer = below(&registry, CertificateKind::Issuer, "probe.test");
            let all = [&issuer, &registry, &root].map(|authority| authority.certificate().clone());
            let chain = Chain::verify(all.to_vec(), std::slice::from_ref(root.certificate()), now).unwrap();
            (issuer, chain)
        }
    }

    #[test]
    fn the_next_certificate_has_the_same_name_key_and_issuer_and_is_valid() {
        let now: Timestamp = "2026-06-01T00:00:00Z".parse().unwrap();
        let days = |days: i64| SignedDuration::from_hours(24 * days);
        let mut drawn = Drawn(0);
        let (issuer, chain) = drawn.authorities(now - days(800));
        let (other_issuer, _) = drawn.authorities(now - days(800));
        let (key, other) = (drawn.key(Curve::P256).public_key(), drawn.key(Curve::P256).public_key());
        let mut made = |by: &Authority, name: &str, key, at| {
            by.issue(CertificateKind::Identity, name, key, &drawn.serial(), at).unwrap()
        };
        let (alice, bobby) = ("alice.probe.test", "bobby.probe.test");
        let old = made(&issuer, alice, &key, now - days(200));
        for (new, fits, why) in [
            (made(&issuer, alice, &key, now), true, "the next"),
            (made(&issuer, bobby, &key, now), false, "another name"),
            (made(&issuer, alice, &other, now), false, "another key"),
            (made(&other_issuer, alice, &key, now), false, "another issuer"),
            (made(&issuer, alice, &key, now - days(400)), false, "expired"),
            (made(&issuer, alice, &key, now + days(1)), false, "not yet valid"),
        ] {
            assert_eq!(is_successor(&chain, &new, &old, now), fits, "{why}");
        }
    }
}
