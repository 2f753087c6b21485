use jiff::{SignedDuration, Timestamp};
use ostler_crypto::{
    certificates::{
        Authority, CLOCK_SKEW_SECONDS, Certificate, CertificateFault, CertificateKind, Chain, FaultKind, Serial,
    },
    crl::{self, Reason, Revocation, Revocations},
    keys::{Curve, PrivateKey, PublicKey},
};
use proptest::prelude::*;

use crate::fixture::{Domain, known, now};

const YEAR: SignedDuration = SignedDuration::from_hours(365 * 24);

fn kind<T: std::fmt::Debug>(result: Result<T, CertificateFault>) -> FaultKind {
    result.unwrap_err().kind
}

fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.checked_add(by).unwrap()
}

#[test]
fn a_domains_identities_and_services_are_trusted() {
    let mut domain = Domain::new(1);
    let alice = domain.identity("alice.probe.test");
    let chain = domain.chain();
    let peer = chain.verify_identity(alice.certificate().clone(), "alice.probe.test", now()).unwrap();
    assert_eq!(peer.certificate(), alice.certificate());
    chain.verify_service(&domain.auth, "auth.probe.test", now()).unwrap();
    assert_eq!(chain.issuer().name(), "probe.test");
    assert_eq!(Certificate::list_from_pem(&chain.to_pem()).unwrap(), domain.authorities());
}

#[test]
fn a_certificate_is_trusted_under_its_own_name_only() {
    let mut domain = Domain::new(1);
    let (alice, chain) = (domain.identity("alice.probe.test"), domain.chain());
    for name in ["bobby.probe.test", "alice.other.test", "ALICE.probe.test", "alice", "alice.probe.test.", ""] {
        assert_eq!(kind(chain.verify_identity(alice.certificate().clone(), name, now())), FaultKind::Name, "{name}");
    }
}

#[test]
fn an_issuer_cannot_certify_another_domain() {
    let mut domain = Domain::new(1);
    let (key, serial) = (domain.key(Curve::P256).public_key(), domain.serial());
    let issue = |name: &str| domain.issuer.issue(CertificateKind::Identity, name, &key, &serial, now());
    assert!(issue("alice.probe.test").is_some());
    for name in ["alice.other.test", "alice.sub.probe.test", "alice", "probe.test", ""] {
        assert!(issue(name).is_none(), "{name}");
    }
    // Such a name is not trusted either if another issuer under the same registry signs it.
    let key = domain.key(Curve::P384);
    let other =
        domain.registry.issue(CertificateKind::Issuer, "other.test", &key.public_key(), &serial, now()).unwrap();
    let mut authorities = domain.authorities();
    authorities[0] = other.clone();
    let chain = Chain::verify(authorities, &[domain.root.certificate().clone()], now()).unwrap();
    let alice = domain.identity("alice.probe.test").certificate().clone();
    assert_eq!(kind(chain.verify_identity(alice, "alice.probe.test", now())), FaultKind::IssuerMismatch);
    let other = Authority::new(CertificateKind::Issuer, key, other).unwrap();
    let carol = other
        .issue(CertificateKind::Identity, "alice.other.test", &domain.key(Curve::P256).public_key(), &serial, now())
        .unwrap();
    assert_eq!(kind(chain.verify_identity(carol, "alice.probe.test", now())), FaultKind::Name);
}

