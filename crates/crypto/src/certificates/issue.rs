//! Issues certificates. An authority never issues one that outlives it, that its own path length forbids, or that is outside
//! its domain: `verify` accepts whatever it issues.

use der::{
    Decode, Encode, Sequence,
    asn1::{Any, Ia5String, ObjectIdentifier, Utf8StringRef},
    oid::AssociatedOid,
};
use jiff::{SignedDuration, Timestamp};
use x509_cert::{
    AlgorithmIdentifier, SubjectPublicKeyInfo,
    attr::AttributeTypeAndValue,
    certificate::Version,
    ext::{
        Extension,
        pkix::{
            AuthorityKeyIdentifier, BasicConstraints, KeyUsage, KeyUsages, SubjectAltName, SubjectKeyIdentifier,
            name::GeneralName,
        },
    },
    name::{Name, RdnSequence},
    serial_number::SerialNumber,
    time::{Time, Validity},
};

use super::certificate::{CLOCK_SKEW_SECONDS, Certificate, Serial, date_time};
use crate::{
    encoding::{octets, to_der},
    keys::{Curve, PrivateKey, PublicKey},
    sha256, signed,
};

const DAY_HOURS: i64 = 24;

/// The purpose of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateKind {
    /// The trust anchor; signs registries.
    Root,
    /// Signs issuers.
    Registry,
    /// Named by its domain; signs services and identities.
    Issuer,
    /// A service of the domain, such as `auth.{domain}`.
    Service,
    /// An identity of the mesh: the name of a person or program.
    Identity,
}

impl CertificateKind {
    /// How many authorities may be below one of this kind. `None` if it is not an authority.
    pub(crate) fn path_length(self) -> Option<u8> {
        match self {
            Self::Root => Some(2),
            Self::Registry => Some(1),
            Self::Issuer => Some(0),
            Self::Service | Self::Identity => None,
        }
    }

    /// The validity of a new certificate.
    pub fn life(self) -> SignedDuration {
        let days = match self {
            Self::Root => 30 * 365,
            Self::Registry => 15 * 365,
            Self::Issuer => 10 * 365,
            Self::Service => 2 * 365,
            Self::Identity => 365,
        };
        SignedDuration::from_hours(days * DAY_HOURS)
    }

    /// The curve of its key. Identities need P-256 for sealing.
    pub fn curve(self) -> Curve {
        match self {
            Self::Identity => Curve::P256,
            _ => Curve::P384,
        }
    }

    /// The kind of authority that signs it. `None` if it signs itself.
    fn signer(self) -> Option<CertificateKind> {
        match self {
            Self::Root => None,
            Self::Registry => Some(Self::Root),
            Self::Issuer => Some(Self::Registry),
            Self::Service | Self::Identity => Some(Self::Issuer),
        }
    }

    fn usages(self) -> KeyUsage {
        KeyUsage(match self {
            // An issuer signs OCSP responses itself, so its key signs more than certificates and lists.
            Self::Root | Self::Registry | Self::Issuer => {
                KeyUsages::DigitalSignature | KeyUsages::KeyCertSign | KeyUsages::CRLSign
            }
            Self::Service => KeyUsages::DigitalSignature.into(),
            Self::Identity => KeyUsages::DigitalSignature | KeyUsages::KeyAgreement,
        })
    }
}

/// The same as `x509_cert::TbsCertificate`, whose fields can be read but not set.
#[derive(Sequence)]
struct CertificateBody {
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT")]
    version: Version,
    serial: SerialNumber,
    algorithm: AlgorithmIdentifier,
    issuer: Name,
    validity: Validity,
    subject: Name,
    key: SubjectPublicKeyInfo,
    #[asn1(context_specific = "3", tag_mode = "EXPLICIT")]
    extensions: Vec<Extension>,
}

/// A certificate with its key, which may sign others.
#[derive(Clone, Debug)]
pub struct Authority {
    kind: CertificateKind,
    key: PrivateKey,
    certificate: Certificate,
}

impl Authority {
    /// Loads an existing authority. `None` if the key does not belong to the certificate or is on the wrong curve, or the
    /// certificate is of another kind.
    pub fn new(kind: CertificateKind, key: PrivateKey, certificate: Certificate) -> Option<Self> {
        let (_, constraints) = certificate.body().get_extension::<BasicConstraints>().ok()??;
        let is_of_kind = constraints.ca && constraints.path_len_constraint == Some(kind.path_length()?);
        let fits = is_of_kind && key.curve() == kind.curve();
        (fits && key.public_key() == *certificate.public_key()).then_some(Self { kind, key, certificate })
    }

    /// Creates a self-signed root.
    #[expect(clippy::expect_used, reason = "a certificate that was just signed can be parsed")]
    pub fn root(name: &str, key: PrivateKey, serial: &Serial, now: Timestamp) -> Self {
        let public = key.public_key();
        let subject = common_name(name);
        let key_identifier = key_identifier(&public);
        let body = body(
            CertificateKind::Root,
            (subject.clone(), key_identifier),
            (subject, &public),
            serial,
            (now, Timestamp::MAX),
        );
        let certificate = Certificate::from_der(&signed::sign(&body, &key)).expect("it was just made");
        Self { kind: CertificateKind::Root, key, certificate }
    }

