//! Verifies certificates. Stricter than the mesh's published client, which checks names, dates and signatures only: path
//! lengths, key usages, unknown critical extensions, key identifiers and the issuer's domain are checked here as well.

use std::fmt;

use der::oid::AssociatedOid;
use jiff::Timestamp;
use x509_cert::ext::pkix::{AuthorityKeyIdentifier, BasicConstraints, KeyUsage, SubjectAltName, SubjectKeyIdentifier};

use super::certificate::Certificate;
use crate::{keys::Curve, signed};

/// Issuer, registry, root.
pub const AUTHORITIES_MAX: usize = 3;

/// Why a certificate is not trusted, and which one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFault {
    pub certificate: String,
    pub kind: FaultKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// No authorities, or too many.
    ChainLength,
    /// The chain's last certificate is not identical to a trusted root.
    Untrusted,
    NotYetValid,
    Expired,
    /// It was signed by an authority with another name or key.
    IssuerMismatch,
    Signature,
    /// It signs certificates although it is not an authority.
    NotAnAuthority,
    /// There are more authorities below it than it allows.
    PathTooLong,
    KeyUsage,
    /// Its key is on the wrong curve for its purpose.
    KeyKind,
    /// An unknown critical extension, or an extension that is given twice.
    Extension,
    /// It has another name than the expected one, or a name outside its issuer's domain.
    Name,
}

impl fmt::Display for CertificateFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            FaultKind::ChainLength => "has a chain without authorities, or with too many",
            FaultKind::Untrusted => "is not the trusted root",
            FaultKind::NotYetValid => "is not valid yet",
            FaultKind::Expired => "has expired",
            FaultKind::IssuerMismatch => "was issued by another authority",
            FaultKind::Signature => "has an invalid signature",
            FaultKind::NotAnAuthority => "may not sign certificates",
            FaultKind::PathTooLong => "allows fewer authorities below it",
            FaultKind::KeyUsage => "has a key that may not be used for this",
            FaultKind::KeyKind => "has a key on the wrong curve",
            FaultKind::Extension => "has an extension that is unknown or given twice",
            FaultKind::Name => "has a name that is not allowed for its kind or issuer",
        };
        write!(f, "the certificate of {:?} {what}", self.certificate)
    }
}

impl std::error::Error for CertificateFault {}

/// The authorities above a domain's certificates, checked up to a trusted root.
#[derive(Clone, Debug)]
pub struct Chain(Vec<Certificate>);

impl Chain {
    /// Verifies a chain. The issuer comes first, the root last.
    pub fn verify(
        authorities: Vec<Certificate>,
        trusted: &[Certificate],
        now: Timestamp,
    ) -> Result<Self, CertificateFault> {
        let Some(root) = authorities.last().filter(|_| authorities.len() <= AUTHORITIES_MAX) else {
            let certificate = authorities.first().map_or_else(String::new, |issuer| issuer.name.clone());
            return Err(CertificateFault { certificate, kind: FaultKind::ChainLength });
        };
        if !trusted.iter().any(|trusted| trusted.der == root.der) {
            return Err(root.fault(FaultKind::Untrusted));
        }
        for (below, authority) in authorities.iter().enumerate() {
            check_authority(authority, below, now)?;
            // The root signs itself.
            check_signed(authority, authorities.get(below + 1).unwrap_or(root))?;
        }
        Ok(Self(authorities))
    }

    pub fn issuer(&self) -> &Certificate {
        &self.0[0]
    }

    pub fn root(&self) -> &Certificate {
        &self.0[self.0.len() - 1]
    }

    /// The whole chain, issuer first, root last, as `/pki/chain` serves it.
    pub fn to_pem(&self) -> String {
        self.0.iter().map(Certificate::to_pem).collect()
    }

    /// Verifies that a certificate belongs to the identity with this name. Does not check revocation; see [`crate::crl`] and
    /// [`crate::ocsp`].
    pub fn verify_identity(
        &self,
        certificate: Certificate,
        name: &str,
        now: Timestamp,
    ) -> Result<Peer, CertificateFault> {
        self.verify_end(&certificate, name, now)?;
        if certificate.key.curve() != Curve::P256 {
            return Err(certificate.fault(FaultKind::KeyKind));
        }
        Ok(Peer(certificate))
    }

    /// Verifies the certificate of a service, such as the one for logins.
    pub fn verify_service(
        &self,
        certificate: &Certificate,
        name: &str,
        now: Timestamp,
    ) -> Result<(), CertificateFault> {
        self.verify_end(certificate, name, now)
    }

