//! The model agent: a conversation with any OpenAI-compatible endpoint, held by the runner itself. It streams the answer,
//! counts the tokens the provider counts, and brings the session's earlier turns along.
//!
//! It runs no program and touches no file, so a turn whose runner died is simply run again.

mod answer;
mod endpoint;
mod tools;
mod wire;

use std::{collections::VecDeque, future::Future, pin::pin};

use futures_util::future::BoxFuture;
use ostler_protocol::{
    FailureKind, Timestamp,
    conversation::{self, Role},
    events::{EventType, PHASE_TRANSPORT_DISCONNECTED, PHASE_WAITING_PROVIDER},
    limits::TOOL_COMMAND_CHARS_MAX,
};
use serde_json::json;
use tokio::time::{Duration, sleep};

use super::{AfterCrash, Agent, Left, Turn, TurnEnd, TurnResult};
use crate::{
    Outfit, Patience,
    holdback::clip,
    link::{Link, Steer},
};
use answer::{Answer, Piece};
use endpoint::{Endpoint, Trouble};
use tools::Tools;
use wire::{Call, Message};

/// Answers of the model in one turn: it may call tools, and be spoken to meanwhile, but not for ever.
const ANSWERS_MAX: usize = 32;
/// A request that found nobody is sent again after these pauses; then it is given up.
const PAUSES_MS: [u64; 4] = [250, 500, 1_000, 2_000];
/// A provider may name a longer pause, within this.
const PAUSE_MS_MAX: u64 = 60_000;

pub struct Model {
    base_url: String,
    model: String,
    outfit: Outfit,
    tools: Tools,
}

impl Model {
    pub fn new(base_url: &str, model: &str, outfit: &Outfit) -> Self {
        Self { base_url: base_url.into(), model: model.into(), outfit: outfit.clone(), tools: Tools::default() }
    }

    async fn talk(&self, turn: &Turn, link: Link) -> TurnResult {
        let (home, outgoing) = (self.outfit.home.as_deref(), self.outfit.outgoing.as_ref());
        let endpoint = match Endpoint::open(&self.base_url, &self.model, home, outgoing).await {
            Ok(endpoint) => endpoint,
            Err(trouble) => return Ok(trouble.end()),
        };
        let mut said = opening(&turn.conversation, &turn.asked());
        said.last_mut().expect("what is asked").show(&turn.images);
        Talk {
            endpoint,
            tools: &self.tools,
            patience: self.outfit.patience,
            later: 0,
            said,
            ear: Ear { link, heard: VecDeque::new() },
        }
        .run()
        .await
    }
}

impl Agent for Model {
    fn turn<'a>(&'a mut self, turn: &'a Turn, link: Link) -> BoxFuture<'a, TurnResult> {
        Box::pin(self.talk(turn, link))
    }

    fn after_crash(&self) -> AfterCrash {
        AfterCrash::Repeat
    }

    fn keeps_lease(&self) -> bool {
        false
    }

    fn wants_conversation(&self) -> bool {
        true
    }

    fn sees_images(&self) -> bool {
        true
    }
}

/// The earlier turns and what is asked now. Messages of one side that follow each other are joined: many models accept
/// only the two sides in turn.
fn opening(earlier: &[conversation::Message], prompt: &str) -> Vec<Message> {
    let mut said: Vec<Message> = vec![];
    let earlier = earlier.iter().map(|message| (message.role, message.text.as_str()));
    for (role, text) in earlier.chain([(Role::User, prompt)]) {
        match said.last_mut() {
            Some(last) if last.role == role.into() => last.add(text),
            _ => said.push(Message::of(role, text)),
        }
    }
    said
}

/// Listens while something else is awaited: to the order to stop, and to steers, which are kept until they can be said.
struct Ear {
    link: Link,
    heard: VecDeque<Steer>,
}

impl Ear {
    async fn during<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Left> {
        let (mut work, mut stopped) = (pin!(work), pin!(self.link.stopped()));
        loop {
            tokio::select! {
                biased;
                () = &mut stopped => return Err(Left::Stopped),
                done = &mut work => return Ok(done),
                steer = self.link.next_steer() => self.heard.push_back(steer),
            }
        }
    }
}

/// What the model said in one go.
#[derive(Default)]
struct Reply {
    text: String,
    reasoning: String,
    calls: Vec<Call>,
}

/// One turn's conversation with the model.
struct Talk<'a> {
    endpoint: Endpoint,
    tools: &'a Tools,
    patience: Patience,
    /// How often the provider said "later" in this turn.
    later: u32,
    said: Vec<Message>,
    ear: Ear,
}

/// The turn ends early, or goes on with something.
type Step<T> = Result<Result<T, TurnEnd>, Left>;

