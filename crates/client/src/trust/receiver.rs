//! A webhook's receiver: what it may believe of what comes. It needs no server and makes no calls. It remembers what it has taken
//! in memory alone: whoever must not do a thing twice, even after a restart or when a dead delivery is replayed, keeps the
//! delivery's id together with what they do.

use std::{
    collections::HashMap,
    fmt,
    sync::{Mutex, MutexGuard},
};

use http::HeaderMap;
use ostler_crypto::mac::MacKey;
use ostler_protocol::{
    Timestamp,
    ids::AgentId,
    json::{hex, unhex},
    webhooks::{
        self, AGENT_HEADER, DELIVERY_HEADER, DeliveryId, SIGNATURE_HEADER, TIMESTAMP_HEADER, TRIED_S_MAX, WINDOW_S,
    },
};

/// Deliveries remembered at once. Within one window no agent is told this much; beyond that, those give way that nobody but the
/// server itself could send again.
const REMEMBERED_MAX: usize = 65_536;

/// Why a request is not to be believed. Answer it with 401 ([`Refused::Busy`] with 503) and do nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A header is missing, there twice, or not of its form.
    Headers,
    /// Not signed with this secret, or changed on its way.
    Signature,
    /// Signed too long ago, or too far in the future.
    Stale,
    /// This delivery was taken before. Answer it with 200: it is done.
    Repeated,
    /// More deliveries came within one window than can be remembered.
    Busy,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Headers => "a header of the delivery is missing or malformed",
            Self::Signature => "the signature does not fit",
            Self::Stale => "the timestamp is too old or in the future",
            Self::Repeated => "this delivery was taken before",
            Self::Busy => "too many deliveries to remember",
        })
    }
}

impl std::error::Error for Refused {}

/// A delivery that comes from where it says.
#[derive(Clone, Debug, PartialEq)]
pub struct Received {
    pub delivery_id: DeliveryId,
    pub agent_id: AgentId,
}

/// The receiver of one webhook: it believes what is signed with its secret, fresh, and not taken before.
pub struct Receiver {
    key: MacKey,
    taken: Mutex<HashMap<DeliveryId, Taken>>,
}

/// Until when a delivery is remembered.
#[derive(Clone, Copy)]
struct Taken {
    /// From this second on nobody can repeat it with the signature it had.
    fresh_until_s: i64,
    /// From this second on the server does not try it any more, with a new signature.
    tried_until_s: i64,
}

impl Receiver {
    /// `None`: the secret is not what a server of ours shows.
    pub fn new(secret: &str) -> Option<Self> {
        Some(Self { key: MacKey::from_base64(secret)?, taken: Mutex::default() })
    }

    /// Checks a request by its headers and its body as it came. The signature goes first, so that nobody without the secret
    /// learns, or makes us remember, anything.
    pub fn verify(&self, headers: &HeaderMap, body: &[u8], now: Timestamp) -> Result<Received, Refused> {
        let [signature, timestamp, delivery, agent] =
            [SIGNATURE_HEADER, TIMESTAMP_HEADER, DELIVERY_HEADER, AGENT_HEADER].map(|name| only(headers, name));
        let (signature, timestamp, delivery, agent) = (signature?, timestamp?, delivery?, agent?);
        // Only as it is written: a signature has one form.
        let tag = unhex(signature).filter(|tag| tag.len() == 32 && hex(tag) == signature).ok_or(Refused::Headers)?;
        if !self.key.verifies(&webhooks::signed(timestamp, delivery, body), &tag) {
            return Err(Refused::Signature);
        }
        let signed_at: i64 = timestamp.parse().map_err(|_| Refused::Headers)?;
        let now_s = now.as_second();
        if now_s.abs_diff(signed_at) > WINDOW_S.unsigned_abs() {
            return Err(Refused::Stale);
        }
        let delivery_id = delivery.parse().map_err(|_| Refused::Headers)?;
        let agent_id = agent.parse().map_err(|_| Refused::Headers)?;
        self.take(delivery_id, now_s, signed_at + WINDOW_S + 1)?;
        Ok(Received { delivery_id, agent_id })
    }

    /// What was received could not be handled after all; let it come again.
    pub fn give_back(&self, received: &Received) {
        self.taken().remove(&received.delivery_id);
    }

