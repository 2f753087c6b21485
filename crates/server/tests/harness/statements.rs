//! Records every statement that a server runs: on Postgres by reading the connections that pass through, on SQLite by the store's
//! own log. No statement can be missed because a test does not know of it.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use ostler_server::Config;
use ostler_store::{StoreConfig, statement_log::StatementLog};
use secrecy::ExposeSecret;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp},
};

/// A statement as it was sent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SentStatement {
    /// How its connection was opened: `-c enable_seqscan=off …`. Empty on SQLite.
    pub options: String,
    pub sql: String,
    /// The types of its parameters, as Postgres numbers them.
    pub types: Vec<u32>,
}

/// The statements of one server.
#[derive(Clone)]
pub(crate) enum Recorder {
    Sqlite(StatementLog),
    Postgres(Arc<Mutex<BTreeSet<SentStatement>>>),
}

impl Recorder {
    /// Records the statements of the server of this configuration. To be called before the server starts.
    pub(crate) fn of(config: &mut Config) -> Self {
        match config.store().unwrap() {
            StoreConfig::Sqlite { file, .. } => Self::Sqlite(StatementLog::record(&file)),
            StoreConfig::Postgres { .. } => {
                let sent = Arc::default();
                listen(config, Arc::clone(&sent));
                Self::Postgres(sent)
            }
        }
    }

    pub(crate) fn statements(&self) -> BTreeSet<SentStatement> {
        match self {
            Self::Postgres(sent) => sent.lock().unwrap().clone(),
            Self::Sqlite(log) => {
                let plain = |sql| SentStatement { options: String::new(), sql, types: vec![] };
                log.statements().into_iter().map(plain).collect()
            }
        }
    }
}

/// Has the server reach its Postgres through a listener of ours, which reads along.
fn listen(config: &mut Config, sent: Arc<Mutex<BTreeSet<SentStatement>>>) {
    let url = config.store.database_url.as_ref().expect("the store is Postgres").expose_secret().to_owned();
    let (before, rest) = url.split_once('@').unwrap();
    let (host, database) = rest.split_once('/').unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = TcpListener::from_std(listener).unwrap();
    let address = listener.local_addr().unwrap();
    config.store.database_url = Some(format!("{before}@{address}/{database}").into());
    let host = host.to_owned();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (host, sent) = (host.clone(), sent.clone());
            tokio::spawn(async move {
                let Ok(server) = TcpStream::connect(&host).await else { return };
                // Both are small messages that wait for an answer.
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
                let mut messages = Messages::new(sent);
                let up = pass(from_client, to_server, |bytes| messages.read(bytes));
                tokio::join!(up, pass(from_server, to_client, |_| ()));
            });
        }
    });
}

async fn pass(mut from: tcp::OwnedReadHalf, mut to: tcp::OwnedWriteHalf, mut read_along: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(read) = from.read(&mut buffer).await {
        if read == 0 {
            return;
        }
        read_along(&buffer[..read]);
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

/// What a client of Postgres has sent and was not read yet.
struct Messages {
    bytes: Vec<u8>,
    has_started: bool,
    options: String,
    sent: Arc<Mutex<BTreeSet<SentStatement>>>,
}

/// Asks for an encrypted connection, which test clusters do not have.
const SSL_REQUEST: u32 = 80_877_103;

impl Messages {
    fn new(sent: Arc<Mutex<BTreeSet<SentStatement>>>) -> Self {
        Self { bytes: vec![], has_started: false, options: String::new(), sent }
    }

    fn read(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        while let Some((kind, body)) = self.next() {
            match kind {
                None if body.first_chunk().map(|code| u32::from_be_bytes(*code)) == Some(SSL_REQUEST) => {}
                None => {
                    self.has_started = true;
                    self.options = option_of(body.get(4..).unwrap_or_default());
                }
                Some(b'P') => self.parse(&body),
                Some(_) => {}
            }
        }
    }

    /// The next complete message: its type, which the first ones of a connection do not have, and its body.
    fn next(&mut self) -> Option<(Option<u8>, Vec<u8>)> {
        let head = usize::from(self.has_started);
        let length = u32::from_be_bytes(*self.bytes.get(head..)?.first_chunk()?) as usize;
        let end = head + length;
        if self.bytes.len() < end {
            return None;
        }
        let message: Vec<u8> = self.bytes.drain(..end).collect();
        Some((self.has_started.then(|| message[0]), message[head + 4..].to_vec()))
    }

    /// `Parse`: the name of the statement, its text, and the types of its parameters.
    fn parse(&self, body: &[u8]) {
        let mut parts = body.splitn(3, |byte| *byte == 0);
        let (_, sql, rest) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
        let types = rest[2..].chunks_exact(4).map(|oid| u32::from_be_bytes(oid.try_into().unwrap())).collect();
        let sql = String::from_utf8(sql.to_vec()).unwrap();
        self.sent.lock().unwrap().insert(SentStatement { options: self.options.clone(), sql, types });
    }
}

/// The value of `options` among the names and values with which a client starts.
fn option_of(parameters: &[u8]) -> String {
    let words: Vec<_> = parameters.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let pair = words.chunks_exact(2).find(|pair| pair[0] == "options");
    pair.map(|pair| pair[1].to_string()).unwrap_or_default()
}
