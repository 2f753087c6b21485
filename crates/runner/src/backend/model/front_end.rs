//! What a model gets of the front end: its tools, the results of their calls, and the state that it shares. A turn in which the
//! model calls one of these tools ends with the calls pending; the next turn brings the results.

use ostler_protocol::kernel::{
    context::Context,
    conversation::{ConversationMessage, PastCall, Role},
    events::EventType,
    front_end::{FrontEndTool, ToolAnswer, UPDATE_STATE_TOOL, call_payload},
};
use serde_json::{Value, json};

use super::{
    messages::{earlier_messages, push_calls, request_messages},
    wire::{ChatMessage, WireCall},
};
use crate::{
    backend::turn::{Turn, TurnAbort},
    front_end::{FrontEndState, UPDATE_STATE_DESCRIPTION},
    turn_sink::TurnSink,
};

pub(super) struct FrontEnd {
    tools: Vec<FrontEndTool>,
    /// `None` if the front end shares no state.
    state: Option<FrontEndState>,
}

impl FrontEnd {
    pub(super) fn of(turn: &Turn) -> Self {
        let context = Context::of(&turn.command.payload);
        let state = context.state.as_ref().map(FrontEndState::new);
        Self { tools: context.tools, state }
    }

    /// The tools as they are sent to the endpoint.
    pub(super) fn offered(&self) -> Vec<Value> {
        let function = |name: &str, description: &str, parameters: &Value| {
            json!({"type": "function",
                "function": {"name": name, "description": description, "parameters": parameters}})
        };
        let tools = self.tools.iter().map(|tool| function(&tool.name, &tool.description, &tool.parameters));
        let parameters = FrontEndState::parameters();
        let update = self.state.iter().map(|_| function(UPDATE_STATE_TOOL, UPDATE_STATE_DESCRIPTION, &parameters));
        tools.chain(update).collect()
    }

    /// Leaves out the tools that have none of these names.
    pub(super) fn retain(&mut self, wanted: &[String]) {
        let is_wanted = |name: &str| wanted.iter().any(|wanted| wanted == name);
        self.tools.retain(|tool| is_wanted(&tool.name));
        if !is_wanted(UPDATE_STATE_TOOL) {
            self.state = None;
        }
    }

    /// The calls that the front end runs, with their arguments. None of them if the arguments of one do not fit its tool: the
    /// model gets results that say so, and may try again.
    pub(super) fn take<'a>(&self, calls: &'a [WireCall]) -> Vec<(&'a WireCall, Value)> {
        let own = calls.iter().filter_map(|call| Some((call, self.find(&call.name)?)));
        let read = own.map(|(call, tool)| Some((call, tool.read_arguments(&call.arguments).ok()?)));
        read.collect::<Option<Vec<_>>>().unwrap_or_default()
    }

    /// Whether the front end runs the tool of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn find(&self, name: &str) -> Option<&FrontEndTool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// Reports the calls, which the next turn answers.
    pub(super) async fn hand_over(&self, calls: &[(&WireCall, Value)], sink: &mut TurnSink) -> Result<(), TurnAbort> {
        for (call, arguments) in calls {
            // A provider's id is unique within its reply only; ours is unique within the session.
            let id = sink.new_id("tool");
            sink.start_tool(&call_payload(&id, &call.name, arguments)).await?;
        }
        Ok(())
    }

    /// Handles a call that is not handed over. `None` if it is no call of these tools.
    pub(super) async fn call(&mut self, call: &WireCall, sink: &TurnSink) -> Option<Result<String, String>> {
        if call.name == UPDATE_STATE_TOOL
            && let Some(state) = &mut self.state
        {
            return Some(match state.update(&call.arguments) {
                Ok(updated) => {
                    sink.emit(EventType::State, &updated.event).await;
                    Ok(updated.result)
                }
                Err(problem) => Err(problem),
            });
        }
        let tool = self.find(&call.name)?;
        let fault = tool.read_arguments(&call.arguments).err();
        let not_called =
            || "it was not called, because another call of the user's page does not fit its tool".to_owned();
        Some(Err(fault.unwrap_or_else(not_called)))
    }
}

/// The messages of the request, with this context and these earlier turns. Results of the front end's tools follow their calls,
/// which follow those of the server's tools in the same turn; the user's message comes last.
pub(super) fn turn_messages(
    turn: &Turn,
    context: &Context,
    earlier: &[ConversationMessage],
    calls: &[PastCall],
) -> Vec<ChatMessage> {
    if context.tool_answers.is_empty() {
        return request_messages(earlier, calls, &turn.prompt_with(context), &turn.images);
    }
    let answered = |answer: &ToolAnswer| {
        let (id, name, arguments) = (answer.tool_call_id.clone(), answer.name.clone(), answer.arguments.clone());
        (WireCall { id, name, arguments }, answer.result())
    };
    let mut messages = earlier_messages(earlier, calls);
    push_calls(&mut messages, context.tool_answers.iter().map(answered).collect());
    let words = user_text(turn);
    if !words.is_empty() || !turn.images.is_empty() {
        let mut message = ChatMessage::of(Role::User, &context.before(&words));
        message.add_images(&turn.images);
        messages.push(message);
    }
    messages
}

/// Whether the turn has results of the front end's tools and no message of the user.
pub(super) fn only_brings_results(turn: &Turn) -> bool {
    let has_results = !Context::of(&turn.command.payload).tool_answers.is_empty();
    has_results && turn.images.is_empty() && user_text(turn).is_empty()
}

/// The user's own words, without the results that the prompt has.
fn user_text(turn: &Turn) -> String {
    let payload = turn.command.payload.to_value();
    let parts = payload["content"].as_array().into_iter().flatten().filter(|part| part["type"] == "text");
    parts.filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
}
