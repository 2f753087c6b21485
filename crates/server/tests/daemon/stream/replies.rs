//! The response to a prompt is on its socket before the end of its turn is on another one.

use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream as BlockingStream,
};

use futures_util::future::join_all;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::session;
use crate::harness::{Engine, PATIENCE, TestServer, one_engine};

const SESSIONS: usize = 10;
const PROMPTS_PER_SESSION: usize = 20;

/// The bytes of a request with the operator's token.
fn request(server: &TestServer, method: &str, path: &str, body: &str) -> Vec<u8> {
    let (host, token) = (server.address(), server.operator_token());
    let head = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n");
    format!("{head}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Reads from a stream of frames until it has this text. Returns what is before it.
async fn read_past(stream: &mut TcpStream, buffer: &mut String, text: &str) -> String {
    loop {
        if let Some(at) = buffer.find(text) {
            let before = buffer[..at].to_owned();
            buffer.drain(..at + text.len());
            return before;
        }
        let mut bytes = [0; 16 * 1024];
        let count = timeout(PATIENCE, stream.read(&mut bytes)).await.expect("bytes in time").unwrap();
        assert_ne!(count, 0, "the stream ended before {text}: {buffer}");
        buffer.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
}

/// What has arrived on a connection that does not block, without waiting for more.
fn arrived(connection: &mut BlockingStream) -> String {
    let mut bytes = [0; 16 * 1024];
    match connection.read(&mut bytes) {
        Ok(count) => String::from_utf8_lossy(&bytes[..count]).into_owned(),
        Err(error) if error.kind() == ErrorKind::WouldBlock => String::new(),
        Err(error) => panic!("{error}"),
    }
}

/// Sends prompts one after the other. The responses are not read until the end of the turn has arrived on the other connection:
/// whatever is then not yet there was sent after it.
async fn prompt_in_a_session(server: &TestServer) {
    let scene = session(server).await;
    let mut frames = TcpStream::connect(server.address()).await.unwrap();
    let mut prompts = BlockingStream::connect(server.address()).unwrap();
    prompts.set_nonblocking(true).unwrap();
    frames.write_all(&request(server, "GET", &scene.path(), "")).await.unwrap();
    let mut received = String::new();
    read_past(&mut frames, &mut received, "retry: 3000").await;
    let body = r#"{"prompt":[{"type":"text","text":"hello"}]}"#;
    let submit = request(server, "POST", &format!("/session/{}/prompt", scene.session_id), body);
    for number in 0..PROMPTS_PER_SESSION {
        prompts.write_all(&submit).unwrap();
        read_past(&mut frames, &mut received, "event: turn_complete\n").await;
        let response = arrived(&mut prompts);
        assert!(response.starts_with("HTTP/1.1 202 ") && response.ends_with('}'), "prompt {number}: {response:?}");
        let prompt_id = response.split(r#""promptId":""#).nth(1).and_then(|rest| rest.get(..36)).unwrap();
        let frame = read_past(&mut frames, &mut received, "\n\n").await;
        assert!(frame.contains(prompt_id), "the end of this prompt: {frame}");
    }
}

#[one_engine]
async fn a_turn_ends_after_its_prompt_was_answered(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.runner.slots = SESSIONS).await;
    join_all((0..SESSIONS).map(|_| prompt_in_a_session(&server))).await;
}
