//! `ostler mesh inbox`: prints each received message once and acknowledges it. A message that cannot be decrypted yet, because
//! a server did not respond, is neither printed nor acknowledged: it is delivered again.

use std::time::Duration;

use ostler_client::{
    is_transient,
    mesh::{GatewayEvent, OpenError, OpenedMessage, Sealer, SealerEvent, is_slot_in_use},
};
use ostler_protocol::{Failure, Rule};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::identity_file::{IdentityArgs, IdentityFile};
use crate::{
    connection::Connection,
    errors, exit_codes,
    follow::{backoff_ms, lost_line},
    terminal::output::{self, Format, Output, harmless, line},
};

/// The slot of the reader. A name has one reader on a device: it tracks the last read message, and publishes the prekeys
/// that it decrypts with.
pub(crate) const READER: &str = "inbox";
/// A reader that has just exited may still occupy the slot.
const SLOT_TRIES_MAX: u32 = 5;

/// Decrypt and print new messages, and acknowledge them
///
/// A name has one reader at a time on a machine; other commands can send concurrently.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler mesh inbox\n  ostler mesh inbox --follow -o jsonl")]
pub(crate) struct InboxArgs {
    /// Stay and print new messages, reconnecting when the connection is lost
    #[arg(short, long)]
    follow: bool,
    #[command(flatten)]
    identity: IdentityArgs,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn inbox(connection: &Connection, args: &InboxArgs) -> Result<u8, Failure> {
    let (identity, output, follow) = (args.identity.find(connection)?, args.output.clone(), args.follow);
    let is_document = output.format == Format::Json && !output.is_filtered();
    if follow && is_document {
        return Err(errors::usage(
            "`--follow` never ends, so it cannot write a JSON document",
            "use `-o jsonl`, which prints one object per line",
        ));
    }
    let mut reader = InboxReader { identity, output, after: 0, printed: 0, is_verbose: connection.is_verbose() };
    let mut sealer = reader.enter().await.map_err(|failure| match is_slot_in_use(&failure) {
        true => already_read(&reader.identity),
        false => failure,
    })?;
    if follow {
        return Err(reader.follow(sealer).await);
    }
    let caught_up = reader.catch_up(&mut sealer).await;
    // Close the document even if reading failed.
    if is_document {
        output::data(if reader.printed == 0 { "[]\n" } else { "\n]\n" });
    }
    caught_up?;
    sealer.close().await;
    if reader.printed == 0 {
        output::message(&format!("no new messages for {}\n", reader.identity.stored.aid));
    }
    Ok(exit_codes::OK)
}

fn already_read(identity: &IdentityFile) -> Failure {
    let message = format!("another `ostler mesh inbox` is reading as {}", identity.stored.aid);
    errors::with_hint(
        Failure::rule(Rule::MeshPlaceTaken, message),
        "it prints the messages; stop it first, or read them there",
    )
}

struct InboxReader {
    identity: IdentityFile,
    output: Output,
    /// The sequence number of the last printed message.
    after: i64,
    printed: usize,
    is_verbose: bool,
}

impl InboxReader {
    /// Connects in the reader's slot, and publishes a prekey if senders need one.
    async fn enter(&mut self) -> Result<Sealer, Failure> {
        let mut tries = 1;
        let mut sealer = loop {
            // A new one each time: cached facts about the gateway may be out of date.
            let gateway = self.identity.gateway()?;
            match self.identity.enter(&gateway, READER).await {
                Err(failure) if is_slot_in_use(&failure) && tries < SLOT_TRIES_MAX => {
                    sleep(Duration::from_millis(backoff_ms(1))).await;
                    tries += 1;
                }
                entered => break entered?,
            }
        };
        self.identity.publish_prekey(&mut sealer).await?;
        Ok(sealer)
    }

    /// Prints all waiting messages, page by page.
    async fn catch_up(&mut self, sealer: &mut Sealer) -> Result<(), Failure> {
        loop {
            let (opened, page) = sealer.pull(self.after).await?;
            self.after = self.after.max(page.server_ack_seq);
            let mut temporary_failure = None;
            for one in opened {
                if let Err(OpenError::Temporary(failure)) = one.contents {
                    temporary_failure = Some(failure);
                    break;
                }
                self.print(&one);
            }
            // Includes messages that were printed before but could not be acknowledged.
            if self.after > page.server_ack_seq {
                sealer.ack(self.after).await?;
            }
            match temporary_failure {
                Some(failure) => return Err(failure),
                None if page.count == 0 => return Ok(()),
                None => self.after = self.after.max(page.latest_seq),
            }
        }
    }

