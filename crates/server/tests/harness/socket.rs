//! The other end of a WebSocket, with a client that we did not write.

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::{net::TcpStream, time::timeout};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Error, Message, client::IntoClientRequest},
};

use super::{Caller, PATIENCE, TestServer};

pub(crate) struct Socket(WebSocketStream<TcpStream>);

impl Socket {
    /// Connects with these headers beside the usual ones. `Err`: the status of the refusal.
    pub(crate) async fn open(server: &TestServer, path: &str, headers: &[(&'static str, &str)]) -> Result<Self, u16> {
        let stream = TcpStream::connect(server.address()).await.unwrap();
        let mut request = format!("ws://{}{path}", server.address()).into_client_request().unwrap();
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        match client_async(request, stream).await {
            Ok((socket, _)) => Ok(Self(socket)),
            Err(Error::Http(response)) => Err(response.status().as_u16()),
            Err(other) => panic!("{other}"),
        }
    }

    /// Connects and authenticates. Returns the first response.
    pub(crate) async fn introduce(server: &TestServer, path: &str, caller: &Caller) -> (Self, Value) {
        let mut socket = Self::open(server, path, &[]).await.unwrap();
        socket.say(&json!({"type": "auth", "token": caller.token().unwrap()})).await;
        let answer = socket.hear().await;
        (socket, answer)
    }

    pub(crate) async fn say(&mut self, frame: &Value) {
        self.send(Message::text(frame.to_string())).await;
    }

    pub(crate) async fn send(&mut self, message: Message) {
        self.0.send(message).await.unwrap();
    }

    /// Sends what the other end may stop taking before its end.
    pub(crate) async fn pour(&mut self, message: Message) {
        let _ = self.0.send(message).await;
    }

    /// The next frame of text.
    pub(crate) async fn hear(&mut self) -> Value {
        loop {
            match self.next().await {
                Message::Text(text) => return serde_json::from_str(&text).unwrap(),
                Message::Ping(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) async fn next(&mut self) -> Message {
        timeout(PATIENCE, self.0.next()).await.expect("something comes").unwrap().unwrap()
    }

    /// Reads one more frame, whatever it is, whenever it comes. False: there is none.
    pub(crate) async fn is_open(&mut self) -> bool {
        matches!(self.0.next().await, Some(Ok(_)))
    }

    /// Reads to the end, which must come; the code that it ends with.
    pub(crate) async fn closed(&mut self) -> u16 {
        loop {
            if let Message::Close(frame) = self.next().await {
                return frame.unwrap().code.into();
            }
        }
    }
}
