//! The list of trusted roots, signed by an authority whose key is pinned in advance. A key inside the list proves nothing and
//! is ignored: a forger of the list would replace it as well.

use std::fmt;

use base64::{
    Engine,
    engine::general_purpose::{STANDARD as BASE64, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD},
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    canonical,
    certificates::Certificate,
    keys::{PrivateKey, PublicKey},
    sha256,
};

const SIGNATURE: &str = "authority_signature";
/// How far the clock of the list's issuer may be ahead of ours.
pub const AHEAD_SECONDS_MAX: i64 = 300;
pub const ROOTS_MAX: usize = 256;

/// One root in the list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Root {
    pub id: String,
    pub name: String,
    #[serde(default)]
    pub organization: String,
    pub certificate: String,
    /// Digest of the certificate's DER, in hexadecimal.
    pub fingerprint_sha256: String,
    /// Only `active` roots are trusted.
    pub status: String,
    #[serde(default)]
    pub crl_url: String,
    #[serde(default)]
    pub ocsp_url: String,
}

impl Root {
    pub fn active(id: &str, organization: &str, certificate: &Certificate, crl_url: &str, ocsp_url: &str) -> Self {
        Self {
            id: id.to_owned(),
            name: certificate.name().to_owned(),
            organization: organization.to_owned(),
            certificate: certificate.to_pem(),
            fingerprint_sha256: crate::hex(&sha256(certificate.der())),
            status: "active".to_owned(),
            crl_url: crl_url.to_owned(),
            ocsp_url: ocsp_url.to_owned(),
        }
    }
}

/// Signs a list. The version increases with every change.
pub fn sign(
    authority: &PrivateKey,
    version: u64,
    issued_at: Timestamp,
    next_update: Timestamp,
    roots: &[Root],
) -> Map<String, Value> {
    let seconds = |time: Timestamp| Timestamp::from_second(time.as_second()).unwrap_or(time).to_string();
    let mut list = Map::new();
    list.insert("version".into(), version.into());
    list.insert("issued_at".into(), seconds(issued_at).into());
    list.insert("next_update".into(), seconds(next_update).into());
    list.insert("root_cas".into(), json!(roots));
    let signature = authority.sign_base64(&signed_bytes(&list));
    list.insert(SIGNATURE.into(), signature.into());
    list
}

/// A list that was verified.
#[derive(Clone, Debug)]
pub struct TrustList {
    pub version: u64,
    pub next_update: Timestamp,
    /// The active roots.
    pub roots: Vec<Certificate>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrustListError {
    Unsigned,
    Signature,
    /// A field is missing or malformed.
    Shape,
    /// Issued in the future, or due before it was issued.
    Dates,
    /// The time of the next update has passed.
    Outdated,
    /// Older than the list that we have.
    Rollback,
    /// An active root is not a valid self-signed authority, or not the one that the list names.
    Root,
    /// The list has no active root.
    Empty,
}

impl fmt::Display for TrustListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unsigned => "the list is not signed",
            Self::Signature => "the list was not signed by the pinned authority",
            Self::Shape => "the list lacks a field, or has one of another type",
            Self::Dates => "the list's dates contradict each other",
            Self::Outdated => "the list has expired",
            Self::Rollback => "the list is older than the one we have",
            Self::Root => "the list names an invalid root",
            Self::Empty => "the list has no active root",
        })
    }
}

impl std::error::Error for TrustListError {}

#[derive(Deserialize)]
struct TrustListFields {
    version: u64,
    issued_at: Timestamp,
    next_update: Timestamp,
    root_cas: Vec<Root>,
}

/// Verifies that the pinned key signed a list. `known` is the version that we have.
pub fn verify(
    list: &Map<String, Value>,
    pinned: &PublicKey,
    known: Option<u64>,
    now: Timestamp,
) -> Result<TrustList, TrustListError> {
    let signature = list.get(SIGNATURE).and_then(Value::as_str).ok_or(TrustListError::Unsigned)?;
    let signature = decode(signature.trim()).ok_or(TrustListError::Signature)?;
    if !pinned.verifies(&signed_bytes(list), &signature) {
        return Err(TrustListError::Signature);
    }
    let fields = TrustListFields::deserialize(Value::Object(list.clone())).map_err(|_| TrustListError::Shape)?;
    if fields.root_cas.len() > ROOTS_MAX {
        return Err(TrustListError::Shape);
    }
    let ahead = fields.issued_at.as_second().saturating_sub(now.as_second());
    if fields.next_update < fields.issued_at || ahead > AHEAD_SECONDS_MAX {
        return Err(TrustListError::Dates);
    }
    if now > fields.next_update {
        return Err(TrustListError::Outdated);
    }
    if known.is_some_and(|known| fields.version < known) {
        return Err(TrustListError::Rollback);
    }
    let active = fields.root_cas.iter().filter(|root| root.status == "active");
    let roots: Vec<Certificate> =
        active.map(|root| check(root, now)).collect::<Option<_>>().ok_or(TrustListError::Root)?;
    if roots.is_empty() {
        return Err(TrustListError::Empty);
    }
    Ok(TrustList { version: fields.version, next_update: fields.next_update, roots })
}

fn check(root: &Root, now: Timestamp) -> Option<Certificate> {
    let certificate = Certificate::from_pem(&root.certificate)?;
    let named = root.fingerprint_sha256.eq_ignore_ascii_case(&crate::hex(&sha256(certificate.der())));
    (named && certificate.is_root() && certificate.is_valid_at(now)).then_some(certificate)
}

/// The list without its signature.
fn signed_bytes(list: &Map<String, Value>) -> Vec<u8> {
    canonical::json_without(list, |key| key == SIGNATURE)
}

/// Base64 of either alphabet, with or without padding and the prefix `base64:`.
fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.strip_prefix("base64:").unwrap_or(text);
    [BASE64, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD].iter().find_map(|engine| engine.decode(text).ok())
}
