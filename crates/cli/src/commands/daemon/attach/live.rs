//! The loop of an attached terminal: frames, typed lines, signals, and the requests that they cause.

mod typing;

use std::{collections::VecDeque, time::Duration};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use ostler_client::{
    daemon::{ReceivedFrame, SessionClient},
    was_not_begun,
};
use ostler_protocol::{Failure, FailureKind, daemon::prompts::PromptAccepted, kernel::permissions::VoteRefusal};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{MissedTickBehavior, interval, sleep},
};

use super::{Earlier, evictions::Evictions, session_frames::SessionFrames, turns::Turns, votes::Votes};
use crate::{
    errors, exit_codes,
    follow::{ATTEMPTS_MAX, Followed, backoff_ms, follow},
    terminal::{
        frame_view::FrameView,
        output::{self, Output},
        paint::Paint,
        screen::Screen,
        typed_lines::{Typed, TypedLines},
    },
};

/// How often a heartbeat is sent, so that the server counts this client as present.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// How many earlier frames are held until it is known which of them are shown.
const EARLIER_FRAMES_MAX: usize = 10_000;
/// How many typed lines may wait for the one before them to be accepted.
const UNSENT_LINES_MAX: usize = 100;

/// Where prompts come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum InputMode {
    /// Nowhere.
    None,
    /// Each line of stdin, one after the other.
    Piped,
    /// A person who types lines and reads only frames as JSON.
    Typed,
    /// A person who types lines and is asked.
    Terminal,
}

/// The end of a request of this client.
enum Response {
    Prompt(Result<PromptAccepted, Failure>),
    Cancel(Result<(), Failure>),
    Vote(String, Result<(), Failure>),
    /// The names of the agent's commands, for a line that may be one of them.
    Commands(String, Result<Vec<String>, Failure>),
    Heartbeat,
}

/// Submits a prompt, and again while the server cannot be reached or is stopping. A request whose connection breaks later is not repeated,
/// because the server may have the prompt.
async fn submit(session: &SessionClient, text: &str) -> Result<PromptAccepted, Failure> {
    let mut attempt = 0;
    loop {
        match session.prompt(text).await {
            Err(failure) if was_not_begun(&failure) && attempt < ATTEMPTS_MAX => attempt += 1,
            result => return result,
        }
        sleep(Duration::from_millis(backoff_ms(attempt))).await;
    }
}

pub(crate) struct Live {
    session: SessionClient,
    /// The command that attaches to the session again.
    again: String,
    output: Output,
    input: InputMode,
    is_verbose: bool,
    earlier: Earlier,
    /// Frames that were there before, until the last of them is read.
    replayed: Option<VecDeque<ReceivedFrame>>,
    view: FrameView,
    screen: Screen,
    evictions: Evictions,
    votes: Votes,
    turns: Turns,
    typed: Option<TypedLines>,
    requests: FuturesUnordered<BoxFuture<'static, Response>>,
    /// Prompts that were sent and not accepted yet, and lines that may be commands of the agent.
    submitting: usize,
    /// Typed prompts and commands of the agent that are sent after those, in their order.
    unsent: VecDeque<String>,
    /// The names of the agent's commands, once a line needed them.
    commands: Option<Vec<String>>,
    is_cancelling: bool,
    /// The request whose question was shown last, while it waits for a vote.
    question: Option<String>,
    /// The text that asks for input is the last on the terminal, and its line has not ended.
    cue: Option<String>,
    /// The key that voted last, until the next line.
    last_key: Option<char>,
    /// The exit code, once there is nothing left to do.
    end: Option<u8>,
}

impl Live {
    pub(crate) fn new(
        session: SessionClient,
        output: Output,
        input: InputMode,
        earlier: Earlier,
        again: String,
        answer_hint: String,
        is_verbose: bool,
    ) -> Self {
        let own = session.client_id().map(str::to_owned);
        Self {
            view: FrameView::new(own, input == InputMode::Terminal, answer_hint, Paint::stderr()),
            session,
            again,
            input,
            is_verbose,
            earlier,
            replayed: Some(VecDeque::new()),
            screen: Screen::new(output.is_text()),
            output,
            evictions: Evictions::default(),
            votes: Votes::default(),
            turns: Turns::default(),
            typed: (input != InputMode::None).then(TypedLines::stdin),
            requests: FuturesUnordered::new(),
            submitting: 0,
            unsent: VecDeque::new(),
            commands: None,
            is_cancelling: false,
            question: None,
            cue: None,
            last_key: None,
            end: None,
        }
    }