#[test]
fn a_chain_must_end_in_exactly_the_trusted_root() {
    let (domain, other) = (Domain::new(1), Domain::new(2));
    let verify = |authorities, trusted: &Authority| Chain::verify(authorities, &[trusted.certificate().clone()], now());
    assert_eq!(kind(verify(domain.authorities(), &other.root)), FaultKind::Untrusted);
    assert_eq!(kind(Chain::verify(domain.authorities(), &[], now())), FaultKind::Untrusted);
    // The other root at the end of our chain has the same name and another key.
    let mut mixed = domain.authorities();
    mixed[2] = other.root.certificate().clone();
    assert_eq!(kind(verify(mixed, &other.root)), FaultKind::IssuerMismatch);
    // A missing certificate, the wrong order, no certificates, too many.
    let of = |picked: &[usize]| picked.iter().map(|&at| domain.authorities()[at].clone()).collect::<Vec<_>>();
    assert_eq!(kind(verify(of(&[0, 2]), &domain.root)), FaultKind::IssuerMismatch);
    assert!(verify(of(&[1, 0, 2]), &domain.root).is_err());
    assert_eq!(kind(verify(of(&[2, 1, 0]), &domain.root)), FaultKind::Untrusted);
    assert_eq!(kind(verify(vec![], &domain.root)), FaultKind::ChainLength);
    assert_eq!(kind(verify(of(&[0, 1, 2, 2]), &domain.root)), FaultKind::ChainLength);
}

#[test]
fn certificates_and_chains_expire() {
    let mut domain = Domain::new(1);
    let (alice, chain) = (domain.identity("alice.probe.test"), domain.chain());
    let at = |time| chain.verify_identity(alice.certificate().clone(), "alice.probe.test", time);
    let (from, until) = (alice.certificate().not_before(), alice.certificate().not_after());
    let second = SignedDuration::from_secs(1);
    assert!(at(from).is_ok() && at(until).is_ok());
    assert_eq!(kind(at(later(from, -second))), FaultKind::NotYetValid);
    assert_eq!(kind(at(later(until, second))), FaultKind::Expired);
    // The chain expires as well, and no certificate outlives its issuer.
    let ten_years = later(now(), YEAR * 10 + second);
    let trusted = [domain.root.certificate().clone()];
    assert_eq!(kind(Chain::verify(domain.authorities(), &trusted, ten_years)), FaultKind::Expired);
    let late = later(now(), YEAR * 10 - SignedDuration::from_hours(24));
    let key = domain.key(Curve::P256).public_key();
    let last = domain
        .issuer
        .issue(CertificateKind::Identity, "late.probe.test", &key, &Serial::random(&mut |b| b.fill(7)), late)
        .unwrap();
    assert_eq!(last.not_after(), domain.issuer.certificate().not_after());
    assert!(
        domain.issuer.issue(CertificateKind::Identity, "late.probe.test", &key, &last.serial(), ten_years).is_none()
    );
}

#[test]
fn an_authority_signs_only_the_kinds_below_it() {
    let mut domain = Domain::new(1);
    let (p256, p384) = (domain.key(Curve::P256), domain.key(Curve::P384));
    let serial = domain.serial();
    let refused = |by: &Authority, kind, name: &str, key: &PrivateKey| {
        assert!(by.issue(kind, name, &key.public_key(), &serial, now()).is_none(), "{kind:?} by {by:?}");
    };
    refused(&domain.issuer, CertificateKind::Issuer, "sub.probe.test", &p384);
    refused(&domain.issuer, CertificateKind::Registry, "r", &p384);
    refused(&domain.registry, CertificateKind::Identity, "alice.probe.test", &p256);
    refused(&domain.root, CertificateKind::Issuer, "probe.test", &p384);
    refused(&domain.root, CertificateKind::Root, "r", &p384);
    // Each on its own curve.
    refused(&domain.issuer, CertificateKind::Identity, "alice.probe.test", &p384);
    refused(&domain.registry, CertificateKind::Issuer, "probe.test", &p256);
    // A certificate is not an authority without its key, or as another kind.
    let issuer = domain.issuer.certificate().clone();
    assert!(Authority::new(CertificateKind::Issuer, p384, issuer.clone()).is_none());
    assert!(Authority::new(CertificateKind::Root, domain.issuer.key().clone(), issuer).is_none());
    let alice = domain.identity("alice.probe.test");
    assert!(Authority::new(CertificateKind::Identity, alice.key().clone(), alice.certificate().clone()).is_none());
}

