//! Webhooks: what is sent to an agent's own server, how it is signed, and when it is tried again. Nothing here sends.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::{
    RawJson, Timestamp,
    ids::{AgentId, RunId, UnknownId},
};

/// Hexadecimal HMAC-SHA-256 of `timestamp "." delivery_id "." body`, under the bytes that the secret's base64 decodes
/// to.
pub const SIGNATURE_HEADER: &str = "x-hashee-signature";
/// Whole seconds since 1970, of this attempt.
pub const TIMESTAMP_HEADER: &str = "x-hashee-timestamp";
/// The same for every attempt of one delivery.
pub const DELIVERY_HEADER: &str = "x-hashee-delivery-id";
pub const AGENT_HEADER: &str = "x-hashee-agent-id";

/// A receiver refuses what was signed longer ago than this, or as much in the future.
pub const WINDOW_S: i64 = 300;
/// How long after the one before each attempt comes. After the last one a delivery is dead.
pub const ATTEMPT_AFTER_S: [i64; 10] = [0, 5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400];
/// Up to this share of the wait is added at random, so that those who failed together do not come back together.
pub const JITTER_PERCENT: i64 = 20;
/// A receiver may ask for more patience, up to this.
pub const RETRY_AFTER_S_MAX: i64 = 86_400;
/// The longest that a delivery is tried for, however patient its receiver asks to be: nine waits of a day, each with its share.
pub const TRIED_S_MAX: i64 = (ATTEMPT_AFTER_S.len() as i64 - 1) * RETRY_AFTER_S_MAX * (100 + JITTER_PERCENT) / 100;
pub const WEBHOOK_URL_BYTES_MAX: usize = 2_048;
/// Deliveries of one agent about its manifest and its relations that wait at once. Further ones are dead at once, and can be
/// replayed.
pub const CONSENT_DELIVERIES_WAITING_MAX: i64 = 10_000;
/// Of these, other than re-consents: any person can cause them, and they must not crowd out the re-consents.
pub const RELATION_DELIVERIES_WAITING_MAX: i64 = CONSENT_DELIVERIES_WAITING_MAX / 2;
/// Deliveries of one agent about runs that wait at once. They are counted separately: each user of the owner's tenant can cause
/// them, and they must not crowd out the others.
pub const RUN_DELIVERIES_WAITING_MAX: i64 = 5_000;
/// Of one agent, deliveries of each end (delivered, dead) that are still shown, of those about runs and of the others
/// separately. Re-consents are not counted. The oldest beyond the limit are deleted before their time.
pub const ENDED_DELIVERIES_MAX: u32 = 10_000;
pub const VERSION: &str = "v1";

/// One notification to a webhook. A UUID of version 7, written as such: receivers see it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeliveryId(Uuid);

impl DeliveryId {
    pub const fn new(body: Uuid) -> Self {
        Self(body)
    }
}

impl fmt::Display for DeliveryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0.as_hyphenated(), f)
    }
}

impl fmt::Debug for DeliveryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for DeliveryId {
    type Err = UnknownId;

    fn from_str(text: &str) -> Result<Self, UnknownId> {
        let id = Uuid::try_parse(text).map(Self).map_err(|_| UnknownId)?;
        // One id, one way to write it: what is signed is text.
        if id.to_string() == text { Ok(id) } else { Err(UnknownId) }
    }
}

impl Serialize for DeliveryId {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DeliveryId {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(input)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl utoipa::PartialSchema for DeliveryId {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::Type::String)
            .pattern(Some("^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"))
            .into()
    }
}

impl ToSchema for DeliveryId {}

/// Where an agent's own server receives notifications. One per agent; its secret is shown once, when it is set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Webhook {
    pub agent_id: AgentId,
    pub url: String,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// The receiver responded that it is gone (410); set the webhook again to continue.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub disabled_at: Option<Timestamp>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutWebhook {
    /// An `https` URL; on a server for development also `http` to loopback.
    pub url: String,
}

/// A webhook as it is answered once, when it is set.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct NewWebhook {
    #[serde(flatten)]
    pub webhook: Webhook,
    /// Base64; the key of the signatures is the decoded value. It is not shown again.
    pub secret: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryStatus {
    /// It waits for its first or next attempt, or is being sent.
    Pending,
    Delivered,
    /// All attempts failed, and there will be no more. It can be replayed.
    Dead,
}

enum_words!(DeliveryStatus { Pending => "pending", Delivered => "delivered", Dead => "dead" });

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Delivery {
    pub delivery_id: DeliveryId,
    pub agent_id: AgentId,
    /// The name of the event, such as `h2a.reauth_required`.
    #[serde(rename = "type")]
    pub event_type: String,
    pub status: DeliveryStatus,
    /// Attempts begun since it was made or last replayed.
    pub attempts: i64,
    /// When the next attempt is due, while it is pending.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub due_at: Option<Timestamp>,
    /// The HTTP status of the last answer.
    pub last_status: Option<u16>,
    /// Why the last attempt failed, in our words; the receiver's response is not stored.
    pub last_error: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
    /// The body, byte for byte as it is signed. Its payload is null if it describes a run that the owner may no longer read.
    #[schema(value_type = Object)]
    pub body: RawJson,
    /// The run that it describes. The body also names it, so it is not part of the response.
    #[serde(skip)]
    pub run_id: Option<RunId>,
}

/// What is sent.
#[derive(Serialize)]
struct DeliveryBody<'a, P> {
    #[serde(rename = "type")]
    event_type: &'a str,
    version: &'static str,
    payload: &'a P,
    metadata: Metadata,
}

#[derive(Serialize)]
struct Metadata {
    created_at: Timestamp,
}