    /// Runs until the person detaches, the input has been worked off, or the session is closed. Returns the exit code.
    /// `last_event_id` is the id of the session's newest frame.
    pub(crate) async fn run(mut self, last_event_id: i64) -> Result<u8, Failure> {
        let source = SessionFrames { session: self.session.clone(), command: self.again.clone() };
        let mut frames = follow(self.session.client().clone(), source, start_of_replay(last_event_id));
        let mut interrupts = interrupts()?;
        let mut heartbeats = interval(HEARTBEAT);
        heartbeats.set_missed_tick_behavior(MissedTickBehavior::Skip);
        while self.end.is_none() {
            self.ask();
            tokio::select! {
                followed = frames.recv() => match followed {
                    Some((_, Followed::Event(frame))) => self.frame(*frame),
                    Some((_, Followed::Over(over))) => {
                        self.close();
                        over?;
                        break;
                    }
                    Some((_, change)) if self.evictions.explains(&change) => {}
                    Some((_, change)) => {
                        if let Some(line) = change.connection_line(self.is_verbose) {
                            self.note(&format!("{line}\n"));
                        }
                    }
                    None => break,
                },
                typed = next_typed(&mut self.typed), if self.takes_input() => self.typed(typed),
                Some(response) = self.requests.next(), if !self.requests.is_empty() => self.response(response)?,
                _ = interrupts.recv() => self.interrupt(),
                _ = heartbeats.tick() => self.heartbeat(),
            }
            self.end_of_input();
        }
        self.close();
        Ok(self.end.unwrap_or_else(|| self.turns.exit_code()))
    }

    /// Whether a typed line is read now. Piped prompts are sent one after the other.
    fn takes_input(&self) -> bool {
        let is_free = match self.input {
            InputMode::Piped => self.submitting == 0 && !self.turns.has_own(),
            _ => self.unsent.len() < UNSENT_LINES_MAX,
        };
        self.typed.is_some() && self.replayed.is_none() && is_free
    }

    /// Ends when piped input has been worked off.
    fn end_of_input(&mut self) {
        let is_over = self.input == InputMode::Piped && self.typed.is_none();
        if is_over && self.submitting == 0 && !self.turns.has_own() {
            self.end.get_or_insert(self.turns.exit_code());
        }
    }

    fn frame(&mut self, frame: ReceivedFrame) {
        if let Some(line) = self.evictions.apply(&frame) {
            self.note(&line);
        }
        self.turns.apply(&frame);
        self.is_cancelling &= !self.turns.is_idle();
        let was_withdrawn = self.votes.apply(&frame);
        let Some(replayed) = &mut self.replayed else {
            self.show(&frame);
            self.end_with(&frame);
            if was_withdrawn && let Some(typed) = self.typed.as_mut().filter(|_| self.input == InputMode::Terminal) {
                // It was meant for the request that another client has decided.
                typed.discard();
            }
            return;
        };
        if frame.frame_type != "replay_complete" {
            if replayed.len() == EARLIER_FRAMES_MAX {
                replayed.pop_front();
            }
            return replayed.push_back(frame);
        }
        let replayed = self.replayed.take().unwrap_or_default();
        let first = match self.earlier {
            Earlier::All => 0,
            Earlier::Last(count) => replayed.len().saturating_sub(count),
            Earlier::RunningTurn => {
                let began = self.turns.began();
                let is_before = |frame: &&ReceivedFrame| began.is_none_or(|began| frame.id.is_none_or(|id| id < began));
                replayed.iter().take_while(is_before).count()
            }
        };
        for frame in replayed.iter().skip(first) {
            self.show(frame);
        }
    }

    fn show(&mut self, frame: &ReceivedFrame) {
        if !self.output.is_text() {
            self.output.record(frame, |line| self.screen.data(line));
        } else {
            let pieces = self.view.apply(frame);
            if !pieces.is_empty() {
                self.interrupt_cue();
            }
            self.screen.show(pieces);
            if frame.frame_type == "state_resync_required" {
                self.note("some frames were lost: the server no longer has them\n");
            }
        }
    }

    /// A session that is closed ends its terminals.
    fn end_with(&mut self, frame: &ReceivedFrame) {
        let reason = frame.data.get("reason").and_then(|reason| reason.as_str());
        let has_ended = match frame.frame_type.as_str() {
            "session_closed" => true,
            // A server that stops ends its streams; the session goes on when it is back.
            "session_died" => reason != Some("daemon_shutdown"),
            _ => false,
        };
        if has_ended {
            self.end = Some(self.turns.exit_code());
        }
    }

    fn submit(&mut self, text: &str) {
        if !self.turns.is_idle() && self.input == InputMode::Terminal {
            self.note("waits for the running prompt\n");
        }
        let (session, text) = (self.session.clone(), text.to_owned());
        self.submitting += 1;
        self.requests.push(async move { Response::Prompt(submit(&session, &text).await) }.boxed());
    }

    fn cancel(&mut self) {
        let session = self.session.clone();
        self.is_cancelling = true;
        self.note("cancelling\n");
        self.requests.push(async move { Response::Cancel(session.cancel().await) }.boxed());
    }

    fn heartbeat(&mut self) {
        if self.session.client_id().is_none() {
            return;
        }
        let session = self.session.clone();
        self.requests.push(
            async move {
                // The follower reports a server that cannot be reached.
                let _ = session.heartbeat().await;
                Response::Heartbeat
            }
            .boxed(),
        );
    }

