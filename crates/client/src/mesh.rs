//! The mesh from an agent's side: registers a name, logs in, holds a session with the gateway, and seals and opens messages
//! from end to end. Whom it believes is decided by the root that its caller pins; where keys are kept is its caller's affair.

mod member;
mod sealing;
mod session;

use http::StatusCode;
use jiff::Timestamp;
use ostler_crypto::{
    certificates::{Certificate, Chain, Peer},
    crl::Revocations,
    envelope::Identity,
    keys::PrivateKey,
    proofs,
};
use ostler_protocol::{
    Failure, FailureKind,
    mesh::{
        Aid,
        auth::{CreateAidParams, CreateAidResult, Login1Params, Login1Result, Login2Params, Login2Result},
        connections::{Client as ClientPart, ConnectParams, ConnectResult, DeliveryMode, Device, Token, Versions},
    },
};
use secrecy::{ExposeSecret, SecretString};
use serde::{Serialize, de::DeserializeOwned};

pub use member::Member;
pub use sealing::{Opened, OwnPrekey, Sealer};
pub use session::{Heard, Session};

use crate::{answer, web_client};

/// Longer answers are none of a gateway's.
const PAGE_BYTES_MAX: usize = 1024 * 1024;

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
}

/// What a login gives.
pub struct Tokens {
    pub access: SecretString,
    pub refresh: SecretString,
    /// The next certificate, when the present one is past half its life.
    pub new_certificate: Option<Certificate>,
}

impl Gateway {
    /// The gateway of the server at `base_url`, believed if it comes from this root (PEM).
    pub fn new(base_url: &str, root: &str, ambient: Ambient) -> Result<Self, Failure> {
        let root = Certificate::from_pem(root).ok_or_else(|| not_believed("the root certificate cannot be read"))?;
        let base = base_url.trim_end_matches('/').to_owned();
        Ok(Self { web: web_client(&base)?, base, root, ambient })
    }

    /// The root certificate that a server shows. Believing it is for whoever knows that this is the server.
    pub async fn shown_root(base_url: &str) -> Result<String, Failure> {
        let base = base_url.trim_end_matches('/');
        page(&web_client(base)?, &format!("{base}/pki/root.crt"))
            .await?
            .ok_or_else(|| Failure::not_found("root certificate"))
    }

    pub fn ambient(&self) -> Ambient {
        self.ambient
    }

    /// The authorities of the domain, checked up to the root.
    pub async fn chain(&self) -> Result<Chain, Failure> {
        let text = self.page("/pki/chain").await?.ok_or_else(|| not_believed("the gateway shows no authorities"))?;
        let authorities = Certificate::list_from_pem(&text).ok_or_else(|| not_believed("the chain cannot be read"))?;
        Chain::verify(authorities, std::slice::from_ref(&self.root), self.ambient.now())
            .map_err(|fault| not_believed(&fault.to_string()))
    }

    /// Somebody's certificate, checked up to the root and against what was revoked. `None`: nobody has this name.
    pub async fn peer(&self, chain: &Chain, aid: &Aid, fingerprint: Option<&str>) -> Result<Option<Peer>, Failure> {
        let query = fingerprint.map_or_else(String::new, |one| format!("?cert_fingerprint={one}"));
        let Some(text) = self.page(&format!("/pki/cert/{aid}{query}")).await? else { return Ok(None) };
        let certificate = Certificate::from_pem(&text).ok_or_else(|| not_believed("the certificate cannot be read"))?;
        if fingerprint.is_some_and(|one| one != certificate.fingerprint()) {
            return Err(not_believed("the gateway gave another certificate than the one asked for"));
        }
        let serial = certificate.serial();
        let peer = chain.verify_agent(certificate, aid.as_str(), self.ambient.now());
        let peer = peer.map_err(|fault| not_believed(&fault.to_string()))?;
        if self.revocations(chain).await?.revoked_at(&serial).is_some() {
            return Err(not_believed(&format!("the certificate of {aid} was revoked")));
        }
        Ok(Some(peer))
    }

