//! The model backend: a conversation with any OpenAI-compatible endpoint, held by the runner itself. It streams the reply,
//! reports the tokens that the provider counts, sends the earlier turns of the session along, calls the tools of the server, and
//! hands calls of the front end's tools over. If the command asks for stages, a router plans the turn first.
//!
//! It runs no program and touches no file, so a turn whose runner died is run again. What its tools did is not done again: the model
//! gets the calls that the earlier attempt made, with their results.

mod endpoint;
mod error;
mod front_end;
mod messages;
pub(super) mod side_query;
mod stages;
mod stream;
mod tools;
mod wire;

use std::{array::IntoIter, collections::VecDeque, future::Future, pin::pin, sync::Arc};

use futures_util::future::{BoxFuture, join_all};
use ostler_protocol::{
    Failure, FailureKind, Timestamp,
    json::text_of,
    kernel::{
        conversation::Role,
        events::{EventType, PHASE_TRANSPORT_DISCONNECTED, PHASE_WAITING_PROVIDER},
        stages::{PLAN_FUNCTION, STAGE_WORKER},
    },
    limits::TOOL_COMMAND_CHARS_MAX,
    tools::wire::{CallStatus, CalledTool, RunTools},
};
use serde_json::json;
use tokio::time::{Duration, sleep};

use super::{
    interface::Backend,
    turn::{Turn, TurnAbort, TurnEnd, TurnResult},
};
use crate::{
    environment::{BackendEnvironment, RetryPolicy},
    turn_sink::{Steer, TurnSink},
};
use endpoint::Endpoint;
use error::ProviderError;
use front_end::FrontEnd;
use messages::push_calls;
use stages::{StageProgress, TurnInput};
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
}

impl ModelBackend {
    pub(super) fn new(base_url: &str, model: &str, environment: &BackendEnvironment) -> Self {
        let (base_url, model) = (base_url.into(), model.into());
        Self { base_url, model, environment: environment.clone() }
    }

    async fn run_turn(&self, turn: &Turn, sink: TurnSink) -> TurnResult {
        let (home, outgoing) = (self.environment.home.as_deref(), self.environment.outgoing.as_ref());
        let endpoint = match Endpoint::open(&self.base_url, &self.model, home, outgoing).await {
            Ok(endpoint) => endpoint,
            Err(error) => return Ok(error.into_end()),
        };
        let mut listener = TextListener { sink, steers: VecDeque::new() };
        let listed = listener.sink.server_tools();
        let RunTools { mut tools, earlier_calls } = match listener.during(listed).await? {
            Ok(listed) => listed,
            Err(failure) => return Ok(TurnEnd::failed(FailureKind::InfraFailed, failure.message)),
        };
        let input = TurnInput::of(turn);
        // Two functions of one name would be one to the model.
        tools.retain(|tool| input.config.router.is_none() || tool.name != PLAN_FUNCTION);
        let router = input.config.effective_router(!earlier_calls.is_empty(), front_end::only_brings_results(turn));
        let mut messages = input.messages(None, "");
        let calls = earlier_calls.into_iter().map(|call| {
            let result = call.result;
            (WireCall { id: call.call_id, name: call.name, arguments: call.arguments }, result)
        });
        push_calls(&mut messages, calls.collect());
        let front_end = FrontEnd::of(turn);
        let all_tools = ModelTools::new(&tools, front_end.offered());
        let model_turn = ModelTurn {
            endpoint,
            input,
            tools: all_tools.clone(),
            all_tools,
            front_end,
            stages: StageProgress::new(router),
            retry_policy: self.environment.retry_policy,
            later_retries: 0,
            messages,
            listener,
        };
        model_turn.run().await
    }
}

impl Backend for ModelBackend {
    fn turn<'a>(&'a mut self, turn: &'a Turn, sink: TurnSink) -> BoxFuture<'a, TurnResult> {
        Box::pin(self.run_turn(turn, sink))
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
    input: TurnInput<'a>,
    /// The tools that the turn may use.
    all_tools: ModelTools,
    /// Those that the next request offers.
    tools: ModelTools,
    front_end: FrontEnd,
    stages: StageProgress,
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
        let end = self.run_stages().await;
        if !matches!(end, Err(TurnAbort::Crashed)) {
            self.leave_stage().await;
        }
        end
    }