impl Talk<'_> {
    async fn run(mut self) -> TurnResult {
        for _ in 0..ANSWERS_MAX {
            let message_id = self.ear.link.new_id("msg");
            let reply = match self.reply(&message_id).await? {
                Ok(reply) => reply,
                Err(end) => return Ok(end),
            };
            self.ear.link.check()?;
            if let Some(end) = self.take(reply, &message_id).await? {
                return Ok(end);
            }
        }
        let message = format!("the model did not come to an end in {ANSWERS_MAX} answers");
        Ok(TurnEnd::failed(FailureKind::BackendFailed, message))
    }

    /// Does what the reply asks for. `Some`: it was the last one.
    async fn take(&mut self, reply: Reply, message_id: &str) -> Result<Option<TurnEnd>, Left> {
        let is_final = reply.calls.is_empty() && self.ear.heard.is_empty();
        if is_final && reply.text.is_empty() {
            return Ok(Some(TurnEnd::failed(FailureKind::BackendFailed, "the model answered with nothing")));
        }
        if !reply.text.is_empty() {
            self.ear.link.message(message_id, &reply.text, is_final).await;
        }
        if is_final {
            return Ok(Some(TurnEnd::completed()));
        }
        self.said.push(Message::reply(&reply.text, &reply.calls));
        for call in reply.calls {
            let result = self.call(&call).await?;
            self.said.push(Message::result(&call, &result));
        }
        while let Some(steer) = self.ear.heard.pop_front() {
            self.said.push(Message::of(Role::User, &steer.accept()));
        }
        Ok(None)
    }

    /// Calls a tool. What goes wrong is told to the model, which may do better.
    async fn call(&mut self, call: &Call) -> Result<String, Left> {
        let arguments = clip(&call.arguments, TOOL_COMMAND_CHARS_MAX);
        // A provider's id names a call within its answer; ours does within the session.
        let id = self.ear.link.new_id("tool");
        let fact = |status: &str| json!({"toolCallId": id, "name": call.name, "method": "function", "status": status});
        let mut started = fact("started");
        started["arguments"] = arguments.into();
        self.ear.link.start_tool(&started).await?;
        let outcome = self.tools.call(&call.name, &call.arguments);
        let (status, text) = match outcome {
            Ok(text) => ("completed", text),
            Err(text) => ("failed", text),
        };
        let mut ended = fact(status);
        ended["resultSummary"] = clip(&text, TOOL_COMMAND_CHARS_MAX).into();
        self.ear.link.emit(EventType::ToolCall, &ended).await;
        Ok(text)
    }

    /// One answer of the model, told as it comes.
    async fn reply(&mut self, message_id: &str) -> Step<Reply> {
        let mut answer = match self.answer().await? {
            Ok(answer) => answer,
            Err(end) => return Ok(Err(end)),
        };
        let thought_id = self.ear.link.new_id("rsn");
        let mut reply = Reply::default();
        loop {
            let piece = match self.ear.during(answer.next()).await? {
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                Err(trouble) => return Ok(Err(trouble.end())),
            };
            match piece {
                Piece::Text(text) => {
                    self.ear.link.delta(EventType::AssistantDelta, message_id, &text).await;
                    reply.text.push_str(&text);
                }
                Piece::Reasoning(text) => {
                    self.ear.link.delta(EventType::ReasoningDelta, &thought_id, &text).await;
                    reply.reasoning.push_str(&text);
                }
            }
        }
        if !reply.reasoning.is_empty() {
            self.ear.link.reasoning(&thought_id, &reply.reasoning).await;
        }
        let ending = answer.ending();
        self.ear.link.usage(ending.usage).await;
        if let Some(reason) = ending.cut_short {
            let phase = json!({"phase": "completion:cut-short", "finishReason": reason});
            self.ear.link.emit(EventType::BackendStatus, &phase).await;
        }
        reply.calls = ending.calls;
        Ok(Ok(reply))
    }

    /// The beginning of an answer, asked for again while that may help.
    async fn answer(&mut self) -> Step<Answer> {
        let body = self.endpoint.body(&self.said, self.tools);
        let mut pauses = PAUSES_MS.into_iter();
        loop {
            let trouble = match self.ear.during(self.endpoint.ask(&body)).await? {
                Ok(answer) => return Ok(Ok(answer)),
                Err(trouble) => trouble,
            };
            let pause = if trouble.says_later { self.patience.later_pause_ms(self.later) } else { pauses.next() };
            let Some(pause) = pause.filter(|_| trouble.may_pass) else { return Ok(Err(trouble.end())) };
            self.later += u32::from(trouble.says_later);
            let named = trouble.retry_after_ms.unwrap_or(0).min(PAUSE_MS_MAX);
            self.park(&trouble, Duration::from_millis(pause.max(named))).await?;
        }
    }

    async fn park(&mut self, trouble: &Trouble, pause: Duration) -> Result<(), Left> {
        let phase = if trouble.disconnected { PHASE_TRANSPORT_DISCONNECTED } else { PHASE_WAITING_PROVIDER };
        let phase = json!({"phase": phase, "resumeAt": after(pause), "failureKind": trouble.kind,
            "message": trouble.message});
        self.ear.link.emit(EventType::BackendStatus, &phase).await;
        self.ear.during(sleep(pause)).await?;
        self.ear.link.emit(EventType::BackendStatus, &json!({"phase": "provider:asked-again"})).await;
        Ok(())
    }
}

#[allow(clippy::disallowed_methods, reason = "only told, for people who wait; nothing is decided by it")]
fn after(pause: Duration) -> Timestamp {
    Timestamp::now().checked_add(pause).unwrap_or(Timestamp::MAX)
}
