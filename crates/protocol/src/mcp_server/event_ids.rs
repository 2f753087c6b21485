//! The ids of the events of a call's stream. An id has everything that continues the call: which run it waits for, until when, and
//! up to which event of the run the client was notified. Any server of the same store can therefore continue it from the log, and
//! none has to remember it. An id grants nothing: the caller must be able to read the run.

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::arguments::{FOLLOW_EVENTS_MAX, WaitUntil};
use crate::{
    Failure, Rule,
    ids::{CommandId, RunId},
    rpc::RpcId,
};

/// A longer id is not given out, and its stream cannot be resumed.
pub const EVENT_ID_BYTES_MAX: usize = 2 * 1024;
/// The id of the last event of a call that was cancelled: nothing follows it.
pub const ENDED: &str = "ended";
const VERSION: &str = "w1";
const NONE: &str = "-";

/// What a call waits for.
#[derive(Clone, Debug, PartialEq)]
pub struct RunWait {
    pub run_id: RunId,
    /// The command that the call has submitted. `None` for a call that only follows.
    pub command_id: Option<CommandId>,
    /// The result has events numbered above this.
    pub after_seq: i64,
    pub events_max: u32,
    pub until: WaitUntil,
    /// When it stops to wait, in milliseconds of the server's time.
    pub deadline_ms: i64,
}

/// A point in the stream of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitPoint {
    pub request_id: RpcId,
    pub progress_token: Option<RpcId>,
    pub wait: RunWait,
    /// The run's last event that the client was notified of.
    pub notified_seq: i64,
}

impl WaitPoint {
    /// `None` if it would be too long.
    pub fn encode(&self) -> Option<String> {
        let RunWait { run_id, command_id, after_seq, events_max, until, deadline_ms } = &self.wait;
        let command_id = command_id.map_or_else(|| NONE.to_owned(), |id| id.to_string());
        let token = self.progress_token.as_ref().map_or_else(|| NONE.to_owned(), encode_id);
        let (request_id, until, notified_seq) = (encode_id(&self.request_id), until.as_str(), self.notified_seq);
        let text = format!(
            "{VERSION}.{run_id}.{command_id}.{after_seq}.{events_max}.{until}.{deadline_ms}.{notified_seq}.{request_id}.{token}"
        );
        (text.len() <= EVENT_ID_BYTES_MAX).then_some(text)
    }

    pub fn decode(text: &str) -> Result<Self, Failure> {
        let unknown = || Failure::invalid(Rule::McpEventId, "Last-Event-ID must be the id of an event of a call");
        if text.len() > EVENT_ID_BYTES_MAX {
            return Err(unknown());
        }
        Self::read(text).ok_or_else(unknown)
    }

    fn read(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split('.').collect();
        let [VERSION, run_id, command_id, after_seq, events_max, until, deadline_ms, notified_seq, request_id, token] =
            parts[..]
        else {
            return None;
        };
        let seq = |text: &str| text.parse::<i64>().ok().filter(|seq| *seq >= 0);
        let wait = RunWait {
            run_id: run_id.parse().ok()?,
            command_id: if command_id == NONE { None } else { Some(command_id.parse().ok()?) },
            after_seq: seq(after_seq)?,
            events_max: events_max.parse().ok().filter(|max| (1..=FOLLOW_EVENTS_MAX).contains(max))?,
            until: WaitUntil::parse(until)?,
            deadline_ms: deadline_ms.parse().ok()?,
        };
        Some(Self {
            request_id: decode_id(request_id)?,
            progress_token: if token == NONE { None } else { Some(decode_id(token)?) },
            wait,
            notified_seq: seq(notified_seq)?,
        })
    }
}

fn encode_id(id: &RpcId) -> String {
    match id {
        RpcId::Number(number) => format!("n{number}"),
        RpcId::Text(text) => format!("t{}", utf8_percent_encode(text, NON_ALPHANUMERIC)),
    }
}

fn decode_id(text: &str) -> Option<RpcId> {
    match text.split_at_checked(1)? {
        ("n", number) => number.parse().ok().map(RpcId::Number),
        ("t", text) => percent_decode_str(text).decode_utf8().ok().map(|text| RpcId::Text(text.into_owned())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn point(request_id: RpcId, progress_token: Option<RpcId>, seq: i64) -> WaitPoint {
        let wait = RunWait {
            run_id: format!("run_{:032x}", 7).parse().unwrap(),
            command_id: (seq % 2 == 0).then(|| format!("cmd_{:032x}", 8).parse().unwrap()),
            after_seq: seq / 2,
            events_max: 1 + seq.unsigned_abs() as u32 % FOLLOW_EVENTS_MAX,
            until: WaitUntil::ALL[seq as usize % 2],
            deadline_ms: -seq,
        };
        WaitPoint { request_id, progress_token, wait, notified_seq: seq }
    }

    fn ids() -> impl Strategy<Value = RpcId> {
        prop_oneof![any::<i64>().prop_map(RpcId::Number), ".{0,40}".prop_map(RpcId::Text)]
    }

    proptest! {
        #[test]
        fn an_id_is_read_back_and_fits_into_a_header(request in ids(), token in proptest::option::of(ids()), seq in 0..i64::MAX) {
            let point = point(request, token, seq);
            let text = point.encode().unwrap();
            prop_assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{}", text);
            prop_assert_eq!(WaitPoint::decode(&text).unwrap(), point);
        }

        #[test]
        fn text_that_is_no_id_is_refused(text: String) {
            prop_assert!(WaitPoint::decode(&text).is_err());
        }
    }

    #[test]
    fn an_id_out_of_bounds_is_refused_and_a_long_one_not_given_out() {
        let good = point(RpcId::Number(1), None, 6).encode().unwrap();
        for bad in [
            good.replace(".n1.", ".x1."),
            good.replace("w1.", "w2."),
            good.replace(".3.7.", ".-3.7."),
            good.replace(".3.7.", ".3.0."),
            format!("{good}."),
        ] {
            assert_ne!(bad, good);
            assert!(WaitPoint::decode(&bad).is_err(), "{bad}");
        }
        assert_eq!(point(RpcId::Text("💥".repeat(200)), None, 6).encode(), None);
        assert!(WaitPoint::decode(&"w1.".repeat(EVENT_ID_BYTES_MAX)).is_err());
    }
}
