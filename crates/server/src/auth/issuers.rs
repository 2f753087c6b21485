//! Users' tokens: JWTs signed by this server or by an issuer of the configuration. The key, and with it the algorithm, follows
//! from the issuer and the key id. Issuer, audience and expiry are required and checked.

use std::sync::Arc;

use jiff::SignedDuration;
use ostler_crypto::{
    jwk::{Jwk, SigningKey, VerifyingKey},
    jws::{self, Unverified},
};
use ostler_protocol::{
    Failure, Rule, Timestamp,
    limits::{NAME_BYTES_MAX, USER_TOKEN_LIFE_MS_MAX},
    users::OWN_ISSUER,
};
use ostler_store::{self as store, Db};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use super::key_sets::CachedKeySet;
use crate::config::IssuerSection;

/// By how much an issuer's clock may differ from ours.
const LEEWAY: SignedDuration = SignedDuration::from_secs(30);

/// The longest lifetime of a token of ours, including the tolerance for other clocks.
const OWN_LIFE_MAX: SignedDuration =
    SignedDuration::from_millis(USER_TOKEN_LIFE_MS_MAX + 2 * LEEWAY.as_millis() as i64);

pub struct Issuers {
    key: SigningKey,
    outside: Vec<Issuer>,
}

struct Issuer {
    name: String,
    audience: String,
    keys: Arc<CachedKeySet>,
}

/// The user of a verified token, and when it expires.
#[derive(Debug, PartialEq)]
pub struct Verified {
    pub issuer: String,
    pub subject: String,
    pub until: Timestamp,
}

#[derive(Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    aud: Audience,
    exp: f64,
    nbf: Option<f64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Several(Vec<String>),
}

/// The claims of our own tokens.
#[derive(Serialize)]
struct OwnClaims<'a> {
    iss: &'static str,
    aud: &'static str,
    sub: &'a str,
    iat: i64,
    exp: i64,
}

impl Issuers {
    pub fn new(key: SigningKey, outside: &[IssuerSection]) -> Result<Self, Failure> {
        let mut outside_issuers: Vec<Issuer> = vec![];
        for section in outside {
            let wrong =
                |message: &str| Failure::invalid(Rule::Issuer, format!("issuer {:?}: {message}", section.issuer));
            if section.issuer.is_empty() || section.issuer.len() > NAME_BYTES_MAX || section.audience.is_empty() {
                return Err(wrong("it needs an `issuer` and an `audience`"));
            }
            if section.issuer == OWN_ISSUER || outside_issuers.iter().any(|issuer| issuer.name == section.issuer) {
                return Err(wrong("this name is taken"));
            }
            let keys = Arc::new(CachedKeySet::of(section).map_err(|message| wrong(&message))?);
            outside_issuers.push(Issuer { name: section.issuer.clone(), audience: section.audience.clone(), keys });
        }
        Ok(Self { key, outside: outside_issuers })
    }

    /// The public half of our own key: its id and its JWK.
    pub fn own_key(&self) -> (&str, Jwk) {
        (&self.key.kid, self.key.jwk())
    }

    /// Whether the configuration names this issuer.
    pub fn knows(&self, issuer: &str) -> bool {
        self.outside.iter().any(|outside| outside.name == issuer)
    }

    pub fn sign(&self, subject: &str, now: Timestamp, until: Timestamp) -> SecretString {
        let (iat, exp) = (now.as_second(), until.as_second());
        let claims = OwnClaims { iss: OWN_ISSUER, aud: OWN_ISSUER, sub: subject, iat, exp };
        SecretString::from(jws::sign(&self.key, &claims))
    }

    /// `None` if the token is not valid, whatever the reason. `Err` if that cannot be decided now.
    pub async fn verify(&self, db: &Db, token: &str, now: Timestamp) -> Result<Option<Verified>, Failure> {
        let Some(unverified) = Unverified::parse(token) else { return Ok(None) };
        let (Some(issuer), Some(kid)) = (unverified.issuer(), unverified.kid()) else { return Ok(None) };
        let outside = self.outside.iter().find(|outside| outside.name == issuer);
        let (key, audience) = match outside {
            Some(outside) => (outside.keys.find(kid, now).await?, outside.audience.as_str()),
            None if issuer == OWN_ISSUER => (own_key(db, kid).await?, OWN_ISSUER),
            None => return Ok(None),
        };
        let payload = key.and_then(|key| unverified.verify(&key));
        let claims = payload.and_then(|payload| serde_json::from_slice::<Claims>(&payload).ok());
        Ok(claims.and_then(|claims| claims.hold(&issuer, audience, now)))
    }
}

impl Claims {
    fn hold(self, issuer: &str, audience: &str, now: Timestamp) -> Option<Verified> {
        let meant = match &self.aud {
            Audience::One(one) => one == audience,
            Audience::Several(several) => several.iter().any(|one| one == audience),
        };
        let until = at(self.exp)?.checked_add(LEEWAY).ok()?;
        // We never sign a token with a longer lifetime, so such a token was forged with our key.
        if issuer == OWN_ISSUER && until.duration_since(now) > OWN_LIFE_MAX {
            return None;
        }
        let begun = match self.nbf {
            None => true,
            Some(nbf) => at(nbf)?.checked_sub(LEEWAY).ok()? <= now,
        };
        let named = !self.sub.is_empty() && self.sub.len() <= NAME_BYTES_MAX;
        let holds = self.iss == issuer && meant && begun && now < until && named;
        holds.then_some(Verified { issuer: self.iss, subject: self.sub, until })
    }
}

/// Seconds since 1970, whole or not.
fn at(seconds: f64) -> Option<Timestamp> {
    let micros = seconds * 1e6;
    (micros.is_finite() && micros.abs() < 9e17).then(|| Timestamp::from_microsecond(micros as i64).ok())?
}

/// A key of a server of this store.
async fn own_key(db: &Db, kid: &str) -> Result<Option<VerifyingKey>, Failure> {
    let Some(text) = store::signing_keys::get(db, kid).await? else { return Ok(None) };
    let jwk: Jwk = serde_json::from_str(&text).map_err(Failure::internal)?;
    Ok(VerifyingKey::of(&jwk))
}

/// The failure when an issuer's keys are unavailable, so that a token can be neither accepted nor rejected.
pub(super) fn keys_missing(issuer: &str) -> Failure {
    let message = format!("the keys of {issuer:?} cannot be fetched now");
    Failure::rule(Rule::IssuerKeys, message)
}
