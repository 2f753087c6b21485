//! The stages of a turn: the router makes a plan, and the worker gets the tools and the context that the plan names. In `auto` the
//! first reply decides: a text or a call of a tool is the worker's already, so that a simple message takes no further request.

use ostler_protocol::kernel::{
    context::Context,
    conversation::Role,
    events::{EventType, PHASE_ROUTER_FALLBACK, PHASE_ROUTER_PLANNED},
    stages::{
        PLAN_BYTES_MAX, PLAN_FUNCTION, PlanContext, PlanProblem, RouterMode, RuntimeConfig, STAGE_ROUTER, STAGE_WORKER,
        TurnPlan, last_exchange, plan_function, router_text, window,
    },
};
use serde_json::json;
use tokio::time::{Duration, Instant, timeout_at};

use super::{
    ModelReply, ModelTurn, OrEnd, PAUSES_MS,
    front_end::turn_messages,
    messages::push_text,
    stream::{ReplyPiece, ReplyStream},
    tools::ModelTools,
    wire::{ChatMessage, WireCall},
};
use crate::{
    backend::turn::{Turn, TurnAbort, TurnEnd},
    turn_sink::TurnSink,
};

/// Characters of a plan's instructions in its event.
const REPORTED_CHARS_MAX: usize = 1_000;
/// Characters of the name of a tool that is reported.
const REPORTED_NAME_CHARS_MAX: usize = 64;

/// Follows the text that the model wrote before a plan that cannot be used. A request does not end with a message of the model.
const WITHOUT_PLAN: &str = "Your plan could not be used. Continue without it.";

/// What the model receives of a turn.
pub(super) struct TurnInput<'a> {
    pub(super) turn: &'a Turn,
    pub(super) config: RuntimeConfig,
}

impl<'a> TurnInput<'a> {
    pub(super) fn of(turn: &'a Turn) -> Self {
        Self { turn, config: RuntimeConfig::of(&turn.command.payload) }
    }

    /// The messages of the first request. With a plan: those that the worker gets, after the text that the model wrote before it made
    /// the plan.
    pub(super) fn messages(&self, plan: Option<&TurnPlan>, written: &str) -> Vec<ChatMessage> {
        let turn = self.turn;
        let whole = Context::of(&turn.command.payload);
        let (context, has_earlier) = match plan {
            Some(plan) => (plan.select(whole), plan.uses(PlanContext::Conversation)),
            None => (whole, true),
        };
        let limit = self.config.messages_max.map_or(usize::MAX, |max| max as usize);
        let messages_max = if has_earlier { limit } else { 0 };
        let needed = if context.tool_answers.is_empty() { 0 } else { last_exchange(&turn.conversation) };
        let (earlier, calls) = window(&turn.conversation, &turn.past_calls, messages_max.max(needed));
        let mut messages = turn_messages(turn, &context, earlier, &calls);
        if !written.is_empty() {
            push_text(&mut messages, Role::Assistant, written);
        }
        if let Some(plan) = plan {
            push_text(&mut messages, Role::User, &plan.worker_text());
        }
        messages
    }
}

/// A reply that was to be a plan.
struct RouterReply {
    planned: Result<TurnPlan, PlanProblem>,
    /// The text before the plan that the user has received.
    written: String,
    /// The names of the functions that it called beside the plan. They are not called.
    ignored: Vec<String>,
}

impl RouterReply {
    fn problem(problem: PlanProblem) -> Self {
        Self { planned: Err(problem), written: String::new(), ignored: vec![] }
    }
}

/// The names of the calls other than the one that makes the plan.
fn ignored_calls(calls: &[WireCall], plan: Option<&WireCall>) -> Vec<String> {
    let others = calls.iter().filter(|call| !plan.is_some_and(|plan| std::ptr::eq(*call, plan)));
    others.map(|call| call.name.clone()).collect()
}

/// The progress of a turn through its stages.
pub(super) struct StageProgress {
    /// `None` if the turn has no stages.
    router: Option<RouterMode>,
    /// The stage that has begun and not ended.
    open: Option<&'static str>,
    /// The next reply may be a plan.
    awaits_plan: bool,
}