/// The body of this event, as it will be signed and sent.
pub fn body(event_type: &str, payload: &impl Serialize, created_at: Timestamp) -> RawJson {
    RawJson::of(&DeliveryBody { event_type, version: VERSION, payload, metadata: Metadata { created_at } })
}

/// The signed part of an attempt, from the values of its headers.
pub fn signed(timestamp: &str, delivery_id: &str, body: &[u8]) -> Vec<u8> {
    [timestamp.as_bytes(), b".", delivery_id.as_bytes(), b".", body].concat()
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ListDeliveries {
    #[param(inline)]
    pub status: Option<DeliveryStatus>,
    pub limit: Option<u32>,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeliveryPage {
    pub deliveries: Vec<Delivery>,
    pub next_cursor: Option<String>,
}

/// How an attempt went.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DeliveryOutcome {
    Answered {
        status: u16,
        retry_after_s: Option<i64>,
    },
    /// There was no response, or none was requested.
    Unanswered,
}

/// What follows from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NextAttempt {
    Delivered,
    Again {
        after_ms: i64,
    },
    Dead,
    /// The receiver is gone and wants no more of anything.
    Disable,
}

/// Only 2xx is success: a redirect is not followed, and not taken for one. `attempts` counts this one.
pub fn next_attempt(outcome: DeliveryOutcome, attempts: i64, random: u16) -> NextAttempt {
    let asked_s = match outcome {
        DeliveryOutcome::Answered { status: 200..=299, .. } => return NextAttempt::Delivered,
        DeliveryOutcome::Answered { status: 410, .. } => return NextAttempt::Disable,
        DeliveryOutcome::Answered { retry_after_s, .. } => retry_after_s.unwrap_or(0).clamp(0, RETRY_AFTER_S_MAX),
        DeliveryOutcome::Unanswered => 0,
    };
    let wait_s = usize::try_from(attempts).ok().and_then(|made| ATTEMPT_AFTER_S.get(made));
    wait_s.map_or(NextAttempt::Dead, |wait_s| {
        let wait_ms = asked_s.max(*wait_s) * 1_000;
        NextAttempt::Again {
            after_ms: wait_ms + wait_ms * JITTER_PERCENT * i64::from(random) / (100 * i64::from(u16::MAX)),
        }
    })
}

/// The delay that `Retry-After` requests: seconds, or a date. `None` if it is malformed or in the past.
pub fn retry_after_s(text: &str, now: Timestamp) -> Option<i64> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<u32>() {
        return Some(i64::from(seconds));
    }
    let at = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    Some(at.duration_since(now).as_secs()).filter(|seconds| *seconds > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: DeliveryOutcome = DeliveryOutcome::Answered { status: 500, retry_after_s: None };

    fn asks(seconds: i64) -> DeliveryOutcome {
        DeliveryOutcome::Answered { status: 503, retry_after_s: Some(seconds) }
    }

    #[test]
    fn each_attempt_comes_later_than_the_one_before_until_it_is_dead() {
        for (made, wait_s) in ATTEMPT_AFTER_S.iter().enumerate().skip(1) {
            assert_eq!(next_attempt(FAILED, made as i64, 0), NextAttempt::Again { after_ms: wait_s * 1_000 });
            let latest = wait_s * 10 * (100 + JITTER_PERCENT);
            assert_eq!(
                next_attempt(DeliveryOutcome::Unanswered, made as i64, u16::MAX),
                NextAttempt::Again { after_ms: latest }
            );
        }
        assert_eq!(next_attempt(FAILED, ATTEMPT_AFTER_S.len() as i64, 0), NextAttempt::Dead);
        assert!(ATTEMPT_AFTER_S.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn only_2xx_is_success_and_410_is_for_good() {
        for status in 100..600 {
            let expected = match status {
                200..300 => NextAttempt::Delivered,
                410 => NextAttempt::Disable,
                _ => NextAttempt::Again { after_ms: 5_000 },
            };
            assert_eq!(
                next_attempt(DeliveryOutcome::Answered { status, retry_after_s: None }, 1, 0),
                expected,
                "{status}"
            );
        }
    }

    #[test]
    fn a_receiver_may_ask_for_more_patience_but_not_for_less_nor_for_ever() {
        assert_eq!(next_attempt(asks(60), 1, 0), NextAttempt::Again { after_ms: 60_000 });
        assert_eq!(next_attempt(asks(1), 2, 0), NextAttempt::Again { after_ms: 300_000 });
        assert_eq!(next_attempt(asks(i64::MAX), 1, 0), NextAttempt::Again { after_ms: RETRY_AFTER_S_MAX * 1_000 });
        assert_eq!(next_attempt(asks(-5), 1, 0), NextAttempt::Again { after_ms: 5_000 });
        assert_eq!(next_attempt(asks(60), 10, 0), NextAttempt::Dead);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(retry_after_s(" 120 ", now), Some(120));
        assert_eq!(retry_after_s("Thu, 01 Jan 2026 00:01:30 GMT", now), Some(90));
        for bad in ["", "soon", "-1", "1.5", "Thu, 01 Jan 2025 00:00:00 GMT", "99999999999999999999"] {
            assert_eq!(retry_after_s(bad, now), None, "{bad}");
        }
    }

    #[test]
    fn a_delivery_id_has_one_way_to_be_written() {
        let text = "019a8f6e-7c3b-7d2a-9c1e-5a4b3c2d1e0f";
        assert_eq!(text.parse::<DeliveryId>().unwrap().to_string(), text);
        for other in [text.to_uppercase(), text.replace('-', ""), format!("{{{text}}}"), format!("urn:uuid:{text}")] {
            assert_eq!(other.parse::<DeliveryId>(), Err(UnknownId), "{other}");
        }
    }
}
