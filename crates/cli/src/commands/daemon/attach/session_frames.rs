//! The frames of a session as a source of events.

use futures_util::stream::BoxStream;
use ostler_client::{
    Client,
    daemon::{ReceivedFrame, SessionClient},
};
use ostler_protocol::Failure;

use crate::follow::Source;

pub(crate) struct SessionFrames {
    pub session: SessionClient,
    /// The command that attaches to the session again.
    pub command: String,
}

impl Source for SessionFrames {
    type Event = ReceivedFrame;

    fn number(&self, frame: &ReceivedFrame) -> Option<i64> {
        frame.id
    }

    async fn open(
        &self,
        _: &Client,
        after: i64,
    ) -> Result<BoxStream<'static, Result<ReceivedFrame, Failure>>, Failure> {
        self.session.frames(Some(after)).await
    }

    /// A session ends with a frame.
    async fn is_over(&self, _: &Client, _: i64) -> Result<bool, Failure> {
        Ok(false)
    }

    fn command(&self) -> String {
        self.command.clone()
    }
}
