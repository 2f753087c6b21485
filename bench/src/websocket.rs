//! WebSockets as bare as the rest of the load: text out under a mask of zeros, and of what comes only where each frame
//! begins and ends.

use std::net::Ipv4Addr;

use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::outcome::Outcome;
use crate::server::Server;

const TEXT: u8 = 0x81;
const MASKED: u8 = 0x80;
/// Lengths in one byte that stand for a length in two, or in eight.
const IN_TWO_BYTES: u8 = 126;
const IN_EIGHT_BYTES: u8 = 127;

pub(crate) struct WebSocket {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// How much of the buffer was read.
    consumed: usize,
}

impl WebSocket {
    pub(crate) async fn open(server: &Server, path: &str) -> Outcome<Self> {
        Self::open_from(server, path, Ipv4Addr::LOCALHOST).await
    }

    /// From one of this machine's own addresses: servers count some calls by where they come from.
    pub(crate) async fn open_from(server: &Server, path: &str, from: Ipv4Addr) -> Outcome<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((from, 0).into())?;
        socket.set_nodelay(true)?;
        let mut stream = socket.connect(server.address).await?;
        let hello = format!(
            "GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
            server.address
        );
        stream.write_all(hello.as_bytes()).await?;
        let mut opened = Self { stream, buffer: Vec::with_capacity(1_024), consumed: 0 };
        loop {
            if let Some(end) = memmem::find(&opened.buffer, b"\r\n\r\n") {
                opened.consumed = end + 4;
                return Ok(opened);
            }
            opened.read().await?;
        }
    }

    pub(crate) async fn send_text(&mut self, text: &str) -> Outcome<()> {
        self.send(&text_frame(text)).await
    }

    /// Sends a frame that was made before.
    pub(crate) async fn send(&mut self, frame: &[u8]) -> Outcome<()> {
        Ok(self.stream.write_all(frame).await?)
    }

    /// The next text.
    pub(crate) async fn receive(&mut self) -> Outcome<&[u8]> {
        loop {
            let Some((head, length)) = frame_at(&self.buffer[self.consumed..]) else {
                self.read().await?;
                continue;
            };
            let (kind, start) = (self.buffer[self.consumed], self.consumed + head);
            self.consumed = start + length;
            // Pings come too; a peer that sends anything is alive.
            if kind == TEXT {
                return Ok(&self.buffer[start..start + length]);
            }
        }
    }

    /// Passes over texts until one holds this.
    pub(crate) async fn until(&mut self, words: &[u8]) -> Outcome<()> {
        while memmem::find(self.receive().await?, words).is_none() {}
        Ok(())
    }

    async fn read(&mut self) -> Outcome<()> {
        self.buffer.drain(..self.consumed);
        self.consumed = 0;
        if self.stream.read_buf(&mut self.buffer).await? == 0 {
            return Err(format!("a WebSocket ended: {}", String::from_utf8_lossy(&self.buffer)).into());
        }
        Ok(())
    }
}

/// A text frame as clients send it.
pub(crate) fn text_frame(text: &str) -> Vec<u8> {
    let mut frame = vec![TEXT];
    match text.len() {
        short @ 0..=125 => frame.push(MASKED | short as u8),
        middling @ 126..=0xffff => {
            frame.push(MASKED | IN_TWO_BYTES);
            frame.extend((middling as u16).to_be_bytes());
        }
        long => {
            frame.push(MASKED | IN_EIGHT_BYTES);
            frame.extend((long as u64).to_be_bytes());
        }
    }
    frame.extend([0; 4]);
    frame.extend(text.as_bytes());
    frame
}

/// Length of the head and of the contents of the frame that begins here; `None`: it is not whole.
fn frame_at(bytes: &[u8]) -> Option<(usize, usize)> {
    let (head, length) = match *bytes.get(1)? {
        IN_TWO_BYTES => (4, u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?) as usize),
        IN_EIGHT_BYTES => (10, u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?) as usize),
        short => (2, short as usize),
    };
    (bytes.len() >= head + length).then_some((head, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_found_once_it_is_whole() {
        for length in [0, 125, 126, 65_535, 65_536] {
            let mut frame = text_frame(&"x".repeat(length));
            // As servers send it: without a mask.
            frame[1] &= !MASKED;
            let head = frame.len() - length - 4;
            frame.drain(head..head + 4);
            assert_eq!(frame_at(&frame), Some((head, length)));
            assert_eq!(frame_at(&frame[..frame.len() - 1]), None);
        }
    }
}
