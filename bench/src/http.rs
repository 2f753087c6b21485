//! HTTP/1.1 as bare as it gets: prepared bytes go out over a kept connection, and of an answer only the status, the
//! length and a few fields are read.

use std::net::SocketAddr;

use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::outcome::Outcome;
use crate::server::Server;

/// An answer larger than this is not one we asked for.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
const BODY_BYTES_SHOWN_MAX: usize = 400;

/// The bytes of a request. A body makes it JSON.
pub(crate) fn request(server: &Server, method: &str, path: &str, body: &str) -> Vec<u8> {
    let (host, token) = (server.address, &server.token);
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n");
    if !body.is_empty() {
        text += &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
    }
    text += "\r\n";
    text += body;
    text.into_bytes()
}

pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(server: &Server) -> Outcome<Self> {
        Self::open_at(server.address).await
    }

    pub(crate) async fn open_at(address: SocketAddr) -> Outcome<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(16 * 1024) })
    }

    /// Sends a request and reads its answer's body. Anything but success is an error.
    pub(crate) async fn call(&mut self, request: &[u8]) -> Outcome<&[u8]> {
        let (head, end) = self.send(request).await?;
        let body = &self.buffer[head..end];
        // `HTTP/1.1 2xx`
        if self.buffer.get(9) != Some(&b'2') {
            let status = String::from_utf8_lossy(&self.buffer[..12]);
            let text = String::from_utf8_lossy(&body[..body.len().min(BODY_BYTES_SHOWN_MAX)]);
            let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
            return Err(format!("{}: {status}: {text}", String::from_utf8_lossy(line)).into());
        }
        Ok(body)
    }

    /// Sends a request and reads its answer; the status, whatever it is.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> Outcome<u16> {
        self.send(request).await?;
        let status = self.buffer.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        status.ok_or_else(|| "an answer without a status".into())
    }

    /// Sends a request and reads its answer: where its body begins and ends in the buffer.
    async fn send(&mut self, request: &[u8]) -> Outcome<(usize, usize)> {
        let head = self.send_to_head(request).await?;
        let Some(length) = self.length(head) else {
            // A stream; its body has the marks of its chunks in it.
            self.read_until(LAST_CHUNK).await?;
            return Ok((head, self.buffer.len()));
        };
        Ok((head, self.read_body(head, length).await?))
    }

    /// Sends a request and reads its answer to the end, head included, whether it has a length or is a stream.
    pub(crate) async fn answer(&mut self, request: &[u8]) -> Outcome<&[u8]> {
        let head = self.send_to_head(request).await?;
        match self.length(head) {
            Some(length) => {
                self.read_body(head, length).await?;
            }
            None => self.read_until(LAST_CHUNK).await?,
        }
        Ok(&self.buffer)
    }

    /// Sends a request and reads until the head of its answer is complete: where it ends.
    async fn send_to_head(&mut self, request: &[u8]) -> Outcome<usize> {
        self.stream.write_all(request).await?;
        self.buffer.clear();
        loop {
            let searched = self.buffer.len().saturating_sub(3);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err("the server closed the connection".into());
            }
            if let Some(at) = memmem::find(&self.buffer[searched..], b"\r\n\r\n") {
                return Ok(searched + at + 4);
            }
        }
    }

    fn length(&self, head: usize) -> Option<i64> {
        let head = &self.buffer[..head];
        number_after(head, b"content-length: ").or_else(|| number_after(head, b"Content-Length: "))
    }

    /// Reads until a body of this length is complete: where it ends.
    async fn read_body(&mut self, head: usize, length: i64) -> Outcome<usize> {
        let end = head + usize::try_from(length)?;
        if end > ANSWER_BYTES_MAX {
            return Err("an answer too large".into());
        }
        while self.buffer.len() < end {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err("the server closed the connection".into());
            }
        }
        Ok(end)
    }
}

/// How a chunked answer ends.
const LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";

impl Connection {
    /// Sends a request whose answer is a stream, and reads it to its end, head included.
    pub(crate) async fn stream(&mut self, request: &[u8]) -> Outcome<&[u8]> {
        self.stream_until(request, LAST_CHUNK).await?;
        Ok(&self.buffer)
    }

    /// Sends a request whose answer is a stream, and reads until this has come. The rest can still be read.
    pub(crate) async fn stream_until(&mut self, request: &[u8], text: &[u8]) -> Outcome<()> {
        self.stream.write_all(request).await?;
        self.buffer.clear();
        self.read_until(text).await
    }

    pub(crate) async fn read_until(&mut self, text: &[u8]) -> Outcome<()> {
        let mut searched = 0;
        while memmem::find(&self.buffer[searched..], text).is_none() {
            searched = self.buffer.len().saturating_sub(text.len());
            let refused = self.buffer.len() > 9 && self.buffer[9] != b'2';
            if refused || self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(format!("no stream: {}", String::from_utf8_lossy(&self.buffer)).into());
            }
        }
        Ok(())
    }
}

/// The number that follows the first occurrence of `key`.
pub(crate) fn number_after(text: &[u8], key: &[u8]) -> Option<i64> {
    let start = memmem::find(text, key)? + key.len();
    let digits = text[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[start..start + digits]).ok()?.parse().ok()
}

/// The text of the first field of this name.
pub(crate) fn field<'a>(body: &'a [u8], name: &str) -> Outcome<&'a str> {
    let key = format!("\"{name}\":\"");
    let start = memmem::find(body, key.as_bytes()).ok_or_else(|| format!("an answer without {name}"))? + key.len();
    let length = memchr::memchr(b'"', &body[start..]).ok_or("an answer that ends early")?;
    Ok(std::str::from_utf8(&body[start..start + length])?)
}

/// The number of the first field of this name.
pub(crate) fn number(body: &[u8], name: &str) -> Outcome<i64> {
    number_after(body, format!("\"{name}\":").as_bytes()).ok_or_else(|| format!("an answer without {name}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_name() {
        let body = br#"{"runId":"run_1","leaseEpoch":12,"run":{"runId":"run_2"}}"#;
        assert_eq!(field(body, "runId").unwrap(), "run_1");
        assert_eq!(number(body, "leaseEpoch").unwrap(), 12);
        assert!(field(body, "commandId").is_err());
    }
}
