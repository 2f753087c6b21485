//! The three things that X.509 signs (certificates, revocation lists, OCSP answers) share one shape: a body, an algorithm,
//! a signature over the body's bytes. What is checked is the bytes as they came, never a copy written anew.

use der::{Decode, Encode, Sequence, asn1::AnyRef, asn1::BitStringRef};
use x509_cert::{AlgorithmIdentifier, spki::AlgorithmIdentifierRef};

use crate::keys::{Curve, PrivateKey, PublicKey};

#[derive(Sequence)]
struct Signed<'a> {
    body: AnyRef<'a>,
    algorithm: AlgorithmIdentifierRef<'a>,
    signature: BitStringRef<'a>,
}

pub(crate) fn algorithm(curve: Curve) -> AlgorithmIdentifier {
    AlgorithmIdentifier { oid: curve.signature_oid(), parameters: None }
}

pub(crate) fn sign(body: &impl Encode, key: &PrivateKey) -> Vec<u8> {
    let body = body.to_der().expect("our own types can be written");
    let signature = key.sign(&body);
    let signed = Signed {
        body: AnyRef::from_der(&body).expect("it was just written"),
        algorithm: AlgorithmIdentifierRef { oid: key.curve().signature_oid(), parameters: None },
        signature: BitStringRef::from_bytes(&signature).expect("a signature is short"),
    };
    signed.to_der().expect("our own types can be written")
}

/// Whether this key signed the body, with the one algorithm of its curve.
pub(crate) fn is_signed_by(der: &[u8], key: &PublicKey) -> bool {
    let Ok(signed) = Signed::from_der(der) else { return false };
    let expected = AlgorithmIdentifierRef { oid: key.curve().signature_oid(), parameters: None };
    let (Ok(body), Some(signature)) = (signed.body.to_der(), signed.signature.as_bytes()) else { return false };
    signed.algorithm == expected && key.verifies(&body, signature)
}

/// The body, read. Whoever needs to know who signed it asks [`is_signed_by`].
pub(crate) fn body<T: for<'a> Decode<'a, Error = der::Error>>(der: &[u8]) -> Option<T> {
    T::from_der(&Signed::from_der(der).ok()?.body.to_der().ok()?).ok()
}