impl StageProgress {
    pub(super) fn new(router: Option<RouterMode>) -> Self {
        Self { router, open: None, awaits_plan: false }
    }
}

impl ModelTurn<'_> {
    /// The stage of the router, as far as it comes before the first reply of the worker. `Some` if the turn ends with it.
    pub(super) async fn route(&mut self) -> Result<Option<TurnEnd>, TurnAbort> {
        match self.stages.router {
            None => {}
            Some(RouterMode::Off) => self.enter_stage(STAGE_WORKER).await,
            Some(RouterMode::Auto) => {
                self.enter_stage(STAGE_ROUTER).await;
                let names = self.all_tools.names();
                // Without tools there is nothing to choose: the first reply is the worker's.
                if !names.is_empty() {
                    self.tools = self.all_tools.with_function(plan_function(&names));
                    self.stages.awaits_plan = true;
                }
            }
            Some(RouterMode::Always) => {
                self.enter_stage(STAGE_ROUTER).await;
                let reply = match self.ask_router().await? {
                    Ok(reply) => reply,
                    Err(end) => return Ok(Some(end)),
                };
                // The request may have used up the budget.
                self.listener.sink.check_stop()?;
                self.adopt(reply).await;
            }
        }
        Ok(None)
    }

    /// Requests a plan. Nothing of the reply is displayed. A provider that does not reply at all ends the turn, as it would without a
    /// router. A request that is given up counts as one call of the model, too.
    async fn ask_router(&mut self) -> OrEnd<RouterReply> {
        let body = self.router_body();
        let (mut stream, deadline) = match self.open_router_stream(&body).await? {
            Ok(Some(opened)) => opened,
            Ok(None) => {
                self.listener.sink.emit_usage(self.endpoint.unknown_usage()).await;
                return Ok(Ok(RouterReply::problem(PlanProblem::TimedOut)));
            }
            Err(end) => return Ok(Err(end)),
        };
        let read = self.read_plan_text(&mut stream, deadline).await;
        let end = stream.into_end();
        self.listener.sink.emit_usage(end.usage).await;
        let call = end.calls.iter().find(|call| call.name == PLAN_FUNCTION);
        let planned = read?.and_then(|text| {
            let text = call.map_or(text.as_str(), |call| call.arguments.as_str());
            match (TurnPlan::read(text, |name| self.all_tools.offers(name)), end.calls.first()) {
                (Err(PlanProblem::Empty), Some(other)) if call.is_none() => {
                    let name = self.listener.sink.cutter().cut(&other.name, REPORTED_NAME_CHARS_MAX);
                    Err(PlanProblem::ToolCall(name))
                }
                (read, _) => read,
            }
        });
        Ok(Ok(RouterReply { planned, written: String::new(), ignored: ignored_calls(&end.calls, call) }))
    }

    /// Sends the router's request until a reply begins. Also returns when it must be complete. `None` if it did not begin in time. Each
    /// attempt has the whole time: the pauses that a provider asks for do not count.
    async fn open_router_stream(&mut self, body: &str) -> OrEnd<Option<(ReplyStream, Instant)>> {
        let limit = Duration::from_millis(self.input.config.router_limit_ms());
        let mut pauses = PAUSES_MS.into_iter();
        loop {
            let deadline = Instant::now() + limit;
            let sending = self.listener.during(self.endpoint.send(body));
            let Ok(sent) = timeout_at(deadline, sending).await else { return Ok(Ok(None)) };
            let error = match sent? {
                Ok(stream) => return Ok(Ok(Some((stream, deadline)))),
                Err(error) => error,
            };
            if let Err(end) = self.pause_before_retry(error, &mut pauses).await? {
                return Ok(Err(end));
            }
        }
    }

    /// The body of the router's own request. An endpoint that gets no tools may not accept any.
    fn router_body(&self) -> String {
        let mut messages = self.input.messages(None, "");
        push_text(&mut messages, Role::User, &router_text(self.all_tools.described()));
        let names = self.all_tools.names();
        let tools = match names.is_empty() {
            true => ModelTools::default(),
            false => ModelTools::default().with_function(plan_function(&names)),
        };
        self.endpoint.body(&messages, &tools)
    }

    async fn read_plan_text(
        &mut self,
        stream: &mut ReplyStream,
        deadline: Instant,
    ) -> Result<Result<String, PlanProblem>, TurnAbort> {
        let mut text = String::new();
        loop {
            let Ok(piece) = timeout_at(deadline, self.listener.during(stream.next())).await else {
                return Ok(Err(PlanProblem::TimedOut));
            };
            match piece? {
                Ok(Some(ReplyPiece::Text(piece))) => text.push_str(&piece),
                Ok(Some(ReplyPiece::Reasoning(_))) => {}
                Ok(None) => return Ok(Ok(text)),
                Err(_) => return Ok(Err(PlanProblem::Interrupted)),
            }
            if text.len() > PLAN_BYTES_MAX {
                return Ok(Err(PlanProblem::TooLong));
            }
        }
    }

    /// Takes the plan of a first reply in `auto`. Returns true if the reply was only a plan, or nothing: the worker then makes the next
    /// request. Any other reply is the worker's.
    pub(super) async fn take_plan(&mut self, reply: &ModelReply, message_id: &str) -> bool {
        if !std::mem::take(&mut self.stages.awaits_plan) {
            return false;
        }
        self.tools = self.all_tools.clone();
        let call = reply.calls.iter().find(|call| call.name == PLAN_FUNCTION);
        let planned = match call {
            Some(call) => TurnPlan::read(&call.arguments, |name| self.all_tools.offers(name)),
            None if reply.text.is_empty() && reply.calls.is_empty() => Err(PlanProblem::Empty),
            None => return false,
        };
        if !reply.text.is_empty() {
            self.listener.sink.emit_message(message_id, &reply.text, false).await;
        }
        let (written, ignored) = (reply.text.clone(), ignored_calls(&reply.calls, call));
        self.adopt(RouterReply { planned, written, ignored }).await;
        true
    }

    /// Prepares the worker's first request by the plan. Without one the worker gets everything, and an event has the reason.
    async fn adopt(&mut self, reply: RouterReply) {
        let (sink, written) = (&self.listener.sink, reply.written);
        match reply.planned {
            Ok(plan) => {
                let message = sink.cutter().cut(&plan.instructions, REPORTED_CHARS_MAX);
                let phase = json!({"phase": PHASE_ROUTER_PLANNED, "tools": plan.tools, "context": plan.context,
                    "ignoredCalls": reply.ignored, "message": message});
                sink.emit(EventType::BackendStatus, &phase).await;
                self.tools = self.all_tools.restricted_to(&plan.tools);
                self.front_end.retain(&plan.tools);
                self.messages = self.input.messages(Some(&plan), &written);
            }
            Err(problem) => {
                tracing::warn!(%problem, "the router made no usable plan; the worker gets all tools and context");
                let phase = json!({"phase": PHASE_ROUTER_FALLBACK, "reason": problem.as_str(),
                    "ignoredCalls": reply.ignored, "message": problem.to_string()});
                sink.emit(EventType::BackendStatus, &phase).await;
                if !written.is_empty() {
                    push_text(&mut self.messages, Role::Assistant, &written);
                    push_text(&mut self.messages, Role::User, WITHOUT_PLAN);
                }
            }
        }
        // What the user has added in the meantime.
        while let Some(steer) = self.listener.steers.pop_front() {
            push_text(&mut self.messages, Role::User, &steer.accept());
        }
        self.enter_stage(STAGE_WORKER).await;
    }

    /// Ends the open stage and begins this one. Without effect if the turn has no stages, or is in this one.
    pub(super) async fn enter_stage(&mut self, stage: &'static str) {
        if self.stages.router.is_none() || self.stages.open == Some(stage) {
            return;
        }
        self.leave_stage().await;
        self.stages.open = Some(stage);
        emit_step(&self.listener.sink, stage, "started").await;
    }

    pub(super) async fn leave_stage(&mut self) {
        if let Some(stage) = self.stages.open.take() {
            emit_step(&self.listener.sink, stage, "finished").await;
        }
    }
}

async fn emit_step(sink: &TurnSink, name: &str, status: &str) {
    sink.emit(EventType::Step, &json!({"name": name, "status": status})).await;
}
