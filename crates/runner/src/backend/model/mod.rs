//! The model backend: a conversation with any OpenAI-compatible endpoint, held by the runner itself. It streams the reply,
//! reports the tokens that the provider counts, and sends the earlier turns of the session along.
//!
//! It runs no program and touches no file, so a turn whose runner died is simply run again.

mod endpoint;
mod error;
pub(super) mod side_query;
mod stream;
mod tools;
mod wire;

use std::{collections::VecDeque, future::Future, pin::pin};

use futures_util::future::BoxFuture;
use ostler_protocol::{
    FailureKind, Timestamp,
    kernel::{
        conversation::{self, Role},
        events::{EventType, PHASE_TRANSPORT_DISCONNECTED, PHASE_WAITING_PROVIDER},
    },
    limits::TOOL_COMMAND_CHARS_MAX,
};
use serde_json::json;
use tokio::time::{Duration, sleep};

use super::{
    interface::{AfterCrash, Backend},
    turn::{Turn, TurnAbort, TurnEnd, TurnResult},
};
use crate::{
    environment::{BackendEnvironment, RetryPolicy},
    text::clip,
    turn_sink::{Steer, TurnSink},
};
use endpoint::Endpoint;
use error::ProviderError;
use stream::{ReplyPiece, ReplyStream};
use tools::ModelTools;
use wire::{ChatMessage, WireCall};

/// Replies of the model in one turn. It may call tools and receive steers, but not for ever.
const REPLIES_MAX: usize = 32;
/// The pauses after which a request that reached no provider is sent again. After the last one it is given up.
const PAUSES_MS: [u64; 4] = [250, 500, 1_000, 2_000];
/// A provider may ask for a longer pause, up to this.
const PAUSE_MS_MAX: u64 = 60_000;

pub(super) struct ModelBackend {
    base_url: String,
    model: String,
    environment: BackendEnvironment,
    tools: ModelTools,
}

impl ModelBackend {
    pub(super) fn new(base_url: &str, model: &str, environment: &BackendEnvironment) -> Self {
        let (base_url, model) = (base_url.into(), model.into());
        Self { base_url, model, environment: environment.clone(), tools: ModelTools::default() }
    }

    async fn run_turn(&self, turn: &Turn, sink: TurnSink) -> TurnResult {
        let (home, outgoing) = (self.environment.home.as_deref(), self.environment.outgoing.as_ref());
        let endpoint = match Endpoint::open(&self.base_url, &self.model, home, outgoing).await {
            Ok(endpoint) => endpoint,
            Err(error) => return Ok(error.into_end()),
        };
        let model_turn = ModelTurn {
            endpoint,
            tools: &self.tools,
            retry_policy: self.environment.retry_policy,
            later_retries: 0,
            messages: request_messages(&turn.conversation, &turn.full_prompt(), &turn.images),
            listener: TextListener { sink, steers: VecDeque::new() },
        };
        model_turn.run().await
    }
}

impl Backend for ModelBackend {
    fn turn<'a>(&'a mut self, turn: &'a Turn, sink: TurnSink) -> BoxFuture<'a, TurnResult> {
        Box::pin(self.run_turn(turn, sink))
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

/// The earlier turns and the current prompt with its images. Consecutive messages of the same role are joined, because many
/// models accept only alternating roles.
fn request_messages(
    earlier: &[conversation::ConversationMessage],
    prompt: &str,
    images: &[String],
) -> Vec<ChatMessage> {
    let mut messages: Vec<ChatMessage> = vec![];
    let earlier = earlier.iter().map(|message| (message.role, message.text.as_str()));
    for (role, text) in earlier.chain([(Role::User, prompt)]) {
        match messages.last_mut() {
            Some(last) if last.role == role.into() => last.append_text(text),
            _ => messages.push(ChatMessage::of(role, text)),
        }
    }
    if let Some(last) = messages.last_mut() {
        last.add_images(images);
    }
    messages
}

/// Listens for the order to stop and for steers while something else is awaited. Steers are queued until they can be sent.
struct TextListener {
    sink: TurnSink,
    steers: VecDeque<Steer>,
}

impl TextListener {
    /// Awaits `work`, unless the turn is stopped first.
    async fn during<T>(&mut self, work: impl Future<Output = T>) -> Result<T, TurnAbort> {
        let (mut work, mut stopped) = (pin!(work), pin!(self.sink.stopped()));
        loop {
            tokio::select! {
                biased;
                () = &mut stopped => return Err(TurnAbort::Stopped),
                done = &mut work => return Ok(done),
                steer = self.sink.next_steer() => self.steers.push_back(steer),
            }
        }
    }
}

/// One complete reply of the model.
#[derive(Default)]
struct ModelReply {
    text: String,
    reasoning: String,
    calls: Vec<WireCall>,
}

/// One turn's conversation with the model.
struct ModelTurn<'a> {
    endpoint: Endpoint,
    tools: &'a ModelTools,
    retry_policy: RetryPolicy,
    /// How often the provider asked us to come back later in this turn.
    later_retries: u32,
    messages: Vec<ChatMessage>,
    listener: TextListener,
}

/// The value to continue with, or the early end of the turn.
type OrEnd<T> = Result<Result<T, TurnEnd>, TurnAbort>;

impl ModelTurn<'_> {
    async fn run(mut self) -> TurnResult {
        for _ in 0..REPLIES_MAX {
            let message_id = self.listener.sink.new_id("msg");
            let reply = match self.read_reply(&message_id).await? {
                Ok(reply) => reply,
                Err(end) => return Ok(end),
            };
            self.listener.sink.check_stop()?;
            if let Some(end) = self.handle_reply(reply, &message_id).await? {
                return Ok(end);
            }
        }
        let message = format!("the model did not come to an end in {REPLIES_MAX} replies");
        Ok(TurnEnd::failed(FailureKind::BackendFailed, message))
    }

