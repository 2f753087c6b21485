//! One turn of an ACP backend: the prompt is sent, updates and requests arrive, and the reply to the prompt ends it.
//! Nothing that a backend does or fails to do can delay the turn for ever.

use std::collections::VecDeque;

use futures_util::FutureExt;
use ostler_protocol::{
    FailureKind, RawJson,
    kernel::events::EventType,
    rpc::{RpcError, RpcFrame, RpcId},
};
use serde_json::{Value, json};
use tokio::time::{Duration, Instant, sleep_until};

use super::{
    failures::{error_text, prompt_failure_kind},
    files::Files,
    host::{AcpHost, LateReply},
    notifications::{COMMANDS_UPDATE, Notifications},
    session::OpenSession,
    terminals::Terminals,
    updates::Updates,
    wire::{PromptReply, SessionUpdate},
};
use crate::{
    backend::{
        child::{MESSAGE_CHARS_MAX, RpcReply, protocol_violation, report_process_end, send_reply},
        process::Incoming,
        turn::{Turn, TurnAbort, TurnEnd, TurnResult},
    },
    environment::BackendEnvironment,
    turn_sink::{Steer, TurnSink},
};

/// How long the backend may take after a cancel to reply to its prompt. Shorter than the runner's own limit.
const CANCEL_MS: u64 = 5_000;
/// A backend that sends nothing for this long, with no tool running, is given up.
const SILENCE_MS: u64 = 600_000;
/// Lines of one turn that are no frames.
const INVALID_LINES_MAX: u32 = 200;
/// Prompts of one turn: its own, and one for each time that steers arrived.
const PROMPTS_MAX: usize = 64;

const CUT_OFF: &str = "Your work on this was cut off before it ended. See how far you came, and go on from there.";

pub(super) struct AcpTurn<'a> {
    session: &'a mut OpenSession,
    turn: &'a Turn,
    sink: TurnSink,
    host: AcpHost,
    updates: Updates,
    notifications: Notifications,
    steers: VecDeque<Steer>,
    invalid_lines: u32,
    /// Whether the backend has done something since the prompt was sent.
    is_working: bool,
    unreachable_ms: u64,
    /// Whether the process can be used for another turn.
    pub(super) is_reusable: bool,
}

enum AcpEvent {
    Stopped,
    Incoming(Option<Incoming>),
    Reply(LateReply),
    Steer(Steer),
    Silence,
}

/// Why a prompt has no good reply.
enum PromptError {
    Refused(RpcError),
    /// The process is gone.
    Gone,
    /// The backend was cancelled and does not stop.
    StopIgnored,
    Failed(FailureKind, String),
}

impl PromptError {
    fn backend_failed(message: impl Into<String>) -> Self {
        Self::Failed(FailureKind::BackendFailed, message.into())
    }
}

/// An image as a block of a prompt. `None` if the URL does not contain the image.
fn image_block(url: &str) -> Option<Value> {
    let (mime_type, data) = url.strip_prefix("data:")?.split_once(";base64,")?;
    Some(json!({"type": "image", "mimeType": mime_type, "data": data}))
}

impl<'a> AcpTurn<'a> {
    pub(super) fn new(
        session: &'a mut OpenSession,
        environment: &BackendEnvironment,
        turn: &'a Turn,
        sink: TurnSink,
    ) -> Self {
        let files = environment.workspace.as_deref().and_then(|workspace| Files::in_workspace(workspace).ok());
        let policy = &turn.run.execution_policy;
        // Programs in a terminal have no access to the backend's own directories.
        let tools = BackendEnvironment { home: None, storage: None, ..environment.clone() };
        let terminals = Terminals::new(tools.guarded(policy.sandbox));
        let host = AcpHost::new(policy, files, terminals, &environment.disabled_tools);
        let updates = Updates::new(session.model.clone(), session.context_window, session.has_gateway);
        Self {
            session,
            turn,
            sink,
            host,
            updates,
            notifications: Notifications::default(),
            steers: VecDeque::new(),
            invalid_lines: 0,
            is_working: false,
            unreachable_ms: environment.retry_policy.unreachable_ms,
            is_reusable: false,
        }
    }

