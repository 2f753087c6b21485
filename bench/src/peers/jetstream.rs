//! JetStream of nats-server, with a sync of the disk for each write. Messages are published as its clients do it that wait
//! for durability: a batch goes out in one write, and the batch is done when each message is acknowledged.

use std::net::SocketAddr;

use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::peer::{Call, Peer, Plan, Work, free_addresses, get};
use crate::outcome::Outcome;

pub(crate) const PEER: Peer = Peer {
    name: "nats-server JetStream",
    durability: "each message, synced before it is acknowledged (`sync_interval: always`)",
    evidence: "the server reports `sync_always`; strace: 320 syncs for 20 batches of 16",
    plan: |installed, directory| {
        let [address, monitor] = free_addresses()?;
        let store = directory.join("jetstream");
        let configuration = directory.join("nats.conf");
        let text = format!(
            "listen: \"{address}\"\nhttp: \"{monitor}\"\n\
             jetstream {{\n  store_dir: \"{}\"\n  sync_interval: always\n}}\n",
            store.display()
        );
        std::fs::write(&configuration, text)?;
        let mut server = installed.command("server", directory)?;
        server.arg("--config").arg(configuration);
        let ready = Call { address: monitor, request: get(monitor, "/healthz"), answer: b"ok" };
        let synced = Call { address: monitor, request: get(monitor, "/varz"), answer: br#""sync_always": true"# };
        Ok(Plan { commands: vec![server], address, ready, prepare: vec![synced] })
    },
    work: Work::Publish,
};

const STREAM: &str =
    r#"{"name":"bench","subjects":["bench.*"],"storage":"file","retention":"limits","num_replicas":1}"#;
const CONNECT: &str = r#"CONNECT {"verbose":false,"pedantic":false,"headers":true,"lang":"bench","version":"1"}"#;

/// A client with a subject of its own in the one stream.
pub(crate) struct Publisher {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// What goes out for each batch.
    batch: Vec<u8>,
    messages: usize,
}

impl Publisher {
    pub(crate) async fn open(address: SocketAddr, client: usize, payload: &str, messages: usize) -> Outcome<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let message = format!("PUB bench.{client} acks.{client} {}\r\n{payload}\r\n", payload.len());
        let batch = message.repeat(messages).into_bytes();
        let mut publisher = Self { stream, buffer: Vec::with_capacity(16 * 1024), batch, messages };
        let hello = format!("{CONNECT}\r\nSUB acks.{client} 1\r\nPING\r\n");
        publisher.stream.write_all(hello.as_bytes()).await?;
        Ok(publisher)
    }

    /// Creates the stream. The same configuration again has no effect.
    pub(crate) async fn create_stream(&mut self, client: usize) -> Outcome<()> {
        let create = format!("PUB $JS.API.STREAM.CREATE.bench acks.{client} {}\r\n{STREAM}\r\n", STREAM.len());
        self.stream.write_all(create.as_bytes()).await?;
        self.receive(1).await
    }

    /// Publishes a batch and waits until every message of it is acknowledged.
    pub(crate) async fn publish(&mut self) -> Outcome<()> {
        self.stream.write_all(&self.batch).await?;
        self.receive(self.messages).await
    }

    /// Reads so many messages, and answers the server's pings.
    async fn receive(&mut self, count: usize) -> Outcome<()> {
        let mut missing = count;
        loop {
            while let Some((frame, length)) = frame(&self.buffer)? {
                match frame {
                    Frame::Message(body) if memmem::find(body, b"\"error\"").is_some() => {
                        return Err(format!("JetStream refused: {}", String::from_utf8_lossy(body)).into());
                    }
                    Frame::Message(_) => missing -= 1,
                    Frame::Ping => self.stream.write_all(b"PONG\r\n").await?,
                    Frame::Other => {}
                }
                self.buffer.drain(..length);
                if missing == 0 {
                    return Ok(());
                }
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err("nats-server closed the connection".into());
            }
        }
    }
}

enum Frame<'a> {
    Message(&'a [u8]),
    Ping,
    Other,
}

/// The first frame in the buffer with its length; `None` if it is not complete.
fn frame(buffer: &[u8]) -> Outcome<Option<(Frame<'_>, usize)>> {
    let Some(line) = memmem::find(buffer, b"\r\n") else { return Ok(None) };
    let (head, after) = (std::str::from_utf8(&buffer[..line])?, line + 2);
    let mut words = head.split(' ');
    match words.next() {
        Some("MSG") => {
            let length: usize = words.next_back().unwrap_or_default().parse()?;
            let end = after + length;
            Ok(buffer.get(after..end + 2).map(|body| (Frame::Message(&body[..length]), end + 2)))
        }
        Some("PING") => Ok(Some((Frame::Ping, after))),
        Some("-ERR") => Err(format!("nats-server: {head}").into()),
        _ => Ok(Some((Frame::Other, after))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_when_it_is_complete() {
        let ack = b"MSG acks.1 1 9\r\n{\"seq\":1}\r\nPING\r\n";
        assert!(frame(&ack[..20]).unwrap().is_none());
        let Some((Frame::Message(body), length)) = frame(ack).unwrap() else { panic!("a message") };
        assert_eq!((body, length), (&b"{\"seq\":1}"[..], 27));
        assert!(matches!(frame(&ack[27..]).unwrap(), Some((Frame::Ping, 6))));
        assert!(matches!(frame(b"INFO {}\r\n").unwrap(), Some((Frame::Other, 9))));
        assert!(frame(b"-ERR 'no'\r\n").is_err());
    }
}
