//! Revocation lists: signed by an issuer, read by a client that checks one of its certificates. An expired list is not used:
//! a client that cannot get a newer one knows nothing about revocation.

use std::collections::BTreeMap;

use der::{Decode, asn1::Uint};
use jiff::{SignedDuration, Timestamp};
use x509_cert::{
    certificate::Version,
    crl::{CertificateList, RevokedCert, TbsCertList},
    ext::{Extension, pkix::CrlNumber, pkix::CrlReason},
    time::Time,
};

use crate::{
    certificates::{
        Authority, CLOCK_SKEW_SECONDS, Certificate, Serial, date_time,
        issue::{authority_identifier, extension},
    },
    signed,
};

/// How long a list is valid. The mesh's published client caches one for at most an hour.
pub const LIST_HOURS: i64 = 24;
pub const LIST_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Why a certificate was revoked: the X.509 reasons that we use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    Unspecified,
    KeyCompromise,
    /// The key was replaced by a new one.
    Superseded,
    CessationOfOperation,
}

impl Reason {
    pub(crate) fn code(self) -> CrlReason {
        match self {
            Self::Unspecified => CrlReason::Unspecified,
            Self::KeyCompromise => CrlReason::KeyCompromise,
            Self::Superseded => CrlReason::Superseded,
            Self::CessationOfOperation => CrlReason::CessationOfOperation,
        }
    }
}

impl From<CrlReason> for Reason {
    /// Reasons that we never use are read as unspecified.
    fn from(code: CrlReason) -> Self {
        let ours = [Self::KeyCompromise, Self::Superseded, Self::CessationOfOperation];
        ours.into_iter().find(|reason| reason.code() == code).unwrap_or(Self::Unspecified)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revocation {
    pub at: Timestamp,
    pub reason: Reason,
}

/// Signs a list. The number increases with every list of an issuer.
#[expect(clippy::expect_used, reason = "eight bytes fit an integer")]
pub fn make<'a>(
    issuer: &Authority,
    number: u64,
    revoked: impl IntoIterator<Item = (&'a Serial, Revocation)>,
    this_update: Timestamp,
    next_update: Timestamp,
) -> Vec<u8> {
    let entry = |(serial, revocation): (&Serial, Revocation)| RevokedCert {
        serial_number: serial.number(),
        revocation_date: Time::from(date_time(revocation.at)),
        // RFC 5280: an unspecified reason is left out.
        crl_entry_extensions: (revocation.reason != Reason::Unspecified)
            .then(|| vec![extension(false, &revocation.reason.code())]),
    };
    let revoked: Vec<RevokedCert> = revoked.into_iter().map(entry).collect();
    let number = CrlNumber(Uint::new(&number.to_be_bytes()).expect("eight bytes"));
    let body = TbsCertList {
        version: Version::V2,
        signature: signed::algorithm(issuer.key().curve()),
        issuer: issuer.certificate().subject().clone(),
        this_update: Time::from(date_time(this_update)),
        next_update: Some(Time::from(date_time(next_update))),
        // An empty list is left out as well.
        revoked_certificates: Some(revoked).filter(|revoked| !revoked.is_empty()),
        crl_extensions: Some(vec![
            extension(false, &authority_identifier(issuer.identifier())),
            extension(false, &number),
        ]),
    };
    signed::sign(&body, issuer.key())
}

pub fn to_pem(der: &[u8]) -> String {
    crate::encoding::to_pem("X509 CRL", der)
}

/// A list that its issuer signed and that is currently valid.
#[derive(Clone, Debug)]
pub struct Revocations {
    revoked: BTreeMap<Serial, Timestamp>,
    pub next_update: Timestamp,
}

impl Revocations {
    /// Verifies a list. `None` if it is not signed by this issuer, not currently valid, or has unknown critical extensions.
    pub fn verify(der: &[u8], issuer: &Certificate, now: Timestamp) -> Option<Self> {
        if der.len() > LIST_BYTES_MAX || !signed::is_signed_by(der, issuer.public_key()) {
            return None;
        }
        let list = CertificateList::<x509_cert::certificate::Rfc5280>::from_der(der).ok()?.tbs_cert_list;
        let skew = SignedDuration::from_secs(CLOCK_SKEW_SECONDS);
        let from = crate::certificates::timestamp(list.this_update).saturating_sub(skew).unwrap_or(Timestamp::MIN);
        let next_update = crate::certificates::timestamp(list.next_update?);
        let critical = |extensions: &Option<Vec<Extension>>| extensions.iter().flatten().any(|one| one.critical);
        if list.issuer != *issuer.subject() || now < from || now > next_update || critical(&list.crl_extensions) {
            return None;
        }
        let revoked = list.revoked_certificates.unwrap_or_default();
        if revoked.iter().any(|entry| critical(&entry.crl_entry_extensions)) {
            return None;
        }
        let entry = |entry: RevokedCert| {
            (Serial::of(&entry.serial_number), crate::certificates::timestamp(entry.revocation_date))
        };
        Some(Self { revoked: revoked.into_iter().map(entry).collect(), next_update })
    }

    pub fn from_pem(pem: &str, issuer: &Certificate, now: Timestamp) -> Option<Self> {
        let (label, der) = der::pem::decode_vec(pem.as_bytes()).ok()?;
        (label == "X509 CRL").then(|| Self::verify(&der, issuer, now))?
    }

    /// When the certificate was revoked. `None` if it was not.
    pub fn revoked_at(&self, serial: &Serial) -> Option<Timestamp> {
        self.revoked.get(serial).copied()
    }
}
