use std::sync::LazyLock;

use jiff::{SignedDuration, Timestamp};
use ostler_crypto::{
    crl::{Reason, Revocation},
    ocsp::{self, OcspRequest, OcspStatus, ResponseForm},
};
use proptest::prelude::*;

use crate::fixture::{Domain, now};

fn in_an_hour() -> Timestamp {
    now().checked_add(SignedDuration::from_hours(ocsp::ANSWER_HOURS)).unwrap()
}

fn revoked() -> OcspStatus {
    OcspStatus::Revoked(Revocation { at: now(), reason: Reason::Superseded })
}

#[test]
fn a_response_gives_the_status_of_one_certificate_for_a_while() {
    let mut domain = Domain::new(1);
    let (serial, other) = (domain.serial(), domain.serial());
    let issuer = domain.issuer.certificate();
    for status in [OcspStatus::Good, revoked(), OcspStatus::Unknown] {
        let der = ocsp::for_mesh_client(&domain.issuer, &serial, status, now(), in_an_hour());
        let read = |serial, time| ocsp::read(&der, ResponseForm::MeshClient, issuer, serial, time);
        assert_eq!(read(&serial, now()), Some(status));
        assert_eq!(read(&serial, in_an_hour()), Some(status));
        assert_eq!(read(&other, now()), None);
        let second = SignedDuration::from_secs(1);
        assert_eq!(read(&serial, in_an_hour().checked_add(second).unwrap()), None);
        assert_eq!(read(&serial, now().checked_sub(SignedDuration::from_secs(301)).unwrap()), None);
        // Neither form accepts the other's responses.
        assert_eq!(ocsp::read(&der, ResponseForm::Standard, issuer, &serial, now()), None);
        assert_eq!(ocsp::read(&der, ResponseForm::MeshClient, domain.registry.certificate(), &serial, now()), None);
    }
}

#[test]
fn no_byte_of_a_response_can_be_changed() {
    let mut domain = Domain::new(1);
    let serial = domain.serial();
    let der = ocsp::for_mesh_client(&domain.issuer, &serial, OcspStatus::Good, now(), in_an_hour());
    for at in 0..der.len() {
        let mut changed = der.clone();
        changed[at] ^= 1;
        let issuer = domain.issuer.certificate();
        assert_eq!(ocsp::read(&changed, ResponseForm::MeshClient, issuer, &serial, now()), None, "byte {at}");
    }
    assert_eq!(
        ocsp::read(&ocsp::malformed(), ResponseForm::MeshClient, domain.issuer.certificate(), &serial, now()),
        None
    );
}

fn der(tag: u8, contents: &[u8]) -> Vec<u8> {
    [&[tag, u8::try_from(contents.len()).unwrap()], contents].concat()
}

/// A request about one certificate of some issuer, as in RFC 6960.
fn request(serial: &[u8]) -> Vec<u8> {
    const SEQUENCE: u8 = 0x30;
    let sha256 = der(SEQUENCE, &der(0x06, &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01]));
    let hash = der(0x04, &[7; 32]);
    let certificate = [sha256, hash.clone(), hash, der(0x02, serial)].concat();
    (0..5).fold(certificate, |inner, _| der(SEQUENCE, &inner))
}

#[test]
fn a_serial_of_invalid_form_is_not_ours() {
    let domain = Domain::new(1);
    let issuer = domain.issuer.certificate();
    for serial in [vec![7; 20], vec![0x87; 20], vec![0x80; 19], vec![0]] {
        let request = OcspRequest::read(&request(&serial)).expect("it is well formed");
        assert_eq!(request.serials(issuer), [None], "{serial:02x?}");
        assert!(!request.answer(&domain.issuer, &[], now(), in_an_hour()).is_empty());
    }
}

proptest! {
    #[test]
    fn parsers_never_panic(bytes: Vec<u8>) {
        static DOMAIN: LazyLock<Domain> = LazyLock::new(|| Domain::new(1));
        let issuer = DOMAIN.issuer.certificate();
        prop_assert!(OcspRequest::read(&bytes).is_none());
        prop_assert_eq!(ocsp::read(&bytes, ResponseForm::Standard, issuer, &issuer.serial(), now()), None);
    }
}
