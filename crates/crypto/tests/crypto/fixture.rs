//! Test data: a whole PKI made from fixed randomness, and the test vectors.

use std::sync::LazyLock;

use jiff::Timestamp;
use ostler_crypto::{
    certificates::{Authority, Certificate, CertificateKind, Chain, Peer, Serial},
    envelope::EnvelopeIdentity,
    keys::{Curve, PrivateKey},
    sha256,
};
use serde_json::Value;

pub(crate) const DOMAIN: &str = "probe.test";

/// Randomness that is the same in every run: digests of a counter.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn fill(&mut self, buffer: &mut [u8]) {
        for part in buffer.chunks_mut(32) {
            self.0 += 1;
            part.copy_from_slice(&sha256(&self.0.to_le_bytes())[..part.len()]);
        }
    }
}

pub(crate) fn now() -> Timestamp {
    "2026-11-15T12:00:00Z".parse().unwrap()
}

/// A domain with its authorities.
pub(crate) struct Domain {
    now: Timestamp,
    pub random: Random,
    pub root: Authority,
    pub registry: Authority,
    pub issuer: Authority,
    pub auth: Certificate,
}

impl Domain {
    pub(crate) fn new(seed: u64) -> Self {
        Self::at(seed, now())
    }

    pub(crate) fn at(seed: u64, now: Timestamp) -> Self {
        let mut random = Random(seed << 32);
        let mut serial = || Serial::random(&mut |bytes| random.fill(bytes));
        let (first, second, third, fourth) = (serial(), serial(), serial(), serial());
        let mut key = |curve| PrivateKey::generate(curve, &mut |bytes| random.fill(bytes));
        let root = Authority::root("Probe Root", key(Curve::P384), &first, now);
        let below = |above: &Authority, kind, name: &str, key: PrivateKey, serial: &Serial| {
            let certificate = above.issue(kind, name, &key.public_key(), serial, now).unwrap();
            Authority::new(kind, key, certificate).unwrap()
        };
        let registry = below(&root, CertificateKind::Registry, "Probe Registry", key(Curve::P384), &second);
        let issuer = below(&registry, CertificateKind::Issuer, DOMAIN, key(Curve::P384), &third);
        let auth = issuer
            .issue(CertificateKind::Service, "auth.probe.test", &key(Curve::P384).public_key(), &fourth, now)
            .unwrap();
        Self { now, random, root, registry, issuer, auth }
    }

    pub(crate) fn authorities(&self) -> Vec<Certificate> {
        [&self.issuer, &self.registry, &self.root].map(|authority| authority.certificate().clone()).to_vec()
    }

    pub(crate) fn chain(&self) -> Chain {
        Chain::verify(self.authorities(), &[self.root.certificate().clone()], now()).unwrap()
    }

    pub(crate) fn key(&mut self, curve: Curve) -> PrivateKey {
        PrivateKey::generate(curve, &mut |bytes| self.random.fill(bytes))
    }

    pub(crate) fn serial(&mut self) -> Serial {
        Serial::random(&mut |bytes| self.random.fill(bytes))
    }

    pub(crate) fn identity(&mut self, name: &str) -> EnvelopeIdentity {
        let (key, serial) = (self.key(Curve::P256), self.serial());
        let certificate =
            self.issuer.issue(CertificateKind::Identity, name, &key.public_key(), &serial, self.now).unwrap();
        EnvelopeIdentity::new(key, certificate).unwrap()
    }
}

pub(crate) fn peer(identity: &EnvelopeIdentity) -> Peer {
    Peer::pinned(identity.certificate().clone())
}

pub(crate) static VECTORS: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("vectors.json")).unwrap());

pub(crate) fn known(pointer: &str) -> &'static str {
    VECTORS.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("{pointer} is in the known answers"))
}

pub(crate) fn scalar(pointer: &str) -> PrivateKey {
    let hex = known(pointer);
    let bytes: Vec<u8> = (0..64).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
    PrivateKey::from_scalar(Curve::P256, &bytes).unwrap()
}

pub(crate) fn known_identity(name: &str) -> EnvelopeIdentity {
    let certificate = Certificate::from_pem(known(&format!("/identities/{name}/cert_pem"))).unwrap();
    assert_eq!(certificate.fingerprint(), known(&format!("/identities/{name}/cert_fingerprint")));
    EnvelopeIdentity::new(scalar(&format!("/identities/{name}/private_scalar_hex")), certificate).unwrap()
}
