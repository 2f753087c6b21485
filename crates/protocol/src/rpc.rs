//! JSON-RPC frames, as Codex (which leaves the `jsonrpc` member out) and ACP (2.0) exchange them: calls in both
//! directions, one frame per line. Parameters and results stay text until the handler of the method reads them.
//!
//! This reads and writes frames; it neither sends nor remembers them. What is not a frame is a value, never a panic.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    RawJson,
    json::{present, text_of},
};

/// A longer line is no frame. Agents put whole tool outputs and file contents on one line.
pub const FRAME_BYTES_MAX: usize = 8 * 1024 * 1024;
const METHOD_BYTES_MAX: usize = 200;
const ID_BYTES_MAX: usize = 200;

/// The codes of JSON-RPC 2.0 that an answer of ours may carry.
pub const PARSE_ERROR: i64 = -32700;
pub const INVALID_REQUEST: i64 = -32600;
pub const METHOD_NOT_FOUND: i64 = -32601;
pub const INVALID_PARAMS: i64 = -32602;
pub const INTERNAL_ERROR: i64 = -32603;

/// Whether frames name their version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// No `jsonrpc` member, as in Codex's frames.
    Bare,
    /// `"jsonrpc": "2.0"`.
    Two,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RpcId {
    Number(i64),
    Text(String),
}

impl fmt::Display for RpcId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum RpcFrame {
    Request {
        id: RpcId,
        method: String,
        /// `null` where there were none.
        params: RawJson,
    },
    Notification {
        method: String,
        params: RawJson,
    },
    Answer {
        id: RpcId,
        result: RawJson,
    },
    /// Without an id: the peer could not determine which request it refuses.
    Error {
        id: Option<RpcId>,
        error: RpcError,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RpcError {
    pub code: i64,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<RawJson>,
}

impl RpcError {
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// The reply to a request for an unknown method.
    pub fn unknown_method(method: &str) -> Self {
        Self::new(METHOD_NOT_FOUND, format!("this client does not know {method:?}"))
    }
}

impl fmt::Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

/// Why a line is not a frame. It quotes nothing: the line may hold a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotAFrame {
    TooLong,
    /// It holds a NUL, or is not UTF-8.
    Binary,
    NotJson {
        bytes: usize,
    },
    Misshapen(&'static str),
}

impl NotAFrame {
    /// Whether this cannot be a stray log line: a frame was lost, or its sender does not implement the protocol at all.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::TooLong | Self::Binary)
    }
}

impl fmt::Display for NotAFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "a line of more than {FRAME_BYTES_MAX} bytes"),
            Self::Binary => f.write_str("a line that is binary, not text"),
            Self::NotJson { bytes } => write!(f, "a line of {bytes} bytes that is not a JSON object"),
            Self::Misshapen(why) => write!(f, "an object that is no JSON-RPC frame: {why}"),
        }
    }
}

#[derive(Deserialize)]
struct RpcEnvelope {
    jsonrpc: Option<String>,
    #[serde(default, deserialize_with = "present")]
    id: Option<Option<RpcId>>,
    method: Option<String>,
    #[serde(default, deserialize_with = "present")]
    params: Option<RawJson>,
    #[serde(default, deserialize_with = "present")]
    result: Option<RawJson>,
    error: Option<RpcError>,
}

#[derive(Serialize)]
struct WrittenFrame<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    jsonrpc: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<Option<&'a RpcId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<&'a RawJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a RpcError>,
}

impl RpcFrame {
    /// Reads one line, whether it names its version or not. Members that are not known are passed over.
    pub fn read(line: &[u8]) -> Result<Self, NotAFrame> {
        Self::read_as(line, Version::Bare)
    }

    /// The same, holding a peer of version 2.0 to what its specification asks of a frame: its name, and parameters that are
    /// an object or an array.
    pub fn read_as(line: &[u8], version: Version) -> Result<Self, NotAFrame> {
        if line.len() > FRAME_BYTES_MAX {
            return Err(NotAFrame::TooLong);
        }
        let line = line.trim_ascii();
        let not_json = || match std::str::from_utf8(line) {
            Ok(_) => NotAFrame::NotJson { bytes: line.len() },
            Err(_) => NotAFrame::Binary,
        };
        if !line.starts_with(b"{") {
            return Err(not_json());
        }
        let envelope: RpcEnvelope = serde_json::from_slice(line).map_err(|error| {
            if error.is_data() { NotAFrame::Misshapen("a member has the wrong type") } else { not_json() }
        })?;
        if version == Version::Two {
            envelope.check_two().map_err(NotAFrame::Misshapen)?;
        }
        envelope.frame().map_err(NotAFrame::Misshapen)
    }