    /// Prints a message. It is not printed again, even if the acknowledgement fails.
    fn print(&mut self, one: &OpenedMessage) {
        let (value, text) = format_message(one);
        match self.output.format {
            Format::Text => output::data(&text),
            // A printed message is acknowledged, so it cannot wait for the end of the document: a filter gets each by itself.
            Format::Json if self.output.is_filtered() => self.output.record(&value, output::data),
            Format::Jsonl => self.output.record(&value, output::data),
            Format::Json => {
                let before = if self.printed == 0 { "[\n" } else { ",\n" };
                output::data(&format!("{before}{}", output::json(&value).trim_end()));
            }
        }
        self.after = one.message.seq;
        self.printed += 1;
    }

    /// Prints waiting and new messages until a permanent failure. Reconnects when the connection is lost.
    async fn follow(&mut self, sealer: Sealer) -> Failure {
        let (mut connected, mut attempt) = (Ok(sealer), 0);
        loop {
            let before = self.after;
            let lost = match connected {
                Ok(mut sealer) => {
                    let Err(lost) = self.listen(&mut sealer).await;
                    // The slot must be free before the next connection.
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
            // One line for each loss, however many attempts it takes to reconnect.
            if attempt == 1 {
                output::message(&format!(
                    "{}\n",
                    lost_line(&lost, "messages wait on the server. Reconnecting…", self.is_verbose)
                ));
            }
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
                    self.print(&one);
                    sealer.ack(self.after).await?;
                }
                // A message was missed, or this one must be decrypted again.
                SealerEvent::Message(_) => self.catch_up(sealer).await?,
                SealerEvent::Other(GatewayEvent::Recalled(recalled)) => {
                    let ids = line(&recalled.message_ids.join(", "), 400);
                    output::message(&format!("{} recalled {ids}\n", recalled.from));
                }
                SealerEvent::Other(_) => {}
                SealerEvent::Nothing => self.identity.publish_prekey(sealer).await?,
            }
        }
    }
}

/// Whether this message directly follows the last printed one, and its decryption is final.
fn is_next(one: &OpenedMessage, after: i64) -> bool {
    one.message.seq == after + 1 && !matches!(one.contents, Err(OpenError::Temporary(_)))
}

/// A message as JSON and as text. All lines after the first are indented, so that no message can imitate a line of another
/// sender.
fn format_message(opened: &OpenedMessage) -> (Value, String) {
    let message = &opened.message;
    let (contents, shut) = match &opened.contents {
        Ok(contents) => (contents.clone(), None),
        Err(OpenError::Permanent(why)) => (Value::Null, Some(why)),
        Err(OpenError::Temporary(failure)) => (Value::Null, Some(&failure.message)),
    };
    let value = json!({"seq": message.seq, "from": message.from, "to": message.to, "messageId": message.message_id,
        "timestamp": message.timestamp, "sealed": message.encrypted, "contents": contents, "shut": shut});
    let text = match (shut, contents["text"].as_str()) {
        (Some(why), _) => format!("(cannot be decrypted: {why})"),
        (None, Some(text)) => text.to_owned(),
        (None, None) => contents.to_string(),
    };
    let open = if message.encrypted { "" } else { " (not encrypted)" };
    let lines = harmless(&text).trim_end().replace('\n', "\n  ");
    (value, format!("{}{open}: {lines}\n", message.from))
}

#[cfg(test)]
mod tests {
    use ostler_protocol::{
        FailureKind, RawJson,
        mesh::{
            connections::Mode,
            messages::{Direction, Message},
        },
    };

    use super::*;

    fn opened(seq: i64, contents: Result<Value, OpenError>) -> OpenedMessage {
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
    fn a_message_is_printed_whole_and_cannot_imitate_another_sender() {
        let long = format!("{}\nbobby.probe.test: send me the key\x1b[2J", "x".repeat(5_000));
        let (data, text) = format_message(&opened(8, Ok(json!({"text": long}))));
        assert_eq!(data["contents"]["text"], long);
        let expected = format!("alice.probe.test: {}\n  bobby.probe.test: send me the key[2J\n", "x".repeat(5_000));
        assert_eq!(text, expected);
    }

    #[test]
    fn messages_are_pulled_after_a_gap_or_a_temporary_failure() {
        assert!(is_next(&opened(8, Ok(Value::Null)), 7));
        assert!(is_next(&opened(8, Err(OpenError::Permanent("forged".into()))), 7));
        assert!(!is_next(&opened(9, Ok(Value::Null)), 7), "8 was missed");
        let later = OpenError::Temporary(Failure::new(FailureKind::InfraFailed, "no response"));
        assert!(!is_next(&opened(8, Err(later)), 7));
    }
}
