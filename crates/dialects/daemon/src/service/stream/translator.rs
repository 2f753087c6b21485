//! The events of one session as frames, in the order of the log. What a frame needs beside its event is read from the store once.

use std::{collections::VecDeque, sync::Arc};

use ostler_protocol::{
    Failure,
    daemon::{
        frames::Frame,
        translate::{self, MessagePart, PromptRef, SentPieces, TranslationContext, begins_turn, restarts_attempt},
    },
    ids::{CommandId, SessionId},
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
/// Events of a turn that can be recorded before it begins: its message, the state that came with it, cancels.
const BEFORE_TURN_EVENTS_MAX: u32 = 8;
/// Turns that are known to have begun. For others the log is read.
const BEGUN_MAX: usize = 64;

pub(super) struct SessionTranslator {
    app: App,
    session: SessionId,
    /// The id that clients use for the session.
    session_id: String,
    streamed: SentPieces,
    /// Turns whose prompt was echoed.
    begun: VecDeque<CommandId>,
}

impl SessionTranslator {
    pub(super) fn new(app: &App, session: SessionId, session_id: &str) -> Self {
        let (streamed, begun) = (SentPieces::default(), VecDeque::new());
        Self { app: app.clone(), session, session_id: session_id.to_owned(), streamed, begun }
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
        let waits = event.event_type == EventType::UserMessage && self.waits(&prompt, event).await?;
        let said = match prompt.is_turn {
            true => Box::pin(self.begin(&prompt, command_id, event, waits)).await?,
            false => None,
        };
        let context = TranslationContext {
            session_id: &self.session_id,
            prompt: Some(&prompt),
            is_streamed,
            cancel_reason: cancel_reason.as_deref(),
            waits,
            said: said.as_deref(),
        };
        Ok(translate::frames(event, context))
    }

    /// Whether an earlier turn had not ended when the event, the message of a turn, was recorded.
    async fn waits(&self, prompt: &PromptRef, event: &Event) -> Result<bool, Failure> {
        let Some((run_id, seq)) = event.run.filter(|_| prompt.is_turn) else { return Ok(false) };
        Ok(store::daemon::frames::had_unfinished_turn(&self.app.db, run_id, prompt.number, seq).await?)
    }

    /// Records that a turn has begun, if the event shows it. Returns the payload of its message if that was not echoed yet, because
    /// the turn has waited for others.
    async fn begin(
        &mut self,
        prompt: &PromptRef,
        command_id: CommandId,
        event: &Event,
        waits: bool,
    ) -> Result<Option<Arc<str>>, Failure> {
        let is_echoed = event.event_type == EventType::UserMessage && !waits;
        let is_known = self.begun.contains(&command_id);
        if is_known || !(is_echoed || begins_turn(event)) {
            return Ok(None);
        }
        if self.begun.len() == BEGUN_MAX {
            self.begun.pop_front();
        }
        self.begun.push_back(command_id);
        if is_echoed {
            return Ok(None);
        }
        let range = (event.session_seq - LOOKBACK_EVENTS_MAX, event.session_seq);
        let earlier = store::daemon::frames::list_of_command(
            &self.app.db,
            self.session,
            command_id,
            range,
            BEFORE_TURN_EVENTS_MAX,
        )
        .await?;
        if earlier.iter().any(begins_turn) {
            return Ok(None);
        }
        let Some(message) = earlier.into_iter().find(|event| event.event_type == EventType::UserMessage) else {
            return Ok(None);
        };
        Ok(if self.waits(prompt, &message).await? { message.payload } else { None })
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
            for event in &page {
                if restarts_attempt(event) {
                    return Ok(false);
                }
                if let Some(part) = MessagePart::read(event).filter(|part| part.is_of_same_message(&whole)) {
                    return Ok(!part.is_whole);
                }
            }
            match page.last() {
                Some(last) if page.len() == LOOKBACK_PAGE as usize => before = last.session_seq,
                _ => return Ok(false),
            }
        }
    }
}
