//! A whole domain made from fixed numbers: what the certificates and envelopes of the cases come from.

use std::sync::LazyLock;

use jiff::{SignedDuration, Timestamp};
use ostler_crypto::{
    certificates::{Authority, Certificate, CertificateKind, Chain, Serial},
    crl::{self, Reason, Revocation},
    envelope::{self, Envelope, EnvelopeIdentity},
    keys::{Curve, PrivateKey},
    ocsp::{self, OcspStatus},
};

use crate::Dice;

pub(crate) const FROM: &str = "alice.probe.test";
pub(crate) const TO: &str = "bobby.probe.test";
pub(crate) const MESSAGE_ID: &str = "m-1";
pub(crate) const TEXT: &[u8] = br#"{"type":"text","text":"hello"}"#;

pub(crate) struct Domain {
    pub chain: Chain,
    pub alice: EnvelopeIdentity,
    pub bobby: EnvelopeIdentity,
    pub prekey: PrivateKey,
    /// With a prekey, and without.
    pub envelopes: [Envelope; 2],
    pub list: Vec<u8>,
    pub status: Vec<u8>,
    pub authorities: Vec<Certificate>,
}

pub(crate) static DOMAIN: LazyLock<Domain> = LazyLock::new(Domain::new);

pub(crate) fn now() -> Timestamp {
    Timestamp::from_second(1_794_700_000).expect("a time")
}

impl Domain {
    fn new() -> Self {
        let mut dice = Dice::new(0);
        let fill = &mut |bytes: &mut [u8]| dice.fill(bytes);
        let root = Authority::root("Probe Root", PrivateKey::generate(Curve::P384, fill), &Serial::random(fill), now());
        let mut below = |above: &Authority, kind, name: &str| {
            let key = PrivateKey::generate(Curve::P384, fill);
            let made = above.issue(kind, name, &key.public_key(), &Serial::random(fill), now());
            Authority::new(kind, key, made.expect("an authority")).expect("its own key")
        };
        let registry = below(&root, CertificateKind::Registry, "Probe Registry");
        let issuer = below(&registry, CertificateKind::Issuer, "probe.test");
        let mut identity = |name: &str| {
            let key = PrivateKey::generate(Curve::P256, fill);
            let made = issuer.issue(CertificateKind::Identity, name, &key.public_key(), &Serial::random(fill), now());
            EnvelopeIdentity::new(key, made.expect("an identity")).expect("its own key")
        };
        let (alice, bobby) = (identity(FROM), identity(TO));
        let prekey = PrivateKey::generate(Curve::P256, fill);
        let authorities: Vec<_> = [&issuer, &registry, &root].map(|one| one.certificate().clone()).into();
        let chain = Chain::verify(authorities.clone(), &[root.certificate().clone()], now()).expect("our own chain");
        let peer = chain.verify_identity(bobby.certificate().clone(), TO, now()).expect("our own identity");
        let public = prekey.public_key();
        let envelopes = [Some(("k-1", &public)), None].map(|prekey| {
            let address = (TO, MESSAGE_ID, now().as_millisecond());
            envelope::seal(&alice, &peer, prekey, address, TEXT, fill).expect("a key for sealing")
        });
        let later = now().checked_add(SignedDuration::from_hours(1)).expect("a time");
        let revocation = Revocation { at: now(), reason: Reason::KeyCompromise };
        let list = crl::make(&issuer, 1, [(&bobby.certificate().serial(), revocation)], now(), later);
        let serial = alice.certificate().serial();
        let status = ocsp::for_mesh_client(&issuer, &serial, OcspStatus::Good, now(), later);
        Self { chain, alice, bobby, prekey, envelopes, list, status, authorities }
    }
}