    /// Runs the turn. If the session already contains the prompt, the backend only gets a request to continue.
    pub(super) async fn run(&mut self, has_prompt: bool) -> TurnResult {
        self.skip_stale().await;
        let mut images: Vec<_> = match self.session.sees_images {
            true => self.turn.images.iter().filter_map(|url| image_block(url)).collect(),
            false => vec![],
        };
        let unseen = self.turn.images_unseen + self.turn.images.len() - images.len();
        let thread_prompt = self.turn.thread_prompt_without(std::mem::take(&mut self.session.is_new), unseen);
        if has_prompt {
            images.clear();
        }
        let mut prompt = match (has_prompt, self.turn.is_repeat) {
            (true, _) => CUT_OFF.to_owned(),
            // The backend may have started although its session does not contain the prompt: not all store it at once.
            (false, true) => format!("{CUT_OFF} This was asked:\n\n{thread_prompt}"),
            (false, false) => thread_prompt,
        };
        for _ in 0..PROMPTS_MAX {
            let reply = match self.prompt(&prompt, std::mem::take(&mut images)).await {
                Ok(reply) => reply,
                Err(error) => return self.give_up(error).await,
            };
            let continues =
                reply.stop_reason == "end_turn" && !self.steers.is_empty() && self.sink.check_stop().is_ok();
            self.updates.finish(&self.sink, !continues).await;
            if let Some(usage) = reply.usage.as_ref().filter(|_| !self.updates.has_usage()) {
                self.updates.report_usage(&self.sink, usage).await;
            }
            if !continues {
                self.is_reusable = true;
                return self.end(&reply.stop_reason).await;
            }
            prompt = self.steers.drain(..).map(Steer::accept).collect::<Vec<_>>().join("\n\n");
        }
        self.give_up(PromptError::backend_failed("the turn has no end")).await
    }

    /// Handles what arrived between two turns: requests get an error, changes of the session are reported, the rest is dropped.
    async fn skip_stale(&mut self) {
        while let Some(Some(incoming)) = self.session.process.next().now_or_never() {
            match incoming {
                Incoming::Frame(RpcFrame::Request { id, method, .. }) => {
                    let _ = self.reply(id, Err(RpcError::unknown_method(&method))).await;
                }
                Incoming::Frame(RpcFrame::Notification { method, params }) => {
                    self.notifications.report_late(&self.sink, self.session, &method, &params).await;
                    self.updates.set_model(&self.session.model);
                }
                Incoming::Frame(_) | Incoming::Invalid(_) => {}
            }
        }
    }

    async fn prompt(&mut self, text: &str, images: Vec<Value>) -> Result<PromptReply, PromptError> {
        let mut blocks = vec![json!({"type": "text", "text": text})];
        blocks.extend(images);
        let params = json!({"sessionId": self.session.session_id, "prompt": blocks});
        let call = self.session.process.start_call("session/prompt", &params).await.map_err(|_| PromptError::Gone)?;
        self.is_working = false;
        let prompted_at = Instant::now();
        let mut stopped = Box::pin(self.sink.stopped());
        // Set once the backend was cancelled: how long to wait for its reply.
        let mut stop_by: Option<Instant> = None;
        loop {
            let wait = match stop_by {
                Some(stop_by) => stop_by,
                None if self.is_working => Instant::now() + Duration::from_millis(SILENCE_MS),
                // Most backends retry their provider silently.
                None => prompted_at + Duration::from_millis(self.unreachable_ms),
            };
            let event = tokio::select! {
                biased;
                () = &mut stopped, if stop_by.is_none() => AcpEvent::Stopped,
                incoming = self.session.process.next() => AcpEvent::Incoming(incoming),
                reply = self.host.next_reply() => AcpEvent::Reply(reply),
                steer = self.sink.next_steer(), if stop_by.is_none() => AcpEvent::Steer(steer),
                () = sleep_until(wait) => AcpEvent::Silence,
            };
            match event {
                AcpEvent::Stopped => {
                    stop_by = Some(Instant::now() + Duration::from_millis(CANCEL_MS));
                    self.cancel().await?;
                }
                AcpEvent::Incoming(None) => return Err(PromptError::Gone),
                AcpEvent::Incoming(Some(incoming)) => {
                    if let Some(reply) = self.handle_incoming(incoming, call).await? {
                        return reply;
                    }
                }
                AcpEvent::Reply(LateReply { id, reply, declined }) => {
                    self.updates.mark_declined(declined.as_ref());
                    self.reply(id, reply).await?;
                }
                AcpEvent::Steer(steer) => self.steers.push_back(steer),
                AcpEvent::Silence if stop_by.is_some() => return Err(PromptError::StopIgnored),
                // A tool is running, or the backend waits for us: the limit for the provider no longer applies.
                AcpEvent::Silence if self.updates.has_open_tools() || self.host.is_waiting() => self.is_working = true,
                AcpEvent::Silence => return Err(self.silence_error()),
            }
        }
    }

    fn silence_error(&self) -> PromptError {
        if self.is_working {
            let message = format!("the agent sent nothing for {} s", SILENCE_MS / 1_000);
            return PromptError::Failed(FailureKind::BackendTimeout, message);
        }
        let message = format!(
            "the agent sent nothing for {} ms after its prompt; its provider may be unreachable",
            self.unreachable_ms
        );
        PromptError::Failed(FailureKind::ProviderUnavailable, message)
    }

