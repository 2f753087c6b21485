//! Encoding of our own values, which cannot fail: they are short, and well formed by construction.

use der::{Encode, asn1::OctetString, pem::LineEnding};

/// A value in DER.
#[expect(clippy::expect_used, reason = "our own values always encode")]
pub(crate) fn to_der(value: &impl Encode) -> Vec<u8> {
    value.to_der().expect("our own value encodes")
}

/// Bytes as an octet string.
#[expect(clippy::expect_used, reason = "only a string of more than 256 MiB is too long")]
pub(crate) fn octets(bytes: impl Into<Box<[u8]>>) -> OctetString {
    OctetString::new(bytes).expect("the string is short")
}

/// DER in PEM, under a label.
#[expect(clippy::expect_used, reason = "our labels are valid, and any bytes can be written")]
pub(crate) fn to_pem(label: &'static str, der: &[u8]) -> String {
    der::pem::encode_string(label, LineEnding::LF, der).expect("the bytes can be written")
}
