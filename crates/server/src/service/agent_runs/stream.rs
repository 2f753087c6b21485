//! A run's events as its client reads them: the thread followed from the start of the run's command, translated, and told
//! from behind the event that the client has. The translation is made anew each time, so ids stay what they were.

use ostler_protocol::{
    Failure,
    agent_runs::AgentRun,
    agui::translate::{Place as Id, Sent, Translator},
    events::Event,
    ids::CommandId,
};
use ostler_store as store;

use crate::{
    app::{App, store_failure},
    auth::Principal,
    places::Place,
    service::follow::{self, Follower},
};

/// An event's id, as a client names the last one it has.
pub type Position = Id;

pub struct RunStream {
    follower: Follower,
    translator: Translator,
    command_id: CommandId,
    after: Option<Position>,
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
    app.followers.admit(caller, app.config.limits.followers_max, app.config.agent_runs.streams_per_user_max)
}

/// `begins`: the number after which the command's events come, where that is known.
pub async fn open(
    app: &App,
    place: Place,
    thread_id: &str,
    agent_run: AgentRun,
    begins: Option<i64>,
    after: Option<Position>,
) -> Result<RunStream, Failure> {
    app.accepting()?;
    let AgentRun { session, run_id, command_id, after_seq, .. } = agent_run;
    let begins = match begins {
        Some(seq) => seq,
        None => {
            let first = store::agent_runs::first_seq(&app.db, command_id).await.map_err(store_failure)?;
            first.unwrap_or(after_seq)
        }
    };
    let translator = Translator::new(thread_id, run_id, after_seq);
    let follower = follow::thread(app, place, session, begins);
    Ok(RunStream { follower, translator, command_id, after })
}

impl RunStream {
    /// What has happened meanwhile, as soon as something has.
    pub async fn next(&mut self) -> Result<Next, Failure> {
        loop {
            if self.translator.is_over() {
                return Ok(Next::Over);
            }
            let Some(event) = self.follower.next().await? else { return Ok(Next::Cut) };
            let mut sent = vec![];
            self.take(&event, &mut sent);
            while let Some(event) = self.follower.try_next() {
                self.take(&event, &mut sent);
            }
            if !sent.is_empty() {
                return Ok(Next::Events(sent));
            }
        }
    }

    fn take(&mut self, event: &Event, sent: &mut Vec<Sent>) {
        if event.command_id == Some(self.command_id) {
            let told = self.translator.take(event);
            // An id beyond the end was never ours: whoever names it has not been told how the run ended.
            let end = told.last().map(|end| end.id).filter(|end| self.translator.is_over() && self.after > Some(*end));
            let is_new = |told: &Sent| self.after.is_none_or(|id| told.id > id) || Some(told.id) == end;
            sent.extend(told.into_iter().filter(is_new));
        }
    }
}
