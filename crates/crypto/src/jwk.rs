//! Keys of signed tokens, as JSON Web Keys. A key has exactly one algorithm, which follows from its type. The token's header
//! cannot change it.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL};
use ring::signature::{self, Ed25519KeyPair, KeyPair, RsaPublicKeyComponents, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

/// The supported algorithms, each for one type of key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// RSA of 2048 to 8192 bits, PKCS#1 v1.5 with SHA-256.
    Rs256,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// Ed25519.
    EdDsa,
}

impl Algorithm {
    /// Whether a token's header may use this name for the algorithm. Ed25519 has two names.
    pub fn is_named(self, name: &str) -> bool {
        match self {
            Self::Rs256 => name == "RS256",
            Self::Es256 => name == "ES256",
            Self::EdDsa => name == "EdDSA" || name == "Ed25519",
        }
    }
}

/// A public key in a key set. Fields that we do not need are ignored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Jwk {
    pub kty: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alg: Option<String>,
    #[serde(rename = "use", skip_serializing_if = "Option::is_none")]
    pub usage: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crv: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub x: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub y: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub e: Option<String>,
}

/// A key that can verify signatures.
#[derive(Clone, Debug, PartialEq)]
pub struct VerifyingKey {
    pub kid: String,
    material: Material,
}

#[derive(Clone, Debug, PartialEq)]
enum Material {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl VerifyingKey {
    /// `None` if the key cannot be used. A set may contain keys for other purposes, and keys without an id.
    pub fn of(jwk: &Jwk) -> Option<Self> {
        let kid = jwk.kid.clone().filter(|kid| !kid.is_empty())?;
        if jwk.usage.as_deref().is_some_and(|usage| usage != "sig") {
            return None;
        }
        let bytes = |field: &Option<String>| BASE64URL.decode(field.as_deref()?).ok();
        let material = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
            ("RSA", _) => Material::Rsa { n: bytes(&jwk.n)?, e: bytes(&jwk.e)? },
            ("EC", Some("P-256")) => {
                let (x, y) = (bytes(&jwk.x)?, bytes(&jwk.y)?);
                // An uncompressed point.
                (x.len() == 32 && y.len() == 32).then(|| Material::P256([&[4], x.as_slice(), y.as_slice()].concat()))?
            }
            ("OKP", Some("Ed25519")) => Material::Ed25519(bytes(&jwk.x).filter(|x| x.len() == 32)?),
            _ => return None,
        };
        let key = Self { kid, material };
        let agrees = jwk.alg.as_deref().is_none_or(|alg| key.algorithm().is_named(alg));
        agrees.then_some(key)
    }

    pub fn algorithm(&self) -> Algorithm {
        match self.material {
            Material::Rsa { .. } => Algorithm::Rs256,
            Material::P256(_) => Algorithm::Es256,
            Material::Ed25519(_) => Algorithm::EdDsa,
        }
    }

    pub fn verifies(&self, message: &[u8], signed: &[u8]) -> bool {
        match &self.material {
            Material::Rsa { n, e } => {
                let key = RsaPublicKeyComponents { n, e };
                key.verify(&signature::RSA_PKCS1_2048_8192_SHA256, message, signed).is_ok()
            }
            Material::P256(point) => {
                UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point).verify(message, signed).is_ok()
            }
            Material::Ed25519(key) => UnparsedPublicKey::new(&signature::ED25519, key).verify(message, signed).is_ok(),
        }
    }
}

/// Our own key: Ed25519, from 32 random bytes that its owner stores.
pub struct SigningKey {
    pair: Ed25519KeyPair,
    pub kid: String,
}

impl SigningKey {
    /// `None` unless the seed has 32 bytes.
    pub fn from_seed(seed: &[u8]) -> Option<Self> {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).ok()?;
        let x = BASE64URL.encode(pair.public_key().as_ref());
        // RFC 7638: the key's id is the digest of its own fields, in this order.
        let canonical = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#);
        Some(Self { pair, kid: BASE64URL.encode(crate::sha256(canonical.as_bytes())) })
    }

    pub fn jwk(&self) -> Jwk {
        Jwk {
            kty: "OKP".into(),
            kid: Some(self.kid.clone()),
            alg: Some("EdDSA".into()),
            usage: Some("sig".into()),
            crv: Some("Ed25519".into()),
            x: Some(BASE64URL.encode(self.pair.public_key().as_ref())),
            ..Jwk::default()
        }
    }

    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.pair.sign(message).as_ref().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8037, appendix A.
    #[test]
    fn the_id_of_a_key_is_its_thumbprint() {
        let seed = BASE64URL.decode("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A").unwrap();
        let key = SigningKey::from_seed(&seed).unwrap();
        assert_eq!(key.kid, "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k");
        assert_eq!(key.jwk().x.as_deref(), Some("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"));
        let checks = VerifyingKey::of(&key.jwk()).unwrap();
        assert!(checks.verifies(b"m", &key.sign(b"m")) && !checks.verifies(b"n", &key.sign(b"m")));
    }

    #[test]
    fn unusable_keys_are_rejected() {
        let good = SigningKey::from_seed(&[7; 32]).unwrap().jwk();
        assert!(VerifyingKey::of(&good).is_some());
        let changed = |change: fn(&mut Jwk)| {
            let mut jwk = good.clone();
            change(&mut jwk);
            VerifyingKey::of(&jwk)
        };
        assert_eq!(changed(|jwk| jwk.kid = None), None);
        assert_eq!(changed(|jwk| jwk.alg = Some("HS256".into())), None);
        assert_eq!(changed(|jwk| jwk.usage = Some("enc".into())), None);
        assert_eq!(changed(|jwk| jwk.kty = "oct".into()), None);
        assert_eq!(changed(|jwk| jwk.crv = Some("X25519".into())), None);
        assert_eq!(changed(|jwk| jwk.x = Some("AAAA".into())), None);
        assert!(SigningKey::from_seed(&[7; 31]).is_none());
    }
}
