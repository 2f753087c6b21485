//! A run's events as its client reads them: the thread is followed from the start of the run's command, translated, and sent from
//! after the last event that the client has. Each stream repeats the whole translation, so the ids stay the same.

use ostler_protocol::{
    Failure,
    ids::{CommandId, SessionId},
    kernel::{aliases::CommandAlias, context::Context, events::Event},
    run_input::agui::{
        events::SnapshotMessage,
        replay::instructions,
        translate::{EventPlace as Id, SentEvent, Translator},
    },
};
use ostler_store as store;

use super::{earlier, front_end};
use crate::state::RunInputState;
use ostler_server::{
    app::App,
    auth::Principal,
    net::permits::Permit,
    service::follow::{self, Follower},
};

/// An event's id, as a client names the last one it has.
pub(crate) type Position = Id;

pub(crate) struct RunStream {
    app: App,
    follower: Follower,
    translator: Translator,
    thread_id: String,
    run_id: String,
    session: SessionId,
    command_id: CommandId,
    /// The session's number after which the command's events come.
    begins: i64,
    after: Option<Position>,
    /// The next event. It is stored here, and not in [`RunStream::next`], whose future may be dropped while it waits.
    pending: Option<Event>,
}

/// What comes next in a stream.
pub(crate) enum NextEvent {
    Events(Vec<SentEvent>),
    /// The terminal event was sent.
    Over,
    /// The server stops before the run ends. A client that reconnects with the last id misses no event.
    Cut,
}

/// A permit for the caller's stream.
pub(super) fn permit(app: &App, caller: &Principal) -> Result<Permit, Failure> {
    app.followers.admit(caller, app.config.limits.followers_max, RunInputState::of(app).config.streams_per_user_max)
}

/// `begins`: the number after which the command's events come, where that is known.
pub(super) async fn open(
    app: &App,
    permit: Permit,
    thread_id: &str,
    alias: CommandAlias,
    begins: Option<i64>,
    after: Option<Position>,
) -> Result<RunStream, Failure> {
    app.accepting()?;
    let CommandAlias { session, alias: run_id, command_id, after_seq, parent, .. } = alias;
    let begins = match begins {
        Some(seq) => seq,
        None => {
            let first = store::kernel::aliases::first_seq(&app.db, command_id).await?;
            first.unwrap_or(after_seq)
        }
    };
    let translator = Translator::new(thread_id, run_id.as_str(), after_seq).with_parent(parent);
    let follower = follow::thread(app, permit, session, begins);
    let (app, thread_id) = (app.clone(), thread_id.to_owned());
    let pending = None;
    Ok(RunStream { app, follower, translator, thread_id, run_id, session, command_id, begins, after, pending })
}

impl RunStream {
    /// The events since the last call, as soon as there are some. Dropping the future loses none of them.
    pub(crate) async fn next(&mut self) -> Result<NextEvent, Failure> {
        loop {
            if self.translator.is_over() {
                return Ok(NextEvent::Over);
            }
            if self.pending.is_none() {
                let Some(event) = self.follower.next().await? else { return Ok(NextEvent::Cut) };
                self.pending = Some(event);
            }
            self.look_back().await?;
            let mut sent = vec![];
            while let Some(event) = self.pending.take() {
                self.take(&event, &mut sent);
                self.pending = self.follower.try_next();
                if self.pending.as_ref().is_some_and(|event| self.wants_earlier(event)) {
                    break;
                }
            }
            if !sent.is_empty() {
                return Ok(NextEvent::Events(sent));
            }
        }
    }

    fn wants_earlier(&self, event: &Event) -> bool {
        event.command_id == Some(self.command_id)
            && (self.translator.wants_messages(event).is_some()
                || self.translator.wants_messages_at_interrupt(event)
                || self.translator.wants_state(event)
                || self.translator.wants_input(event))
    }

    /// Reads what the translation of the pending event needs from before the run.
    async fn look_back(&mut self) -> Result<(), Failure> {
        let Some(event) = self.pending.as_ref().filter(|event| self.wants_earlier(event)) else { return Ok(()) };
        if let Some(last) = self.translator.wants_messages(event) {
            let messages = earlier::messages(&self.app, self.session, last, Some(event)).await?;
            let messages = self.with_instructions(messages).await?;
            self.translator.set_messages(messages);
        }
        if self.translator.wants_messages_at_interrupt(event) {
            let messages = earlier::messages(&self.app, self.session, event.session_seq, None).await?;
            let messages = self.with_instructions(messages).await?;
            self.translator.set_messages_at_interrupt(messages);
        }
        if self.translator.wants_input(event)
            && let Some(command) = store::kernel::commands::get(&self.app.db, self.command_id).await?
        {
            let input = front_end::replayed(&self.app, &self.thread_id, &self.run_id, &command, event);
            self.translator.set_input(input);
        }
        if self.translator.wants_state(event) {
            let state = earlier::state(&self.app, self.session, self.begins).await?;
            self.translator.set_state(state);
        }
        Ok(())
    }

    /// The thread's messages, preceded by the instructions that the agent of this run received.
    async fn with_instructions(
        &self,
        messages: Option<Vec<SnapshotMessage>>,
    ) -> Result<Option<Vec<SnapshotMessage>>, Failure> {
        let Some(messages) = messages else { return Ok(None) };
        let command = store::kernel::commands::get(&self.app.db, self.command_id).await?;
        let context = command.map(|command| Context::of(&command.payload)).unwrap_or_default();
        Ok(Some(instructions(&context).into_iter().chain(messages).collect()))
    }

    fn take(&mut self, event: &Event, sent: &mut Vec<SentEvent>) {
        if event.command_id == Some(self.command_id) {
            let held_back = self.translator.patches_held_back();
            let translated = self.translator.take(event);
            // Warn once for each stream: a faulty agent may send many of them.
            if held_back == 0 && self.translator.patches_held_back() > 0 {
                let (session, seq) = (self.session, event.session_seq);
                tracing::warn!(%session, seq, "a patch of the agent does not apply to the clients' state, and was not sent");
            }
            // No stream has an id after the end: a client that sends one has not received the terminal event.
            let end = translated.last().map(|end| end.id);
            let end = end.filter(|end| self.translator.is_over() && self.after > Some(*end));
            let is_new = |event: &SentEvent| self.after.is_none_or(|id| event.id > id) || Some(event.id) == end;
            sent.extend(translated.into_iter().filter(is_new));
        }
    }
}
