//! The versioned message by which servers notify each other. A message that cannot be read, for example one of a newer server,
//! means that anything may have changed.

use std::collections::{BTreeMap, BTreeSet};

use ostler_protocol::{ids::SessionId, json::text_of, kernel::events::Event};
use serde::{Deserialize, Serialize};

const VERSION: u32 = 2;
/// Postgres accepts fewer than 8,000 bytes.
const PAYLOAD_BYTES_MAX: usize = 7_999;
/// More than these never fit into one payload, so they need not be remembered one by one.
const SESSIONS_MAX: usize = 200;
const KEYS_MAX: usize = 200;
/// Bytes of the keys of urgent topics in one payload.
const URGENT_BYTES_MAX: usize = 2_000;
/// Bytes of frames in one payload; more are stored in a row, and the payload names the row.
pub(super) const FRAMES_BYTES_MAX: usize = 3_000;
/// Bytes of frames that wait to be sent. More are dropped: a frame is a convenience.
const WAITING_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A name of the former format, without its topic.
#[derive(Clone, Debug, PartialEq)]
pub enum LegacyWord {
    Listener(String),
    Urgent(String),
    /// Whose connections a frame is for, and the frame in base64.
    Frame(String, String),
}

/// What has happened since the last wake-up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wakeups {
    /// Sessions with new events, with the first and the last of their numbers.
    pub sessions: BTreeMap<SessionId, (i64, i64)>,
    /// More happened in sessions than is named: read everything again.
    pub all_sessions: bool,
    /// The keys of each topic for which something has changed.
    pub topics: BTreeMap<String, Keys>,
    /// Something has changed for more topics than are named.
    pub all_topics: bool,
    /// The same of topics that are urgent.
    pub all_urgent: bool,
    pub frames: Vec<Frame>,
    frames_bytes: usize,
    /// Rows with more frames.
    pub rows: Vec<i64>,
    /// A runner job waits for a launcher.
    pub jobs: bool,
    /// Words of a server that did not name topics yet.
    pub legacy_words: Vec<LegacyWord>,
}

/// Keys of a topic.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Keys {
    pub named: BTreeSet<String>,
    /// More have changed than are named.
    pub all: bool,
    pub is_urgent: bool,
}

/// Something for the connections of a key, encoded in base64.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Frame {
    pub topic: String,
    pub key: String,
    pub frame: String,
}

impl Frame {
    fn bytes(&self) -> usize {
        r#"{"topic":"","key":"","frame":""},"#.len() + self.topic.len() + self.key.len() + self.frame.len()
    }
}

