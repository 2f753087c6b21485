//! One turn of Codex: from `turn/start` to the end that Codex reports. During the turn its notifications become events, its
//! requests are answered, steers are delivered, and an order to stop interrupts it.
//!
//! `turn/completed` is the truth about an end. Codex may never reply to an interrupt, and a turn whose provider cannot be
//! reached never ends by itself. Both waits are bounded here.

use std::collections::{HashMap, VecDeque};

use ostler_protocol::{
    FailureKind, RawJson,
    rpc::{RpcFrame, RpcId},
};
use serde_json::{Value, json};
use tokio::time::{Duration, Instant, sleep_until, timeout_at};

use super::{
    approvals::{Approvals, CodexApproval, ReviewDecision, accepted_for_toolkit, is_for_toolkit},
    failures,
    items::Items,
    thread::{CALL_MS, NOTICE_CHARS_MAX, OpenThread},
    unreported_commands::UnreportedCommands,
    wire::{ApprovalRequest, TurnError, TurnNote, WireTurn},
};
use crate::{
    backend::{
        child::{call_failed, report_process_end, send_reply},
        process::{CallError, Incoming},
        turn::{Turn, TurnAbort, TurnEnd, TurnResult},
    },
    environment::BackendEnvironment,
    turn_sink::{Steer, TurnSink},
};

/// The prompt for a thread that already contains the turn's prompt.
const CONTINUE: &str = "The work on this request was cut off before it was finished. Look at what has been done already, and \
    go on from there; do not do again what is done.";
/// How long Codex may take after an interrupt to report the turn's end. The runner waits a little longer before it drops us.
const STOP_MS: u64 = 5_000;
/// How long to clean up terminals that outlived an interrupt.
const CLEAN_MS: u64 = 2_000;

pub(super) struct CodexTurn<'a> {
    pub(super) thread: &'a mut OpenThread,
    /// The session's thread. The backend remembers it whatever happens to this turn.
    pub(super) thread_id: &'a mut Option<String>,
    pub(super) environment: &'a BackendEnvironment,
    turn: &'a Turn,
    pub(super) sink: TurnSink,
    pub(super) items: Items,
    pub(super) unreported: UnreportedCommands,
    approvals: Approvals,
    pub(super) turn_id: String,
    has_started: bool,
    /// Steers that arrived before Codex accepts any.
    steers: VecDeque<Steer>,
    /// Steers sent to Codex and not yet accepted, by call id.
    steering: HashMap<i64, Steer>,
    /// When Codex began to retry its provider. `None` while the provider responds.
    pub(super) retrying_since: Option<Instant>,
    /// Whether the loss of the connection to the provider was reported.
    pub(super) is_disconnected: bool,
    /// Set while the turn is being ended.
    ending: Option<TurnEnding>,
    /// The decision on an approval that ended the turn.
    cancelled_by: Option<ReviewDecision>,
    pub(super) notes: u32,
    /// How often the provider asked us to come back later.
    pub(super) provider_retries: u32,
    /// Whether the process can be used for another turn.
    pub(super) is_reusable: bool,
}

/// A turn that is being ended.
struct TurnEnding {
    deadline: Instant,
    /// How the turn ends. `None` if the runner stopped it and knows the reason.
    end: Option<TurnEnd>,
}

impl TurnEnding {
    fn result(self) -> Result<CodexEnd, TurnAbort> {
        self.end.map(CodexEnd::Ended).ok_or(TurnAbort::Stopped)
    }
}

/// How Codex left a turn.
enum CodexEnd {
    Ended(TurnEnd),
    /// The provider asks us to come back later.
    Later(TurnError),
}

enum CodexEvent {
    Stop,
    Incoming(Option<Incoming>),
    Decided(CodexApproval),
    Steer(Steer),
    TimeUp,
}

/// `Some` if Codex reports that its turn ended. An error means that it does not read its input any more.
pub(super) type Handled = Result<Option<WireTurn>, CallError>;

impl<'a> CodexTurn<'a> {
    pub(super) fn new(
        thread: &'a mut OpenThread,
        thread_id: &'a mut Option<String>,
        environment: &'a BackendEnvironment,
        turn: &'a Turn,
        sink: TurnSink,
    ) -> Self {
        let has_gateway = thread.has_gateway;
        Self {
            thread,
            thread_id,
            environment,
            turn,
            sink,
            items: Items::new(has_gateway),
            unreported: UnreportedCommands::default(),
            approvals: Approvals::default(),
            turn_id: String::new(),
            has_started: false,
            steers: VecDeque::new(),
            steering: HashMap::new(),
            retrying_since: None,
            is_disconnected: false,
            ending: None,
            cancelled_by: None,
            notes: 0,
            provider_retries: 0,
            is_reusable: true,
        }
    }

