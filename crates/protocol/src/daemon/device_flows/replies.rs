//! Replies of providers. Nothing of a reply is passed on to clients except the codes for the person, which are bounded and checked.

use secrecy::SecretString;
use serde_json::{Map, Value};

use super::{DeviceFlowErrorKind, INTERVAL_MS_MAX};
use crate::limits::API_KEY_BYTES_MAX;

/// Maximum bytes of a provider's reply.
pub const REPLY_BYTES_MAX: usize = 64 * 1024;
/// Maximum bytes of a device code.
pub const CODE_BYTES_MAX: usize = 4 * 1024;
const USER_CODE_BYTES_MAX: usize = 64;
const URL_BYTES_MAX: usize = 2_000;
/// The interval, in seconds, of a provider that names none (RFC 8628, section 3.2).
const INTERVAL_S_DEFAULT: f64 = 5.0;
const INTERVAL_S_MIN: f64 = 1.0;
/// How long a flow lasts, in seconds: by default, at least and at most.
const EXPIRES_S_DEFAULT: f64 = 600.0;
const EXPIRES_S_MIN: f64 = 30.0;
const EXPIRES_S_MAX: f64 = 3_600.0;
/// The longest validity of a token that is noted, in seconds: ten years.
const TOKEN_S_MAX: f64 = 10.0 * 365.0 * 86_400.0;

/// The codes of a new flow.
#[derive(Clone, Debug)]
pub struct DeviceAuthorization {
    pub device_code: SecretString,
    pub user_code: String,
    pub verification_uri: String,
    pub verification_uri_complete: Option<String>,
    pub expires_in_ms: i64,
    pub interval_ms: i64,
}

/// A token that a provider has issued.
#[derive(Clone, Debug)]
pub struct DeviceToken {
    pub access_token: SecretString,
    /// `None` if the provider does not say.
    pub expires_in_ms: Option<i64>,
}

/// The result of one poll of the provider.
#[derive(Clone, Debug)]
pub enum PollOutcome {
    Pending,
    SlowDown,
    /// The provider could not be reached, or asks to come back later: it is polled again, less often.
    Unreachable,
    Token(DeviceToken),
    /// The flow has failed. The text is ours, never the provider's.
    Refused(DeviceFlowErrorKind, &'static str),
}

/// Reads the reply to a request for codes. `Err` names the problem.
pub fn authorization(status: u16, body: &[u8]) -> Result<DeviceAuthorization, &'static str> {
    let members = object(body);
    if let Some(members) = &members
        && members.contains_key("error")
    {
        return Err("the provider refused to start a flow");
    }
    if status != 200 {
        return Err("the provider did not answer with codes");
    }
    let members = members.ok_or("the provider's reply is not JSON")?;
    let text = |name: &str| members.get(name).and_then(Value::as_str);
    let device_code = text("device_code").filter(|code| is_word(code, CODE_BYTES_MAX));
    let user_code = text("user_code").filter(|code| is_user_code(code));
    let (Some(device_code), Some(user_code)) = (device_code, user_code) else {
        return Err("the provider's reply has no usable codes");
    };
    // Some providers send the name that drafts of the RFC had.
    let verification_uri = text("verification_uri").or_else(|| text("verification_url"));
    let Some(verification_uri) = verification_uri.filter(|url| is_safe_url(url)) else {
        return Err("the provider's reply has no usable verification URI");
    };
    Ok(DeviceAuthorization {
        device_code: device_code.to_owned().into(),
        user_code: user_code.to_owned(),
        verification_uri: verification_uri.to_owned(),
        verification_uri_complete: text("verification_uri_complete").filter(|url| is_safe_url(url)).map(str::to_owned),
        expires_in_ms: ms(&members, "expires_in", EXPIRES_S_DEFAULT, (EXPIRES_S_MIN, EXPIRES_S_MAX)),
        interval_ms: ms(&members, "interval", INTERVAL_S_DEFAULT, (INTERVAL_S_MIN, INTERVAL_MS_MAX as f64 / 1_000.0)),
    })
}

