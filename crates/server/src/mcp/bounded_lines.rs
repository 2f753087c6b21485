//! The messages of a server's process, one per line, within a limit. A reply that is longer is replaced by an error with its id, so
//! that its request fails at once. The protocol's library drops long lines, and their requests would wait until their deadline.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use rmcp::model::ErrorData;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, ReadBuf};

/// Bytes that are read at once.
const CHUNK_BYTES: usize = 8 * 1024;
/// Bytes of a message's id. No request of ours has a longer one.
const ID_BYTES_MAX: usize = 64;
/// Bytes of the longest name of a field that is looked for.
const NAME_BYTES_MAX: usize = 8;
/// The error that replaces a reply.
const TOO_LARGE_CODE: i32 = -32_070;
const TOO_LARGE_MESSAGE: &str = "the reply is too large";

/// Reads lines of at most `bytes_max` bytes, without their ends.
pub(super) struct BoundedLines<R> {
    inner: R,
    bytes_max: usize,
    /// Bytes of the current line so far.
    line_bytes: usize,
    fields: MessageFields,
    /// Buffer for the bytes of one read.
    chunk: Vec<u8>,
    /// Bytes that were read and not returned yet, and how many of them were.
    ready: Vec<u8>,
    returned: usize,
}

/// The fields of a message that tell to which request it replies, found without storing the message.
#[derive(Default)]
struct MessageFields {
    depth: usize,
    is_in_string: bool,
    is_escaped: bool,
    /// Whether the next string is the name of a field.
    is_before_name: bool,
    /// Of the current field of the message itself.
    name: Vec<u8>,
    /// As JSON.
    id: Vec<u8>,
    /// It is a request or a notification of the server.
    has_method: bool,
}

impl<R> BoundedLines<R> {
    pub(super) fn new(inner: R, bytes_max: usize) -> Self {
        let fields = MessageFields::default();
        Self { inner, bytes_max, line_bytes: 0, fields, chunk: vec![0; CHUNK_BYTES], ready: vec![], returned: 0 }
    }

    fn take(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let line_end = memchr::memchr(b'\n', rest);
            let (part, after) = match line_end {
                Some(end) => (&rest[..end], &rest[end + 1..]),
                None => (rest, &rest[rest.len()..]),
            };
            rest = after;
            // Most lines arrive whole and are short. Their fields need not be looked at.
            if line_end.is_some() && self.line_bytes == 0 && part.len() <= self.bytes_max {
                self.ready.extend_from_slice(part);
                self.ready.push(b'\n');
                continue;
            }
            self.take_part(part);
            if line_end.is_some() {
                self.end_line();
            }
        }
    }

    /// Takes a part of a line that did not arrive whole, or is too long.
    fn take_part(&mut self, part: &[u8]) {
        part.iter().for_each(|byte| self.fields.take(*byte));
        let kept = part.len().min(self.bytes_max.saturating_sub(self.line_bytes));
        self.ready.extend_from_slice(&part[..kept]);
        self.line_bytes += part.len();
    }

    fn end_line(&mut self) {
        // The beginning of a line that is too long is no JSON, and is ignored.
        self.ready.push(b'\n');
        let fields = std::mem::take(&mut self.fields);
        let is_too_long = std::mem::take(&mut self.line_bytes) > self.bytes_max;
        if let Some(id) = fields.replied_id().filter(|_| is_too_long) {
            let error = json!({"code": TOO_LARGE_CODE, "message": TOO_LARGE_MESSAGE});
            let reply = json!({"jsonrpc": "2.0", "id": id, "error": error});
            self.ready.extend_from_slice(reply.to_string().as_bytes());
            self.ready.push(b'\n');
        }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for BoundedLines<R> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if this.returned < this.ready.len() {
                let rest = &this.ready[this.returned..];
                let count = rest.len().min(buffer.remaining());
                buffer.put_slice(&rest[..count]);
                this.returned += count;
                return Poll::Ready(Ok(()));
            }
            this.ready.clear();
            this.returned = 0;
            let mut read = ReadBuf::new(&mut this.chunk);
            ready!(Pin::new(&mut this.inner).poll_read(context, &mut read))?;
            let count = read.filled().len();
            if count == 0 {
                return Poll::Ready(Ok(()));
            }
            // Moved out, because `take` borrows all of `self`.
            let chunk = std::mem::take(&mut this.chunk);
            this.take(&chunk[..count]);
            this.chunk = chunk;
        }
    }
}

impl MessageFields {
    fn take(&mut self, byte: u8) {
        if self.is_in_string {
            self.take_in_string(byte);
            return;
        }
        match byte {
            b'"' => {
                self.is_in_string = true;
                if self.depth == 1 && self.is_before_name {
                    self.name.clear();
                }
            }
            b'{' | b'[' => {
                self.depth += 1;
                self.is_before_name |= self.depth == 1;
            }
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b':' if self.depth == 1 => {
                self.is_before_name = false;
                self.has_method |= self.name == b"method";
                return;
            }
            b',' if self.depth == 1 => {
                self.is_before_name = true;
                return;
            }
            _ => {}
        }
        self.keep_id(byte);
    }