    /// `Some` if this is the reply to the prompt.
    async fn handle_incoming(
        &mut self,
        incoming: Incoming,
        call: i64,
    ) -> Result<Option<Result<PromptReply, PromptError>>, PromptError> {
        match incoming {
            Incoming::Invalid(fault) => {
                self.invalid_lines += 1;
                // A stray log line is skipped. A fatal one may have been the reply that this turn waits for.
                if fault.is_fatal() || self.invalid_lines > INVALID_LINES_MAX {
                    return Err(PromptError::backend_failed(protocol_violation(&fault)));
                }
            }
            Incoming::Frame(RpcFrame::Notification { method, params }) if method == "session/update" => {
                self.handle_update(&params).await?;
            }
            Incoming::Frame(RpcFrame::Notification { method, params }) => {
                self.notifications.report(&self.sink, self.session, &method, &params).await;
                self.updates.set_model(&self.session.model);
            }
            Incoming::Frame(RpcFrame::Request { id, method, params }) => {
                self.is_working = true;
                let reply = self.host.handle(&mut self.sink, &mut self.updates, &id, &method, &params).await;
                if let Some(reply) = reply {
                    self.reply(id, reply).await?;
                }
            }
            Incoming::Frame(RpcFrame::Answer { id: RpcId::Number(id), result }) if id == call => {
                let reply = result.view::<PromptReply>().filter(|reply| !reply.stop_reason.is_empty());
                let unreadable = || PromptError::backend_failed("the agent's reply to its prompt cannot be read");
                return Ok(Some(reply.ok_or_else(unreadable)));
            }
            Incoming::Frame(RpcFrame::Error { id: Some(RpcId::Number(id)), error }) if id == call => {
                return Ok(Some(Err(PromptError::Refused(error))));
            }
            // A reply to no call of ours, or a second one to the same call.
            Incoming::Frame(RpcFrame::Answer { .. } | RpcFrame::Error { .. }) => {}
        }
        Ok(None)
    }

    async fn handle_update(&mut self, params: &RawJson) -> Result<(), PromptError> {
        // An update that cannot be read is of a kind that we do not know.
        let ours = |notification: &SessionUpdate| notification.session_id == self.session.session_id;
        let Some(notification) = params.view::<SessionUpdate>().filter(ours) else { return Ok(()) };
        if notification.update.kind == COMMANDS_UPDATE {
            self.notifications.report_commands(&self.sink, self.session, params).await;
            return Ok(());
        }
        self.is_working |= notification.update.is_of_turn();
        let reported = self.updates.report(&mut self.sink, notification.update).await;
        self.session.context_window = self.updates.context_window();
        reported.map_err(|_| PromptError::backend_failed("the agent sends more than a turn may hold"))
    }

    async fn reply(&mut self, id: RpcId, reply: RpcReply) -> Result<(), PromptError> {
        send_reply(&mut self.session.process, id, reply).await.map_err(|_| PromptError::Gone)
    }

    async fn cancel(&mut self) -> Result<(), PromptError> {
        let session = json!({"sessionId": self.session.session_id});
        self.session.process.notify("session/cancel", &session).await.map_err(|_| PromptError::Gone)?;
        for (id, outcome) in self.host.cancel_waiting() {
            self.reply(id, Ok(outcome)).await?;
        }
        Ok(())
    }

    /// Ends the turn by the reply to the prompt.
    async fn end(&mut self, stop_reason: &str) -> TurnResult {
        self.sink.check_stop()?;
        let failed = |message: &str| Ok(TurnEnd::failed(FailureKind::BackendFailed, message));
        match stop_reason {
            "end_turn" => Ok(TurnEnd::completed()),
            "max_tokens" => {
                let phase = json!({"phase": "completion:cut-short", "finishReason": "max_tokens"});
                self.sink.emit(EventType::BackendStatus, &phase).await;
                Ok(TurnEnd::completed())
            }
            "max_turn_requests" => {
                let message = "the agent reached its own limit of model calls in one turn";
                Ok(TurnEnd::blocked(FailureKind::BudgetExceeded, message))
            }
            "refusal" => failed("the agent refuses to continue"),
            "cancelled" => Ok(TurnEnd::cancelled("the agent cancelled the turn by itself")),
            other => failed(&format!("the agent ended the turn with {:?}", self.sink.cutter().cut(other, 80))),
        }
    }

    /// Ends a turn whose prompt has no good reply. What arrived so far is reported.
    async fn give_up(&mut self, error: PromptError) -> TurnResult {
        self.updates.finish(&self.sink, false).await;
        match error {
            PromptError::Refused(error) => {
                self.is_reusable = true;
                self.sink.check_stop()?;
                let (kind, is_throttled) = prompt_failure_kind(&error);
                let message = format!("the agent failed: {}", error_text(&error));
                let message = self.sink.cutter().cut(&message, MESSAGE_CHARS_MAX);
                Ok(if is_throttled { TurnEnd::blocked(kind, message) } else { TurnEnd::failed(kind, message) })
            }
            PromptError::StopIgnored => Err(TurnAbort::Stopped),
            PromptError::Gone => {
                report_process_end(&self.sink, &self.session.process).await;
                self.sink.check_stop()?;
                let message = format!("the agent ended during the turn{}", self.session.process.end_text().await);
                Ok(TurnEnd::failed(FailureKind::BackendFailed, message))
            }
            PromptError::Failed(kind, message) => {
                report_process_end(&self.sink, &self.session.process).await;
                self.sink.check_stop()?;
                Ok(TurnEnd::failed(kind, message))
            }
        }
    }
}
