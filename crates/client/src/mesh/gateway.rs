//! The mesh from an agent's side: registers a name, logs in, holds a session with the gateway, and seals and opens messages
//! from end to end. Whom it believes is decided by the root that its caller pins; where keys are kept is its caller's affair.

mod member;
mod pages;
mod sealing;
mod session;

use std::sync::Arc;

use jiff::Timestamp;
use ostler_crypto::{
    certificates::{Certificate, Chain},
    envelope::Identity,
    keys::PrivateKey,
    proofs,
};
use ostler_protocol::{
    Failure, FailureKind,
    mesh::{
        Aid,
        auth::{CreateAidParams, CreateAidResult, Login1Params, Login1Result, Login2Params, Login2Result},
        connections::{
            Client as ClientPart, ConnectParams, ConnectResult, DeliveryMode, Device, Place, Token, Versions,
        },
    },
};
use secrecy::SecretString;
use serde::{Serialize, de::DeserializeOwned};

pub use member::Member;
pub use pages::Standing;
pub use sealing::{Came, Keys, Opened, OwnPrekey, Sealer, Shut};
pub use session::{Heard, Session};

use crate::{is_transient, web_client};

const RULE_PLACE_TAKEN: &str = "mesh-place-taken";

/// Time and randomness, as its caller has them.
#[derive(Clone, Copy)]
pub struct Ambient {
    pub now: fn() -> Timestamp,
    pub fill: fn(&mut [u8]),
}

impl Ambient {
    fn now(&self) -> Timestamp {
        (self.now)()
    }

    /// An id that nobody else draws.
    pub fn id(&self) -> String {
        let mut bytes = [0; 16];
        (self.fill)(&mut bytes);
        ostler_protocol::json::hex(&bytes)
    }
}

/// A gateway of the mesh, and the root that its certificates must come from.
#[derive(Clone)]
pub struct Gateway {
    web: reqwest::Client,
    base: String,
    root: Certificate,
    ambient: Ambient,
    known: Arc<pages::Known>,
}

/// What a login gives.
pub struct Tokens {
    pub access: SecretString,
    pub refresh: SecretString,
    /// The next certificate, when the present one is past half its life.
    pub new_certificate: Option<Certificate>,
}

/// Why a name could not be registered.
#[derive(Debug)]
pub enum Unregistered {
    /// It is not the key's, and nothing was done.
    Refused(Failure),
    /// It may be registered for the key all the same: to register it again is to find out.
    Unsettled(Failure),
}

impl From<Failure> for Unregistered {
    fn from(failure: Failure) -> Self {
        Self::Unsettled(failure)
    }
}

impl Gateway {
    /// The gateway of the server at `base_url`, believed if it comes from this root (PEM).
    pub fn new(base_url: &str, root: &str, ambient: Ambient) -> Result<Self, Failure> {
        let root = Certificate::from_pem(root).ok_or_else(|| not_believed("the root certificate cannot be read"))?;
        let base = base_url.trim_end_matches('/').to_owned();
        Ok(Self { web: web_client(&base)?, base, root, ambient, known: Arc::default() })
    }

    /// The root certificate that a server shows. Believing it is for whoever knows that this is the server.
    pub async fn shown_root(base_url: &str) -> Result<String, Failure> {
        let base = base_url.trim_end_matches('/');
        pages::root(&web_client(base)?, base).await?.ok_or_else(|| Failure::not_found("root certificate"))
    }

    pub fn ambient(&self) -> Ambient {
        self.ambient
    }

    /// Registers a name for a key. Again with the same key, it gives the same name.
    pub async fn register(
        &self,
        aid: &Aid,
        key: &PrivateKey,
        invite: Option<String>,
    ) -> Result<Identity, Unregistered> {
        let params = CreateAidParams {
            aid: aid.clone(),
            public_key: key.public_key().to_base64(),
            curve: key.curve().name().into(),
            invite,
        };
        let cert = match self.fresh::<CreateAidResult>("auth.create_aid", &params).await {
            Ok(result) => result.cert,
            Err(failure) if failure.message.contains("already exists") => {
                let path = format!("/pki/cert/{aid}");
                self.page(&path).await?.ok_or(failure)?
            }
            Err(failure) if is_transient(&failure) => return Err(failure.into()),
            Err(failure) => return Err(Unregistered::Refused(failure)),
        };
        let certificate = Certificate::from_pem(&cert).ok_or_else(|| not_believed("the certificate cannot be read"))?;
        let identity = Identity::new(key.clone(), certificate.clone()).ok_or_else(|| {
            let message = format!("{aid} already exists and is another's");
            Unregistered::Refused(Failure::rule(FailureKind::StateConflict, "aid-taken", message))
        })?;
        let believed = self.chain().await?.verify_agent(certificate, aid.as_str(), self.ambient.now());
        believed.map_err(|fault| pages::doubtful(&fault))?;
        Ok(identity)
    }

