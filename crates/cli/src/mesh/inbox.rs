//! `ostler mesh inbox`: shows what came, once, and acknowledges what was shown. What could not be opened for want of an answer
//! is neither shown nor acknowledged: it comes again.

use std::time::Duration;

use ostler_client::{
    is_transient,
    mesh::{GatewayEvent, OpenError, OpenedMessage, Sealer, SealerEvent, is_slot_in_use},
};
use ostler_protocol::{Failure, FailureKind};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::kept::Kept;
use crate::{
    errors, exit_codes,
    follow::backoff_ms,
    output::{self, Format, Output, harmless, line},
};

/// The slot of whoever reads. There is one reader of a name on a device: it has the mark of what was read, and leaves the
/// prekeys that it opens with.
pub const READER: &str = "inbox";
/// A reader that has just left may still be in its place.
const PLACE_TRIES_MAX: u32 = 5;

pub async fn inbox(kept: Kept, output: Output, follow: bool) -> Result<u8, Failure> {
    if follow && output.format == Format::Json {
        return Err(errors::usage(
            "what has no end is no JSON document",
            "follow with `-o jsonl`, an object on each line",
        ));
    }
    let mut reader = Reader { kept, output, after: 0, shown: 0 };
    let mut sealer = reader.enter().await.map_err(|failure| match is_slot_in_use(&failure) {
        true => already_read(&reader.kept),
        false => failure,
    })?;
    if follow {
        return Err(reader.follow(sealer).await);
    }
    let caught_up = reader.catch_up(&mut sealer).await;
    // What was shown is a whole document, whatever came then.
    if output.format == Format::Json {
        output::data(if reader.shown == 0 { "[]\n" } else { "\n]\n" });
    }
    caught_up?;
    sealer.close().await;
    Ok(exit_codes::OK)
}

fn already_read(kept: &Kept) -> Failure {
    let message = format!("another `ostler mesh inbox` is reading as {}", kept.member.aid);
    errors::with_hint(
        Failure::rule(FailureKind::StateConflict, "mesh-place-taken", message),
        "it shows what comes; stop it first, or read there",
    )
}

struct Reader {
    kept: Kept,
    output: Output,
    /// The last message that was shown.
    after: i64,
    shown: usize,
}

impl Reader {
    /// Connects in the reader's place, and sees that senders have a prekey.
    async fn enter(&mut self) -> Result<Sealer, Failure> {
        let mut tries = 1;
        let mut sealer = loop {
            // A new one each time: what it knew of the gateway may be out of date.
            let gateway = self.kept.gateway()?;
            match self.kept.enter(&gateway, READER).await {
                Err(failure) if is_slot_in_use(&failure) && tries < PLACE_TRIES_MAX => {
                    sleep(Duration::from_millis(backoff_ms(1))).await;
                    tries += 1;
                }
                entered => break entered?,
            }
        };
        self.kept.leave_prekey(&mut sealer).await?;
        Ok(sealer)
    }

    /// Shows all that waits, page by page.
    async fn catch_up(&mut self, sealer: &mut Sealer) -> Result<(), Failure> {
        loop {
            let (opened, page) = sealer.pull(self.after).await?;
            self.after = self.after.max(page.server_ack_seq);
            let mut doubt = None;
            for one in opened {
                if let Err(OpenError::Temporary(failure)) = one.contents {
                    doubt = Some(failure);
                    break;
                }
                self.show(&one);
            }
            // Also what was shown before, when nobody could be told of it.
            if self.after > page.server_ack_seq {
                sealer.ack(self.after).await?;
            }
            match doubt {
                Some(failure) => return Err(failure),
                None if page.count == 0 => return Ok(()),
                None => self.after = self.after.max(page.latest_seq),
            }
        }
    }

    /// Once, whatever becomes of the acknowledgement.
    fn show(&mut self, one: &OpenedMessage) {
        let (told, text) = told(one);
        match self.output.format {
            Format::Text => output::data(&text),
            Format::Jsonl => output::data(&output::json_line(&told)),
            // Shown is acknowledged, so it does not wait for the rest.
            Format::Json => {
                let before = if self.shown == 0 { "[\n" } else { ",\n" };
                output::data(&format!("{before}{}", output::json(&told).trim_end()));
            }
        }
        self.after = one.message.seq;
        self.shown += 1;
    }

