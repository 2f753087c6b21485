//! A side query to an ACP backend: a process and a session of its own, which end with the answer. The backend can read the
//! workspace and write nowhere but in its temporary home. It is asked not to use tools, and whatever it asks for is refused.

use ostler_protocol::{
    FailureKind,
    kernel::policy::Sandbox,
    limits::NAME_BYTES_MAX,
    rpc::{RpcError, RpcFrame, RpcId},
};
use serde_json::json;

use super::{
    AcpBackend,
    failures::{call_failed, error_text, prompt_failure_kind},
    host::rejected_outcome,
    modes::select_asking_mode,
    session::{CALL_MS, START_MS, check_version},
    wire::{AcpInitialized, PROTOCOL_VERSION, PermissionParams, SessionReply, SessionUpdate},
};
use crate::{
    backend::{
        child::{
            MESSAGE_CHARS_MAX, call, client_info, protocol_violation, send_reply, start_process, unreadable_reply,
        },
        process::{Incoming, Process},
        turn::TurnEnd,
    },
    environment::BackendEnvironment,
    side_queries::SideQuery,
    text::clip,
};

const NO_TOOLS: &str =
    "Use no tools: do not read files, run commands or change anything. Answer only from the conversation.";
/// Lines of the backend that are no frames.
const INVALID_LINES_MAX: u32 = 200;

/// The text that the backend replied with, as far as it was read: at least `chars_max` characters of it.
pub(in crate::backend) async fn ask(
    command: &[String],
    environment: &BackendEnvironment,
    query: &SideQuery,
    chars_max: usize,
) -> Result<String, TurnEnd> {
    let program = AcpBackend::new(command, &[], environment).program(Sandbox::ReadOnly)?;
    let mut process = start_process(&program)?;
    let answer = converse(&mut process, environment, query, chars_max).await;
    process.close().await;
    answer
}

async fn converse(
    process: &mut Process,
    environment: &BackendEnvironment,
    query: &SideQuery,
    chars_max: usize,
) -> Result<String, TurnEnd> {
    let params = json!({"protocolVersion": PROTOCOL_VERSION, "clientInfo": client_info(),
        "clientCapabilities": {"fs": {"readTextFile": false, "writeTextFile": false}, "terminal": false}});
    let initialized: AcpInitialized = call(process, "initialize", &params, START_MS, call_failed).await?;
    check_version(&initialized)?;
    let params = json!({"cwd": environment.require_workspace()?, "mcpServers": []});
    let reply: SessionReply = call(process, "session/new", &params, CALL_MS, call_failed).await?;
    let fits = |id: &String| (1..=NAME_BYTES_MAX).contains(&id.len());
    let session_id = reply.session_id.filter(fits).ok_or_else(|| unreadable_reply("session/new"))?;
    select_asking_mode(process, &session_id, reply.modes.as_ref()).await?;
    let text = format!("{NO_TOOLS}\n\n{}", query.transcript());
    let params = json!({"sessionId": session_id, "prompt": [{"type": "text", "text": text}]});
    let prompt =
        process.start_call("session/prompt", &params).await.map_err(|error| call_failed("session/prompt", &error))?;
    read(process, prompt, &session_id, chars_max).await
}

/// Reads the messages of the backend up to the reply to its prompt. Text before a tool call is not the answer.
async fn read(process: &mut Process, prompt: i64, session_id: &str, chars_max: usize) -> Result<String, TurnEnd> {
    let (mut text, mut invalid_lines) = (String::new(), 0);
    loop {
        match process.next().await {
            None => return Err(TurnEnd::failed(FailureKind::BackendFailed, "the agent ended before it answered")),
            Some(Incoming::Invalid(fault)) => {
                invalid_lines += 1;
                if fault.is_fatal() || invalid_lines > INVALID_LINES_MAX {
                    return Err(TurnEnd::failed(FailureKind::BackendFailed, protocol_violation(&fault)));
                }
            }
            Some(Incoming::Frame(frame)) => match frame {
                RpcFrame::Answer { id, .. } if id == RpcId::Number(prompt) => return Ok(text),
                RpcFrame::Error { id: Some(id), error } if id == RpcId::Number(prompt) => {
                    let (kind, is_throttled) = prompt_failure_kind(&error);
                    let message = clip(&format!("the agent failed: {}", error_text(&error)), MESSAGE_CHARS_MAX);
                    return Err(match is_throttled {
                        true => TurnEnd::blocked(kind, message),
                        false => TurnEnd::failed(kind, message),
                    });
                }
                RpcFrame::Notification { method, params } if method == "session/update" => {
                    let Some(update) = params.view::<SessionUpdate>() else { continue };
                    match update.update.kind.as_str() {
                        _ if update.session_id != session_id => {}
                        "agent_message_chunk" => {
                            text.push_str(update.update.content["text"].as_str().unwrap_or_default());
                        }
                        "tool_call" => text.clear(),
                        _ => {}
                    }
                    if text.len() > chars_max && text.chars().nth(chars_max).is_some() {
                        return Ok(text);
                    }
                }
                RpcFrame::Request { id, method, params } => {
                    let offers = params.view::<PermissionParams>().filter(|_| method == "session/request_permission");
                    let reply = match offers {
                        Some(request) => Ok(rejected_outcome(&request.options, None)),
                        None => Err(RpcError::unknown_method(&method)),
                    };
                    send_reply(process, id, reply).await.map_err(|error| call_failed("session/prompt", &error))?;
                }
                _ => {}
            },
        }
    }
}
