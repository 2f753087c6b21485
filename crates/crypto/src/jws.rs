//! Signed tokens in the compact form: `header.payload.signature`. Before the signature is verified, only what is needed to
//! find the key can be read. The payload is returned by the verification only.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL};
use serde::{Deserialize, Serialize};

use crate::jwk::{SigningKey, VerifyingKey};

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// Critical extensions. We support none.
    crit: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct JwsIssuer {
    iss: Option<String>,
}

/// A token whose signature has not been verified.
pub struct Unverified<'a> {
    header: Header,
    signed: &'a str,
    payload: Vec<u8>,
    signature: Vec<u8>,
}

impl<'a> Unverified<'a> {
    /// Parses a token. `None` if it is not in the compact form, or has critical extensions.
    pub fn parse(token: &'a str) -> Option<Self> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, payload) = signed.split_once('.')?;
        let header: Header = serde_json::from_slice(&BASE64URL.decode(header).ok()?).ok()?;
        if header.crit.is_some() {
            return None;
        }
        let (payload, signature) = (BASE64URL.decode(payload).ok()?, BASE64URL.decode(signature).ok()?);
        Some(Self { header, signed, payload, signature })
    }

    /// The id of the key that it claims to be signed with.
    pub fn kid(&self) -> Option<&str> {
        self.header.kid.as_deref()
    }

    /// The issuer that it claims to come from.
    pub fn issuer(&self) -> Option<String> {
        serde_json::from_slice::<JwsIssuer>(&self.payload).ok()?.iss
    }

    /// The payload, if this key signed it. The key determines the algorithm; a token whose header names another is rejected.
    pub fn verify(self, key: &VerifyingKey) -> Option<Vec<u8>> {
        let named = key.algorithm().is_named(&self.header.alg) && self.header.kid.as_ref() == Some(&key.kid);
        (named && key.verifies(self.signed.as_bytes(), &self.signature)).then_some(self.payload)
    }
}

/// Signs a payload with our own key.
#[expect(clippy::expect_used, reason = "claims are plain data and always serialise")]
pub fn sign(key: &SigningKey, payload: &impl Serialize) -> String {
    let header = serde_json::json!({"alg": "EdDSA", "kid": key.kid, "typ": "JWT"});
    let payload = serde_json::to_vec(payload).expect("our own types serialise");
    let mut token = format!("{}.{}", BASE64URL.encode(header.to_string()), BASE64URL.encode(payload));
    let signature = key.sign(token.as_bytes());
    token.push('.');
    token.push_str(&BASE64URL.encode(signature));
    token
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn key(seed: u8) -> (SigningKey, VerifyingKey) {
        let key = SigningKey::from_seed(&[seed; 32]).unwrap();
        let verifying = VerifyingKey::of(&key.jwk()).unwrap();
        (key, verifying)
    }

    fn opened(token: &str, key: &VerifyingKey) -> Option<Value> {
        Some(serde_json::from_slice(&Unverified::parse(token)?.verify(key)?).unwrap())
    }

    #[test]
    fn a_token_verifies_with_its_own_key_only() {
        let ((ours, public), (_, mut other)) = (key(1), key(2));
        let payload = json!({"iss": "ostler", "sub": "usr"});
        let token = sign(&ours, &payload);
        assert_eq!(Unverified::parse(&token).unwrap().issuer().as_deref(), Some("ostler"));
        assert_eq!(opened(&token, &public), Some(payload));
        assert_eq!(opened(&token, &other), None);
        // A different key under the same id does not verify it.
        other.kid = public.kid;
        assert_eq!(opened(&token, &other), None);
    }

    #[test]
    fn a_changed_token_does_not_verify() {
        let (ours, public) = key(1);
        let token = sign(&ours, &json!({"sub": "me"}));
        for at in 0..token.len() {
            let mut changed = token.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(opened(&changed, &public), None, "{at}: {changed}");
        }
        for cut in 0..token.len() {
            assert_eq!(opened(&token[..cut], &public), None);
        }
    }

    #[test]
    fn the_header_cannot_choose_the_algorithm() {
        let (ours, public) = key(1);
        let resigned = |header: Value| {
            let body = format!("{}.{}", BASE64URL.encode(header.to_string()), BASE64URL.encode("{}"));
            let signature = BASE64URL.encode(ours.sign(body.as_bytes()));
            opened(&format!("{body}.{signature}"), &public)
        };
        let kid = &public.kid;
        assert_eq!(resigned(json!({"alg": "EdDSA", "kid": kid})), Some(json!({})));
        assert_eq!(resigned(json!({"alg": "Ed25519", "kid": kid})), Some(json!({})));
        for header in [
            json!({"alg": "none", "kid": kid}),
            json!({"alg": "HS256", "kid": kid}),
            json!({"alg": "RS256", "kid": kid}),
            json!({"alg": "EdDSA"}),
            json!({"alg": "EdDSA", "kid": "other"}),
            json!({"alg": "EdDSA", "kid": kid, "crit": ["b64"], "b64": false}),
            json!({"kid": kid}),
        ] {
            assert_eq!(resigned(header.clone()), None, "{header}");
        }
    }
}
