//! Registration, login, tokens and certificates on the wire. A login's two halves come over different connections, and
//! a request id connects them: it contains, sealed, all that the second half must know of the first.

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use super::Aid;
use crate::{Failure, RawJson, Rule};

/// A login must be finished in this time; its nonce is good for one try.
pub const LOGIN_MS_MAX: i64 = 60_000;
/// From the first frame to `auth.connect`.
pub const HANDSHAKE_MS_MAX: i64 = 30_000;
pub const ACCESS_TOKEN_LIFE_MS: i64 = 3_600_000;
/// A chain of refreshed tokens ends after this time, …
pub const REFRESH_CHAIN_MS_MAX: i64 = 30 * 86_400_000;
/// … and after this many uses.
pub const REFRESH_CHAIN_USES_MAX: u32 = 720;
/// Logins of a name that are valid at once; the oldest makes room for the next. Clients do not log out, and a command
/// that sends one message has logged in for it, so there are many: frequent short logins must not push out a client
/// that stays connected.
pub const LOGINS_PER_AID_MAX: u32 = 1_000;
pub const NONCE_BYTES_MAX: usize = 128;
pub const CERTIFICATE_PEM_BYTES_MAX: usize = 16 * 1024;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateAidParams {
    /// The name to register.
    #[schema(value_type = String)]
    pub aid: Aid,
    /// Base64 of the DER of the public key, on P-256.
    pub public_key: String,
    /// `P-256`.
    #[serde(default = "p256")]
    pub curve: String,
    /// An invitation, where the server asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invite: Option<String>,
}

fn p256() -> String {
    "P-256".to_owned()
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateAidResult {
    #[schema(value_type = String)]
    pub aid: Aid,
    /// PEM.
    pub cert: String,
    /// The issuer's, PEM.
    pub ca_cert: String,
    pub curve: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Login1Params {
    #[schema(value_type = String)]
    pub aid: Aid,
    /// The identity's certificate, PEM.
    pub cert: String,
    /// Signed by the auth service to prove itself, as this text.
    pub client_nonce: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Login1Result {
    /// Names this login in its second half.
    pub request_id: String,
    /// To be signed by the identity.
    pub nonce: String,
    /// The auth service's certificate, PEM.
    pub auth_cert: String,
    /// Base64 of a signature in DER.
    pub client_nonce_signature: String,
    /// Milliseconds.
    pub server_time: i64,
    pub auth_curve: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Login2Params {
    #[schema(value_type = String)]
    pub aid: Aid,
    pub request_id: String,
    pub nonce: String,
    /// The identity's time, signed exactly as transmitted.
    #[serde(deserialize_with = "as_transmitted")]
    pub client_time: String,
    /// Base64 of a signature in DER over `{nonce}:{client_time}`.
    pub signature: String,
}

/// A text, or the digits of a number: either as it came, for the signature covers that.
fn as_transmitted<'de, D: Deserializer<'de>>(input: D) -> Result<String, D::Error> {
    let raw = RawJson::deserialize(input)?;
    let text = raw.view::<String>().unwrap_or_else(|| raw.as_str().to_owned());
    let digits = text.starts_with(|first: char| first.is_ascii_digit());
    let wanted = || serde::de::Error::custom("a time in seconds, as text or as a number");
    if digits && text.len() <= 32 { Ok(text) } else { Err(wanted()) }
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Login2Result {
    #[serde(serialize_with = "exposed")]
    #[schema(value_type = String)]
    pub access_token: SecretString,
    #[serde(serialize_with = "exposed")]
    #[schema(value_type = String)]
    pub refresh_token: SecretString,
    /// Seconds.
    pub expires_in: i64,
    /// PEM: the next certificate, when the present one is past half its life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_cert: Option<String>,
}

/// A message that carries a token is sent only to the client that the token is for.
pub(super) fn exposed<S: Serializer>(secret: &SecretString, out: S) -> Result<S::Ok, S::Error> {
    secret.expose_secret().serialize(out)
}

fn exposed_if_any<S: Serializer>(secret: &Option<SecretString>, out: S) -> Result<S::Ok, S::Error> {
    secret.as_ref().map(ExposeSecret::expose_secret).serialize(out)
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RefreshTokenParams {
    #[serde(serialize_with = "exposed")]
    #[schema(value_type = String)]
    pub refresh_token: SecretString,
}

/// A refused refresh is a result, not an error: clients then log in again.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct RefreshTokenResult {
    pub success: bool,
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "exposed_if_any")]
    #[schema(value_type = Option<String>)]
    pub access_token: Option<SecretString>,
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "exposed_if_any")]
    #[schema(value_type = Option<String>)]
    pub refresh_token: Option<SecretString>,
    /// Seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DownloadCertParams {
    /// One's own, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub aid: Option<Aid>,
    /// A version of it: `sha256:` and the digest of the certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_fingerprint: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RenewCertParams {
    /// Of a login's first half, whose nonce is signed.
    pub request_id: String,
    pub nonce: String,
    /// Base64 of a signature in DER over the nonce.
    pub signature: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RekeyParams {
    pub request_id: String,
    pub nonce: String,
    /// The new key, base64 of its DER, on P-256.
    pub public_key: String,
    /// Base64 of a signature in DER, by the old key, over the nonce followed by the new key as sent.
    pub signature: String,
}

/// Renewal and change of key in one: which it is follows from whether there is a key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RequestCertParams {
    /// Of a login's first half, whose nonce is signed.
    pub request_id: String,
    pub nonce: String,
    /// Another key, base64 of its DER, on P-256; left out, the certificate is for the same key.
    #[serde(default)]
    pub public_key: Option<String>,
    /// Base64 of a signature in DER, by the present key, over the nonce and, if there is one, the new key as sent.
    pub signature: String,
}

/// A certificate of the caller or of another identity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CertResult {
    #[schema(value_type = String)]
    pub aid: Aid,
    /// PEM.
    pub cert: String,
    pub cert_fingerprint: String,
}