    /// Runs the turn. If the thread already contains the prompt, Codex only gets a request to continue.
    pub(super) async fn run(&mut self, has_prompt: bool) -> TurnResult {
        let prompt = self.turn.thread_prompt(!self.thread.is_on_disk);
        let mut text = if has_prompt { CONTINUE } else { prompt.as_str() };
        loop {
            if let Err(error) = self.start(text).await {
                self.is_reusable = false;
                report_process_end(&self.sink, &self.thread.process).await;
                return Ok(call_failed(self.sink.cutter(), "turn/start", &error));
            }
            match self.listen().await? {
                CodexEnd::Ended(end) => return Ok(end),
                CodexEnd::Later(error) => {
                    if let Some(end) = self.wait_for_provider(&error).await? {
                        return Ok(end);
                    }
                    text = CONTINUE;
                }
            }
        }
    }

    async fn start(&mut self, text: &str) -> Result<(), CallError> {
        // Codex stores the images in its thread, so they are sent once.
        let images = if text == CONTINUE { &[][..] } else { &self.turn.images };
        let params = json!({"threadId": self.thread.thread_id, "input": turn_input(text, images),
            "clientUserMessageId": self.turn.command.command_id});
        let reply = self.thread.process.call("turn/start", &params, Duration::from_millis(CALL_MS)).await?;
        self.has_started = false;
        self.retrying_since = None;
        self.turn_id = reply.view::<TurnNote>().ok_or(CallError::Gone)?.turn.id;
        Ok(())
    }

