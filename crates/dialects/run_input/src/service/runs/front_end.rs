//! The front end's part of a run beside the message: its tools, the results of their calls, the state it shares with the agent,
//! and the fields of its messages. They are stored with the turn, given to the agent, and read back by the run's followers.

use ostler_protocol::{
    Failure, RawJson, Rule,
    kernel::{
        commands::Command,
        context::{Context, Note, Remark},
        events::Event,
        front_end::{ToolAnswer, UPDATE_STATE_TOOL},
        sessions::Session,
        stages::PLAN_FUNCTION,
    },
    run_input::{
        agui::{
            events::ReplayedInput,
            input::{RunInput, UserMessage},
            messages::InputMessage,
            replay::user_messages,
            replies::{TOOL_RESULT_BYTES_MAX, ToolReply},
            tools::check_conflicts,
        },
        history::{Picture, user_content},
    },
};
use serde_json::{Map, Value};

use super::{
    earlier,
    open_calls::{self, OpenCalls},
    pending_calls::FrontEndCall,
};
use crate::service::{attachments, threads};
use ostler_server::{
    app::App,
    auth::Principal,
    tools::{McpAccess, ToolContext, Toolkit},
};

/// Bytes of results of calls that were passed over, together, beside one message: one result of the largest size fits.
const LATE_RESULTS_BYTES_MAX: usize = TOOL_RESULT_BYTES_MAX;
/// Pending calls that a rejection lists.
const LISTED_MAX: usize = 16;

/// A result that answers a call of the thread.
pub(super) struct AnsweredCall {
    pub reply: ToolReply,
    pub answer: ToolAnswer,
}

impl AnsweredCall {
    fn bytes(&self) -> usize {
        self.answer.content.len() + self.answer.error.as_ref().map_or(0, String::len)
    }

    /// The part of the message's event, redacted.
    pub(super) fn part(&self, app: &App) -> Result<Value, Failure> {
        let mut part = self.answer.part(&self.reply.message_id);
        if !self.reply.fields.is_empty() {
            part["sent"] = self.reply.fields.clone().into();
        }
        Ok(app.redacted(&RawJson::of(&part))?.to_value())
    }
}

/// Rejects tools that have the name of a tool which this server offers to the caller's runs, or that a tool of an MCP server could have.
pub(super) async fn check_tools(app: &App, caller: &Principal, input: &RunInput) -> Result<(), Failure> {
    if input.tools.is_empty() {
        return Ok(());
    }
    let server_tools = server_tools(app, caller).await?;
    let prefixes = Toolkit::mcp_prefixes(app).await?;
    let is_of_mcp = |name: &&str| prefixes.iter().any(|prefix| name.starts_with(prefix));
    let of_mcp = input.tools.iter().map(|tool| tool.name.as_str()).filter(is_of_mcp);
    Ok(check_conflicts(&input.tools, server_tools.iter().map(String::as_str).chain(of_mcp))?)
}

/// The names of the tools and functions that the server itself offers to the caller's runs.
async fn server_tools(app: &App, caller: &Principal) -> Result<Vec<String>, Failure> {
    let context = ToolContext {
        tenant_id: threads::tenant(app, caller)?.into(),
        owner: Some(threads::owner(caller)?.into()),
        run: None,
        command: None,
        // Their names are rejected by their beginnings.
        mcp: McpAccess::None,
    };
    let tools = Toolkit::of(app).list(app, &context).await?;
    Ok(tools.into_keys().chain([UPDATE_STATE_TOOL, PLAN_FUNCTION].map(str::to_owned)).collect())
}

