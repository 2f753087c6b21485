//! The events of one session as frames, in the order of the log. What a frame needs beside its event is read from the store once.

use ostler_protocol::{
    Failure,
    daemon::{
        frames::Frame,
        translate::{self, MessagePart, SentPieces, TranslationContext},
    },
    ids::SessionId,
    kernel::events::{Event, EventType},
};
use ostler_server::app::App;
use ostler_store as store;

use super::{prompts::Prompts, queue::SentFrame};
use crate::state::DaemonState;

/// How far before a whole message its pieces are looked for, and how many events are read at once. A message whose pieces are
/// further away is sent in full.
const LOOKBACK_EVENTS_MAX: i64 = 20_000;
const LOOKBACK_PAGE: u32 = 64;

pub(super) struct SessionTranslator {
    app: App,
    session: SessionId,
    /// The id that clients use for the session.
    session_id: String,
    streamed: SentPieces,
}

impl SessionTranslator {
    pub(super) fn new(app: &App, session: SessionId, session_id: &str) -> Self {
        let streamed = SentPieces::default();
        Self { app: app.clone(), session, session_id: session_id.to_owned(), streamed }
    }

    pub(super) fn session_id(&self) -> &str {
        &self.session_id
    }

    /// The frames of the next event, serialised.
    pub(super) async fn sent_frames(&mut self, prompts: &Prompts, event: &Event) -> Result<Vec<SentFrame>, Failure> {
        let frames = self.frames(prompts, event).await?;
        let sent = |frame: &Frame| SentFrame {
            id: frame.id.unwrap_or_default(),
            bytes: frame.to_sse().into(),
            is_last: frame.is_last(),
        };
        Ok(frames.iter().map(sent).collect())
    }

    async fn frames(&mut self, prompts: &Prompts, event: &Event) -> Result<Vec<Frame>, Failure> {
        let is_streamed = match self.streamed.take(event) {
            Some(is_streamed) => is_streamed,
            None => Box::pin(self.find_pieces(event)).await?,
        };
        let Some(command_id) = event.command_id else {
            let context = TranslationContext { session_id: &self.session_id, is_streamed, ..Default::default() };
            return Ok(translate::frames(event, context));
        };
        let prompt = prompts.get(&self.app, command_id).await?;
        // A client that learns of a prompt's end before the response to its request may wait for the end for ever.
        DaemonState::of(&self.app).replied(&prompt.prompt_id).await;
        let cancel_reason = match event.event_type {
            EventType::TerminalStatus => {
                let command = store::kernel::commands::get(&self.app.db, command_id).await?;
                command.and_then(|command| command.cancel_reason)
            }
            _ => None,
        };
        let context = TranslationContext {
            session_id: &self.session_id,
            prompt: Some(&prompt),
            is_streamed,
            cancel_reason: cancel_reason.as_deref(),
        };
        Ok(translate::frames(event, context))
    }

    /// Whether pieces of the message that the event holds are in the log.
    async fn find_pieces(&self, event: &Event) -> Result<bool, Failure> {
        let (Some(whole), Some(command_id)) = (MessagePart::read(event), event.command_id) else { return Ok(false) };
        let (after, mut before) = (event.session_seq - LOOKBACK_EVENTS_MAX, event.session_seq);
        loop {
            let range = (after, before);
            let page =
                store::daemon::frames::list_message_parts(&self.app.db, self.session, command_id, range, LOOKBACK_PAGE);
            let page = page.await?;
            let parts = page.iter().filter_map(MessagePart::read);
            if let Some(part) = parts.into_iter().find(|part| part.is_of_same_message(&whole)) {
                return Ok(!part.is_whole);
            }
            match page.last() {
                Some(last) if page.len() == LOOKBACK_PAGE as usize => before = last.session_seq,
                _ => return Ok(false),
            }
        }
    }
}