    fn response(&mut self, response: Response) -> Result<(), Failure> {
        match response {
            Response::Heartbeat => {}
            Response::Prompt(result) => {
                self.submitting -= 1;
                match result {
                    Ok(accepted) => self.turns.submitted(accepted.prompt_id),
                    Err(failure) if self.input == InputMode::Piped => {
                        self.close();
                        return Err(failure);
                    }
                    Err(failure) => self.report(&failure),
                }
            }
            Response::Cancel(result) => {
                if let Err(failure) = result {
                    self.is_cancelling = false;
                    self.report(&failure);
                }
            }
            Response::Commands(text, commands) => self.looked_up(text, commands),
            Response::Vote(request_id, Err(failure)) => {
                let may_vote = self.view.designated_voter(&request_id).filter(|_| is_designated_mismatch(&failure));
                let why = may_vote.unwrap_or_else(|| output::line(&failure.message, 300));
                self.note(&format!("not answered: {why}\n"));
                match failure.kind {
                    // It was decided elsewhere, or the turn has ended, or this client has no vote.
                    FailureKind::NotFound | FailureKind::StateConflict | FailureKind::Forbidden => {
                        self.votes.remove(&request_id);
                    }
                    _ => self.votes.retry(&request_id),
                }
            }
            Response::Vote(_, Ok(())) => {}
        }
        self.send_lines();
        Ok(())
    }

    /// Ctrl-C cancels the running prompt. A client that only follows detaches.
    fn interrupt(&mut self) {
        self.interrupt_cue();
        match self.input {
            InputMode::None => self.detach(),
            InputMode::Piped if self.is_cancelling => self.end = Some(exit_codes::LEFT),
            _ if self.is_cancelling => self.note("still cancelling; Ctrl-D or /detach detaches\n"),
            _ if !self.turns.is_idle() || self.submitting > 0 => self.cancel(),
            InputMode::Piped => self.end = Some(exit_codes::LEFT),
            _ => self.note("no prompt runs; Ctrl-D or /detach detaches\n"),
        }
    }

    fn detach(&mut self) {
        self.close();
        output::message(&format!("detached; the session goes on: {}\n", self.again));
        self.end = Some(exit_codes::OK);
    }

    /// Asks for a vote, or shows that a prompt can be typed.
    fn ask(&mut self) {
        if self.input != InputMode::Terminal || self.replayed.is_some() || self.end.is_some() {
            return;
        }
        let vote = self.votes.cue();
        self.expect_answer();
        let cue = match &vote {
            Some(vote) => format!("{} {vote}", Paint::stderr().bold("allow this?")),
            None if self.turns.is_idle() && self.submitting == 0 => Paint::stderr().bold("> "),
            None => return,
        };
        if self.cue.as_ref() == Some(&cue) {
            return;
        }
        self.interrupt_cue();
        self.screen.close();
        output::message(&cue);
        self.cue = Some(cue);
    }

    /// Sets the keys for a question when it is first shown. When it is shown again, what was typed in the meantime stays, or the next key
    /// of an unfinished line would be a vote.
    fn expect_answer(&mut self) {
        let question = self.votes.asked_id();
        if self.question.as_deref() == question {
            return;
        }
        self.question = question.map(str::to_owned);
        match (&mut self.typed, &self.question) {
            (Some(typed), Some(_)) => typed.expect_answer(self.votes.digits()),
            (Some(typed), None) => typed.take_keys(None),
            (None, _) => {}
        }
    }

    /// Ends the line of the cue before something else is printed.
    fn interrupt_cue(&mut self) {
        if self.cue.take().is_some() {
            output::message("\n");
        }
    }

    fn note(&mut self, text: &str) {
        self.interrupt_cue();
        self.screen.note(text);
    }

    fn report(&mut self, failure: &Failure) {
        self.note(&errors::render(failure, Paint::stderr()));
    }

    fn close(&mut self) {
        self.interrupt_cue();
        self.screen.close();
    }
}

/// The id after which frames are received: no more of them than are held. An event has at most two ids.
fn start_of_replay(last_event_id: i64) -> i64 {
    last_event_id.saturating_sub(2 * EARLIER_FRAMES_MAX as i64).max(0)
}

/// Whether a vote was refused because only the client that sent the prompt may vote.
fn is_designated_mismatch(failure: &Failure) -> bool {
    let reason = failure.details.as_ref().and_then(|details| details.get("reason")?.as_str());
    reason == Some(VoteRefusal::DesignatedMismatch.as_str())
}

/// The next line or key. Never completes if none are read.
async fn next_typed(typed: &mut Option<TypedLines>) -> Option<Typed> {
    match typed {
        Some(typed) => typed.next().await,
        None => std::future::pending().await,
    }
}

fn interrupts() -> Result<Signal, Failure> {
    signal(SignalKind::interrupt()).map_err(Failure::internal)
}

#[cfg(test)]
mod tests;