/// The name is already registered. The client matches this text, and then checks whether the key is its own.
pub fn already_exists(aid: &Aid) -> Failure {
    Failure::rule(Rule::AidTaken, format!("{aid} already exists"))
}

/// The name is not registered. The client matches this text, and then registers it.
pub fn not_registered(aid: &Aid) -> Failure {
    Failure::rule(Rule::AidUnknown, format!("{aid} is not registered"))
}

/// The name was registered once and has since been revoked.
pub fn no_longer_valid(aid: &Aid) -> Failure {
    Failure::rule(Rule::AidRevoked, format!("{aid} was revoked"))
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn the_clients_time_stays_as_it_was_transmitted() {
        let read = |time: &str| {
            let text = format!(
                r#"{{"aid":"alice.probe.test","request_id":"r","nonce":"n","client_time":{time},"signature":"s"}}"#
            );
            serde_json::from_str::<Login2Params>(&text).map(|params| params.client_time).ok()
        };
        assert_eq!(read(r#""1794700691.7287993""#).as_deref(), Some("1794700691.7287993"));
        assert_eq!(read("1794700691.72879930").as_deref(), Some("1794700691.72879930"));
        assert_eq!(read(r#""1.50""#).as_deref(), Some("1.50"));
        for time in ["null", "{}", r#""""#, r#""now""#, "-1", r#"["1"]"#, &format!("\"{}\"", "1".repeat(33))] {
            assert_eq!(read(time), None, "{time}");
        }
    }

    #[test]
    fn tokens_are_written_on_the_wire_and_nowhere_else() {
        let wire = json!({"access_token": "pl4nted-a", "refresh_token": "pl4nted-r", "expires_in": 1});
        let result: Login2Result = from_value(wire.clone()).unwrap();
        assert_eq!(serde_json::to_value(&result).unwrap(), wire);
        let refreshed =
            json!({"success": true, "access_token": "pl4nted-a", "refresh_token": "pl4nted-r", "expires_in": 1});
        let refresh: RefreshTokenResult = from_value(refreshed.clone()).unwrap();
        assert_eq!(serde_json::to_value(&refresh).unwrap(), refreshed);
        let token: crate::mesh::connections::Token =
            from_value(json!({"method": "kite_token", "token": "pl4nted-t"})).unwrap();
        for shown in [format!("{result:?}"), format!("{refresh:?}"), format!("{token:?}")] {
            assert!(!shown.contains("pl4nted"), "{shown}");
        }
    }

    #[test]
    fn the_clients_own_words_are_in_the_failures_it_looks_for() {
        let aid: Aid = "alice.probe.test".parse().unwrap();
        assert!(already_exists(&aid).message.contains("already exists"));
        assert!(not_registered(&aid).message.contains("not registered"));
        let params: CreateAidParams = from_value(json!({"aid": aid, "public_key": "k", "new": 1})).unwrap();
        assert_eq!(params.curve, "P-256");
    }
}