    async fn revocations(&self, chain: &Chain) -> Result<Revocations, Failure> {
        let text = self.page("/pki/crl.json").await?.unwrap_or_default();
        let list: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let pem = list["crl_pem"].as_str().unwrap_or_default();
        Revocations::from_pem(pem, chain.issuer(), self.ambient.now())
            .ok_or_else(|| not_believed("the list of revocations is not the issuer's, or is out of date"))
    }

    /// Registers a name for a key. Again with the same key, it gives the same name.
    pub async fn register(&self, aid: &Aid, key: &PrivateKey, invite: Option<String>) -> Result<Identity, Failure> {
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
            Err(failure) => return Err(failure),
        };
        let certificate = Certificate::from_pem(&cert).ok_or_else(|| not_believed("the certificate cannot be read"))?;
        let chain = self.chain().await?;
        let believed = chain.verify_agent(certificate.clone(), aid.as_str(), self.ambient.now());
        believed.map_err(|fault| not_believed(&fault.to_string()))?;
        Identity::new(key.clone(), certificate).ok_or_else(|| {
            Failure::rule(FailureKind::StateConflict, "aid-taken", format!("{aid} already exists and is another's"))
        })
    }

    /// Logs in: the auth service proves itself first.
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
        chain.verify_service(&auth, &service, now).map_err(|fault| not_believed(&fault.to_string()))?;
        if !auth.public_key().verifies_base64(client_nonce.as_bytes(), &begun.client_nonce_signature) {
            return Err(not_believed("the auth service did not sign our nonce"));
        }
        let client_time = format!("{:.3}", now.as_millisecond() as f64 / 1_000.0);
        let signature = identity.key().sign_base64(&proofs::login(&begun.nonce, &client_time));
        let Login1Result { request_id, nonce, .. } = begun;
        let params = Login2Params { aid, request_id, nonce, client_time, signature };
        let ended: Login2Result = self.fresh("auth.aid_login2", &params).await?;
        Ok(Tokens {
            access: ended.access_token.into(),
            refresh: ended.refresh_token.into(),
            new_certificate: ended.new_cert.as_deref().and_then(Certificate::from_pem),
        })
    }

    /// A session, as one of the agent's devices.
    pub async fn connect(
        &self,
        access: &SecretString,
        device_id: &str,
        delivery_mode: DeliveryMode,
    ) -> Result<Session, Failure> {
        let mut session = self.open().await?;
        let params = ConnectParams {
            nonce: session.nonce().to_owned(),
            auth: Token { method: "kite_token".into(), token: access.expose_secret().to_owned() },
            protocol: Versions::default(),
            device: Device { id: device_id.to_owned() },
            client: ClientPart::default(),
            delivery_mode,
        };
        let connected: ConnectResult = session.call("auth.connect", &params).await?;
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

    async fn page(&self, path: &str) -> Result<Option<String>, Failure> {
        page(&self.web, &format!("{}{path}", self.base)).await
    }
}

/// A page's text. `None`: there is none.
async fn page(web: &reqwest::Client, address: &str) -> Result<Option<String>, Failure> {
    let answer = web.get(address).send().await.map_err(|error| answer::unreachable(&error))?;
    let status = answer.status();
    let body = answer.text().await.map_err(|error| answer::unreachable(&error))?;
    match status {
        StatusCode::OK if body.len() <= PAGE_BYTES_MAX => Ok(Some(body)),
        StatusCode::NOT_FOUND => Ok(None),
        _ => Err(Failure::rule(FailureKind::InfraFailed, "mesh-page", format!("{address}: {status}"))),
    }
}

/// Whoever is not believed is not talked to.
fn not_believed(why: &str) -> Failure {
    Failure::rule(FailureKind::Forbidden, "mesh-not-believed", why)
}
