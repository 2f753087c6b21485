use std::sync::LazyLock;

use jiff::{SignedDuration, Timestamp};
use ostler_crypto::{
    crl::{Reason, Revocation},
    ocsp::{self, Form, Request, Status},
};
use proptest::prelude::*;

use crate::scene::{Domain, now};

fn in_an_hour() -> Timestamp {
    now().checked_add(SignedDuration::from_hours(ocsp::ANSWER_HOURS)).unwrap()
}

fn revoked() -> Status {
    Status::Revoked(Revocation { at: now(), reason: Reason::Superseded })
}

#[test]
fn an_answer_says_what_is_known_of_one_certificate_for_a_while() {
    let mut domain = Domain::new(1);
    let (serial, other) = (domain.serial(), domain.serial());
    let issuer = domain.issuer.certificate();
    for status in [Status::Good, revoked(), Status::Unknown] {
        let der = ocsp::for_mesh_client(&domain.issuer, &serial, status, now(), in_an_hour());
        let read = |serial, time| ocsp::read(&der, Form::MeshClient, issuer, serial, time);
        assert_eq!(read(&serial, now()), Some(status));
        assert_eq!(read(&serial, in_an_hour()), Some(status));
        assert_eq!(read(&other, now()), None);
        let second = SignedDuration::from_secs(1);
        assert_eq!(read(&serial, in_an_hour().checked_add(second).unwrap()), None);
        assert_eq!(read(&serial, now().checked_sub(SignedDuration::from_secs(301)).unwrap()), None);
        // The two forms do not take each other's answers.
        assert_eq!(ocsp::read(&der, Form::Standard, issuer, &serial, now()), None);
        assert_eq!(ocsp::read(&der, Form::MeshClient, domain.registry.certificate(), &serial, now()), None);
    }
}

#[test]
fn no_byte_of_an_answer_can_be_changed() {
    let mut domain = Domain::new(1);
    let serial = domain.serial();
    let der = ocsp::for_mesh_client(&domain.issuer, &serial, Status::Good, now(), in_an_hour());
    for at in 0..der.len() {
        let mut changed = der.clone();
        changed[at] ^= 1;
        let issuer = domain.issuer.certificate();
        assert_eq!(ocsp::read(&changed, Form::MeshClient, issuer, &serial, now()), None, "byte {at}");
    }
    assert_eq!(ocsp::read(&ocsp::malformed(), Form::MeshClient, domain.issuer.certificate(), &serial, now()), None);
}

proptest! {
    #[test]
    fn no_bytes_make_a_reader_panic(bytes: Vec<u8>) {
        static DOMAIN: LazyLock<Domain> = LazyLock::new(|| Domain::new(1));
        let issuer = DOMAIN.issuer.certificate();
        prop_assert!(Request::read(&bytes).is_none());
        prop_assert_eq!(ocsp::read(&bytes, Form::Standard, issuer, &issuer.serial(), now()), None);
    }
}
