//! What one kernel event is translated into.

use serde_json::{Map, Value};

use crate::{
    json::hex,
    limits::NAME_BYTES_MAX,
    run_input::agui::{
        events::{AgUiEvent, EventBody},
        verify::EventVerifier,
    },
    sha256::sha256,
};

pub(super) const OUTPUT: &str = "ostler.command_output";

/// What has been made of one kernel event so far; everything passes the verifier on its way.
pub(super) struct Out<'a> {
    pub(super) verifier: &'a mut EventVerifier,
    pub(super) events: Vec<AgUiEvent>,
    /// How many events there may be. An event beyond that is not passed to the verifier either, so the others stay
    /// legal.
    pub(super) room: usize,
    pub(super) timestamp: i64,
}

impl Out<'_> {
    pub(super) fn send(&mut self, body: EventBody) {
        self.send_with(body, Map::new());
    }

    pub(super) fn send_with(&mut self, body: EventBody, metadata: Map<String, Value>) {
        if self.events.len() >= self.room {
            return;
        }
        self.verifier.pass(AgUiEvent { body, timestamp: self.timestamp, metadata }, &mut self.events);
    }

    /// Ends whatever is open.
    pub(super) fn close_all(&mut self) {
        self.verifier.close_all(self.timestamp, &mut self.events);
    }

    pub(super) fn custom(&mut self, name: &str, value: Value) {
        self.send(EventBody::Custom { name: name.to_owned(), value });
    }
}

/// An agent's id, as it is or, if it is empty or over-long, by its digest.
pub(super) fn named(id: &str) -> String {
    match id.len() {
        1..=NAME_BYTES_MAX => id.to_owned(),
        _ => hex(&sha256(id.as_bytes())),
    }
}
