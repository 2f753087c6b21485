//! Stands between a client and a server, passes everything on, and on demand answers for the server that some page cannot be
//! had. What the server itself says stays its own.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

#[derive(Clone)]
pub struct Relay {
    /// `host:port`.
    pub address: String,
    withheld: Arc<Mutex<Option<String>>>,
}

impl Relay {
    pub fn start(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Self { address: listener.local_addr().unwrap().to_string(), withheld: Arc::default() };
        let (withheld, server) = (relay.withheld.clone(), server.to_owned());
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let (withheld, server) = (withheld.clone(), server.clone());
                thread::spawn(move || pass(client, &server, &withheld));
            }
        });
        relay
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Pages whose path begins like this are answered with 503; `None`: all come again.
    pub fn withhold(&self, path: Option<&str>) {
        *self.withheld.lock().unwrap() = path.map(str::to_owned);
    }
}

/// One connection with one request, and with whatever follows when it becomes a WebSocket.
fn pass(client: TcpStream, server: &str, withheld: &Mutex<Option<String>>) -> Option<()> {
    let mut reader = BufReader::new(client.try_clone().ok()?);
    let mut head = vec![];
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        if line.trim().is_empty() {
            break;
        }
        head.push(line);
    }
    let path = head.first()?.split(' ').nth(1)?.to_owned();
    let mut client = client;
    if withheld.lock().unwrap().as_ref().is_some_and(|withheld| path.starts_with(withheld)) {
        client.write_all(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").ok()?;
        return Some(());
    }
    let mut server = TcpStream::connect(server).ok()?;
    let is_socket = head.iter().any(|line| line.to_ascii_lowercase().starts_with("upgrade:"));
    if !is_socket {
        head.retain(|line| !line.to_ascii_lowercase().starts_with("connection:"));
        head.push("connection: close\r\n".into());
    }
    server.write_all(format!("{}\r\n", head.concat()).as_bytes()).ok()?;
    let (mut back, mut forth) = (server.try_clone().ok()?, client.try_clone().ok()?);
    let answering = thread::spawn(move || {
        let _ = std::io::copy(&mut back, &mut forth);
        let _ = forth.shutdown(Shutdown::Both);
    });
    let _ = std::io::copy(&mut reader as &mut dyn Read, &mut server);
    let _ = server.shutdown(Shutdown::Both);
    answering.join().ok()
}