    async fn listen(&mut self) -> Result<CodexEnd, TurnAbort> {
        let stopped = self.sink.stopped();
        tokio::pin!(stopped);
        loop {
            let deadline = self.deadline();
            let event = tokio::select! {
                () = &mut stopped, if self.ending.is_none() => CodexEvent::Stop,
                incoming = self.thread.process.next() => CodexEvent::Incoming(incoming),
                decided = self.approvals.next() => CodexEvent::Decided(decided),
                steer = self.sink.next_steer(), if self.ending.is_none() => CodexEvent::Steer(steer),
                () = sleep_until_some(deadline) => CodexEvent::TimeUp,
            };
            let handled = match event {
                CodexEvent::Stop => self.end_turn(None).await,
                CodexEvent::Steer(steer) if self.has_started => self.send_steer(steer).await,
                CodexEvent::Steer(steer) => {
                    self.steers.push_back(steer);
                    Ok(None)
                }
                CodexEvent::Decided(approval) => self.send_decision(approval).await,
                CodexEvent::Incoming(Some(Incoming::Frame(frame))) => self.handle_frame(frame).await,
                CodexEvent::Incoming(Some(Incoming::Invalid(fault))) => {
                    self.report_note("noise", &fault.to_string()).await;
                    Ok(None)
                }
                CodexEvent::Incoming(None) => Err(CallError::Gone),
                CodexEvent::TimeUp => match self.ending {
                    Some(_) => return self.give_up().await,
                    None => self.end_turn(Some(self.unreachable_end())).await,
                },
            };
            match handled {
                Ok(None) => {}
                Ok(Some(turn)) => return self.finish(turn).await,
                Err(_) => return self.give_up().await,
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let limit = Duration::from_millis(self.environment.retry_policy.unreachable_ms);
        match &self.ending {
            Some(ending) => Some(ending.deadline),
            None => self.retrying_since.map(|since| since + limit),
        }
    }

    fn unreachable_end(&self) -> TurnEnd {
        let ms = self.environment.retry_policy.unreachable_ms;
        TurnEnd::failed(FailureKind::ProviderUnavailable, format!("the provider could not be reached for {ms} ms"))
    }

    /// Interrupts the turn. It has ended only when Codex reports so.
    async fn end_turn(&mut self, end: Option<TurnEnd>) -> Handled {
        self.ending = Some(TurnEnding { deadline: Instant::now() + Duration::from_millis(STOP_MS), end });
        self.interrupt().await
    }

    async fn interrupt(&mut self) -> Handled {
        // A turn that has not started cannot be interrupted. It is interrupted as soon as it starts.
        if self.has_started {
            let params = json!({"threadId": self.thread.thread_id, "turnId": self.turn_id});
            self.thread.process.start_call("turn/interrupt", &params).await?;
        }
        Ok(None)
    }

    async fn send_steer(&mut self, steer: Steer) -> Handled {
        let params = json!({"threadId": self.thread.thread_id, "expectedTurnId": self.turn_id,
            "input": turn_input(&steer.text, &[])});
        let id = self.thread.process.start_call("turn/steer", &params).await?;
        self.steering.insert(id, steer);
        Ok(None)
    }

    async fn send_decision(&mut self, approval: CodexApproval) -> Handled {
        if matches!(approval.decision, ReviewDecision::Cancel | ReviewDecision::Expired) {
            self.cancelled_by = Some(approval.decision);
        }
        self.thread.process.reply(approval.id, Ok(&approval.decision.reply())).await?;
        Ok(None)
    }

    async fn handle_frame(&mut self, frame: RpcFrame) -> Handled {
        match frame {
            RpcFrame::Notification { method, params } => return self.handle_notification(&method, &params).await,
            RpcFrame::Request { id, method, params } => self.handle_request(id, &method, &params).await?,
            RpcFrame::Answer { id: RpcId::Number(id), .. } => {
                if let Some(steer) = self.steering.remove(&id) {
                    steer.accept();
                }
            }
            RpcFrame::Error { id: Some(RpcId::Number(id)), error } => {
                // Not accepted: the steer ends undelivered, with the turn.
                if self.steering.remove(&id).is_some() {
                    self.report_note("turn/steer:refused", &error.message).await;
                }
            }
            RpcFrame::Answer { .. } | RpcFrame::Error { .. } => {}
        }
        Ok(None)
    }

    async fn handle_request(&mut self, id: RpcId, method: &str, params: &RawJson) -> Result<(), CallError> {
        if self.thread.has_gateway && is_for_toolkit(method, params) {
            return send_reply(&mut self.thread.process, id, Ok(accepted_for_toolkit())).await;
        }
        let item = params.view::<ApprovalRequest>().map(|request| request.item_id).unwrap_or_default();
        let tool_call_id = (!item.is_empty()).then(|| self.items.event_id(&mut self.sink, &item, "tool"));
        let policy = self.turn.run.execution_policy.approval;
        let changes = self.items.changes(&item);
        let reply = self.approvals.handle(&mut self.sink, policy, &id, method, params, changes, tool_call_id).await;
        match reply {
            Some(reply) => send_reply(&mut self.thread.process, id, reply).await,
            None => Ok(()),
        }
    }

    /// The turn has started: sends the interrupt or the steers that waited for it.
    pub(super) async fn mark_started(&mut self) -> Handled {
        self.has_started = true;
        if self.ending.is_some() {
            return self.interrupt().await;
        }
        while let Some(steer) = self.steers.pop_front() {
            self.send_steer(steer).await?;
        }
        Ok(None)
    }

    /// Ends the turn as Codex reports it.
    async fn finish(&mut self, turn: WireTurn) -> Result<CodexEnd, TurnAbort> {
        let is_reply = turn.status == "completed" && self.ending.is_none();
        self.items.release_message(&mut self.sink, is_reply).await;
        if let Some(ending) = self.ending.take() {
            self.clean_terminals().await;
            return ending.result();
        }
        if is_reply {
            // Commands that Codex left running continue. Their outcome will not be reported in this turn.
            self.items.abandon_tools(&mut self.sink).await;
        } else {
            self.clean_terminals().await;
        }
        let error = turn.error.unwrap_or_default();
        Ok(match (turn.status.as_str(), self.cancelled_by) {
            ("completed", _) => CodexEnd::Ended(TurnEnd::completed()),
            ("failed", _) if failures::is_throttled(&error) => CodexEnd::Later(error),
            ("failed", _) => CodexEnd::Ended(failures::turn_failed(self.sink.cutter(), &error)),
            ("interrupted", Some(ReviewDecision::Expired)) => {
                let message = "the agent's permission request was not answered in time";
                CodexEnd::Ended(TurnEnd::blocked(FailureKind::Cancelled, message))
            }
            ("interrupted", Some(_)) => {
                let message = "permission was denied, and the turn ended";
                CodexEnd::Ended(TurnEnd::blocked(FailureKind::PermissionDenied, message))
            }
            (status, _) => {
                let status = self.sink.cutter().cut(status, NOTICE_CHARS_MAX);
                let message = format!("the agent ended the turn as {status}");
                CodexEnd::Ended(TurnEnd::failed(FailureKind::BackendFailed, message))
            }
        })
    }

    /// Ends the commands that still run. An interrupt does not: their shell lives on in a session of its own.
    async fn clean_terminals(&mut self) {
        if !self.items.has_open_tools() {
            return;
        }
        let until = Instant::now() + Duration::from_millis(CLEAN_MS);
        let params = json!({"threadId": self.thread.thread_id});
        let method = "thread/backgroundTerminals/clean";
        let cleaned = self.thread.process.call(method, &params, Duration::from_millis(CLEAN_MS)).await;
        while cleaned.is_ok() && self.items.has_open_tools() {
            let Ok(Some(Incoming::Frame(frame))) = timeout_at(until, self.thread.process.next()).await else { break };
            if self.handle_frame(frame).await.is_err() {
                break;
            }
        }
        // Commands that cannot be cleaned up end with the process.
        self.is_reusable = !self.items.has_open_tools();
        self.items.abandon_tools(&mut self.sink).await;
    }

    /// Gives up the process, because Codex is gone or does not end its turn.
    async fn give_up(&mut self) -> Result<CodexEnd, TurnAbort> {
        self.is_reusable = false;
        self.items.release_message(&mut self.sink, false).await;
        self.items.abandon_tools(&mut self.sink).await;
        report_process_end(&self.sink, &self.thread.process).await;
        match self.ending.take() {
            Some(ending) => ending.result(),
            None => {
                let message = format!("the agent ended during the turn{}", self.thread.process.end_text().await);
                Ok(CodexEnd::Ended(TurnEnd::failed(FailureKind::BackendFailed, message)))
            }
        }
    }
}

fn turn_input(text: &str, images: &[String]) -> Value {
    let mut input = vec![json!({"type": "text", "text": text, "text_elements": []})];
    input.extend(images.iter().map(|url| json!({"type": "image", "url": url})));
    input.into()
}

async fn sleep_until_some(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
