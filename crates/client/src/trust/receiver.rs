//! The receiver of a webhook: verifies deliveries. It needs no server and makes no calls. It remembers accepted deliveries in
//! memory only. A program that must not handle a delivery twice, even after a restart or when a dead delivery is replayed,
//! stores the delivery's id together with its effect.

use std::{
    collections::HashMap,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use http::HeaderMap;
use ostler_crypto::mac::MacKey;
use ostler_protocol::{
    Timestamp,
    ids::AgentId,
    json::{hex, unhex},
    trust::webhooks::{
        self, AGENT_HEADER, DELIVERY_HEADER, DeliveryId, SIGNATURE_HEADER, TIMESTAMP_HEADER, TRIED_S_MAX, WINDOW_S,
    },
};

/// Deliveries that are remembered. No agent receives this many within one window. Beyond that, deliveries are forgotten that
/// only the server itself could send again.
const REMEMBERED_MAX: usize = 65_536;

/// Why a delivery is rejected. Respond with 401 (with 503 for [`DeliveryError::Busy`]) and do nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryError {
    /// A header is missing, given twice, or malformed.
    Headers,
    /// Not signed with this secret, or changed in transit.
    Signature,
    /// Signed too long ago, or too far in the future.
    Stale,
    /// The delivery was accepted before. Respond with 200, because it is done.
    Repeated,
    /// More deliveries arrived within one window than can be remembered.
    Busy,
}

impl fmt::Display for DeliveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Headers => "a header of the delivery is missing or malformed",
            Self::Signature => "the signature is invalid",
            Self::Stale => "the timestamp is too old or in the future",
            Self::Repeated => "this delivery was accepted before",
            Self::Busy => "too many deliveries to remember",
        })
    }
}

impl std::error::Error for DeliveryError {}

/// A verified delivery.
#[derive(Clone, Debug, PartialEq)]
pub struct Received {
    pub delivery_id: DeliveryId,
    pub agent_id: AgentId,
}

/// The receiver of one webhook. It accepts deliveries that are signed with its secret, recent, and not accepted before.
pub struct Receiver {
    key: MacKey,
    accepted: Mutex<HashMap<DeliveryId, AcceptedUntil>>,
}

/// How long a delivery is remembered.
#[derive(Clone, Copy)]
struct AcceptedUntil {
    /// From this second on it cannot be repeated with its original signature.
    fresh_until_s: i64,
    /// From this second on the server does not retry it with a new signature.
    tried_until_s: i64,
}

impl Receiver {
    /// `None` if the secret is not of the form that a server displays.
    pub fn new(secret: &str) -> Option<Self> {
        Some(Self { key: MacKey::from_base64(secret)?, accepted: Mutex::default() })
    }

    /// Verifies a request by its headers and its unchanged body. The signature is checked first, so that a sender without the
    /// secret learns nothing and cannot fill our memory.
    pub fn verify(&self, headers: &HeaderMap, body: &[u8], now: Timestamp) -> Result<Received, DeliveryError> {
        let [signature, timestamp, delivery, agent] =
            [SIGNATURE_HEADER, TIMESTAMP_HEADER, DELIVERY_HEADER, AGENT_HEADER]
                .map(|name| single_header(headers, name));
        let (signature, timestamp, delivery, agent) = (signature?, timestamp?, delivery?, agent?);
        // A signature has one written form only.
        let tag =
            unhex(signature).filter(|tag| tag.len() == 32 && hex(tag) == signature).ok_or(DeliveryError::Headers)?;
        if !self.key.verifies(&webhooks::signed(timestamp, delivery, body), &tag) {
            return Err(DeliveryError::Signature);
        }
        let signed_at: i64 = timestamp.parse().map_err(|_| DeliveryError::Headers)?;
        let now_s = now.as_second();
        if now_s.abs_diff(signed_at) > WINDOW_S.unsigned_abs() {
            return Err(DeliveryError::Stale);
        }
        let delivery_id = delivery.parse().map_err(|_| DeliveryError::Headers)?;
        let agent_id = agent.parse().map_err(|_| DeliveryError::Headers)?;
        self.accept(delivery_id, now_s, signed_at + WINDOW_S + 1)?;
        Ok(Received { delivery_id, agent_id })
    }

    /// Forgets a delivery that could not be handled, so that it is accepted again.
    pub fn give_back(&self, received: &Received) {
        self.accepted().remove(&received.delivery_id);
    }