    async fn run_stages(&mut self) -> TurnResult {
        if let Some(end) = self.route().await? {
            return Ok(end);
        }
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
        let message = format!("the model did not end its turn in {REPLIES_MAX} replies");
        Ok(TurnEnd::failed(FailureKind::BackendFailed, message))
    }

    /// Follows the reply's plan, or calls the tools that it asks for. `Some` if it was the last reply: one without calls, or one
    /// that calls tools of the front end.
    async fn handle_reply(&mut self, reply: ModelReply, message_id: &str) -> Result<Option<TurnEnd>, TurnAbort> {
        if self.take_plan(&reply, message_id).await {
            return Ok(None);
        }
        self.enter_stage(STAGE_WORKER).await;
        let handed_over = self.front_end.take(&reply.calls);
        let is_final = !handed_over.is_empty() || reply.calls.is_empty() && self.listener.steers.is_empty();
        if is_final && handed_over.is_empty() && reply.text.is_empty() {
            return Ok(Some(TurnEnd::failed(FailureKind::BackendFailed, "the model's reply is empty")));
        }
        if !reply.text.is_empty() {
            self.listener.sink.emit_message(message_id, &reply.text, is_final).await;
        }
        if !handed_over.is_empty() {
            // The server's tools come first: the turn ends with the front end's calls open, and the next one has all results.
            let others = reply.calls.iter().filter(|call| !self.front_end.has(&call.name));
            let others: Vec<WireCall> = others.cloned().collect();
            if !others.is_empty() {
                self.call_tools(&others).await?;
            }
            self.front_end.hand_over(&handed_over, &mut self.listener.sink).await?;
        }
        if is_final {
            return Ok(Some(TurnEnd::completed()));
        }
        let results = self.call_tools(&reply.calls).await?;
        // The next request has the calls as they were executed.
        let executed = reply.calls.iter().zip(&results).map(|(call, result)| WireCall {
            arguments: result.edited.clone().unwrap_or_else(|| call.arguments.clone()),
            ..call.clone()
        });
        let executed: Vec<_> = executed.collect();
        self.messages.push(ChatMessage::reply(&reply.text, &executed));
        let answers = executed.iter().zip(&results).map(|(call, result)| ChatMessage::tool_result(call, &result.text));
        self.messages.extend(answers);
        while let Some(steer) = self.listener.steers.pop_front() {
            self.messages.push(ChatMessage::of(Role::User, &steer.accept()));
        }
        Ok(None)
    }

    /// Calls the tools that a reply asks for, all at once. Returns a result for each: an error is for the model, which may do better.
    async fn call_tools(&mut self, calls: &[WireCall]) -> Result<Vec<ToolAnswer>, TurnAbort> {
        let mut results: Vec<BoxFuture<'static, ToolAnswer>> = vec![];
        // A provider's id is unique within its reply only; ours is unique within the session.
        let ids: Vec<_> = calls.iter().map(|_| self.listener.sink.new_id("tool")).collect();
        let of_server = calls.iter().zip(&ids).filter(|(call, _)| self.tools.has(&call.name));
        let reply_calls: Arc<[String]> = of_server.map(|(_, id)| id.clone()).collect();
        for (call, id) in calls.iter().zip(ids) {
            if !self.tools.has(&call.name) {
                let text = self.answer_call(&id, call).await?;
                results.push(Box::pin(std::future::ready(ToolAnswer { text, edited: None })));
                continue;
            }
            self.listener.sink.count_tool()?;
            let called =
                self.listener.sink.call_server_tool(id, call.name.clone(), call.arguments.clone(), reply_calls.clone());
            results.push(Box::pin(async move { read_called(called.await) }));
        }
        // The server records the calls. What the model wrote before them comes first.
        self.listener.sink.flush().await;
        self.listener.during(join_all(results)).await
    }

