//! Keys on the two curves of the mesh: P-384 for authorities, P-256 for identities. The curve determines the hash. Signatures
//! are deterministic (RFC 6979), so signing needs no randomness; a key is generated from randomness that is passed in.
//! RustCrypto holds the secrets and wipes them when dropped; ring, which is faster, verifies signatures.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use der::{asn1::ObjectIdentifier, pem::LineEnding};
use p256::pkcs8::{DecodePrivateKey, DecodePublicKey, EncodePrivateKey, EncodePublicKey};
use ring::signature::{ECDSA_P256_SHA256_ASN1, ECDSA_P384_SHA384_ASN1, UnparsedPublicKey};
use zeroize::Zeroizing;

use crate::Fill;

/// ecdsa-with-SHA256
const ECDSA_SHA256: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.2");
/// ecdsa-with-SHA384
const ECDSA_SHA384: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.3");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// For identities; signs with SHA-256.
    P256,
    /// For authorities and services; signs with SHA-384.
    P384,
}

impl Curve {
    /// The curve's name in the mesh's protocol.
    pub fn name(self) -> &'static str {
        match self {
            Self::P256 => "P-256",
            Self::P384 => "P-384",
        }
    }

    pub(crate) fn signature_oid(self) -> ObjectIdentifier {
        match self {
            Self::P256 => ECDSA_SHA256,
            Self::P384 => ECDSA_SHA384,
        }
    }
}

/// A private key. It is never printed, and wiped when dropped.
#[derive(Clone)]
pub struct PrivateKey(KeySecret);

#[derive(Clone)]
enum KeySecret {
    P256(p256::ecdsa::SigningKey),
    P384(p384::ecdsa::SigningKey),
}

impl PrivateKey {
    /// Generates a key. Only one random number in 2^32 is not a key of the curve, so the loop runs out only if the source of
    /// randomness is broken.
    #[expect(clippy::expect_used, reason = "only a broken source of randomness yields no key in so many draws")]
    pub fn generate(curve: Curve, fill: Fill<'_>) -> Self {
        const DRAWS_MAX: usize = 64;
        let mut bytes = Zeroizing::new([0; 48]);
        let bytes = match curve {
            Curve::P256 => &mut bytes[..32],
            Curve::P384 => &mut bytes[..],
        };
        let draws = std::iter::repeat_with(|| {
            fill(bytes);
            Self::from_scalar(curve, bytes)
        });
        draws.take(DRAWS_MAX).flatten().next().expect("randomness that is not all zeros or all ones")
    }

    /// `None` if the bytes are not a scalar of this curve.
    pub fn from_scalar(curve: Curve, bytes: &[u8]) -> Option<Self> {
        Some(Self(match curve {
            Curve::P256 => KeySecret::P256(p256::ecdsa::SigningKey::from_slice(bytes).ok()?),
            Curve::P384 => KeySecret::P384(p384::ecdsa::SigningKey::from_slice(bytes).ok()?),
        }))
    }

    /// Parses PKCS#8 DER. `None` if it is malformed, or the key is on another curve.
    pub fn from_pkcs8_der(der: &[u8]) -> Option<Self> {
        let p256 = || p256::SecretKey::from_pkcs8_der(der).ok().map(|key| KeySecret::P256(key.into()));
        let p384 = || p384::SecretKey::from_pkcs8_der(der).ok().map(|key| KeySecret::P384(key.into()));
        p256().or_else(p384).map(Self)
    }

    /// Parses `PRIVATE KEY` PEM.
    pub fn from_pem(pem: &str) -> Option<Self> {
        let p256 = || p256::SecretKey::from_pkcs8_pem(pem).ok().map(|key| KeySecret::P256(key.into()));
        let p384 = || p384::SecretKey::from_pkcs8_pem(pem).ok().map(|key| KeySecret::P384(key.into()));
        p256().or_else(p384).map(Self)
    }

    #[expect(clippy::expect_used, reason = "a valid key always encodes")]
    pub fn to_pkcs8_der(&self) -> Zeroizing<Vec<u8>> {
        let document = match &self.0 {
            KeySecret::P256(key) => p256::SecretKey::from(key).to_pkcs8_der(),
            KeySecret::P384(key) => p384::SecretKey::from(key).to_pkcs8_der(),
        };
        document.expect("a key can be written").to_bytes()
    }

    #[expect(clippy::expect_used, reason = "a valid key always encodes")]
    pub fn to_pem(&self) -> Zeroizing<String> {
        let pem = match &self.0 {
            KeySecret::P256(key) => p256::SecretKey::from(key).to_pkcs8_pem(LineEnding::LF),
            KeySecret::P384(key) => p384::SecretKey::from(key).to_pkcs8_pem(LineEnding::LF),
        };
        pem.expect("a key can be written")
    }

    /// Parses base64 of PKCS#8, the form in our files.
    pub fn from_base64(text: &str) -> Option<Self> {
        Self::from_pkcs8_der(&Zeroizing::new(BASE64.decode(text).ok()?))
    }