    /// Shows what waits and what comes, until something ends it for good. A lost connection is made anew.
    async fn follow(&mut self, sealer: Sealer) -> Failure {
        let (mut connected, mut attempt) = (Ok(sealer), 0);
        loop {
            let before = self.after;
            let lost = match connected {
                Ok(mut sealer) => {
                    let Err(lost) = self.listen(&mut sealer).await;
                    // Its place must be free before the next one comes.
                    sealer.close().await;
                    lost
                }
                Err(failure) => failure,
            };
            if !is_transient(&lost) && !is_slot_in_use(&lost) {
                return lost;
            }
            attempt = if self.after > before { 1 } else { attempt + 1 };
            let pause_ms = backoff_ms(attempt);
            output::words(&format!("{}; trying again in {pause_ms} ms\n", line(&lost.message, 400)));
            sleep(Duration::from_millis(pause_ms)).await;
            connected = self.enter().await;
        }
    }

    async fn listen(&mut self, sealer: &mut Sealer) -> Result<std::convert::Infallible, Failure> {
        self.catch_up(sealer).await?;
        loop {
            match sealer.next_event().await? {
                SealerEvent::Message(one) if one.message.seq <= self.after => {}
                SealerEvent::Message(one) if is_next(&one, self.after) => {
                    self.show(&one);
                    sealer.ack(self.after).await?;
                }
                // Something was missed, or is to be opened otherwise.
                SealerEvent::Message(_) => self.catch_up(sealer).await?,
                SealerEvent::Other(GatewayEvent::Recalled(recalled)) => {
                    let ids = line(&recalled.message_ids.join(", "), 400);
                    output::words(&format!("{} took back {ids}\n", recalled.from));
                }
                SealerEvent::Other(_) => {}
                SealerEvent::Nothing => self.kept.leave_prekey(sealer).await?,
            }
        }
    }
}

/// Whether nothing lies between the last one and this, and this needs no second look.
fn is_next(one: &OpenedMessage, after: i64) -> bool {
    one.message.seq == after + 1 && !matches!(one.contents, Err(OpenError::Temporary(_)))
}

/// A message as data, and in words: whole, with what follows on its first line set in, so that nobody writes a line of
/// somebody else's.
fn told(opened: &OpenedMessage) -> (Value, String) {
    let message = &opened.message;
    let (contents, shut) = match &opened.contents {
        Ok(contents) => (contents.clone(), None),
        Err(OpenError::Permanent(why)) => (Value::Null, Some(why)),
        Err(OpenError::Temporary(failure)) => (Value::Null, Some(&failure.message)),
    };
    let told = json!({"seq": message.seq, "from": message.from, "to": message.to, "messageId": message.message_id,
        "timestamp": message.timestamp, "sealed": message.encrypted, "contents": contents, "shut": shut});
    let text = match (shut, contents["text"].as_str()) {
        (Some(why), _) => format!("(stays shut: {why})"),
        (None, Some(text)) => text.to_owned(),
        (None, None) => contents.to_string(),
    };
    let open = if message.encrypted { "" } else { " (not sealed)" };
    let lines = harmless(&text).trim_end().replace('\n', "\n  ");
    (told, format!("{}{open}: {lines}\n", message.from))
}

#[cfg(test)]
mod tests {
    use ostler_protocol::{
        RawJson,
        mesh::{
            connections::Mode,
            messages::{Direction, Message},
        },
    };

    use super::*;

    fn came(seq: i64, contents: Result<Value, OpenError>) -> OpenedMessage {
        let aid = || "alice.probe.test".parse().unwrap();
        let (message_id, payload, direction) = ("m".to_owned(), RawJson::of(&json!({})), Direction::Inbound);
        let message = Message {
            message_id,
            seq,
            from: aid(),
            to: aid(),
            timestamp: 0,
            kind: None,
            payload,
            delivery_mode: Mode::Fanout,
            encrypted: true,
            direction,
            device_id: None,
        };
        OpenedMessage { message, contents }
    }

    #[test]
    fn a_message_is_shown_whole_and_no_line_of_it_passes_for_another() {
        let long = format!("{}\nbobby.probe.test: send me the key\x1b[2J", "x".repeat(5_000));
        let (data, text) = told(&came(8, Ok(json!({"text": long}))));
        assert_eq!(data["contents"]["text"], long);
        let shown = format!("alice.probe.test: {}\n  bobby.probe.test: send me the key[2J\n", "x".repeat(5_000));
        assert_eq!(text, shown);
    }

    #[test]
    fn what_leaves_a_hole_or_may_yet_be_opened_is_pulled_instead_of_passed_over() {
        assert!(is_next(&came(8, Ok(Value::Null)), 7));
        assert!(is_next(&came(8, Err(OpenError::Permanent("forged".into()))), 7));
        assert!(!is_next(&came(9, Ok(Value::Null)), 7), "8 was missed");
        let later = OpenError::Temporary(Failure::new(FailureKind::InfraFailed, "no answer"));
        assert!(!is_next(&came(8, Err(later)), 7));
    }
}
