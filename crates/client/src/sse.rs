//! A parser of server-sent events: LF, CRLF or CR line ends, data over several lines, comments skipped, and a limit on the
//! size of one event. It does not interpret the data.

use ostler_protocol::{Failure, Rule, limits::EVENT_BYTES_MAX};

/// An event's payload has at most 256 KiB, or six times that if every character is escaped. The rest is for its envelope.
const FRAME_BYTES_MAX: usize = 6 * EVENT_BYTES_MAX + 64 * 1024;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct SseFrame {
    pub id: Option<String>,
    pub event: Option<String>,
    pub data: String,
}

#[derive(Default)]
pub struct Parser {
    line: Vec<u8>,
    frame: SseFrame,
    has_data: bool,
    /// Whether the last byte was a CR. An LF after it does not end a second line.
    after_cr: bool,
}

impl Parser {
    /// Takes the next bytes and returns the events they complete.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<Vec<SseFrame>, Failure> {
        let mut frames = vec![];
        while let Some(&first) = bytes.first() {
            if std::mem::take(&mut self.after_cr) && first == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let end = bytes.iter().position(|b| matches!(b, b'\n' | b'\r'));
            let piece = &bytes[..end.unwrap_or(bytes.len())];
            if self.line.len() + self.frame.data.len() + piece.len() > FRAME_BYTES_MAX {
                let message = format!("an event of the stream is over {FRAME_BYTES_MAX} bytes");
                return Err(Failure::rule(Rule::FrameSize, message));
            }
            self.line.extend_from_slice(piece);
            let Some(end) = end else { break };
            self.after_cr = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            frames.extend(self.end_line());
        }
        Ok(frames)
    }

    /// Handles a complete line. An empty line completes the event, unless it has no data.
    fn end_line(&mut self) -> Option<SseFrame> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            let frame = std::mem::take(&mut self.frame);
            return std::mem::take(&mut self.has_data).then_some(frame);
        }
        let text = String::from_utf8_lossy(&line);
        let (field, value) = text.split_once(':').unwrap_or((&text, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.frame.data.push('\n');
                }
                self.frame.data.push_str(value);
            }
            "id" => self.frame.id = Some(value.to_owned()),
            "event" => self.frame.event = Some(value.to_owned()),
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use ostler_protocol::FailureKind;

    use super::*;

    const STREAM: &str =
        ": hello\n\nid: 1\nevent: step\ndata: {\"a\":1}\n\ndata: one\ndata:two\r\n\r\nid:3\r\r: beat\n\ndata\n\n";

    fn frame(id: Option<&str>, event: Option<&str>, data: &str) -> SseFrame {
        SseFrame { id: id.map(str::to_owned), event: event.map(str::to_owned), data: data.to_owned() }
    }

    #[test]
    fn a_stream_parses_the_same_however_it_is_cut() {
        let whole =
            vec![frame(Some("1"), Some("step"), r#"{"a":1}"#), frame(None, None, "one\ntwo"), frame(None, None, "")];
        for size in 1..=STREAM.len() {
            let mut parser = Parser::default();
            let read: Vec<_> = STREAM.as_bytes().chunks(size).flat_map(|piece| parser.feed(piece).unwrap()).collect();
            assert_eq!(read, whole, "cut every {size} bytes");
        }
    }

    #[test]
    fn an_unfinished_event_is_not_returned() {
        let mut parser = Parser::default();
        assert_eq!(parser.feed(b"data: half\n").unwrap(), vec![]);
        assert_eq!(parser.feed(b"\n").unwrap(), vec![frame(None, None, "half")]);
    }

    #[test]
    fn a_character_may_be_cut_in_two() {
        let mut parser = Parser::default();
        let bytes = "data: é\n\n".as_bytes();
        assert_eq!(parser.feed(&bytes[..7]).unwrap(), vec![]);
        assert_eq!(parser.feed(&bytes[7..]).unwrap(), vec![frame(None, None, "é")]);
    }

    #[test]
    fn an_endless_event_is_rejected() {
        let mut parser = Parser::default();
        let line = format!("data: {}\n", "x".repeat(64 * 1024));
        let failure = (0..100).find_map(|_| parser.feed(line.as_bytes()).err());
        assert_eq!(failure.expect("a failure").kind, FailureKind::PayloadTooLarge);
    }
}