    pub fn to_base64(&self) -> Zeroizing<String> {
        Zeroizing::new(BASE64.encode(&*self.to_pkcs8_der()))
    }

    pub fn curve(&self) -> Curve {
        match self.0 {
            KeySecret::P256(_) => Curve::P256,
            KeySecret::P384(_) => Curve::P384,
        }
    }

    pub fn public_key(&self) -> PublicKey {
        let point = match &self.0 {
            KeySecret::P256(key) => key.verifying_key().to_sec1_point(false).as_bytes().to_vec(),
            KeySecret::P384(key) => key.verifying_key().to_sec1_point(false).as_bytes().to_vec(),
        };
        PublicKey { curve: self.curve(), point }
    }

    /// ECDSA with the curve's hash, in DER.
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        use p256::ecdsa::signature::Signer;
        match &self.0 {
            KeySecret::P256(key) => Signer::<p256::ecdsa::DerSignature>::sign(key, message).as_bytes().to_vec(),
            KeySecret::P384(key) => Signer::<p384::ecdsa::DerSignature>::sign(key, message).as_bytes().to_vec(),
        }
    }

    /// Signs and encodes the signature in base64, as the mesh sends it.
    pub fn sign_base64(&self, message: &[u8]) -> String {
        BASE64.encode(self.sign(message))
    }

    /// The shared secret of this key and a peer's public key: 32 bytes. `None` if one of them is not on P-256.
    pub(crate) fn agree(&self, peer: &PublicKey) -> Option<Zeroizing<[u8; 32]>> {
        let KeySecret::P256(key) = &self.0 else { return None };
        let peer = p256::PublicKey::from_sec1_bytes(&peer.point).ok()?;
        let shared = p256::ecdh::diffie_hellman(key.as_nonzero_scalar(), peer.as_affine());
        let mut bytes = Zeroizing::new([0; 32]);
        bytes.copy_from_slice(shared.raw_secret_bytes());
        Some(bytes)
    }
}

impl std::fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PrivateKey({}, hidden)", self.curve().name())
    }
}

/// A public key: a point that was checked to be on its curve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    curve: Curve,
    /// Uncompressed.
    point: Vec<u8>,
}

impl PublicKey {
    /// Parses the DER of a `SubjectPublicKeyInfo`. `None` if it is another kind of key, or not in the canonical encoding.
    pub fn from_spki_der(der: &[u8]) -> Option<Self> {
        let p256 = || {
            let key = p256::PublicKey::from_public_key_der(der).ok()?;
            Some(Self { curve: Curve::P256, point: key.to_sec1_bytes().into() })
        };
        let p384 = || {
            let key = p384::PublicKey::from_public_key_der(der).ok()?;
            Some(Self { curve: Curve::P384, point: key.to_sec1_bytes().into() })
        };
        p256().or_else(p384).filter(|key| key.to_spki_der() == der)
    }

    /// Parses base64 of that DER, as the mesh sends keys.
    pub fn from_base64(text: &str) -> Option<Self> {
        Self::from_spki_der(&BASE64.decode(text).ok()?)
    }

    /// Parses `PUBLIC KEY` PEM.
    pub fn from_pem(pem: &str) -> Option<Self> {
        let (label, der) = der::pem::decode_vec(pem.as_bytes()).ok()?;
        (label == "PUBLIC KEY").then(|| Self::from_spki_der(&der))?
    }

    /// Parses an uncompressed point on P-256.
    pub(crate) fn from_point(point: &[u8]) -> Option<Self> {
        let well_formed = point.len() == 65 && p256::PublicKey::from_sec1_bytes(point).is_ok();
        well_formed.then(|| Self { curve: Curve::P256, point: point.to_vec() })
    }

    pub(crate) fn point(&self) -> &[u8] {
        &self.point
    }

    #[expect(clippy::expect_used, reason = "the point was checked when the key was parsed")]
    pub fn to_spki_der(&self) -> Vec<u8> {
        let document = match self.curve {
            Curve::P256 => p256::PublicKey::from_sec1_bytes(&self.point).expect("it was read").to_public_key_der(),
            Curve::P384 => p384::PublicKey::from_sec1_bytes(&self.point).expect("it was read").to_public_key_der(),
        };
        document.expect("a key can be written").into_vec()
    }

    pub fn to_base64(&self) -> String {
        BASE64.encode(self.to_spki_der())
    }

    pub fn to_pem(&self) -> String {
        crate::encoding::to_pem("PUBLIC KEY", &self.to_spki_der())
    }

    pub fn curve(&self) -> Curve {
        self.curve
    }

    /// Whether this key signed the message. Only the curve determines the hash.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let algorithm = match self.curve {
            Curve::P256 => &ECDSA_P256_SHA256_ASN1,
            Curve::P384 => &ECDSA_P384_SHA384_ASN1,
        };
        UnparsedPublicKey::new(algorithm, &self.point).verify(message, signature).is_ok()
    }

    pub fn verifies_base64(&self, message: &[u8], signature: &str) -> bool {
        BASE64.decode(signature).is_ok_and(|signature| self.verifies(message, &signature))
    }
}
