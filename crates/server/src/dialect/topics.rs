//! The topics for which servers of one store wake each other. A wake-up is a hint: it may be lost, so every waiting task also
//! reads the store from time to time.

use ostler_store::wakeups::LegacyWord;

use crate::{app::App, net::sockets::Frame};

/// One kind of wake-up. Its keys are words without blanks.
#[derive(Clone, Copy)]
pub struct Topic {
    /// Unique among all dialects: `mesh.mailbox`.
    pub name: &'static str,
    /// Whether its keys must not be dropped in favour of those of other topics. For few and short keys.
    pub is_urgent: bool,
    /// Something has changed for this key.
    pub wake: fn(&App, &str),
    /// Something may have changed for any key.
    pub wake_all: fn(&App),
    /// Another server sends a frame to this key's connections.
    pub receive: fn(&App, &str, Frame),
    /// The key, if a word of the former format belongs to this topic.
    pub legacy: fn(&LegacyWord) -> Option<String>,
}

impl Topic {
    pub const fn new(name: &'static str, wake: fn(&App, &str), wake_all: fn(&App)) -> Self {
        Self { name, is_urgent: false, wake, wake_all, receive: |_, _, _| {}, legacy: |_| None }
    }

    pub const fn urgent(self) -> Self {
        Self { is_urgent: true, ..self }
    }

    pub const fn receive(self, receive: fn(&App, &str, Frame)) -> Self {
        Self { receive, ..self }
    }

    /// Wakes the tasks on other servers that wait for this key.
    pub fn wake_others(&self, app: &App, key: &impl ToString) {
        if let Some(others) = app.others() {
            others.add_key(self.name, self.is_urgent, key.to_string());
        }
    }

    /// Sends a frame to the connections of this key on other servers. It may be lost.
    pub fn send_to_others(&self, app: &App, key: &impl ToString, frame: &Frame) {
        if let Some(others) = app.others() {
            others.add_frame(self.name, key.to_string(), frame);
        }
    }

    pub const fn legacy(self, legacy: fn(&LegacyWord) -> Option<String>) -> Self {
        Self { legacy, ..self }
    }
}