    fn take(&self, delivery_id: DeliveryId, now_s: i64, fresh_until_s: i64) -> Result<(), Refused> {
        let mut taken = self.taken();
        if taken.get(&delivery_id).is_some_and(|known| now_s < known.tried_until_s) {
            return Err(Refused::Repeated);
        }
        if taken.len() >= REMEMBERED_MAX {
            taken.retain(|_, known| now_s < known.tried_until_s);
        }
        if taken.len() >= REMEMBERED_MAX {
            taken.retain(|_, known| now_s < known.fresh_until_s);
        }
        if taken.len() >= REMEMBERED_MAX {
            return Err(Refused::Busy);
        }
        taken.insert(delivery_id, Taken { fresh_until_s, tried_until_s: now_s + TRIED_S_MAX });
        Ok(())
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<DeliveryId, Taken>> {
        self.taken.lock().expect("never poisoned")
    }
}

/// The header, if it is there once.
fn only<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, Refused> {
    let mut all = headers.get_all(name).iter();
    match (all.next(), all.next()) {
        (Some(value), None) => value.to_str().map_err(|_| Refused::Headers),
        _ => Err(Refused::Headers),
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

    fn verify(receiver: &Receiver, headers: &HeaderMap, body: &[u8], seconds: i64) -> Result<(), Refused> {
        receiver.verify(headers, body, after(seconds)).map(drop)
    }

    fn receiver() -> Receiver {
        Receiver::new(&secret()).unwrap()
    }

    #[test]
    fn what_is_signed_and_fresh_is_believed() {
        let headers = signed(&SENT_S.to_string(), DELIVERY, BODY);
        let received = receiver().verify(&headers, BODY, after(300)).unwrap();
        assert_eq!(received.delivery_id.to_string(), DELIVERY);
        assert_eq!(verify(&receiver(), &headers, BODY, -300), Ok(()));
    }

    #[test]
    fn a_stamp_of_301_seconds_is_refused() {
        let headers = signed(&SENT_S.to_string(), DELIVERY, BODY);
        assert_eq!(verify(&receiver(), &headers, BODY, 301), Err(Refused::Stale));
        assert_eq!(verify(&receiver(), &headers, BODY, -301), Err(Refused::Stale));
    }

    #[test]
    fn a_body_with_any_byte_changed_is_refused() {
        let headers = signed(&SENT_S.to_string(), DELIVERY, BODY);
        for at in 0..BODY.len() {
            let mut changed = BODY.to_vec();
            changed[at] ^= 1;
            assert_eq!(verify(&receiver(), &headers, &changed, 0), Err(Refused::Signature), "byte {at}");
        }
        assert_eq!(verify(&receiver(), &headers, &BODY[1..], 0), Err(Refused::Signature));
    }

    #[test]
    fn neither_the_stamp_nor_the_delivery_can_be_exchanged() {
        let mut headers = signed(&SENT_S.to_string(), DELIVERY, BODY);
        headers.insert(TIMESTAMP_HEADER, HeaderValue::from(SENT_S + 1));
        assert_eq!(verify(&receiver(), &headers, BODY, 0), Err(Refused::Signature));
        let mut headers = signed(&SENT_S.to_string(), DELIVERY, BODY);
        headers.insert(DELIVERY_HEADER, HeaderValue::from_static("019a8f6e-7c3b-7d2a-9c1e-5a4b3c2d1e00"));
        assert_eq!(verify(&receiver(), &headers, BODY, 0), Err(Refused::Signature));
        assert_eq!(verify(&Receiver::new(&secret_text(&[8; 32])).unwrap(), &headers, BODY, 0), Err(Refused::Signature));
    }

    #[test]
    fn a_repeated_delivery_is_refused_for_as_long_as_its_signature_is_good() {
        let (receiver, headers) = (receiver(), signed(&SENT_S.to_string(), DELIVERY, BODY));
        assert_eq!(verify(&receiver, &headers, BODY, -300), Ok(()));
        for seconds in [-300, 0, 300] {
            assert_eq!(verify(&receiver, &headers, BODY, seconds), Err(Refused::Repeated));
        }
        assert_eq!(verify(&receiver, &headers, BODY, 301), Err(Refused::Stale));
    }

    /// As the server does when it did not hear the answer: the same id under a new signature.
    #[test]
    fn a_delivery_that_is_tried_again_days_later_was_taken_before() {
        let (receiver, days) = (receiver(), 3 * 86_400);
        assert_eq!(verify(&receiver, &signed(&SENT_S.to_string(), DELIVERY, BODY), BODY, 0), Ok(()));
        let again = signed(&(SENT_S + days).to_string(), DELIVERY, BODY);
        assert_eq!(verify(&receiver, &again, BODY, days), Err(Refused::Repeated));
    }

    #[test]
    fn what_could_not_be_handled_may_come_again() {
        let (receiver, headers) = (receiver(), signed(&SENT_S.to_string(), DELIVERY, BODY));
        let received = receiver.verify(&headers, BODY, after(0)).unwrap();
        receiver.give_back(&received);
        assert_eq!(verify(&receiver, &headers, BODY, 1), Ok(()));
    }

    #[test]
    fn headers_that_are_missing_doubled_or_malformed_are_refused() {
        for name in [SIGNATURE_HEADER, TIMESTAMP_HEADER, DELIVERY_HEADER, AGENT_HEADER] {
            let mut headers = signed(&SENT_S.to_string(), DELIVERY, BODY);
            headers.append(name, HeaderValue::from_static("1"));
            assert_eq!(verify(&receiver(), &headers, BODY, 0), Err(Refused::Headers), "{name} twice");
            headers.remove(name);
            assert_eq!(verify(&receiver(), &headers, BODY, 0), Err(Refused::Headers), "no {name}");
        }
        let mut headers = signed(&SENT_S.to_string(), DELIVERY, BODY);
        let upper = headers[SIGNATURE_HEADER].to_str().unwrap().to_uppercase();
        headers.insert(SIGNATURE_HEADER, upper.parse().unwrap());
        assert_eq!(verify(&receiver(), &headers, BODY, 0), Err(Refused::Headers));
        for (timestamp, delivery) in [("now", DELIVERY), (&*SENT_S.to_string(), "7")] {
            assert_eq!(verify(&receiver(), &signed(timestamp, delivery, BODY), BODY, 0), Err(Refused::Headers));
        }
    }

    #[test]
    fn a_receiver_that_can_remember_no_more_takes_no_more() {
        let receiver = receiver();
        for number in 0..REMEMBERED_MAX as u128 {
            let id: DeliveryId = format!("{:08x}-0000-7000-8000-{:012x}", number >> 48, number).parse().unwrap();
            receiver.take(id, SENT_S, SENT_S + 301).unwrap();
        }
        let headers = signed(&SENT_S.to_string(), DELIVERY, BODY);
        assert_eq!(verify(&receiver, &headers, BODY, 300), Err(Refused::Busy));
        let later = signed(&(SENT_S + 301).to_string(), DELIVERY, BODY);
        assert_eq!(verify(&receiver, &later, BODY, 301), Ok(()));
    }
}