    /// Logs in: the auth service proves itself first, by a certificate that was not revoked.
    pub async fn login(&self, identity: &Identity) -> Result<Tokens, Failure> {
        let chain = self.chain().await?;
        let aid: Aid = identity.name().parse().map_err(Failure::internal)?;
        let mut nonce = [0; 12];
        (self.ambient.fill)(&mut nonce);
        let client_nonce = proofs::nonce(&nonce);
        let cert = identity.certificate().to_pem();
        let params = Login1Params { aid: aid.clone(), cert, client_nonce: client_nonce.clone() };
        let begun: Login1Result = self.fresh("auth.aid_login1", &params).await?;
        let auth =
            Certificate::from_pem(&begun.auth_cert).ok_or_else(|| not_believed("its certificate cannot be read"))?;
        let service = format!("auth.{}", aid.domain());
        let now = self.ambient.now();
        chain.verify_service(&auth, &service, now).map_err(|fault| pages::doubtful(&fault))?;
        if self.is_revoked(&auth.serial()).await? {
            return Err(not_believed(&format!("the certificate of {service} was revoked")));
        }
        if !auth.public_key().verifies_base64(client_nonce.as_bytes(), &begun.client_nonce_signature) {
            return Err(not_believed("the auth service did not sign our nonce"));
        }
        let client_time = format!("{:.3}", now.as_millisecond() as f64 / 1_000.0);
        let signature = identity.key().sign_base64(&proofs::login(&begun.nonce, &client_time));
        let Login1Result { request_id, nonce, .. } = begun;
        let params = Login2Params { aid, request_id, nonce, client_time, signature };
        let ended: Login2Result = self.fresh("auth.aid_login2", &params).await?;
        let new_certificate = match ended.new_cert.as_deref().and_then(Certificate::from_pem) {
            Some(new) if self.succeeds(&new, identity).await? => Some(new),
            _ => None,
        };
        Ok(Tokens { access: ended.access_token, refresh: ended.refresh_token, new_certificate })
    }

    /// Whether a certificate is the next of an agent's: of its name and key, in force, and not revoked. Any other that a
    /// login gives is passed over.
    async fn succeeds(&self, new: &Certificate, identity: &Identity) -> Result<bool, Failure> {
        let fits = is_successor(self.chain().await?, new, identity.certificate(), self.ambient.now());
        Ok(fits && !self.is_revoked(&new.serial()).await?)
    }

    /// A session, in one of the agent's places.
    pub async fn connect(
        &self,
        access: &SecretString,
        place: &Place,
        delivery_mode: DeliveryMode,
    ) -> Result<Session, Failure> {
        let mut session = self.open().await?;
        let params = ConnectParams {
            nonce: session.nonce().to_owned(),
            auth: Token { method: "kite_token".into(), token: access.clone() },
            protocol: Versions::default(),
            device: Device { id: place.device_id.clone() },
            client: ClientPart { slot_id: place.slot_id.clone() },
            delivery_mode,
        };
        let connected: ConnectResult = session.call("auth.connect", &params).await.map_err(place_taken)?;
        match connected.status.as_str() {
            "ok" => Ok(session),
            other => Err(Failure::internal(format!("auth.connect was answered with {other:?}"))),
        }
    }

    /// One call on a connection of its own, before there is a session.
    async fn fresh<T: DeserializeOwned>(&self, method: &str, params: &impl Serialize) -> Result<T, Failure> {
        self.open().await?.call(method, params).await
    }

    async fn open(&self) -> Result<Session, Failure> {
        Session::open(&self.web, &self.base, self.ambient).await
    }
}

/// Whether somebody else is connected from this place.
pub fn is_place_taken(failure: &Failure) -> bool {
    failure.rule_name() == Some(RULE_PLACE_TAKEN)
}

fn place_taken(failure: Failure) -> Failure {
    match failure.message.as_str() {
        "device_singleton_conflict" | "slot_conflict" => {
            let message = "this agent is connected from this place already";
            Failure::rule(FailureKind::StateConflict, RULE_PLACE_TAKEN, message)
        }
        _ => failure,
    }
}

fn is_successor(chain: &Chain, new: &Certificate, old: &Certificate, now: Timestamp) -> bool {
    chain.verify_agent(new.clone(), old.name(), now).is_ok() && new.public_key() == old.public_key()
}

/// Whoever is not believed is not talked to.
fn not_believed(why: &str) -> Failure {
    Failure::rule(FailureKind::Forbidden, "mesh-not-believed", why)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use ostler_crypto::{
        certificates::{Authority, Kind, Serial},
        keys::Curve,
    };

    use super::*;

    /// Numbers that nobody has drawn: every key and serial is another.
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
            let registry = below(&root, Kind::Registry, "Registry");
            let issuer = below(&registry, Kind::Issuer, "probe.test");
            let all = [&issuer, &registry, &root].map(|authority| authority.certificate().clone());
            let chain = Chain::verify(all.to_vec(), std::slice::from_ref(root.certificate()), now).unwrap();
            (issuer, chain)
        }
    }

    #[test]
    fn the_next_certificate_is_of_the_same_name_key_and_issuer_and_in_force() {
        let now: Timestamp = "2026-06-01T00:00:00Z".parse().unwrap();
        let days = |days: i64| SignedDuration::from_hours(24 * days);
        let mut drawn = Drawn(0);
        let (issuer, chain) = drawn.authorities(now - days(800));
        let (stranger, _) = drawn.authorities(now - days(800));
        let (key, other) = (drawn.key(Curve::P256).public_key(), drawn.key(Curve::P256).public_key());
        let mut made =
            |by: &Authority, name: &str, key, at| by.issue(Kind::Agent, name, key, &drawn.serial(), at).unwrap();
        let (alice, bobby) = ("alice.probe.test", "bobby.probe.test");
        let old = made(&issuer, alice, &key, now - days(200));
        for (new, fits, why) in [
            (made(&issuer, alice, &key, now), true, "the next"),
            (made(&issuer, bobby, &key, now), false, "another's name"),
            (made(&issuer, alice, &other, now), false, "another key"),
            (made(&stranger, alice, &key, now), false, "another issuer"),
            (made(&issuer, alice, &key, now - days(400)), false, "over"),
            (made(&issuer, alice, &key, now + days(1)), false, "not yet"),
        ] {
            assert_eq!(is_successor(&chain, &new, &old, now), fits, "{why}");
        }
    }
}
