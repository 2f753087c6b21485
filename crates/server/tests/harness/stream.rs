//! A reader of an event stream, frame by frame.

use reqwest::{Response, header::HeaderMap};
use serde_json::Value;
use tokio::time::timeout;

use super::PATIENCE;

pub(crate) struct Follow {
    pub status: u16,
    pub headers: HeaderMap,
    /// The field that a frame's id repeats.
    number: &'static str,
    response: Response,
    buffer: String,
    /// How much of the buffer holds no end of a frame.
    looked_at: usize,
}

/// One frame. A comment has neither id nor data.
#[derive(Debug, Default)]
pub(crate) struct Frame {
    pub id: Option<i64>,
    pub event: String,
    pub data: Value,
    pub comment: String,
    pub retry_ms: Option<u64>,
}

impl Follow {
    pub(crate) fn new(response: Response) -> Self {
        Self::by("seq", response)
    }

    /// A session's stream, whose ids are the session's numbers.
    pub(crate) fn of_session(response: Response) -> Self {
        Self::by("sessionSeq", response)
    }

    /// A stream of the daemon, whose ids are those of its envelopes.
    pub(crate) fn of_daemon(response: Response) -> Self {
        Self::by("id", response)
    }

    fn by(number: &'static str, response: Response) -> Self {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Self { status, headers, number, response, buffer: String::new(), looked_at: 0 }
    }

    /// The next frame, comments included. `None`: the stream has ended.
    pub(crate) async fn frame(&mut self) -> Option<Frame> {
        self.try_frame().await.expect("the stream is not torn off")
    }

    /// As [`Follow::frame`], of a server that may go.
    pub(crate) async fn try_frame(&mut self) -> reqwest::Result<Option<Frame>> {
        loop {
            if let Some(end) = self.buffer[self.looked_at..].find("\n\n") {
                let rest = self.buffer.split_off(self.looked_at + end + 2);
                let frame = std::mem::replace(&mut self.buffer, rest);
                self.looked_at = 0;
                return Ok(Some(read(frame.trim_end())));
            }
            self.looked_at = self.buffer.floor_char_boundary(self.buffer.len().saturating_sub(1));
            let chunk = timeout(PATIENCE, self.response.chunk()).await.expect("the stream sends something")?;
            let Some(chunk) = chunk else { return Ok(None) };
            self.buffer.push_str(str::from_utf8(&chunk).expect("no character is cut in two here"));
        }
    }

    /// The next event. `None`: the stream has ended.
    pub(crate) async fn event(&mut self) -> Option<Value> {
        loop {
            let frame = self.frame().await?;
            if let Some(id) = frame.id {
                assert_eq!(frame.data[self.number], id);
                assert_eq!(frame.data["type"], frame.event);
                return Some(frame.data);
            }
        }
    }

    /// The next events, this many of them.
    pub(crate) async fn take(&mut self, count: usize) -> Vec<Value> {
        let mut events = vec![];
        while events.len() < count {
            events.push(self.event().await.expect("more events"));
        }
        events
    }

    /// Everything until the stream ends.
    pub(crate) async fn rest(&mut self) -> Vec<Value> {
        let mut events = vec![];
        while let Some(event) = self.event().await {
            events.push(event);
        }
        events
    }
}

fn read(text: &str) -> Frame {
    let mut frame = Frame::default();
    for line in text.lines() {
        match line.split_once(": ").unwrap() {
            ("", comment) => frame.comment = comment.to_owned(),
            ("id", id) => frame.id = Some(id.parse().unwrap()),
            ("event", name) => frame.event = name.to_owned(),
            ("retry", ms) => frame.retry_ms = Some(ms.parse().unwrap()),
            ("data", data) => frame.data = serde_json::from_str(data).unwrap(),
            other => panic!("an unknown field {other:?}"),
        }
    }
    frame
}