#[test]
fn an_identity_cannot_act_as_an_authority() {
    let mut domain = Domain::new(1);
    let alice = domain.identity("alice.probe.test").certificate().clone();
    let mut authorities = vec![alice];
    authorities.extend(domain.authorities().into_iter().skip(1));
    let trusted = [domain.root.certificate().clone()];
    assert_eq!(kind(Chain::verify(authorities, &trusted, now())), FaultKind::NotAnAuthority);
    // An authority cannot act as an identity either.
    let chain = domain.chain();
    let issuer = domain.issuer.certificate().clone();
    assert!(chain.verify_identity(issuer, "probe.test", now()).is_err());
    // Messages cannot be sealed for a service: its key is on the other curve.
    assert_eq!(kind(chain.verify_identity(domain.auth.clone(), "auth.probe.test", now())), FaultKind::KeyKind);
}

#[test]
fn a_chain_without_key_usages_is_rejected() {
    // The authorities of the test vectors have no key usage. The published client accepts that; we do not.
    let read = |pointer| Certificate::from_pem(known(pointer)).unwrap();
    let authorities = vec![read("/issuer_pem"), read("/registry_pem"), read("/root_pem")];
    let verified = Chain::verify(authorities, &[read("/root_pem")], now());
    assert_eq!(kind(verified), FaultKind::KeyUsage);
}

#[test]
fn no_byte_of_a_certificate_can_be_changed() {
    let mut domain = Domain::new(1);
    let (alice, chain) = (domain.identity("alice.probe.test"), domain.chain());
    let der = alice.certificate().der();
    for at in 0..der.len() {
        let mut changed = der.to_vec();
        changed[at] ^= 1;
        let Some(certificate) = Certificate::from_der(&changed) else { continue };
        assert!(chain.verify_identity(certificate, "alice.probe.test", now()).is_err(), "byte {at}");
        assert!(Certificate::from_der(&der[..at]).is_none(), "cut at {at}");
    }
    assert!(Certificate::from_der(&[der, &[0]].concat()).is_none());
}

#[test]
fn certificates_can_be_renewed_from_half_their_validity_until_some_time_after_expiry() {
    let mut domain = Domain::new(1);
    let alice = domain.identity("alice.probe.test").certificate().clone();
    let (from, until) = (alice.not_before(), alice.not_after());
    let half = later(from, until.duration_since(from) / 2);
    let second = SignedDuration::from_secs(1);
    assert!(!alice.is_due_for_renewal(half) && alice.is_due_for_renewal(later(half, second)));
    let grace = later(until, SignedDuration::from_hours(90 * 24));
    assert!(alice.can_be_renewed(grace) && !alice.can_be_renewed(later(grace, second)));
    assert!(!alice.can_be_renewed(later(from, -second)));
    // The new one has the same name and key, and another serial number.
    let serial = domain.serial();
    let next = domain.issuer.issue(CertificateKind::Identity, alice.name(), alice.public_key(), &serial, half).unwrap();
    assert_eq!((next.name(), next.public_key()), (alice.name(), alice.public_key()));
    assert!(next.serial() != alice.serial() && next.fingerprint() != alice.fingerprint());
    assert!(!next.is_due_for_renewal(half) && domain.chain().verify_identity(next, alice.name(), half).is_ok());
}