    /// One line, without its end.
    pub fn write(&self, version: Version) -> String {
        let jsonrpc = (version == Version::Two).then_some("2.0");
        let empty = WrittenFrame { jsonrpc, id: None, method: None, params: None, result: None, error: None };
        let params = |params| Some(params).filter(|params: &&RawJson| !params.is_null());
        let written = match self {
            Self::Request { id, method, params: given } => {
                WrittenFrame { id: Some(Some(id)), method: Some(method), params: params(given), ..empty }
            }
            Self::Notification { method, params: given } => {
                WrittenFrame { method: Some(method), params: params(given), ..empty }
            }
            Self::Answer { id, result } => WrittenFrame { id: Some(Some(id)), result: Some(result), ..empty },
            Self::Error { id, error } => WrittenFrame { id: Some(id.as_ref()), error: Some(error), ..empty },
        };
        text_of(&written)
    }
}

impl RpcEnvelope {
    fn check_two(&self) -> Result<(), &'static str> {
        let structured = |params: &RawJson| params.as_str().starts_with(['{', '[']);
        match (&self.jsonrpc, &self.params) {
            (None, _) => Err("no version"),
            (_, Some(params)) if !structured(params) => Err("parameters that are neither an object nor an array"),
            _ => Ok(()),
        }
    }

    fn frame(self) -> Result<RpcFrame, &'static str> {
        if self.jsonrpc.is_some_and(|version| version != "2.0") {
            return Err("another version");
        }
        if self.id.iter().flatten().any(|id| matches!(id, RpcId::Text(text) if text.len() > ID_BYTES_MAX)) {
            return Err("an over-long id");
        }
        let params = self.params.unwrap_or_else(RawJson::null);
        match (self.method, self.id, self.result, self.error) {
            (Some(method), ..) if method.is_empty() || method.len() > METHOD_BYTES_MAX => {
                Err("an empty or over-long method")
            }
            (Some(method), Some(Some(id)), None, None) => Ok(RpcFrame::Request { id, method, params }),
            (Some(method), None, None, None) => Ok(RpcFrame::Notification { method, params }),
            (None, Some(Some(id)), Some(result), None) => Ok(RpcFrame::Answer { id, result }),
            (None, id, None, Some(error)) => Ok(RpcFrame::Error { id: id.flatten(), error }),
            (Some(_), Some(None), ..) => Err("a request without an id"),
            (Some(_), ..) => Err("a call and an answer at once"),
            (None, ..) => Err("neither a call nor an answer"),
        }
    }
}

/// Cuts a stream of bytes into lines. A line that is too long or binary is reported as soon as that is known, which may be
/// long before it ends; the rest of it is dropped.
#[derive(Default)]
pub struct Lines {
    open: Vec<u8>,
    /// The line was reported, and is dropped up to its end.
    dropping: bool,
}

