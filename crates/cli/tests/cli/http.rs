//! A small blocking HTTP client. Ours, because these tests must know exactly whether an answer came, and must be able
//! to say things that no proper client says.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
    time::Duration,
};

use serde_json::Value;

use crate::process::Server;

const READ_TIMEOUT: Duration = Duration::from_secs(40);

pub struct Http {
    address: String,
    token: Option<String>,
    connection: Option<BufReader<TcpStream>>,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Status line and headers as they came.
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The body of a good answer.
    #[track_caller]
    pub fn good(&self) -> Value {
        assert!((200..300).contains(&self.status), "{self:?}");
        self.json()
    }

    /// Status, failure kind and rule of a refusal.
    #[track_caller]
    pub fn refusal(&self) -> (u16, String, String) {
        let body = self.json();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        assert!(!text(&body["traceId"]).is_empty(), "a refusal has a trace id: {self:?}");
        (self.status, text(&body["failureKind"]), text(&body["details"]["rule"]))
    }
}

impl Http {
    /// As the operator.
    pub fn new(server: &Server) -> Self {
        Self::with_token(&server.address, Some(&server.token))
    }

    pub fn with_token(address: &str, token: Option<&str>) -> Self {
        Self { address: address.to_owned(), token: token.map(str::to_owned), connection: None }
    }

    /// One exchange. An error means that no whole answer came: the request may or may not have been done.
    pub fn send(&mut self, method: &str, path: &str, headers: &[&str], body: &str) -> io::Result<Answer> {
        let exchanged = self.exchange(method, path, headers, body);
        if exchanged.is_err() {
            self.connection = None;
        }
        exchanged
    }

    fn exchange(&mut self, method: &str, path: &str, headers: &[&str], body: &str) -> io::Result<Answer> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => connect(&self.address)?,
        };
        let head = self.head(method, path, headers, body.len());
        connection.get_mut().write_all(format!("{head}{body}").as_bytes())?;
        let head = read_head(&mut connection)?;
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(broken)?;
        let length = header(&head, "content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
        let mut bytes = vec![0; length];
        connection.read_exact(&mut bytes)?;
        if header(&head, "connection").as_deref() != Some("close") {
            self.connection = Some(connection);
        }
        Ok(Answer { status, head, body: String::from_utf8(bytes).map_err(|_| broken())? })
    }

    fn head(&self, method: &str, path: &str, headers: &[&str], length: usize) -> String {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\n", self.address);
        if let Some(token) = &self.token {
            head.push_str(&format!("authorization: Bearer {token}\r\n"));
        }
        if length > 0 {
            let is_told = headers.iter().any(|line| line.starts_with("content-type:"));
            let json = if is_told { "" } else { "content-type: application/json\r\n" };
            head.push_str(&format!("{json}content-length: {length}\r\n"));
        }
        headers.iter().for_each(|line| head.push_str(&format!("{line}\r\n")));
        head + "\r\n"
    }

    pub fn get(&mut self, path: &str) -> Answer {
        self.send("GET", path, &[], "").unwrap()
    }

    pub fn post(&mut self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, &[], &body.to_string()).unwrap()
    }

    pub fn patch(&mut self, path: &str, body: &Value) -> Answer {
        self.send("PATCH", path, &[], &body.to_string()).unwrap()
    }

    /// All events of a run, page by page; their numbers are checked to have no gap.
    pub fn events(&mut self, run_id: &str) -> Vec<Value> {
        let mut events: Vec<Value> = vec![];
        loop {
            let path = format!("/api/v1/runs/{run_id}/events?limit=1000&afterSeq={}", events.len());
            let page = self.get(&path).good();
            events.extend(page["events"].as_array().unwrap().iter().cloned());
            let numbers = events.iter().map(|event| event["seq"].as_i64().unwrap());
            assert!(numbers.eq(1..=events.len() as i64), "the numbers of {run_id} have a gap");
            if !page["hasMore"].as_bool().unwrap() {
                return events;
            }
        }
    }

    /// Opens an event stream and reads its beginning; it stays open as long as what is returned.
    pub fn follow(&self, run_id: &str) -> BufReader<TcpStream> {
        self.try_follow(run_id, 0).unwrap()
    }

    /// As [`Http::follow`], from behind this number, from a server that may not be there.
    pub fn try_follow(&self, run_id: &str, after_seq: i64) -> io::Result<BufReader<TcpStream>> {
        let mut connection = connect(&self.address)?;
        let path = format!("/api/v1/runs/{run_id}/events");
        let resume = format!("last-event-id: {after_seq}");
        let head = self.head("GET", &path, &["accept: text/event-stream", &resume], 0);
        connection.get_mut().write_all(head.as_bytes())?;
        let head = read_head(&mut connection)?;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        Ok(connection)
    }
}

pub fn connect(address: &str) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    Ok(BufReader::new(stream))
}

fn read_head(connection: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut head = String::new();
    loop {
        let start = head.len();
        if connection.read_line(&mut head)? == 0 {
            return Err(broken());
        }
        if head[start..].trim().is_empty() {
            return Ok(head);
        }
    }
}

fn header(head: &str, name: &str) -> Option<String> {
    let wanted = |line: &&str| line.split(':').next().is_some_and(|found| found.eq_ignore_ascii_case(name));
    head.lines().find(wanted)?.split_once(':').map(|(_, value)| value.trim().to_ascii_lowercase())
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "no whole answer")
}