    /// Answers a call that the server does not execute, and reports it: a change of the shared state, a call of the front end's
    /// tools that cannot be handed over, or one of a tool that does not exist.
    async fn answer_call(&mut self, id: &str, call: &WireCall) -> Result<String, TurnAbort> {
        let payload =
            |status: &str| json!({"toolCallId": id, "name": call.name, "method": "function", "status": status});
        let mut started = payload("started");
        started["arguments"] = self.listener.sink.cutter().cut(&call.arguments, TOOL_COMMAND_CHARS_MAX).into();
        self.listener.sink.start_tool(&started).await?;
        let outcome = match self.front_end.call(call, &self.listener.sink).await {
            Some(outcome) => outcome,
            None => Err(self.tools.unknown(&call.name)),
        };
        let (status, text) = match outcome {
            Ok(text) => ("completed", text),
            Err(text) => ("failed", text),
        };
        let mut ended = payload(status);
        ended["resultSummary"] = self.listener.sink.cutter().cut(&text, TOOL_COMMAND_CHARS_MAX).into();
        self.listener.sink.emit(EventType::ToolCall, &ended).await;
        Ok(text)
    }

    /// Reads one reply of the model and reports it as it arrives.
    async fn read_reply(&mut self, message_id: &str) -> OrEnd<ModelReply> {
        let body = self.endpoint.body(&self.messages, &self.tools);
        let mut stream = match self.open_stream(&body).await? {
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
            match piece {
                ReplyPiece::Text(text) => {
                    self.enter_stage(STAGE_WORKER).await;
                    self.listener.sink.emit_delta(EventType::AssistantDelta, message_id, &text).await;
                    reply.text.push_str(&text);
                }
                ReplyPiece::Reasoning(text) => {
                    self.listener.sink.emit_delta(EventType::ReasoningDelta, &thought_id, &text).await;
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
    async fn open_stream(&mut self, body: &str) -> OrEnd<ReplyStream> {
        let mut pauses = PAUSES_MS.into_iter();
        loop {
            let error = match self.listener.during(self.endpoint.send(body)).await? {
                Ok(stream) => return Ok(Ok(stream)),
                Err(error) => error,
            };
            if let Err(end) = self.pause_before_retry(error, &mut pauses).await? {
                return Ok(Err(end));
            }
        }
    }

    /// Waits as long as the provider asks for, or for the next of the pauses. The end of the turn if a retry does not help.
    async fn pause_before_retry(&mut self, error: ProviderError, pauses: &mut IntoIter<u64, 4>) -> OrEnd<()> {
        let pause = match error.is_throttled {
            true => self.retry_policy.later_pause_ms(self.later_retries),
            false => pauses.next(),
        };
        let Some(pause) = pause.filter(|_| error.is_transient) else { return Ok(Err(error.into_end())) };
        self.later_retries += u32::from(error.is_throttled);
        let requested = error.retry_after_ms.unwrap_or(0).min(PAUSE_MS_MAX);
        self.pause(&error, Duration::from_millis(pause.max(requested))).await?;
        Ok(Ok(()))
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

/// What the model gets of a call.
struct ToolAnswer {
    text: String,
    /// The arguments with which a person has replaced those of the model, as JSON.
    edited: Option<String>,
}

fn read_called(called: Result<CalledTool, Failure>) -> ToolAnswer {
    let called = match called {
        Ok(called) => called,
        Err(failure) => {
            let text = format!("error: the tool could not be called: {}", failure.message);
            return ToolAnswer { text, edited: None };
        }
    };
    let note = if called.truncated { "\n[The result is longer.]" } else { "" };
    let text = match called.status {
        CallStatus::Completed => format!("{}{note}", called.content),
        CallStatus::Declined => format!("error: the call was declined: {}", called.content),
        CallStatus::Failed | CallStatus::OutcomeUnknown | CallStatus::Running => {
            format!("error: {}{note}", called.content)
        }
    };
    ToolAnswer { text, edited: called.edited_arguments.map(|arguments| text_of(&arguments)) }
}

#[expect(clippy::disallowed_methods, reason = "displayed to people; nothing is decided by it")]
fn time_after(pause: Duration) -> Timestamp {
    Timestamp::now().checked_add(pause).unwrap_or(Timestamp::MAX)
}
