//! X.509 certificates of the mesh: root, registry, issuer, and below it services and identities. `certificate` parses them,
//! `issue` makes them, `verify` decides which to trust. A certificate's name is its subject's common name.

mod certificate;
pub(crate) mod issue;
mod verify;

pub use certificate::{CERTIFICATE_BYTES_MAX, CLOCK_SKEW_SECONDS, Certificate, NotASerial, RENEWAL_GRACE_DAYS, Serial};
pub use issue::{Authority, CertificateKind};
pub use verify::{AUTHORITIES_MAX, CertificateFault, Chain, FaultKind, Peer};

pub(crate) use certificate::{date_time, timestamp};