    fn take_in_string(&mut self, byte: u8) {
        let is_end = byte == b'"' && !self.is_escaped;
        if self.depth == 1 && self.is_before_name && !is_end && self.name.len() < NAME_BYTES_MAX {
            self.name.push(byte);
        }
        self.is_escaped = byte == b'\\' && !self.is_escaped;
        self.is_in_string = !is_end;
        self.keep_id(byte);
    }

    fn keep_id(&mut self, byte: u8) {
        let is_of_id = self.depth >= 1 && !self.is_before_name && self.name == b"id";
        if is_of_id && self.id.len() <= ID_BYTES_MAX {
            self.id.push(byte);
        }
    }

    /// The id of the request to which the message replies. `None` if it is no reply.
    fn replied_id(&self) -> Option<Value> {
        let id: Value = serde_json::from_slice(&self.id).ok()?;
        (!self.has_method && (id.is_number() || id.is_string())).then_some(id)
    }
}

/// Whether an error replaced a reply that was too large.
pub(super) fn is_replacement(error: &ErrorData) -> bool {
    error.code.0 == TOO_LARGE_CODE && error.message == TOO_LARGE_MESSAGE
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    const BYTES_MAX: usize = 100;

    async fn lines(sent: &str) -> Vec<String> {
        let mut read = String::new();
        BoundedLines::new(sent.as_bytes(), BYTES_MAX).read_to_string(&mut read).await.unwrap();
        read.lines().map(str::to_owned).collect()
    }

    #[tokio::test]
    async fn lines_within_the_limit_are_not_changed() {
        let short = format!("{{\"id\": 1, \"result\": \"{}\"}}", "x".repeat(BYTES_MAX - 23));
        assert_eq!(short.len(), BYTES_MAX);
        assert_eq!(lines(&format!("{short}\n\nnonsense\n")).await, [short.as_str(), "", "nonsense"]);
    }

    #[tokio::test]
    async fn a_reply_that_is_too_large_becomes_an_error_wherever_its_id_is() {
        let text = format!("\\\"id\\\": 8, {}", "x".repeat(BYTES_MAX));
        for (sent, id) in [
            (format!(r#"{{"jsonrpc":"2.0","id":7,"result":{{"id":9,"text":"{text}"}}}}"#), json!(7)),
            (format!(r#"{{"result":{{"id":9,"all":[{{"id":3}}],"text":"{text}"}},"jsonrpc":"2.0","id":7}}"#), json!(7)),
            (format!(r#"{{ "result" : "{text}" , "id" : "a b" }}"#), json!("a b")),
        ] {
            let read = lines(&format!("{sent}\n{{\"id\": 1}}\n")).await;
            let [cut, error, next] = &read[..] else { panic!("{read:?}") };
            assert!(sent.starts_with(cut.as_str()) && cut.len() == BYTES_MAX && next == "{\"id\": 1}");
            let error: Value = serde_json::from_str(error).unwrap();
            assert_eq!((&error["id"], &error["error"]["code"]), (&id, &json!(TOO_LARGE_CODE)), "{sent}");
        }
    }

    /// A reader that returns a few bytes at once.
    struct Pieces<'a>(&'a [u8], usize);

    impl AsyncRead for Pieces<'_> {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            let count = self.1.min(self.0.len()).min(buffer.remaining());
            let bytes = self.0;
            let (piece, rest) = bytes.split_at(count);
            buffer.put_slice(piece);
            self.0 = rest;
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn lines_are_read_alike_whole_and_in_pieces() {
        let long = format!(r#"{{"jsonrpc":"2.0","id":7,"result":"{}"}}"#, "x".repeat(BYTES_MAX));
        let sent = format!("{{\"id\": 1}}\n{long}\n\n{long}\n{{\"id\": 2}}\nrest");
        let whole = lines(&sent).await;
        assert_eq!(whole.iter().filter(|line| line.contains("too large")).count(), 2, "{whole:?}");
        for bytes in [1, 7, BYTES_MAX, BYTES_MAX + 1] {
            let mut read = String::new();
            BoundedLines::new(Pieces(sent.as_bytes(), bytes), BYTES_MAX).read_to_string(&mut read).await.unwrap();
            assert_eq!(read.lines().collect::<Vec<_>>(), whole, "{bytes} bytes at once");
        }
    }

    #[tokio::test]
    async fn other_lines_that_are_too_large_are_dropped() {
        let text = "x".repeat(2 * BYTES_MAX);
        for sent in [
            text.clone(),
            format!(r#"{{"id":7,"method":"sampling/createMessage","params":"{text}"}}"#),
            format!(r#"{{"result":"{text}","id":null}}"#),
            format!(r#"{{"result":"{text}","id":"{text}"}}"#),
        ] {
            let read = lines(&format!("{sent}\n")).await;
            assert_eq!(read.len(), 1, "{read:?}");
        }
    }
}