    fn accept(&self, delivery_id: DeliveryId, now_s: i64, fresh_until_s: i64) -> Result<(), DeliveryError> {
        let mut accepted = self.accepted();
        if accepted.get(&delivery_id).is_some_and(|until| now_s < until.tried_until_s) {
            return Err(DeliveryError::Repeated);
        }
        if accepted.len() >= REMEMBERED_MAX {
            accepted.retain(|_, until| now_s < until.tried_until_s);
        }
        if accepted.len() >= REMEMBERED_MAX {
            accepted.retain(|_, until| now_s < until.fresh_until_s);
        }
        if accepted.len() >= REMEMBERED_MAX {
            return Err(DeliveryError::Busy);
        }
        accepted.insert(delivery_id, AcceptedUntil { fresh_until_s, tried_until_s: now_s + TRIED_S_MAX });
        Ok(())
    }

    fn accepted(&self) -> MutexGuard<'_, HashMap<DeliveryId, AcceptedUntil>> {
        // No code panics in the middle of a change while it holds the lock.
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The header, if it is given exactly once.
fn single_header<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, DeliveryError> {
    let mut all = headers.get_all(name).iter();
    match (all.next(), all.next()) {
        (Some(value), None) => value.to_str().map_err(|_| DeliveryError::Headers),
        _ => Err(DeliveryError::Headers),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use ostler_crypto::mac::secret_text;
    use ostler_protocol::json::hex;

    use super::*;

    const DELIVERY: &str = "019a8f6e-7c3b-7d2a-9c1e-5a4b3c2d1e0f";
    const BODY: &[u8] = br#"{"type":"h2a.reauth_required"}"#;
    const SENT_S: i64 = 1_767_225_600;

    fn secret() -> String {
        secret_text(&[7; 32])
    }

    fn signed(timestamp: &str, delivery: &str, body: &[u8]) -> HeaderMap {
        let key = MacKey::from_base64(&secret()).unwrap();
        let tag = key.sign(&webhooks::signed(timestamp, delivery, body));
        let values = [
            (SIGNATURE_HEADER, hex(&tag)),
            (TIMESTAMP_HEADER, timestamp.to_owned()),
            (DELIVERY_HEADER, delivery.to_owned()),
            (AGENT_HEADER, "agt_00000000000000000000000000000007".to_owned()),
        ];
        values.into_iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn after(seconds: i64) -> Timestamp {
        Timestamp::from_second(SENT_S + seconds).unwrap()
    }

    fn verify(receiver: &Receiver, headers: &HeaderMap, body: &[u8], seconds: i64) -> Result<(), DeliveryError> {
        receiver.verify(headers, body, after(seconds)).map(drop)
    }

    fn receiver() -> Receiver {
        Receiver::new(&secret()).unwrap()
    }

    #[test]
    fn a_signed_and_recent_delivery_is_accepted() {
        let headers = signed(&SENT_S.to_string(), DELIVERY, BODY);
        let received = receiver().verify(&headers, BODY, after(300)).unwrap();
        assert_eq!(received.delivery_id.to_string(), DELIVERY);
        assert_eq!(verify(&receiver(), &headers, BODY, -300), Ok(()));
    }

    #[test]
    fn a_timestamp_301_seconds_away_is_rejected() {
        let headers = signed(&SENT_S.to_string(), DELIVERY, BODY);
        assert_eq!(verify(&receiver(), &headers, BODY, 301), Err(DeliveryError::Stale));
        assert_eq!(verify(&receiver(), &headers, BODY, -301), Err(DeliveryError::Stale));
    }

    #[test]
    fn a_body_with_any_byte_changed_is_rejected() {
        let headers = signed(&SENT_S.to_string(), DELIVERY, BODY);
        for at in 0..BODY.len() {
            let mut changed = BODY.to_vec();
            changed[at] ^= 1;
            assert_eq!(verify(&receiver(), &headers, &changed, 0), Err(DeliveryError::Signature), "byte {at}");
        }
        assert_eq!(verify(&receiver(), &headers, &BODY[1..], 0), Err(DeliveryError::Signature));
    }

    #[test]
    fn neither_the_timestamp_nor_the_delivery_id_can_be_replaced() {
        let mut headers = signed(&SENT_S.to_string(), DELIVERY, BODY);
        headers.insert(TIMESTAMP_HEADER, HeaderValue::from(SENT_S + 1));
        assert_eq!(verify(&receiver(), &headers, BODY, 0), Err(DeliveryError::Signature));
        let mut headers = signed(&SENT_S.to_string(), DELIVERY, BODY);
        headers.insert(DELIVERY_HEADER, HeaderValue::from_static("019a8f6e-7c3b-7d2a-9c1e-5a4b3c2d1e00"));
        assert_eq!(verify(&receiver(), &headers, BODY, 0), Err(DeliveryError::Signature));
        assert_eq!(
            verify(&Receiver::new(&secret_text(&[8; 32])).unwrap(), &headers, BODY, 0),
            Err(DeliveryError::Signature)
        );
    }

    #[test]
    fn a_repeated_delivery_is_rejected_while_its_signature_is_valid() {
        let (receiver, headers) = (receiver(), signed(&SENT_S.to_string(), DELIVERY, BODY));
        assert_eq!(verify(&receiver, &headers, BODY, -300), Ok(()));
        for seconds in [-300, 0, 300] {
            assert_eq!(verify(&receiver, &headers, BODY, seconds), Err(DeliveryError::Repeated));
        }
        assert_eq!(verify(&receiver, &headers, BODY, 301), Err(DeliveryError::Stale));
    }

    /// As the server does when it received no response: the same id under a new signature.
    #[test]
    fn a_delivery_that_is_retried_days_later_is_repeated() {
        let (receiver, days) = (receiver(), 3 * 86_400);
        assert_eq!(verify(&receiver, &signed(&SENT_S.to_string(), DELIVERY, BODY), BODY, 0), Ok(()));
        let again = signed(&(SENT_S + days).to_string(), DELIVERY, BODY);
        assert_eq!(verify(&receiver, &again, BODY, days), Err(DeliveryError::Repeated));
    }

    #[test]
    fn a_delivery_that_was_given_back_is_accepted_again() {
        let (receiver, headers) = (receiver(), signed(&SENT_S.to_string(), DELIVERY, BODY));
        let received = receiver.verify(&headers, BODY, after(0)).unwrap();
        receiver.give_back(&received);
        assert_eq!(verify(&receiver, &headers, BODY, 1), Ok(()));
    }

    #[test]
    fn missing_repeated_or_malformed_headers_are_rejected() {
        for name in [SIGNATURE_HEADER, TIMESTAMP_HEADER, DELIVERY_HEADER, AGENT_HEADER] {
            let mut headers = signed(&SENT_S.to_string(), DELIVERY, BODY);
            headers.append(name, HeaderValue::from_static("1"));
            assert_eq!(verify(&receiver(), &headers, BODY, 0), Err(DeliveryError::Headers), "{name} twice");
            headers.remove(name);
            assert_eq!(verify(&receiver(), &headers, BODY, 0), Err(DeliveryError::Headers), "no {name}");
        }
        let mut headers = signed(&SENT_S.to_string(), DELIVERY, BODY);
        let upper = headers[SIGNATURE_HEADER].to_str().unwrap().to_uppercase();
        headers.insert(SIGNATURE_HEADER, upper.parse().unwrap());
        assert_eq!(verify(&receiver(), &headers, BODY, 0), Err(DeliveryError::Headers));
        for (timestamp, delivery) in [("now", DELIVERY), (&*SENT_S.to_string(), "7")] {
            assert_eq!(verify(&receiver(), &signed(timestamp, delivery, BODY), BODY, 0), Err(DeliveryError::Headers));
        }
    }

    #[test]
    fn a_receiver_with_full_memory_accepts_no_more() {
        let receiver = receiver();
        for number in 0..REMEMBERED_MAX as u128 {
            let id: DeliveryId = format!("{:08x}-0000-7000-8000-{:012x}", number >> 48, number).parse().unwrap();
            receiver.accept(id, SENT_S, SENT_S + 301).unwrap();
        }
        let headers = signed(&SENT_S.to_string(), DELIVERY, BODY);
        assert_eq!(verify(&receiver, &headers, BODY, 300), Err(DeliveryError::Busy));
        let later = signed(&(SENT_S + 301).to_string(), DELIVERY, BODY);
        assert_eq!(verify(&receiver, &later, BODY, 301), Ok(()));
    }
}