/// Reads the reply to a poll.
pub fn poll_outcome(status: u16, body: &[u8]) -> PollOutcome {
    use DeviceFlowErrorKind::{AccessDenied, ExpiredToken, InvalidGrant, UpstreamError};
    if status == 429 || status >= 500 {
        return PollOutcome::Unreachable;
    }
    let members = object(body).unwrap_or_default();
    match members.get("error").map(|error| error.as_str().unwrap_or_default()) {
        Some("authorization_pending") => return PollOutcome::Pending,
        Some("slow_down") => return PollOutcome::SlowDown,
        Some("expired_token") => return PollOutcome::Refused(ExpiredToken, "the codes have expired"),
        Some("access_denied") => return PollOutcome::Refused(AccessDenied, "the person declined"),
        Some("invalid_grant") => return PollOutcome::Refused(InvalidGrant, "the provider does not accept the code"),
        Some("invalid_client" | "unauthorized_client") => {
            return PollOutcome::Refused(InvalidGrant, "the provider does not accept this client");
        }
        Some(_) => return PollOutcome::Refused(UpstreamError, "the provider reported an error"),
        None if status != 200 => {
            return PollOutcome::Refused(UpstreamError, "the provider did not answer with a token");
        }
        None => {}
    }
    let is_bearer = |kind: &Value| kind.as_str().is_some_and(|kind| kind.eq_ignore_ascii_case("bearer"));
    let token = members.get("access_token").and_then(Value::as_str);
    let token = token.filter(|token| is_word(token, API_KEY_BYTES_MAX));
    match token.filter(|_| members.get("token_type").is_none_or(is_bearer)) {
        Some(token) => {
            let expires_in_s = members.get("expires_in").and_then(seconds).filter(|s| *s <= TOKEN_S_MAX);
            let expires_in_ms = expires_in_s.map(|s| (s * 1_000.0) as i64);
            PollOutcome::Token(DeviceToken { access_token: token.to_owned().into(), expires_in_ms })
        }
        None => PollOutcome::Refused(UpstreamError, "the provider's reply has no usable token"),
    }
}

fn object(body: &[u8]) -> Option<Map<String, Value>> {
    serde_json::from_slice(body).ok()
}

/// A positive number of seconds.
fn seconds(value: &Value) -> Option<f64> {
    value.as_f64().filter(|seconds| seconds.is_finite() && *seconds > 0.0)
}

fn ms(members: &Map<String, Value>, name: &str, default: f64, (min, max): (f64, f64)) -> i64 {
    let seconds = members.get(name).and_then(seconds).unwrap_or(default);
    (seconds.clamp(min, max) * 1_000.0) as i64
}

