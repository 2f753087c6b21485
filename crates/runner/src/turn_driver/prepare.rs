//! What happens before the backend sees a turn: the command is acknowledged, what an earlier attempt left behind is
//! settled, and the budgets, messages and images are collected.

use ostler_protocol::{
    Failure, RawJson,
    ids::CommandId,
    kernel::{
        budgets::Allowance,
        commands::{Command, CommandState},
        conversation::Conversation,
        events::{AppendEvent, EventType},
        whole_payloads::WholePayload,
    },
    run_input::history,
};
use serde_json::json;

use crate::{
    backend::{
        interface::Backend,
        turn::{Turn, TurnEnd},
    },
    budgets::Meter,
    environment::BackendEnvironment,
    lease_session::{LeaseRefusal, LeaseSession},
};

/// How to proceed with a command.
pub(super) enum Start {
    Run(Box<(Turn, Allowance, Meter)>),
    /// There is nothing to run. Only the end has to be reported.
    EndNow(CommandId, TurnEnd),
}

pub(super) async fn prepare_turn(
    lease: &mut LeaseSession,
    environment: &BackendEnvironment,
    backend: &dyn Backend,
    command: Command,
) -> Result<Start, LeaseRefusal> {
    let id = command.command_id;
    let is_repeat = command.state != CommandState::Pending && command.attempt_id != Some(lease.attempt_id);
    let mut earlier = None;
    if is_repeat && command.state == CommandState::Running {
        let result = lease.result(id).await?;
        mark_outcome_unknown(lease, id, &result.liveness.open_tool_calls).await?;
        earlier = Some(result);
    }
    let is_acked = command.state == CommandState::Acked && command.attempt_id == Some(lease.attempt_id);
    let command = if is_acked { command } else { lease.ack(id).await? };
    if command.cancel_requested_at.is_some() {
        return Ok(Start::EndNow(id, TurnEnd::cancelled("cancelled on request")));
    }
    let is_short = WholePayload::of(&command.payload).is_some();
    let command = lease.with_whole_payload(command).await?;
    let allowance = match Allowance::of(&lease.run.execution_policy, &command.payload) {
        Ok(allowance) => allowance,
        Err(failure) => return Ok(Start::EndNow(id, TurnEnd::of_failure(failure))),
    };
    let mut meter = Meter::new(allowance.budgets.clone(), environment.prices.clone());
    if let Some(result) = &earlier {
        meter.add_earlier_usage(result);
    }
    let pictures = history::pictures(command.payload.as_str());
    let image_count = pictures.len();
    let wants_images = image_count > 0 && backend.sees_images();
    let wants_conversation = backend.wants_conversation() || backend.keeps_thread();
    let mut earlier_messages =
        if wants_images || wants_conversation { lease.conversation(id).await? } else { Conversation::default() };
    let images = match wants_images {
        // The server knows the images of the short form only.
        true if is_short => {
            pictures.into_iter().filter_map(|picture| picture.url).filter(|url| url.starts_with("data:")).collect()
        }
        true => lease.load_images(std::mem::take(&mut earlier_messages.images)).await,
        false => vec![],
    };
    let Conversation { messages, calls, unsent, truncated, .. } = earlier_messages;
    let past_calls = if wants_conversation { calls } else { vec![] };
    let conversation = if wants_conversation { messages } else { vec![] };
    let images_unseen = image_count - images.len();
    let prompt = command.prompt().unwrap_or_default();
    let (run, thread_id, attempt_id) = (lease.run.clone(), lease.thread_id.clone(), lease.attempt_id);
    let turn = Turn {
        run,
        command,
        prompt,
        thread_id,
        attempt_id,
        is_repeat,
        conversation,
        unsent,
        past_calls,
        truncated,
        images,
        images_unseen,
    };
    Ok(Start::Run(Box::new((turn, allowance, meter))))
}

/// Reports tool calls of an earlier attempt whose outcome can no longer be known.
async fn mark_outcome_unknown(
    lease: &mut LeaseSession,
    command_id: CommandId,
    open_calls: &[String],
) -> Result<(), Failure> {
    if open_calls.is_empty() {
        return Ok(());
    }
    let event = |tool_call_id: &String| AppendEvent {
        event_type: EventType::ToolCall.as_str().to_owned(),
        command_id: Some(command_id.to_string()),
        payload: RawJson::of(&json!({"toolCallId": tool_call_id, "status": "outcome-unknown"})),
    };
    let events = open_calls.iter().map(event).collect();
    let appended = lease.append(events).await?;
    lease.record_append(&appended);
    Ok(())
}
