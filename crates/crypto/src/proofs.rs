//! The texts that holders of keys sign to prove possession: at login, for a new certificate, and for single operations.
//! Each is built from the transmitted characters: a time that is parsed and printed again may differ.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{canonical, envelope::EnvelopeIdentity, keys::PublicKey, sha256};

/// What an identity signs to log in: the server's nonce and its own time, as sent.
pub fn login(nonce: &str, client_time: &str) -> Vec<u8> {
    format!("{nonce}:{client_time}").into_bytes()
}

/// What an identity signs to renew its certificate.
pub fn renewal(nonce: &str) -> Vec<u8> {
    nonce.as_bytes().to_vec()
}

/// What an identity signs with its old key to get a new key certified: the nonce, followed by the new key as sent.
pub fn rekey(nonce: &str, new_public_key: &str) -> Vec<u8> {
    format!("{nonce}{new_public_key}").into_bytes()
}

/// The text of a nonce, from random bytes.
pub fn nonce(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// The signature of one operation, sent as `client_signature` in its parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OperationSignature {
    pub aid: String,
    pub cert_fingerprint: String,
    /// Seconds, as text.
    pub timestamp: String,
    pub params_hash: String,
    pub signature: String,
}

impl OperationSignature {
    pub const FIELD: &'static str = "client_signature";

    pub fn sign(signer: &EnvelopeIdentity, method: &str, params: &Map<String, Value>, seconds: i64) -> Self {
        let (timestamp, params_hash) = (seconds.to_string(), params_hash(params));
        let text = operation(method, signer.name(), &timestamp, &params_hash);
        Self {
            aid: signer.name().to_owned(),
            cert_fingerprint: signer.fingerprint().to_owned(),
            signature: signer.key().sign_base64(text.as_bytes()),
            timestamp,
            params_hash,
        }
    }

    /// Whether the key's owner signed this method with these parameters. Whose key it is and how old the signature may be is
    /// for the caller to judge.
    pub fn verifies(&self, key: &PublicKey, method: &str, params: &Map<String, Value>) -> bool {
        let text = operation(method, &self.aid, &self.timestamp, &self.params_hash);
        self.params_hash == params_hash(params) && key.verifies_base64(text.as_bytes(), &self.signature)
    }
}

fn operation(method: &str, aid: &str, timestamp: &str, params_hash: &str) -> String {
    format!("{method}|{aid}|{timestamp}|{params_hash}")
}

/// Of all parameters but the signature itself and names that begin with an underscore, which servers add.
fn params_hash(params: &Map<String, Value>) -> String {
    let signed = canonical::json_without(params, |key| key == OperationSignature::FIELD || key.starts_with('_'));
    crate::hex(&sha256(&signed))
}