    /// Issues a certificate. `None` if this authority may not issue this kind, or not with this key or name.
    pub fn issue(
        &self,
        kind: CertificateKind,
        name: &str,
        key: &PublicKey,
        serial: &Serial,
        now: Timestamp,
    ) -> Option<Certificate> {
        let within = match kind {
            // One label before the domain: an issuer is responsible for its own domain only.
            CertificateKind::Service | CertificateKind::Identity => {
                name.split_once('.').is_some_and(|(_, domain)| domain == self.certificate.name())
            }
            _ => true,
        };
        let may = kind.signer() == Some(self.kind) && key.curve() == kind.curve();
        if !may || !within || name.is_empty() || name.len() > NAME_BYTES_MAX || !self.certificate.is_valid_at(now) {
            return None;
        }
        let issuer = (self.certificate.subject().clone(), self.identifier());
        let body = body(kind, issuer, (common_name(name), key), serial, (now, self.certificate.not_after()));
        Certificate::from_der(&signed::sign(&body, &self.key))
    }

    pub(crate) fn identifier(&self) -> Vec<u8> {
        self.certificate.key_identifier().unwrap_or_else(|| key_identifier(self.certificate.public_key()))
    }

    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    pub fn key(&self) -> &PrivateKey {
        &self.key
    }
}

/// A common name is a DNS name and may be as long as one. The 64 characters of X.520 are too few for some.
const NAME_BYTES_MAX: usize = 255;

#[expect(clippy::expect_used, reason = "a valid key always encodes")]
fn body(
    kind: CertificateKind,
    issuer: (Name, Vec<u8>),
    subject: (Name, &PublicKey),
    serial: &Serial,
    (now, end): (Timestamp, Timestamp),
) -> CertificateBody {
    let signer_curve = kind.signer().map_or(subject.1.curve(), CertificateKind::curve);
    let until = now.saturating_add(kind.life()).unwrap_or(Timestamp::MAX).min(end);
    let from = now.saturating_sub(SignedDuration::from_secs(CLOCK_SKEW_SECONDS)).unwrap_or(Timestamp::UNIX_EPOCH);
    let time = |time| Time::from(date_time(time));
    let spki = SubjectPublicKeyInfo::from_der(&subject.1.to_spki_der()).expect("a key can be written");
    CertificateBody {
        version: Version::V3,
        serial: serial.number(),
        algorithm: signed::algorithm(signer_curve),
        issuer: issuer.0,
        validity: Validity::new(time(from), time(until)),
        extensions: extensions(kind, &subject.0, issuer.1, key_identifier(subject.1)),
        subject: subject.0,
        key: spki,
    }
}

#[expect(clippy::expect_used, reason = "every subject of ours has a common name")]
fn extensions(
    kind: CertificateKind,
    subject: &Name,
    issuer_identifier: Vec<u8>,
    identifier: Vec<u8>,
) -> Vec<Extension> {
    let constraints = BasicConstraints { ca: kind.path_length().is_some(), path_len_constraint: kind.path_length() };
    let mut extensions = vec![
        extension(true, &constraints),
        extension(true, &kind.usages()),
        extension(false, &SubjectKeyIdentifier(octets(identifier))),
        extension(false, &authority_identifier(issuer_identifier)),
    ];
    if kind.path_length().is_none() {
        // Other software reads names from here.
        let name = subject.common_name().ok().flatten().expect("we name every subject");
        if let Ok(name) = Ia5String::new(name.value().as_ref()) {
            extensions.push(extension(false, &SubjectAltName(vec![GeneralName::DnsName(name)])));
        }
    }
    extensions
}

pub(crate) fn extension<T: AssociatedOid + Encode>(critical: bool, content: &T) -> Extension {
    Extension { extn_id: T::OID, critical, extn_value: octets(to_der(content)) }
}

#[expect(clippy::expect_used, reason = "a short name always encodes")]
fn common_name(name: &str) -> Name {
    const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
    let value = Utf8StringRef::new(name).and_then(|name| Any::encode_from(&name)).expect("a name is short");
    let mut names = RdnSequence::default();
    names.push(vec![AttributeTypeAndValue { oid: COMMON_NAME, value }].try_into().expect("one attribute"));
    names.to_der().and_then(|der| Name::from_der(&der)).expect("it was just written")
}

pub(crate) fn authority_identifier(identifier: Vec<u8>) -> AuthorityKeyIdentifier {
    let identifier = octets(identifier);
    AuthorityKeyIdentifier { key_identifier: Some(identifier), ..Default::default() }
}

/// RFC 7093, method 1: the first 160 bits of the key's digest.
fn key_identifier(key: &PublicKey) -> Vec<u8> {
    sha256(key.point())[..20].to_vec()
}