fn is_word(text: &str, bytes_max: usize) -> bool {
    (1..=bytes_max).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// A code that a person types: letters, digits and separators.
fn is_user_code(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_. ".contains(&byte);
    (1..=USER_CODE_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_plain)
}

/// Whether a URL may be opened in a browser or connected to: https, or http on this machine.
pub fn is_safe_url(text: &str) -> bool {
    let authority = |rest: &str| rest.split(['/', '?', '#', '\\']).next().unwrap_or_default().to_owned();
    if !is_word(text, URL_BYTES_MAX) {
        return false;
    }
    if let Some(rest) = text.strip_prefix("https://") {
        let authority = authority(rest);
        return !authority.is_empty() && !authority.contains('@');
    }
    let Some(authority) = text.strip_prefix("http://").map(authority) else { return false };
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority.as_str(),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;
    use serde_json::json;

    use super::*;

    fn codes(more: Value) -> Result<DeviceAuthorization, &'static str> {
        let mut reply =
            json!({"device_code": "d-1", "user_code": "ABCD-EFGH", "verification_uri": "https://id.example/device"});
        reply.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        authorization(200, reply.to_string().as_bytes())
    }

    #[test]
    fn codes_are_read_with_bounded_times() {
        let times = |more| codes(more).map(|codes| (codes.expires_in_ms, codes.interval_ms));
        assert_eq!(times(json!({})), Ok((600_000, 5_000)));
        assert_eq!(times(json!({"expires_in": 900, "interval": 7})), Ok((900_000, 7_000)));
        assert_eq!(times(json!({"expires_in": 1, "interval": 0.01})), Ok((30_000, 1_000)));
        assert_eq!(times(json!({"expires_in": 1e300, "interval": 1e9})), Ok((3_600_000, 60_000)));
        assert_eq!(times(json!({"expires_in": -5, "interval": "x"})), Ok((600_000, 5_000)));
        let complete = codes(json!({"verification_uri_complete": "javascript:alert(1)"})).unwrap();
        assert_eq!(complete.verification_uri_complete, None);
    }

    #[test]
    fn codes_that_cannot_be_used_are_refused() {
        for bad in [
            json!({"device_code": ""}),
            json!({"device_code": "x".repeat(CODE_BYTES_MAX + 1)}),
            json!({"user_code": "<script>"}),
            json!({"user_code": 7}),
            json!({"verification_uri": "javascript:alert(1)"}),
            json!({"verification_uri": "http://id.example/"}),
            json!({"verification_uri": "https://user@id.example/"}),
            json!({"verification_uri": "https://"}),
            json!({"error": "invalid_client"}),
        ] {
            assert!(codes(bad.clone()).is_err(), "{bad}");
        }
        assert!(authorization(500, b"{}").is_err() && authorization(200, b"<html>").is_err());
        assert!(authorization(302, b"").is_err() && authorization(200, b"[]").is_err());
    }

    #[test]
    fn a_reply_to_a_poll_is_read_by_its_error() {
        let outcome = |status: u16, reply: Value| poll_outcome(status, reply.to_string().as_bytes());
        let error = |error: &str| outcome(400, json!({"error": error, "error_description": "pl4nted"}));
        assert!(matches!(error("authorization_pending"), PollOutcome::Pending));
        assert!(matches!(error("slow_down"), PollOutcome::SlowDown));
        // Some providers send the error with status 200.
        assert!(matches!(outcome(200, json!({"error": "authorization_pending"})), PollOutcome::Pending));
        for (name, expected) in [
            ("expired_token", DeviceFlowErrorKind::ExpiredToken),
            ("access_denied", DeviceFlowErrorKind::AccessDenied),
            ("invalid_grant", DeviceFlowErrorKind::InvalidGrant),
            ("invalid_client", DeviceFlowErrorKind::InvalidGrant),
            ("pl4nted", DeviceFlowErrorKind::UpstreamError),
        ] {
            let PollOutcome::Refused(kind, hint) = error(name) else { panic!("{name}") };
            assert!(kind == expected && !hint.contains("pl4nted"), "{name}");
        }
        assert!(matches!(outcome(503, json!({})), PollOutcome::Unreachable));
        assert!(matches!(outcome(429, json!({"error": "x"})), PollOutcome::Unreachable));
    }

    #[test]
    fn a_token_is_one_bounded_word() {
        let outcome = |reply: Value| poll_outcome(200, reply.to_string().as_bytes());
        let PollOutcome::Token(token) =
            outcome(json!({"access_token": "t-1", "token_type": "Bearer", "expires_in": 3600}))
        else {
            panic!("no token")
        };
        assert_eq!((token.access_token.expose_secret(), token.expires_in_ms), ("t-1", Some(3_600_000)));
        for bad in [
            json!({}),
            json!({"access_token": ""}),
            json!({"access_token": "two words"}),
            json!({"access_token": "x".repeat(API_KEY_BYTES_MAX + 1)}),
            json!({"access_token": "t", "token_type": "mac"}),
            json!({"access_token": {"x": 1}}),
        ] {
            assert!(
                matches!(outcome(bad.clone()), PollOutcome::Refused(DeviceFlowErrorKind::UpstreamError, _)),
                "{bad}"
            );
        }
        assert!(matches!(poll_outcome(302, b""), PollOutcome::Refused(DeviceFlowErrorKind::UpstreamError, _)));
        assert!(matches!(poll_outcome(200, b"<html>"), PollOutcome::Refused(DeviceFlowErrorKind::UpstreamError, _)));
    }

    #[test]
    fn plain_http_is_for_this_machine_only() {
        for good in ["https://id.example", "http://localhost:8/x", "http://127.0.0.1", "http://[::1]:9/token"] {
            assert!(is_safe_url(good), "{good}");
        }
        for bad in
            ["http://id.example", "http://127.0.0.1.evil.test/", "http://a@127.0.0.1/", "ftp://x/", "https:// x", ""]
        {
            assert!(!is_safe_url(bad), "{bad}");
        }
    }
}
