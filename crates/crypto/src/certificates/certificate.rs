//! Certificates and serial numbers, parsed and written. Nothing here decides whether to trust them.

use std::{fmt, str::FromStr};

use der::{Decode, Encode};
use jiff::{SignedDuration, Timestamp};
use x509_cert::{certificate::Version, ext::pkix::SubjectKeyIdentifier, serial_number::SerialNumber};

use crate::{Fill, encoding::to_pem, keys::PublicKey, sha256};

/// A longer certificate is rejected: keys and names of the mesh are short.
pub const CERTIFICATE_BYTES_MAX: usize = 8 * 1024;
/// How long after its expiry a certificate can still be renewed by its key.
pub const RENEWAL_GRACE_DAYS: i64 = 90;
/// How far a certificate's validity starts before it is issued, for clocks that are slightly behind.
pub const CLOCK_SKEW_SECONDS: i64 = 300;

/// A certificate that could be parsed. Its signature has not been checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Certificate {
    pub(super) der: Vec<u8>,
    parsed: x509_cert::Certificate,
    pub(super) key: PublicKey,
    pub(super) name: String,
}

impl Certificate {
    /// Parses a certificate. `None` if it is not of version 3, or its name or key is of a kind that the mesh does not use.
    pub fn from_der(der: &[u8]) -> Option<Self> {
        if der.len() > CERTIFICATE_BYTES_MAX {
            return None;
        }
        let parsed = x509_cert::Certificate::from_der(der).ok()?;
        let body = parsed.tbs_certificate();
        let algorithms_agree = body.signature() == parsed.signature_algorithm();
        if body.version() != Version::V3 || !algorithms_agree || parsed.to_der().ok()? != der {
            return None;
        }
        let key = PublicKey::from_spki_der(&body.subject_public_key_info().to_der().ok()?)?;
        let name = body.subject().common_name().ok()??.value().into_owned();
        Some(Self { der: der.to_vec(), parsed, key, name })
    }

    /// Parses exactly one certificate.
    pub fn from_pem(pem: &str) -> Option<Self> {
        let mut all = Self::list_from_pem(pem)?;
        let certificate = all.pop()?;
        all.is_empty().then_some(certificate)
    }

    /// Parses a list of certificates. `None` if one of them cannot be parsed, or there are too many.
    pub fn list_from_pem(pem: &str) -> Option<Vec<Self>> {
        const CERTIFICATES_MAX: usize = 64;
        const END: &str = "-----END CERTIFICATE-----";
        let parts: Vec<&str> = pem.split_inclusive(END).filter(|part| !part.trim().is_empty()).collect();
        if parts.len() > CERTIFICATES_MAX {
            return None;
        }
        let one = |part: &&str| {
            let (label, der) = der::pem::decode_vec(part.trim().as_bytes()).ok()?;
            (label == "CERTIFICATE").then(|| Self::from_der(&der))?
        };
        parts.iter().map(one).collect()
    }

    pub fn to_pem(&self) -> String {
        to_pem("CERTIFICATE", &self.der)
    }

    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// `sha256:` and the digest of the whole certificate, by which the mesh identifies it.
    pub fn fingerprint(&self) -> String {
        format!("sha256:{}", crate::hex(&sha256(&self.der)))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn public_key(&self) -> &PublicKey {
        &self.key
    }

    pub fn serial(&self) -> Serial {
        Serial(self.parsed.tbs_certificate().serial_number().as_bytes().to_vec())
    }

    pub fn not_before(&self) -> Timestamp {
        timestamp(self.parsed.tbs_certificate().validity().not_before)
    }

    pub fn not_after(&self) -> Timestamp {
        timestamp(self.parsed.tbs_certificate().validity().not_after)
    }

    pub fn is_valid_at(&self, now: Timestamp) -> bool {
        self.not_before() <= now && now <= self.not_after()
    }

    /// Whether the certificate is past half its validity, so that the next login renews it.
    pub fn is_due_for_renewal(&self, now: Timestamp) -> bool {
        let life = self.not_after().duration_since(self.not_before());
        now.duration_since(self.not_before()) > life / 2
    }

    /// Whether its key may still request a new certificate, which it may until some time after the expiry.
    pub fn can_be_renewed(&self, now: Timestamp) -> bool {
        let grace = SignedDuration::from_hours(24 * RENEWAL_GRACE_DAYS);
        self.not_before() <= now && now.duration_since(self.not_after()) <= grace
    }

    pub(super) fn body(&self) -> &x509_cert::TbsCertificate {
        self.parsed.tbs_certificate()
    }

    pub(crate) fn subject(&self) -> &x509_cert::name::Name {
        self.body().subject()
    }

    pub(crate) fn key_identifier(&self) -> Option<Vec<u8>> {
        let (_, identifier) = self.body().get_extension::<SubjectKeyIdentifier>().ok()??;
        Some(identifier.0.as_bytes().to_vec())
    }
}

pub(crate) fn timestamp(time: x509_cert::time::Time) -> Timestamp {
    let seconds = time.to_unix_duration().as_secs();
    // Dates in DER end with the year 9999, like ours.
    i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok()).unwrap_or(Timestamp::MAX)
}

/// A time as X.509 writes it, in whole seconds.
pub(crate) fn date_time(time: Timestamp) -> der::DateTime {
    let since_epoch = std::time::Duration::from_secs(time.as_second().max(0) as u64);
    der::DateTime::from_unix_duration(since_epoch).unwrap_or(der::DateTime::INFINITY)
}

/// A certificate's serial number, unique under its issuer. Written in lower-case hexadecimal without leading zeros.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Serial(Vec<u8>);

impl Serial {
    /// 127 random bits: positive, and impossible to guess.
    pub fn random(fill: Fill<'_>) -> Self {
        let mut bytes = [0; 16];
        fill(&mut bytes);
        bytes[0] = bytes[0] & 0x7f | 0x40;
        Self(bytes.to_vec())
    }

    pub(crate) fn of(number: &SerialNumber) -> Self {
        Self(number.as_bytes().to_vec())
    }

    #[expect(clippy::expect_used, reason = "serial numbers of ours are short")]
    pub(crate) fn number(&self) -> SerialNumber {
        SerialNumber::new(&self.0).expect("a serial is short")
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = crate::hex(&self.0);
        f.write_str(Some(text.trim_start_matches('0')).filter(|text| !text.is_empty()).unwrap_or("0"))
    }
}

/// The text is not a serial number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotASerial;

impl FromStr for Serial {
    type Err = NotASerial;

    /// Upper case and leading zeros are accepted.
    fn from_str(text: &str) -> Result<Self, NotASerial> {
        const DIGITS_MAX: usize = 40;
        let digits = text.trim_start_matches('0');
        if text.is_empty() || digits.len() > DIGITS_MAX || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(NotASerial);
        }
        let even = format!("{}{digits}", if digits.len().is_multiple_of(2) { "" } else { "0" });
        let pairs = even.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
        let bytes: Option<Vec<u8>> = pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect();
        let mut bytes = bytes.ok_or(NotASerial)?;
        if bytes.is_empty() {
            bytes.push(0);
        }
        // A number whose highest bit is set would take 21 bytes.
        SerialNumber::<x509_cert::certificate::Rfc5280>::new(&bytes).map_err(|_| NotASerial)?;
        Ok(Self(bytes))
    }
}
