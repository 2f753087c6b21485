//! The events of one session as frames, in the order of the log. What a frame needs beside its event is read from the store once.

use std::{collections::VecDeque, sync::Arc};

use ostler_protocol::{
    Failure,
    daemon::{
        frames::Frame,
        translate::{
            self, MessagePart, PromptRef, SentPieces, TranslationContext, begins_turn, is_deadline, is_late_cancel,
            restarts_attempt, work_types,
        },
    },
    ids::{CommandId, RunId, SessionId},
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
/// Audit events before the end of a turn among which its cancellation is looked for. Few follow the cancellation.
const AUDITS_MAX: u32 = 16;
/// Turns that are known to have begun. For others the log is read.
const STARTED_TURNS_MAX: usize = 64;

pub(super) struct SessionTranslator {
    app: App,
    session: SessionId,
    /// The id that clients use for the session.
    session_id: String,
    streamed: SentPieces,
    /// Turns that have begun, so that their prompt was echoed.
    started_turns: VecDeque<CommandId>,
}

impl SessionTranslator {
    pub(super) fn new(app: &App, session: SessionId, session_id: &str) -> Self {
        let (streamed, started_turns) = (SentPieces::default(), VecDeque::new());
        Self { app: app.clone(), session, session_id: session_id.to_owned(), streamed, started_turns }
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
        let is_end_sent = match event.run.filter(|_| prompt.is_turn && is_deadline(cancel_reason.as_deref())) {
            Some((run_id, seq)) => {
                let (db, run) = (&self.app.db, (self.session, run_id));
                let audits = store::daemon::frames::list_last_audits(db, run, command_id, seq, AUDITS_MAX).await?;
                audits.iter().any(is_late_cancel)
            }
            None => false,
        };
        let waits = event.event_type == EventType::UserMessage && self.waits(&prompt, event).await?;
        let queued_message = match prompt.is_turn {
            true => Box::pin(self.begin(&prompt, command_id, event, waits)).await?,
            false => None,
        };
        let context = TranslationContext {
            session_id: &self.session_id,
            prompt: Some(&prompt),
            is_streamed,
            cancel_reason: cancel_reason.as_deref(),
            is_end_sent,
            waits,
            queued_message: queued_message.as_deref(),
        };
        Ok(translate::frames(event, context))
    }

    /// Whether an earlier turn had not ended when the event, the message of a turn, was recorded.
    async fn waits(&self, prompt: &PromptRef, message: &Event) -> Result<bool, Failure> {
        let Some((run_id, seq)) = message.run.filter(|_| prompt.is_turn) else { return Ok(false) };
        let end = store::daemon::frames::find_end_of_earlier_turns(&self.app.db, run_id, prompt.number, seq).await?;
        Ok(end.is_none())
    }

    /// Records that a turn has begun, if the event shows it. Returns the payload of its message if that was not echoed yet, because
    /// the turn has waited for others. A turn that ends while it waits never begins.
    async fn begin(
        &mut self,
        prompt: &PromptRef,
        command_id: CommandId,
        event: &Event,
        waits: bool,
    ) -> Result<Option<Arc<str>>, Failure> {
        let is_echo = event.event_type == EventType::UserMessage && !waits;
        let is_known = self.started_turns.contains(&command_id);
        if is_known || !(is_echo || begins_turn(event)) {
            return Ok(None);
        }
        let message = match is_echo {
            true => None,
            false => {
                let Some((run_id, seq)) = event.run else { return Ok(None) };
                let db = &self.app.db;
                let end = store::daemon::frames::find_end_of_earlier_turns(db, run_id, prompt.number, seq).await?;
                let Some(end) = end else { return Ok(None) };
                self.find_queued_message(prompt, command_id, run_id, (end, seq)).await?
            }
        };
        if self.started_turns.len() == STARTED_TURNS_MAX {
            self.started_turns.pop_front();
        }
        self.started_turns.push_back(command_id);
        Ok(message)
    }

    /// The payload of the message of a turn that has waited for others, if none of the turn's work is numbered within `range` of
    /// the run: after the end of the turns before it, and before the event that is translated.
    async fn find_queued_message(
        &self,
        prompt: &PromptRef,
        command_id: CommandId,
        run_id: RunId,
        range: (i64, i64),
    ) -> Result<Option<Arc<str>>, Failure> {
        let db = &self.app.db;
        let Some(message) = store::daemon::frames::find_message(db, self.session, command_id).await? else {
            return Ok(None);
        };
        if !self.waits(prompt, &message).await? {
            return Ok(None);
        }
        let (run, types) = ((self.session, run_id), work_types());
        let has_begun = store::daemon::frames::has_event_of(db, run, command_id, &types, range).await?;
        Ok(message.payload.filter(|_| !has_begun))
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