    fn verify_end(&self, certificate: &Certificate, name: &str, now: Timestamp) -> Result<(), CertificateFault> {
        // Authorities of a cached chain may expire as well.
        for authority in &self.0 {
            check_dates(authority, now)?;
        }
        check_dates(certificate, now)?;
        check_extensions(certificate)?;
        check_signed(certificate, self.issuer())?;
        let authority = extension::<BasicConstraints>(certificate)?.is_some_and(|constraints| constraints.ca);
        let signs = extension::<KeyUsage>(certificate)?
            .is_some_and(|usage| usage.digital_signature() && !usage.key_cert_sign() && !usage.crl_sign());
        if authority || !signs {
            return Err(certificate.fault(FaultKind::KeyUsage));
        }
        let within = name.split_once('.').is_some_and(|(_, domain)| domain == self.issuer().name);
        if certificate.name != name || !within {
            return Err(certificate.fault(FaultKind::Name));
        }
        Ok(())
    }
}

/// The certificate of a trusted identity: verified by a [`Chain`], or known to the caller in advance.
#[derive(Clone, Debug)]
pub struct Peer(Certificate);

impl Peer {
    /// Trusts a certificate whose fingerprint was verified by other means.
    pub fn pinned(certificate: Certificate) -> Self {
        Self(certificate)
    }

    pub fn certificate(&self) -> &Certificate {
        &self.0
    }
}

impl Certificate {
    /// Whether it is a self-signed authority.
    pub fn is_root(&self) -> bool {
        let authority = extension::<BasicConstraints>(self).is_ok_and(|found| found.is_some_and(|found| found.ca));
        authority && check_extensions(self).is_ok() && check_signed(self, self).is_ok()
    }

    pub(crate) fn fault(&self, kind: FaultKind) -> CertificateFault {
        CertificateFault { certificate: self.name.clone(), kind }
    }
}

fn check_authority(authority: &Certificate, below: usize, now: Timestamp) -> Result<(), CertificateFault> {
    check_dates(authority, now)?;
    check_extensions(authority)?;
    let constraints = extension::<BasicConstraints>(authority)?.filter(|constraints| constraints.ca);
    let constraints = constraints.ok_or_else(|| authority.fault(FaultKind::NotAnAuthority))?;
    if constraints.path_len_constraint.is_none_or(|most| below > usize::from(most)) {
        return Err(authority.fault(FaultKind::PathTooLong));
    }
    let usage = extension::<KeyUsage>(authority)?;
    if !usage.is_some_and(|usage| usage.key_cert_sign() && usage.crl_sign()) {
        return Err(authority.fault(FaultKind::KeyUsage));
    }
    Ok(())
}

fn check_dates(certificate: &Certificate, now: Timestamp) -> Result<(), CertificateFault> {
    if now < certificate.not_before() {
        return Err(certificate.fault(FaultKind::NotYetValid));
    }
    if now > certificate.not_after() {
        return Err(certificate.fault(FaultKind::Expired));
    }
    Ok(())
}

fn check_signed(certificate: &Certificate, issuer: &Certificate) -> Result<(), CertificateFault> {
    let named = extension::<AuthorityKeyIdentifier>(certificate)?.and_then(|identifier| identifier.key_identifier);
    let other_key = match (named, issuer.key_identifier()) {
        (Some(named), Some(identifier)) => named.as_bytes() != identifier,
        _ => false,
    };
    if certificate.body().issuer() != issuer.body().subject() || other_key {
        return Err(certificate.fault(FaultKind::IssuerMismatch));
    }
    if !signed::is_signed_by(&certificate.der, &issuer.key) {
        return Err(certificate.fault(FaultKind::Signature));
    }
    Ok(())
}

/// Checks that each extension occurs at most once, and that every critical one is known.
fn check_extensions(certificate: &Certificate) -> Result<(), CertificateFault> {
    const KNOWN: [der::asn1::ObjectIdentifier; 5] = [
        BasicConstraints::OID,
        KeyUsage::OID,
        SubjectKeyIdentifier::OID,
        AuthorityKeyIdentifier::OID,
        SubjectAltName::OID,
    ];
    let all = certificate.body().extensions().map(Vec::as_slice).unwrap_or_default();
    for (index, extension) in all.iter().enumerate() {
        let twice = all[..index].iter().any(|earlier| earlier.extn_id == extension.extn_id);
        if twice || (extension.critical && !KNOWN.contains(&extension.extn_id)) {
            return Err(certificate.fault(FaultKind::Extension));
        }
    }
    Ok(())
}

fn extension<'a, T>(certificate: &'a Certificate) -> Result<Option<T>, CertificateFault>
where
    T: der::Decode<'a> + AssociatedOid,
{
    let found = certificate.body().get_extension::<T>().map_err(|_| certificate.fault(FaultKind::Extension))?;
    Ok(found.map(|(_, extension)| extension))
}