impl Keys {
    fn bytes(&self) -> usize {
        self.named.iter().map(|key| key.len() + r#""","#.len()).sum()
    }

    fn add(&mut self, key: String) {
        if self.all {
            return;
        }
        self.named.insert(key);
        self.all = match self.is_urgent {
            true => self.bytes() > URGENT_BYTES_MAX,
            false => self.named.len() > KEYS_MAX,
        };
        if self.all {
            self.named.clear();
        }
    }
}

impl Wakeups {
    /// Anything may have changed.
    pub fn everything() -> Self {
        Self { all_sessions: true, all_topics: true, all_urgent: true, jobs: true, ..Self::default() }
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub fn add_event(&mut self, event: &Event) {
        self.add_session(event.session, (event.session_seq, event.session_seq));
    }

    pub(super) fn add_session(&mut self, session: SessionId, (first, last): (i64, i64)) {
        let known = self.sessions.entry(session).or_insert((first, last));
        *known = (known.0.min(first), known.1.max(last));
        self.all_sessions |= self.sessions.len() > SESSIONS_MAX;
        if self.all_sessions {
            self.sessions.clear();
        }
    }

    pub fn add_key(&mut self, topic: &str, is_urgent: bool, key: String) {
        if !self.topics.contains_key(topic) {
            self.topics.insert(topic.to_owned(), Keys { is_urgent, ..Keys::default() });
        }
        if let Some(keys) = self.topics.get_mut(topic) {
            keys.add(key);
        }
    }

    /// A frame beyond what may wait is dropped.
    pub fn add_frame(&mut self, frame: Frame) {
        let bytes = self.frames_bytes + frame.bytes();
        if bytes <= WAITING_BYTES_MAX {
            self.frames_bytes = bytes;
            self.frames.push(frame);
        }
    }

    pub fn merge(&mut self, other: Self) {
        self.jobs |= other.jobs;
        self.all_sessions |= other.all_sessions;
        self.all_topics |= other.all_topics;
        self.all_urgent |= other.all_urgent;
        other.sessions.into_iter().for_each(|(session, numbers)| self.add_session(session, numbers));
        for (topic, keys) in other.topics {
            let known =
                self.topics.entry(topic).or_insert_with(|| Keys { is_urgent: keys.is_urgent, ..Keys::default() });
            keys.named.into_iter().for_each(|key| known.add(key));
            if keys.all {
                *known = Keys { named: BTreeSet::new(), all: true, ..*known };
            }
        }
        other.frames.into_iter().for_each(|frame| self.add_frame(frame));
        self.rows.extend(other.rows);
        self.legacy_words.extend(other.legacy_words);
    }

    pub(super) fn frames_bytes(&self) -> usize {
        self.frames_bytes
    }

    fn with_frames(mut self, frames: Vec<Frame>) -> Self {
        frames.into_iter().for_each(|frame| self.add_frame(frame));
        self
    }

    pub(super) fn encode_frames(&self) -> String {
        text_of(&self.frames)
    }

    /// The frames of a row. `None` if they are of another format.
    pub(super) fn decode_frames(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok().map(|frames| Self::default().with_frames(frames))
    }

    /// The message of this server. If it would be too long, sessions are left out first: whatever waits for one reads the
    /// store every few seconds anyway. Then the keys of topics that are not urgent. `row` has the frames, if they are stored.
    pub(super) fn encode(&self, server: i64, row: Option<i64>) -> String {
        let encoded = |all_sessions: bool, all_topics: bool| {
            let sessions = (!all_sessions).then_some(&self.sessions);
            let topics = self.topics.iter().map(|(topic, keys)| {
                let is_left_out = keys.all || (all_topics && !keys.is_urgent);
                let (named, is_urgent) = ((!is_left_out).then(|| keys.named.iter().cloned().collect()), keys.is_urgent);
                (topic.clone(), Topic { named, is_urgent })
            });
            text_of(&Outgoing {
                version: VERSION,
                server,
                jobs: self.jobs,
                sessions,
                topics: topics.collect(),
                all_topics: self.all_topics,
                all_urgent: self.all_urgent,
                frames: if row.is_none() { &self.frames } else { &[] },
                row,
            })
        };
        let attempts = [(self.all_sessions, false), (true, false), (true, true)].into_iter();
        let mut texts = attempts.map(|(sessions, topics)| encoded(sessions, topics));
        let fits = texts.find(|text| text.len() <= PAYLOAD_BYTES_MAX);
        fits.unwrap_or_else(|| {
            text_of(&Outgoing { all_topics: true, all_urgent: true, row, ..Outgoing::empty(server) })
        })
    }

    /// Prefix of every non-empty message of a server. The server recognises its own messages by it, without parsing them.
    pub(super) fn beginning_of(server: i64) -> String {
        format!(r#"{{"v":{VERSION},"from":{server},"#)
    }

    /// The server that sent it, and its content. A message that cannot be read is a reason to read everything.
    /// `None` if it is of another format.
    pub(super) fn decode(text: &str) -> Option<(Option<i64>, Self)> {
        if !text.starts_with('{') {
            return None;
        }
        #[derive(Deserialize)]
        struct From {
            #[serde(rename = "from")]
            server: i64,
        }
        let server = serde_json::from_str::<From>(text).ok().map(|from| from.server);
        let read = serde_json::from_str::<Incoming>(text).ok().filter(|incoming| incoming.version == VERSION);
        Some((server, read.map_or_else(Self::everything, Into::into)))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Topic {
    /// Left out: all of them.
    #[serde(rename = "keys", default, skip_serializing_if = "Option::is_none")]
    named: Option<Vec<String>>,
    #[serde(rename = "urgent", default, skip_serializing_if = "std::ops::Not::not")]
    is_urgent: bool,
}

#[derive(Serialize)]
struct Outgoing<'a> {
    #[serde(rename = "v")]
    version: u32,
    #[serde(rename = "from")]
    server: i64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    jobs: bool,
    /// Left out: all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    sessions: Option<&'a BTreeMap<SessionId, (i64, i64)>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    topics: BTreeMap<String, Topic>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    all_topics: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    all_urgent: bool,
    #[serde(skip_serializing_if = "<[Frame]>::is_empty")]
    frames: &'a [Frame],
    #[serde(skip_serializing_if = "Option::is_none")]
    row: Option<i64>,
}

impl Outgoing<'_> {
    fn empty(server: i64) -> Self {
        let (jobs, sessions, topics, frames) = (true, None, BTreeMap::new(), &[] as &[Frame]);
        Self {
            version: VERSION,
            server,
            jobs,
            sessions,
            topics,
            all_topics: false,
            all_urgent: false,
            frames,
            row: None,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Incoming {
    #[serde(rename = "v")]
    version: u32,
    #[serde(rename = "from")]
    _server: i64,
    #[serde(default)]
    jobs: bool,
    sessions: Option<BTreeMap<SessionId, (i64, i64)>>,
    #[serde(default)]
    topics: BTreeMap<String, Topic>,
    #[serde(default)]
    all_topics: bool,
    #[serde(default)]
    all_urgent: bool,
    #[serde(default)]
    frames: Vec<Frame>,
    row: Option<i64>,
}

impl From<Incoming> for Wakeups {
    fn from(incoming: Incoming) -> Self {
        let keys = |topic: Topic| Keys {
            all: topic.named.is_none(),
            named: topic.named.into_iter().flatten().collect(),
            is_urgent: topic.is_urgent,
        };
        Self {
            jobs: incoming.jobs,
            all_sessions: incoming.sessions.is_none(),
            sessions: incoming.sessions.unwrap_or_default(),
            topics: incoming.topics.into_iter().map(|(name, topic)| (name, keys(topic))).collect(),
            all_topics: incoming.all_topics,
            all_urgent: incoming.all_urgent,
            rows: incoming.row.into_iter().collect(),
            ..Self::default()
        }
        .with_frames(incoming.frames)
    }
}

#[cfg(test)]
mod tests;