/// The calls that the input answers. A run without a message must answer all of the thread's pending calls. A result of a call for which
/// a message came instead is passed on with the next turn that brings it: the agent may still need it.
pub(super) async fn answers(
    app: &App,
    thread: Option<&Session>,
    input: &RunInput,
) -> Result<Vec<AnsweredCall>, Failure> {
    if input.replies.is_empty() {
        return Ok(vec![]);
    }
    let open = match thread {
        Some(thread) => open_calls::find(app, thread, &input.replies).await?,
        None => OpenCalls::default(),
    };
    let find = |call: &FrontEndCall| input.replies.iter().find(|reply| reply.tool_call_id == call.tool_call_id);
    if input.user.is_none() {
        let unknown = match open.pending.is_empty() {
            true => input.replies.first(),
            // A transcript also has the results of the server's own tools.
            false if !input.transcript.is_empty() => None,
            false => input.replies.iter().find(|reply| !open.has(&reply.tool_call_id)),
        };
        if let Some(unknown) = unknown {
            let message = format!("toolCallId {:?} is no pending tool call of the thread", unknown.tool_call_id);
            return Err(Failure::invalid(Rule::AgentRunMessagesInvalid, app.redactor.redact(&message).into_owned()));
        }
        let missing = open.pending.iter().filter(|call| find(call).is_none());
        let missing: Vec<_> = missing.map(|call| call.tool_call_id.as_str()).take(LISTED_MAX).collect();
        if !missing.is_empty() {
            let message = format!("every pending tool call must be answered; missing: {}", missing.join(", "));
            return Err(Failure::invalid(Rule::AgentRunMessagesInvalid, message));
        }
    }
    let answered = |call: &FrontEndCall| {
        let reply = find(call)?.clone();
        let answer = ToolAnswer {
            tool_call_id: call.tool_call_id.clone(),
            name: call.name.clone(),
            arguments: call.arguments.clone(),
            content: reply.content.clone(),
            error: reply.error.clone(),
        };
        Some(AnsweredCall { reply, answer })
    };
    // A transcript has them again with each message: those that do not fit into this one are passed on with a later one. Without
    // either, each was sent as an answer, and none is left out.
    let may_wait = input.user.is_some() || !input.transcript.is_empty();
    let mut room = if may_wait { LATE_RESULTS_BYTES_MAX } else { usize::MAX };
    let late = open.passed_over.iter().filter_map(answered).filter(|late| {
        let left = room.checked_sub(late.bytes());
        room = left.unwrap_or(room);
        left.is_some()
    });
    let late: Vec<_> = late.collect();
    Ok(late.into_iter().chain(open.pending.iter().filter_map(answered)).collect())
}

/// The context of the turn: what the agent receives with the message.
pub(super) fn context(input: &RunInput, answers: &[AnsweredCall], state: Option<Value>) -> Context {
    let is_answer = |message: &InputMessage| match message {
        InputMessage::Tool { tool_call_id, .. } => {
            answers.iter().any(|answered| answered.answer.tool_call_id == *tool_call_id)
        }
        _ => false,
    };
    let others = input.others.iter().filter(|sent| !is_answer(&sent.message));
    Context {
        messages: others.map(|sent| sent.remark()).collect(),
        notes: input.context.clone(),
        about: input.user.as_ref().map(about).unwrap_or_default(),
        clock: None,
        state,
        tools: input.tools.clone(),
        tool_answers: answers.iter().map(|answered| answered.answer.clone()).collect(),
    }
}

/// What the fields of the user's message mean to an agent.
fn about(user: &UserMessage) -> Vec<Note> {
    let text = |fields: &Map<String, Value>, name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
    let name = text(&user.fields, "name").map(|value| Note { description: "The user's name".to_owned(), value });
    let files = user.part_fields.iter().filter_map(|fields| text(fields, "filename"));
    let files = files.map(|value| Note { description: "File name of a picture".to_owned(), value });
    name.into_iter().chain(files).collect()
}

/// The state that the agent shares with the front end, redacted, and whether it differs from the thread's. An empty object is what a
/// stock client has at first: it changes nothing, and the agent gets the thread's state. `None` if the front end sent none.
pub(super) async fn state(
    app: &App,
    thread: Option<&Session>,
    input: &RunInput,
) -> Result<(Option<Value>, bool), Failure> {
    let Some(state) = &input.state else { return Ok((None, false)) };
    let state = app.redacted(&RawJson::of(state))?.to_value();
    let current = match thread {
        Some(thread) => earlier::state(app, thread.session, thread.last_seq).await?.value().cloned(),
        None => None,
    };
    if state.as_object().is_some_and(Map::is_empty) {
        return Ok((Some(current.unwrap_or(state)), false));
    }
    let differs = current.as_ref() != Some(&state);
    Ok((Some(state), differs))
}

/// Whether the run's followers read back more than its message.
pub(super) fn has_input(input: &RunInput, context: &Context) -> bool {
    let has_fields =
        |user: &UserMessage| !user.fields.is_empty() || user.part_fields.iter().any(|fields| !fields.is_empty());
    let is_more = !context.messages.is_empty() || !context.notes.is_empty() || !context.tools.is_empty();
    is_more
        || !context.tool_answers.is_empty()
        || context.state.is_some()
        || input.user.as_ref().is_some_and(has_fields)
}

/// What a run was started with, from its command and the event of its message.
pub(super) fn replayed(app: &App, thread_id: &str, run_id: &str, command: &Command, event: &Event) -> ReplayedInput {
    let context = Context::of(&command.payload);
    let signed = |picture: &Picture| attachments::url_of(app, picture);
    let message = event.payload.as_deref().and_then(user_content);
    let own = message.map(|message| user_messages(message, signed)).unwrap_or_default();
    let own = own.iter().map(|message| serde_json::to_value(message).unwrap_or_default());
    ReplayedInput {
        thread_id: thread_id.to_owned(),
        run_id: run_id.to_owned(),
        parent_run_id: None,
        state: context.state,
        messages: own.chain(context.messages.iter().filter_map(Remark::as_sent)).collect(),
        tools: context.tools,
        context: context.notes,
    }
}
