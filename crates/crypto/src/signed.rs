//! The three signed structures of X.509 (certificates, revocation lists, OCSP responses) have the same shape: a body, an
//! algorithm, and a signature over the body's bytes. The received bytes are verified, never a copy that was encoded again.

use der::{Decode, Encode, Sequence, asn1::AnyRef, asn1::BitStringRef};
use x509_cert::{AlgorithmIdentifier, spki::AlgorithmIdentifierRef};

use crate::{
    encoding::to_der,
    keys::{Curve, PrivateKey, PublicKey},
};

#[derive(Sequence)]
struct Signed<'a> {
    body: AnyRef<'a>,
    algorithm: AlgorithmIdentifierRef<'a>,
    signature: BitStringRef<'a>,
}

pub(crate) fn algorithm(curve: Curve) -> AlgorithmIdentifier {
    AlgorithmIdentifier { oid: curve.signature_oid(), parameters: None }
}

#[expect(clippy::expect_used, reason = "what was just encoded can be parsed")]
pub(crate) fn sign(body: &impl Encode, key: &PrivateKey) -> Vec<u8> {
    let body = to_der(body);
    let signature = key.sign(&body);
    let signed = Signed {
        body: AnyRef::from_der(&body).expect("it was just written"),
        algorithm: AlgorithmIdentifierRef { oid: key.curve().signature_oid(), parameters: None },
        signature: BitStringRef::from_bytes(&signature).expect("a signature is short"),
    };
    to_der(&signed)
}

/// Whether this key signed the body, with the algorithm of its curve.
pub(crate) fn is_signed_by(der: &[u8], key: &PublicKey) -> bool {
    let Ok(signed) = Signed::from_der(der) else { return false };
    let expected = AlgorithmIdentifierRef { oid: key.curve().signature_oid(), parameters: None };
    let (Ok(body), Some(signature)) = (signed.body.to_der(), signed.signature.as_bytes()) else { return false };
    signed.algorithm == expected && key.verifies(&body, signature)
}

/// Parses the body. Does not check the signature; see [`is_signed_by`].
pub(crate) fn body<T: for<'a> Decode<'a, Error = der::Error>>(der: &[u8]) -> Option<T> {
    T::from_der(&Signed::from_der(der).ok()?.body.to_der().ok()?).ok()
}
