//! The frames of a session, live.

use bytes::Bytes;
use futures_util::stream::BoxStream;
use http::{HeaderValue, Method};
use ostler_protocol::Failure;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    daemon::SessionClient,
    streaming::{EVENT_STREAM, LAST_EVENT_ID},
};

/// Something that happened in a session, as its clients see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReceivedFrame {
    /// `None` for frames about the stream itself, which cannot be received again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<i64>,
    #[serde(rename = "type")]
    pub frame_type: String,
    #[serde(default)]
    pub data: Value,
    /// The client whose request caused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub originator_client_id: Option<String>,
    /// The prompt that it is part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_id: Option<String>,
    /// Members of the envelope that this client does not read.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// Frames of a session in order. Ends when the session is closed or the server stops. A broken connection is an error, after
/// which the caller may follow again from the last id it has received.
pub type FrameStream = BoxStream<'static, Result<ReceivedFrame, Failure>>;

impl SessionClient {
    /// Follows the session from the frame after `after`. `None`: only frames that happen from now on.
    ///
    /// With `Some`, a frame of the type `replay_complete` separates earlier frames from new ones.
    pub async fn frames(&self, after: Option<i64>) -> Result<FrameStream, Failure> {
        let mut request = self.request(Method::GET, self.path(&["events"]), Bytes::new(), EVENT_STREAM)?;
        if let Some(after) = after {
            request.headers_mut().insert(LAST_EVENT_ID, HeaderValue::from(after));
        }
        self.client.open_stream(request).await
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_frame_is_written_as_it_was_read() {
        let text = json!({"id": 3, "v": 1, "type": "turn_complete", "data": {"stopReason": "end_turn"},
            "promptId": "p", "_meta": {"serverTimestamp": 5}});
        let frame: ReceivedFrame = serde_json::from_value(text.clone()).unwrap();
        assert_eq!((frame.id, frame.frame_type.as_str()), (Some(3), "turn_complete"));
        assert_eq!(serde_json::to_value(&frame).unwrap(), text);
        let frame: ReceivedFrame = serde_json::from_value(json!({"v": 1, "type": "replay_complete"})).unwrap();
        assert_eq!((frame.id, frame.data), (None, Value::Null));
    }
}