impl Lines {
    /// Takes bytes as they come, and gives what they complete, in order.
    pub fn push(&mut self, mut bytes: &[u8], mut complete: impl FnMut(Result<&[u8], NotAFrame>)) {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            self.keep(&bytes[..end], &mut complete);
            bytes = &bytes[end + 1..];
            if !std::mem::take(&mut self.dropping) && !self.open.trim_ascii().is_empty() {
                complete(Ok(&self.open));
            }
            self.open.clear();
        }
        self.keep(bytes, &mut complete);
    }

    fn keep(&mut self, bytes: &[u8], complete: &mut impl FnMut(Result<&[u8], NotAFrame>)) {
        if self.dropping {
            return;
        }
        // Bytes beyond the limit are not looked at, so that the result does not depend on how the bytes arrive.
        let fitting = &bytes[..bytes.len().min(FRAME_BYTES_MAX - self.open.len())];
        let fault = match memchr::memchr(0, fitting) {
            Some(_) => NotAFrame::Binary,
            None if fitting.len() < bytes.len() => NotAFrame::TooLong,
            None => return self.open.extend_from_slice(bytes),
        };
        self.dropping = true;
        self.open = Vec::new();
        complete(Err(fault));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<RpcFrame, NotAFrame> {
        RpcFrame::read(text.as_bytes())
    }

    #[test]
    fn the_four_kinds_of_frames_are_distinguished() {
        let raw = |text: &str| RawJson::parse(text.to_owned()).unwrap();
        for (line, frame) in [
            (
                r#"{"method":"item/x","id":0,"params":{"a": 1}}"#,
                RpcFrame::Request { id: RpcId::Number(0), method: "item/x".into(), params: raw(r#"{"a": 1}"#) },
            ),
            (
                r#"{"jsonrpc":"2.0","id":"a-1","method":"fs/read"}"#,
                RpcFrame::Request { id: RpcId::Text("a-1".into()), method: "fs/read".into(), params: RawJson::null() },
            ),
            (
                r#"{"method":"turn/completed","params":{},"emittedAtMs":17}"#,
                RpcFrame::Notification { method: "turn/completed".into(), params: raw("{}") },
            ),
            (r#"{"id":7,"result":null}"#, RpcFrame::Answer { id: RpcId::Number(7), result: RawJson::null() }),
            (
                r#"{"error":{"code":-32600,"message":"Not initialized"},"id":1}"#,
                RpcFrame::Error { id: Some(RpcId::Number(1)), error: RpcError::new(-32600, "Not initialized") },
            ),
            (
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}"#,
                RpcFrame::Error { id: None, error: RpcError::new(-32700, "Parse error") },
            ),
        ] {
            assert_eq!(read(line).unwrap(), frame, "{line}");
        }
    }

    #[test]
    fn text_that_is_not_a_frame_is_reported_as_such() {
        for line in ["", "hello", "[]", "7", "{", r#"{"id":1"#, r#""x""#] {
            assert!(matches!(read(line), Err(NotAFrame::NotJson { .. })), "{line}");
        }
        let long = format!(r#"{{"method":"{}"}}"#, "m".repeat(METHOD_BYTES_MAX + 1));
        for line in [
            "{}",
            r#"{"id":1}"#,
            r#"{"id":null,"method":"x"}"#,
            r#"{"id":[1],"method":"x"}"#,
            r#"{"id":1.5,"method":"x"}"#,
            r#"{"id":1,"method":7}"#,
            r#"{"id":1,"method":""}"#,
            r#"{"id":1,"method":"x","result":1}"#,
            r#"{"id":1,"result":1,"error":{"code":1,"message":"x"}}"#,
            r#"{"result":1}"#,
            r#"{"id":1,"error":"no"}"#,
            r#"{"jsonrpc":"1.0","id":1,"result":1}"#,
            &long,
        ] {
            assert!(matches!(read(line), Err(NotAFrame::Misshapen(_))), "{line}: {:?}", read(line));
        }
    }

    #[test]
    fn a_frame_names_its_version_only_where_the_peer_wants_it() {
        let call = RpcFrame::Request { id: RpcId::Number(1), method: "initialize".into(), params: RawJson::null() };
        assert_eq!(call.write(Version::Bare), r#"{"id":1,"method":"initialize"}"#);
        assert_eq!(call.write(Version::Two), r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#);
        let error = RpcFrame::Error { id: None, error: RpcError::unknown_method("x/y") };
        assert!(error.write(Version::Bare).starts_with(r#"{"id":null,"error":{"code":-32601,"#));
    }

    #[test]
    fn a_line_over_the_limit_is_reported_before_it_ends_and_the_next_one_read() {
        let mut lines = Lines::default();
        let mut got = vec![];
        for part in [&b"a\n\n  \nb"[..], &vec![b'x'; FRAME_BYTES_MAX]] {
            lines.push(part, |line| got.push(line.map(<[u8]>::to_vec)));
        }
        assert_eq!(got, [Ok(b"a".to_vec()), Err(NotAFrame::TooLong)]);
        lines.push(b"xx\r\nc\nd", |line| got.push(line.map(<[u8]>::to_vec)));
        assert_eq!(got[2..], [Ok(b"c".to_vec())]);
    }

    #[test]
    fn binary_output_is_reported_before_its_line_ends() {
        let mut lines = Lines::default();
        let mut got = vec![];
        lines.push(b"\x7fELF\x02\0\0", |line| got.push(line.map(<[u8]>::to_vec)));
        assert_eq!(got, [Err(NotAFrame::Binary)]);
        lines.push(b"more\0\nnext\n", |line| got.push(line.map(<[u8]>::to_vec)));
        assert_eq!(got[1..], [Ok(b"next".to_vec())]);
        assert_eq!(RpcFrame::read(b"caf\xe9"), Err(NotAFrame::Binary));
        assert_eq!(RpcFrame::read(b"{\"id\": \"\xff\"}"), Err(NotAFrame::Binary));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(number: i64, method in "[a-zA-Z/]{1,40}", text: String, two: bool) {
            let version = if two { Version::Two } else { Version::Bare };
            let params = RawJson::of(&json!({"text": text}));
            for frame in [
                RpcFrame::Request { id: RpcId::Number(number), method: method.clone(), params: params.clone() },
                RpcFrame::Notification { method, params: params.clone() },
                RpcFrame::Answer { id: RpcId::Text(text.chars().take(40).collect()), result: params },
                RpcFrame::Error { id: Some(RpcId::Number(number)), error: RpcError::new(number, text) },
            ] {
                let line = frame.write(version);
                prop_assert!(!line.contains('\n'));
                prop_assert_eq!(RpcFrame::read(line.as_bytes()), Ok(frame));
            }
        }

        #[test]
        fn no_bytes_make_it_panic_and_lines_do_not_depend_on_how_they_are_cut(bytes: Vec<u8>, cut: prop::sample::Index) {
            let _ = RpcFrame::read(&bytes);
            let all = |parts: &[&[u8]]| {
                let (mut lines, mut got) = (Lines::default(), vec![]);
                parts.iter().for_each(|part| lines.push(part, |line| got.push(line.map(<[u8]>::to_vec))));
                got
            };
            let at = if bytes.is_empty() { 0 } else { cut.index(bytes.len()) };
            prop_assert_eq!(all(&[&bytes]), all(&[&bytes[..at], &bytes[at..]]));
        }
    }
}