    /// Calls the tools that the reply asks for. `Some` if it was the last reply.
    async fn handle_reply(&mut self, reply: ModelReply, message_id: &str) -> Result<Option<TurnEnd>, TurnAbort> {
        let is_final = reply.calls.is_empty() && self.listener.steers.is_empty();
        if is_final && reply.text.is_empty() {
            return Ok(Some(TurnEnd::failed(FailureKind::BackendFailed, "the model's reply is empty")));
        }
        if !reply.text.is_empty() {
            self.listener.sink.emit_message(message_id, &reply.text, is_final).await;
        }
        if is_final {
            return Ok(Some(TurnEnd::completed()));
        }
        self.messages.push(ChatMessage::reply(&reply.text, &reply.calls));
        for call in reply.calls {
            let result = self.call_tool(&call).await?;
            self.messages.push(ChatMessage::tool_result(&call, &result));
        }
        while let Some(steer) = self.listener.steers.pop_front() {
            self.messages.push(ChatMessage::of(Role::User, &steer.accept()));
        }
        Ok(None)
    }

    /// Calls a tool. An error is returned to the model, which may do better.
    async fn call_tool(&mut self, call: &WireCall) -> Result<String, TurnAbort> {
        let arguments = clip(&call.arguments, TOOL_COMMAND_CHARS_MAX);
        // A provider's id is unique within its reply only; ours is unique within the session.
        let id = self.listener.sink.new_id("tool");
        let payload =
            |status: &str| json!({"toolCallId": id, "name": call.name, "method": "function", "status": status});
        let mut started = payload("started");
        started["arguments"] = arguments.into();
        self.listener.sink.start_tool(&started).await?;
        let outcome = self.tools.call(&call.name, &call.arguments);
        let (status, text) = match outcome {
            Ok(text) => ("completed", text),
            Err(text) => ("failed", text),
        };
        let mut ended = payload(status);
        ended["resultSummary"] = clip(&text, TOOL_COMMAND_CHARS_MAX).into();
        self.listener.sink.emit(EventType::ToolCall, &ended).await;
        Ok(text)
    }

    /// Reads one reply of the model and reports it as it arrives.
    async fn read_reply(&mut self, message_id: &str) -> OrEnd<ModelReply> {
        let mut stream = match self.open_stream().await? {
            Ok(stream) => stream,
            Err(end) => return Ok(Err(end)),
        };
        let thought_id = self.listener.sink.new_id("rsn");
        let mut reply = ModelReply::default();
        loop {
            let piece = match self.listener.during(stream.next()).await? {
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                Err(error) => return Ok(Err(error.into_end())),
            };
            let sink = &self.listener.sink;
            match piece {
                ReplyPiece::Text(text) => {
                    sink.emit_delta(EventType::AssistantDelta, message_id, &text).await;
                    reply.text.push_str(&text);
                }
                ReplyPiece::Reasoning(text) => {
                    sink.emit_delta(EventType::ReasoningDelta, &thought_id, &text).await;
                    reply.reasoning.push_str(&text);
                }
            }
        }
        let sink = &self.listener.sink;
        if !reply.reasoning.is_empty() {
            sink.emit_reasoning(&thought_id, &reply.reasoning).await;
        }
        let end = stream.into_end();
        sink.emit_usage(end.usage).await;
        if let Some(reason) = end.cut_short {
            let phase = json!({"phase": "completion:cut-short", "finishReason": reason});
            sink.emit(EventType::BackendStatus, &phase).await;
        }
        reply.calls = end.calls;
        Ok(Ok(reply))
    }

    /// Sends the request until a reply begins, as long as a retry may help.
    async fn open_stream(&mut self) -> OrEnd<ReplyStream> {
        let body = self.endpoint.body(&self.messages, self.tools);
        let mut pauses = PAUSES_MS.into_iter();
        loop {
            let error = match self.listener.during(self.endpoint.send(&body)).await? {
                Ok(stream) => return Ok(Ok(stream)),
                Err(error) => error,
            };
            let pause = match error.is_throttled {
                true => self.retry_policy.later_pause_ms(self.later_retries),
                false => pauses.next(),
            };
            let Some(pause) = pause.filter(|_| error.is_transient) else { return Ok(Err(error.into_end())) };
            self.later_retries += u32::from(error.is_throttled);
            let requested = error.retry_after_ms.unwrap_or(0).min(PAUSE_MS_MAX);
            self.pause(&error, Duration::from_millis(pause.max(requested))).await?;
        }
    }

    async fn pause(&mut self, error: &ProviderError, pause: Duration) -> Result<(), TurnAbort> {
        let phase = if error.is_disconnected { PHASE_TRANSPORT_DISCONNECTED } else { PHASE_WAITING_PROVIDER };
        let phase = json!({"phase": phase, "resumeAt": time_after(pause), "failureKind": error.kind,
            "message": error.message});
        self.listener.sink.emit(EventType::BackendStatus, &phase).await;
        self.listener.during(sleep(pause)).await?;
        self.listener.sink.emit(EventType::BackendStatus, &json!({"phase": "provider:asked-again"})).await;
        Ok(())
    }
}

#[expect(clippy::disallowed_methods, reason = "displayed to people; nothing is decided by it")]
fn time_after(pause: Duration) -> Timestamp {
    Timestamp::now().checked_add(pause).unwrap_or(Timestamp::MAX)
}
