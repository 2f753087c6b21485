//! What is signed or sealed: certificates with what is said about them, and envelopes. Whatever was bent is refused, or is
//! still what it was.

use ostler_crypto::{
    certificates::Certificate,
    crl::{self, Revocations},
    envelope::{self, Address, Envelope},
    keys::{PrivateKey, PublicKey},
    ocsp::{self, OcspRequest, ResponseForm},
};

use crate::{
    Target,
    domain::{DOMAIN, FROM, MESSAGE_ID, TEXT, TO, now},
};

pub(crate) static ENVELOPE: Target = Target {
    name: "envelope",
    seeds: || {
        DOMAIN.envelopes.iter().map(|envelope| serde_json::to_vec(envelope).expect("an envelope is JSON")).collect()
    },
    words: &[
        "{",
        "}",
        "\"",
        ",",
        ":",
        "null",
        "=",
        "==",
        "AAAA",
        "BA==",
        "\"aad\":",
        "\"prekey_id\":\"k-1\"",
        "\"prekey_id\":null",
        "\"encryption_mode\":\"long_term_key\"",
        "\"encryption_mode\":\"prekey_ecdh_v2\"",
        "\"version\":\"1\"",
        "\\u0000",
        "0",
    ],
    attempt: open,
};

/// An envelope opens to what was put into it, or not at all.
fn open(case: &[u8]) {
    let Ok(envelope) = serde_json::from_slice::<Envelope>(case) else { return };
    let sender =
        DOMAIN.chain.verify_identity(DOMAIN.alice.certificate().clone(), FROM, now()).expect("our own identity");
    let address = Address { from: FROM, to: TO, message_id: MESSAGE_ID };
    for prekey in [Some(&DOMAIN.prekey), None] {
        if let Ok(text) = envelope::open(&envelope, address, &sender, &DOMAIN.bobby, prekey) {
            assert_eq!(*text, TEXT, "{envelope:?}");
        }
        let theirs = Address { message_id: "m-2", ..address };
        assert!(envelope::open(&envelope, theirs, &sender, &DOMAIN.bobby, prekey).is_err(), "it is another message's");
    }
}

pub(crate) static CERTIFICATE: Target = Target {
    name: "certificate",
    seeds: certificates,
    words: &[
        "-----BEGIN CERTIFICATE-----\n",
        "\n-----END CERTIFICATE-----\n",
        "\x30\x03\x02\x01\x00",
        "\x30",
        "\x02\x01",
        "\x04\x02",
        "\x03\x02\x00",
        "\x05\x00",
        "\x06\x03\x55\x1d\x13",
        "\x01\x01",
        "\x17\x0d",
        "\x18\x0f",
        "99991231235959Z",
        "\x0c",
        "\n",
        "=",
    ],
    attempt: certificate,
};

/// A question about one certificate of some issuer, its serial as long as one may be.
const OCSP_REQUEST: &[u8] = b"\x30\x55\x30\x53\x30\x51\x30\x4f\x30\x4d\x30\x09\x06\x05\x2b\x0e\x03\x02\x1a\x05\x00\
    \x04\x14\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\
    \x04\x14\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\
    \x02\x14\x7f\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07";

fn certificates() -> Vec<Vec<u8>> {
    let domain = &*DOMAIN;
    let ders = [domain.alice.certificate(), &domain.authorities[0], &domain.authorities[2]];
    let pems = [domain.alice.certificate().to_pem(), domain.chain.to_pem(), crl::to_pem(&domain.list)];
    let mut seeds: Vec<Vec<u8>> = ders.iter().map(|certificate| certificate.der().to_vec()).collect();
    seeds.extend(pems.map(String::into_bytes));
    seeds.extend([domain.list.clone(), domain.status.clone()]);
    seeds.push(domain.alice.key().public_key().to_spki_der());
    seeds.push(OCSP_REQUEST.to_vec());
    seeds.push(domain.prekey.to_pkcs8_der().to_vec());
    seeds
}

/// What is read can be written; what is believed was signed as it is.
fn certificate(case: &[u8]) {
    let text = String::from_utf8_lossy(case);
    let read = [Certificate::from_der(case), Certificate::from_pem(&text)].into_iter().flatten();
    for certificate in read.chain(Certificate::list_from_pem(&text).into_iter().flatten()) {
        let again = Certificate::from_pem(&certificate.to_pem()).expect("what we write can be read");
        assert_eq!(again.fingerprint(), certificate.fingerprint());
        let _ = (certificate.is_due_for_renewal(now()), certificate.can_be_renewed(now()), certificate.serial());
        believe(certificate);
    }
    let issuer = DOMAIN.chain.issuer();
    let (alice, bobby) = (DOMAIN.alice.certificate().serial(), DOMAIN.bobby.certificate().serial());
    let lists = [Revocations::verify(case, issuer, now()), Revocations::from_pem(&text, issuer, now())];
    for list in lists.into_iter().flatten() {
        assert!(list.revoked_at(&bobby).is_some() && list.revoked_at(&alice).is_none());
    }
    if let Some(request) = OcspRequest::read(case) {
        let _ = request.serials(issuer);
    }
    for (form, serial) in
        [(ResponseForm::MeshClient, &alice), (ResponseForm::Standard, &alice), (ResponseForm::MeshClient, &bobby)]
    {
        let said = ocsp::read(case, form, issuer, serial, now());
        assert!(said.is_none() || (form == ResponseForm::MeshClient && *serial == alice), "{said:?}");
    }
    for key in [PublicKey::from_spki_der(case), PublicKey::from_base64(&text), PublicKey::from_pem(&text)] {
        assert!(key.is_none_or(|key| PublicKey::from_spki_der(&key.to_spki_der()) == Some(key)));
    }
    let _ = (PrivateKey::from_pkcs8_der(case), PrivateKey::from_pem(&text));
}

/// Only certificates that the issuer has signed are accepted, unchanged.
fn believe(certificate: Certificate) {
    let domain = &*DOMAIN;
    let own = [&domain.alice, &domain.bobby];
    for name in [FROM, TO, certificate.name().to_owned().as_str()] {
        if domain.chain.verify_identity(certificate.clone(), name, now()).is_ok() {
            let known = own.iter().any(|one| one.certificate().fingerprint() == certificate.fingerprint());
            assert!(known && certificate.name() == name, "{name}: {certificate:?}");
        }
    }
}