#[test]
fn a_list_revokes_its_certificates_while_it_is_valid() {
    let mut domain = Domain::new(1);
    let (alice, bobby) = (domain.identity("alice.probe.test"), domain.identity("bobby.probe.test"));
    let (alice, bobby) = (alice.certificate().serial(), bobby.certificate().serial());
    let day = later(now(), SignedDuration::from_hours(24));
    let revocation = Revocation { at: now(), reason: Reason::KeyCompromise };
    let der = crl::make(&domain.issuer, 7, [(&alice, revocation)], now(), day);
    let issuer = domain.issuer.certificate();
    let list = Revocations::verify(&der, issuer, now()).unwrap();
    assert_eq!((list.revoked_at(&alice), list.revoked_at(&bobby)), (Some(now()), None));
    assert_eq!(list.next_update, day);
    assert!(Revocations::from_pem(&crl::to_pem(&der), issuer, now()).is_some());

    let second = SignedDuration::from_secs(1);
    assert!(Revocations::verify(&der, issuer, later(day, second)).is_none());
    // A clock may be slightly behind the issuer's.
    let skew = SignedDuration::from_secs(CLOCK_SKEW_SECONDS);
    assert!(Revocations::verify(&der, issuer, later(now(), -skew)).is_some());
    assert!(Revocations::verify(&der, issuer, later(now(), -skew - second)).is_none());
    assert!(Revocations::verify(&der, domain.registry.certificate(), now()).is_none());
    assert!(Revocations::verify(&der, Domain::new(2).issuer.certificate(), now()).is_none());
    for at in 0..der.len() {
        let mut changed = der.clone();
        changed[at] ^= 1;
        assert!(Revocations::verify(&changed, issuer, now()).is_none(), "byte {at}");
    }
    let empty = crl::make(&domain.issuer, 8, [], now(), day);
    assert_eq!(Revocations::verify(&empty, issuer, now()).unwrap().revoked_at(&alice), None);
}

#[test]
fn keys_round_trip_and_are_never_printed() {
    let mut domain = Domain::new(1);
    for curve in [Curve::P256, Curve::P384] {
        let key = domain.key(curve);
        let same = |read: Option<PrivateKey>| assert_eq!(read.unwrap().public_key(), key.public_key());
        same(PrivateKey::from_pkcs8_der(&key.to_pkcs8_der()));
        same(PrivateKey::from_pem(&key.to_pem()));
        assert_eq!(format!("{key:?}"), format!("PrivateKey({}, hidden)", curve.name()));
        let public = key.public_key();
        assert_eq!(PublicKey::from_base64(&public.to_base64()).as_ref(), Some(&public));
        assert_eq!(PublicKey::from_pem(&public.to_pem()).as_ref(), Some(&public));
        assert!(public.verifies(b"m", &key.sign(b"m")) && !public.verifies(b"n", &key.sign(b"m")));
        assert_eq!(key.sign(b"m"), key.sign(b"m"), "signing needs no randomness");
    }
    assert!(PrivateKey::from_scalar(Curve::P256, &[0; 32]).is_none());
    assert!(PrivateKey::from_scalar(Curve::P256, &[255; 32]).is_none());
    assert!(PublicKey::from_base64("AAAA").is_none());
}

#[test]
fn serials_have_one_written_form_and_several_accepted_forms() {
    let read = |text: &str| text.parse::<Serial>().map(|serial| serial.to_string()).ok();
    assert_eq!(read("0aBc").as_deref(), Some("abc"));
    assert_eq!(read("000").as_deref(), Some("0"));
    assert_eq!(read(&"7f".repeat(20)), Some("7f".repeat(20)));
    for text in ["", "x", "-1", "0x1", " 1", &"ff".repeat(20), &"1".repeat(41)] {
        assert_eq!(read(text), None, "{text}");
    }
    let serial = Domain::new(1).serial();
    assert_eq!(serial.to_string().parse(), Ok(serial));
}

proptest! {
    #[test]
    fn parsers_never_panic(bytes: Vec<u8>, text: String) {
        let issuer = known("/issuer_pem");
        let issuer = Certificate::from_pem(issuer).unwrap();
        prop_assert!(Certificate::from_der(&bytes).is_none());
        let _ = Certificate::list_from_pem(&text);
        let _ = Revocations::verify(&bytes, &issuer, now());
        let _ = Revocations::from_pem(&text, &issuer, now());
        let _ = PublicKey::from_spki_der(&bytes);
        let _ = PrivateKey::from_pkcs8_der(&bytes);
    }
}
