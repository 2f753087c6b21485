//! An issuer outside: it has keys of every algorithm, signs whatever a test wants, and serves its key set over HTTP.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL};
use ostler_server::clock::fill;
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair},
};
use serde_json::{Value, json};

/// Made for these tests and public: ring cannot make one.
const RSA: &[u8] = include_bytes!("rsa-2048.pk8");

pub(crate) enum Key {
    Rsa(RsaKeyPair),
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl Key {
    pub(crate) fn rsa() -> Self {
        Self::Rsa(RsaKeyPair::from_pkcs8(RSA).unwrap())
    }

    pub(crate) fn p256() -> Self {
        let (random, kind) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let made = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
        Self::P256(EcdsaKeyPair::from_pkcs8(kind, made.as_ref(), &random).unwrap())
    }

    pub(crate) fn ed25519() -> Self {
        let mut seed = [0; 32];
        fill(&mut seed);
        Self::Ed25519(Ed25519KeyPair::from_seed_unchecked(&seed).unwrap())
    }

    pub(crate) fn algorithm(&self) -> &'static str {
        match self {
            Self::Rsa(_) => "RS256",
            Self::P256(_) => "ES256",
            Self::Ed25519(_) => "EdDSA",
        }
    }

    pub(crate) fn jwk(&self, kid: &str) -> Value {
        let text = |bytes: &[u8]| BASE64URL.encode(bytes);
        match self {
            Self::Rsa(pair) => {
                let ring::rsa::PublicKeyComponents { n, e } = pair.public().into();
                let (n, e): (Vec<u8>, Vec<u8>) = (n, e);
                json!({"kty": "RSA", "kid": kid, "n": text(&n), "e": text(&e)})
            }
            Self::P256(pair) => {
                let point = pair.public_key().as_ref();
                json!({"kty": "EC", "crv": "P-256", "kid": kid, "x": text(&point[1..33]), "y": text(&point[33..])})
            }
            Self::Ed25519(pair) => {
                json!({"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": text(pair.public_key().as_ref())})
            }
        }
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        match self {
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature).unwrap();
                signature
            }
            Self::P256(pair) => pair.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec(),
            Self::Ed25519(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }

    /// A token with this header, signed by this key whatever the header names.
    pub(crate) fn token(&self, header: &Value, claims: &Value) -> String {
        signed_by(header, claims, |message| self.sign(message))
    }
}

pub(crate) fn signed_by(header: &Value, claims: &Value, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
    let body = format!("{}.{}", BASE64URL.encode(header.to_string()), BASE64URL.encode(claims.to_string()));
    let signature = BASE64URL.encode(sign(body.as_bytes()));
    format!("{body}.{signature}")
}

/// Serves a key set that the test can change, and counts who asks.
pub(crate) struct Issuer {
    address: SocketAddr,
    answer: Arc<Mutex<(StatusCode, String)>>,
    asked: Arc<AtomicUsize>,
}

type Shared = (Arc<Mutex<(StatusCode, String)>>, Arc<AtomicUsize>);

impl Issuer {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared: Shared = (Arc::new(Mutex::new((StatusCode::OK, String::new()))), Arc::default());
        let (answer, asked) = shared.clone();
        let serve = async |State((answer, asked)): State<Shared>| {
            asked.fetch_add(1, Ordering::SeqCst);
            answer.lock().unwrap().clone()
        };
        let router = Router::new().route("/jwks.json", get(serve)).with_state(shared);
        tokio::spawn(async move { axum::serve(listener, router).await });
        let issuer = Self { address, answer, asked };
        issuer.serve(&[]);
        issuer
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/jwks.json", self.address)
    }

    pub(crate) fn serve(&self, keys: &[Value]) {
        self.answer(StatusCode::OK, json!({"keys": keys}).to_string());
    }

    pub(crate) fn answer(&self, status: StatusCode, body: String) {
        *self.answer.lock().unwrap() = (status, body);
    }

    /// How often the set was asked for.
    pub(crate) fn requests(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}
