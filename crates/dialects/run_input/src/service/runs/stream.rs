//! A run's events as its client reads them: the thread followed from the start of the run's command, translated, and told
//! from behind the event that the client has. The translation is made anew each time, so ids stay what they were.

use ostler_protocol::{
    Failure,
    ids::{CommandId, SessionId},
    kernel::{aliases::CommandAlias, events::Event},
    run_input::agui::translate::{Place as Id, Sent, Translator},
};
use ostler_store as store;

use super::earlier;
use crate::state::RunInputState;
use ostler_server::{
    app::App,
    auth::Principal,
    net::places::Place,
    service::follow::{self, Follower},
};

/// An event's id, as a client names the last one it has.
pub type Position = Id;

pub struct RunStream {
    app: App,
    follower: Follower,
    translator: Translator,
    session: SessionId,
    command_id: CommandId,
    /// The session's number after which the command's events come.
    begins: i64,
    after: Option<Position>,
    /// The next event. It is held here, and not by [`RunStream::next`], which may be dropped while it waits.
    pending: Option<Event>,
}

/// What comes next in a stream.
pub enum Next {
    Events(Vec<Sent>),
    /// The terminal event has been told.
    Over,
    /// The server stops before the run does; whoever comes back with the last id misses nothing.
    Cut,
}

/// A place for the caller's stream.
pub fn place(app: &App, caller: &Principal) -> Result<Place, Failure> {
    app.followers.admit(caller, app.config.limits.followers_max, RunInputState::of(app).config.streams_per_user_max)
}

/// `begins`: the number after which the command's events come, where that is known.
pub async fn open(
    app: &App,
    place: Place,
    thread_id: &str,
    alias: CommandAlias,
    begins: Option<i64>,
    after: Option<Position>,
) -> Result<RunStream, Failure> {
    app.accepting()?;
    let CommandAlias { session, alias: run_id, command_id, after_seq, .. } = alias;
    let begins = match begins {
        Some(seq) => seq,
        None => {
            let first = store::kernel::aliases::first_seq(&app.db, command_id).await?;
            first.unwrap_or(after_seq)
        }
    };
    let translator = Translator::new(thread_id, run_id, after_seq);
    let follower = follow::thread(app, place, session, begins);
    Ok(RunStream { app: app.clone(), follower, translator, session, command_id, begins, after, pending: None })
}

impl RunStream {
    /// The events since the last call, as soon as there are some. Dropping the future loses none of them.
    pub async fn next(&mut self) -> Result<Next, Failure> {
        loop {
            if self.translator.is_over() {
                return Ok(Next::Over);
            }
            if self.pending.is_none() {
                let Some(event) = self.follower.next().await? else { return Ok(Next::Cut) };
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
                return Ok(Next::Events(sent));
            }
        }
    }

    fn wants_earlier(&self, event: &Event) -> bool {
        event.command_id == Some(self.command_id)
            && (self.translator.wants_messages(event).is_some() || self.translator.wants_state(event))
    }

    /// Reads what the translation of the pending event needs from before the run.
    async fn look_back(&mut self) -> Result<(), Failure> {
        let Some(event) = self.pending.as_ref().filter(|event| self.wants_earlier(event)) else { return Ok(()) };
        if let Some(last) = self.translator.wants_messages(event) {
            let messages = earlier::messages(&self.app, self.session, last).await?;
            self.translator.set_messages(messages);
        }
        if self.translator.wants_state(event) {
            let state = earlier::state(&self.app, self.session, self.begins).await?;
            self.translator.set_state(state);
        }
        Ok(())
    }

    fn take(&mut self, event: &Event, sent: &mut Vec<Sent>) {
        if event.command_id == Some(self.command_id) {
            let held_back = self.translator.patches_held_back();
            let told = self.translator.take(event);
            // Once for each stream: an agent that has lost count may send many of them.
            if held_back == 0 && self.translator.patches_held_back() > 0 {
                let (session, seq) = (self.session, event.session_seq);
                tracing::warn!(%session, seq, "a patch of the agent does not apply to what clients hold, and was not sent");
            }
            // An id beyond the end was never ours: whoever names it has not been told how the run ended.
            let end = told.last().map(|end| end.id).filter(|end| self.translator.is_over() && self.after > Some(*end));
            let is_new = |told: &Sent| self.after.is_none_or(|id| told.id > id) || Some(told.id) == end;
            sent.extend(told.into_iter().filter(is_new));
        }
    }
}
