//! One turn's conversation with an agent: the prompt goes out, updates and requests come in, and the answer to the prompt
//! ends it. Nothing an agent does or leaves undone can hold the turn up for ever.

use std::collections::VecDeque;

use futures_util::FutureExt;
use ostler_protocol::{
    FailureKind, RawJson,
    events::EventType,
    rpc::{Frame, RpcError, RpcId},
};
use serde_json::{Value, json};
use tokio::time::{Duration, Instant, sleep_until};

use super::{
    Live, MESSAGE_CHARS_MAX,
    files::Files,
    host::{Host, Settled},
    not_protocol, process_ended,
    terminals::Terminals,
    updates::Updates,
    wire::{Prompted, Updated},
};
use crate::{
    Outfit,
    agent::{Left, Turn, TurnEnd, TurnResult, process::Heard},
    holdback::clip,
    link::{Link, Steer},
};

/// After a cancel, for the agent to answer its prompt. Shorter than the runner's own patience with an agent.
const CANCEL_MS: u64 = 5_000;
/// Without a word and without a tool at work, an agent has lost its thread.
const SILENCE_MS: u64 = 600_000;
/// Lines that are no frames, in one turn.
const NOISE_MAX: u32 = 200;
/// Prompts of one turn: its own, and one for each time somebody spoke in between.
const PROMPTS_MAX: usize = 64;

const CUT_OFF: &str = "Your work on this was cut off before it ended. See how far you came, and go on from there.";

pub struct Talk<'a> {
    live: &'a mut Live,
    turn: &'a Turn,
    link: Link,
    host: Host,
    updates: Updates,
    steers: VecDeque<Steer>,
    noise: u32,
    /// The agent has done something since it was asked.
    is_at_it: bool,
    unreachable_ms: u64,
    /// The process can be used for another turn.
    pub is_well: bool,
}

enum Happening {
    Stopped,
    Heard(Option<Heard>),
    Settled(Settled),
    Steer(Steer),
    Silence,
}

impl<'a> Talk<'a> {
    pub fn new(live: &'a mut Live, outfit: &Outfit, turn: &'a Turn, link: Link) -> Self {
        let files = outfit.workspace.as_deref().and_then(|workspace| Files::in_workspace(workspace).ok());
        let policy = &turn.run.execution_policy;
        // What runs in a terminal has no business with the agent's own places.
        let tools = Outfit { home: None, storage: None, ..outfit.clone() };
        let host = Host::new(policy, files, Terminals::new(tools.guarded(policy.sandbox)));
        let updates = Updates::new(live.model.clone());
        Self {
            live,
            turn,
            link,
            host,
            updates,
            steers: VecDeque::new(),
            noise: 0,
            is_at_it: false,
            unreachable_ms: outfit.patience.unreachable_ms,
            is_well: false,
        }
    }

    pub async fn run(&mut self, holds_prompt: bool) -> TurnResult {
        self.pass_over().await;
        let mut prompt = match (holds_prompt, self.turn.is_repeat) {
            (true, _) => CUT_OFF.to_owned(),
            // What the session does not hold the agent may have begun all the same: not all keep pace with what they do.
            (false, true) => format!("{CUT_OFF} This was asked:\n\n{}", self.turn.asked()),
            (false, false) => self.turn.asked(),
        };
        for _ in 0..PROMPTS_MAX {
            let answer = match self.prompt(&prompt).await {
                Ok(answer) => answer,
                Err(ended) => return self.give_up(ended).await,
            };
            let goes_on = answer.stop_reason == "end_turn" && !self.steers.is_empty() && self.link.check().is_ok();
            self.updates.finish(&self.link, !goes_on).await;
            if let Some(usage) = answer.usage.as_ref().filter(|_| !self.updates.has_counted()) {
                self.updates.usage(&self.link, usage).await;
            }
            if !goes_on {
                self.is_well = true;
                return self.ended(&answer.stop_reason).await;
            }
            prompt = self.steers.drain(..).map(Steer::accept).collect::<Vec<_>>().join("\n\n");
        }
        self.give_up(Ended::Failed(FailureKind::BackendFailed, "the turn has no end".into())).await
    }

    /// What came between two turns belongs to neither.
    async fn pass_over(&mut self) {
        while let Some(Some(heard)) = self.live.process.next().now_or_never() {
            if let Heard::Frame(Frame::Request { id, method, .. }) = heard {
                let _ = self.answer(id, Err(RpcError::unknown_method(&method))).await;
            }
        }
    }

    async fn prompt(&mut self, text: &str) -> Result<Prompted, Ended> {
        let params = json!({"sessionId": self.live.session_id, "prompt": [{"type": "text", "text": text}]});
        let call = self.live.process.start_call("session/prompt", &params).await.map_err(|_| Ended::Gone)?;
        self.is_at_it = false;
        let asked_at = Instant::now();
        let mut stopped = Box::pin(self.link.stopped());
        // Once it was told to stop, until when an answer is waited for.
        let mut stop_by: Option<Instant> = None;
        loop {
            let wait = match stop_by {
                Some(stop_by) => stop_by,
                None if self.is_at_it => Instant::now() + Duration::from_millis(SILENCE_MS),
                // Most agents try again and again to reach their provider, and say nothing of it.
                None => asked_at + Duration::from_millis(self.unreachable_ms),
            };
            let happening = tokio::select! {
                biased;
                () = &mut stopped, if stop_by.is_none() => Happening::Stopped,
                heard = self.live.process.next() => Happening::Heard(heard),
                settled = self.host.next() => Happening::Settled(settled),
                steer = self.link.next_steer(), if stop_by.is_none() => Happening::Steer(steer),
                () = sleep_until(wait) => Happening::Silence,
            };
            match happening {
                Happening::Stopped => {
                    stop_by = Some(Instant::now() + Duration::from_millis(CANCEL_MS));
                    self.cancel().await?;
                }
                Happening::Heard(None) => return Err(Ended::Gone),
                Happening::Heard(Some(heard)) => {
                    if let Some(answer) = self.hear(heard, call).await? {
                        return answer;
                    }
                }
                Happening::Settled(Settled { id, reply, declined }) => {
                    self.updates.declined(declined.as_ref());
                    self.answer(id, reply).await?;
                }
                Happening::Steer(steer) => self.steers.push_back(steer),
                Happening::Silence if stop_by.is_some() => return Err(Ended::Deaf),
                // It is at work, or waits for us: what is said of a provider does not fit it any more.
                Happening::Silence if self.updates.has_open_tools() || self.host.is_waiting() => self.is_at_it = true,
                Happening::Silence if !self.is_at_it => {
                    let message = format!(
                        "the agent said nothing for {} ms after it was asked; its provider may be out of reach",
                        self.unreachable_ms
                    );
                    return Err(Ended::Failed(FailureKind::ProviderUnavailable, message));
                }
                Happening::Silence => {
                    let message = format!("the agent said nothing for {} s", SILENCE_MS / 1_000);
                    return Err(Ended::Failed(FailureKind::BackendTimeout, message));
                }
            }
        }
    }

    /// `Some`: the prompt was answered.
    async fn hear(&mut self, heard: Heard, call: i64) -> Result<Option<Result<Prompted, Ended>>, Ended> {
        match heard {
            Heard::Noise(why) => {
                self.noise += 1;
                // A stray log line is let pass. What is fatal may have been the answer that this turn waits for.
                if why.is_fatal() || self.noise > NOISE_MAX {
                    return Err(Ended::Failed(FailureKind::BackendFailed, not_protocol(&why)));
                }
            }
            Heard::Frame(Frame::Notification { method, params }) if method == "session/update" => {
                self.update(&params).await?;
            }
            Heard::Frame(Frame::Notification { .. }) => {}
            Heard::Frame(Frame::Request { id, method, params }) => {
                self.is_at_it = true;
                if let Some(reply) = self.host.take(&mut self.link, &mut self.updates, &id, &method, &params).await {
                    self.answer(id, reply).await?;
                }
            }
            Heard::Frame(Frame::Answer { id: RpcId::Number(id), result }) if id == call => {
                let prompted = result.view::<Prompted>().filter(|prompted| !prompted.stop_reason.is_empty());
                let senseless =
                    || Ended::Failed(FailureKind::BackendFailed, "the agent's answer makes no sense".into());
                return Ok(Some(prompted.ok_or_else(senseless)));
            }
            Heard::Frame(Frame::Error { id: Some(RpcId::Number(id)), error }) if id == call => {
                return Ok(Some(Err(Ended::Refused(error))));
            }
            // An answer to nothing that was asked, or the second one to something: nobody waits for it.
            Heard::Frame(Frame::Answer { .. } | Frame::Error { .. }) => {}
        }
        Ok(None)
    }

    async fn update(&mut self, params: &RawJson) -> Result<(), Ended> {
        // One that cannot be read is news of a kind we do not know.
        let Some(told) = params.view::<Updated>().filter(|told| told.session_id == self.live.session_id) else {
            return Ok(());
        };
        self.is_at_it |= told.update.is_of_turn();
        let flooded = self.updates.take(&mut self.link, told.update).await;
        flooded
            .map_err(|_| Ended::Failed(FailureKind::BackendFailed, "the agent says more than a turn may hold".into()))
    }

    async fn answer(&mut self, id: RpcId, reply: Result<Value, RpcError>) -> Result<(), Ended> {
        let sent = self.live.process.answer(id, reply.as_ref().map_err(Clone::clone)).await;
        sent.map_err(|_| Ended::Gone)
    }

    async fn cancel(&mut self) -> Result<(), Ended> {
        let session = json!({"sessionId": self.live.session_id});
        self.live.process.notify("session/cancel", &session).await.map_err(|_| Ended::Gone)?;
        for (id, outcome) in self.host.give_up() {
            self.answer(id, Ok(outcome)).await?;
        }
        Ok(())
    }

    async fn ended(&mut self, stop_reason: &str) -> TurnResult {
        self.link.check()?;
        let failed = |kind, message: &str| Ok(TurnEnd::failed(kind, message));
        match stop_reason {
            "end_turn" => Ok(TurnEnd::completed()),
            "max_tokens" => {
                let phase = json!({"phase": "completion:cut-short", "finishReason": "max_tokens"});
                self.link.emit(EventType::BackendStatus, &phase).await;
                Ok(TurnEnd::completed())
            }
            "max_turn_requests" => {
                let message = "the agent reached its own limit of model calls in one turn";
                Ok(TurnEnd::blocked(FailureKind::BudgetExceeded, message))
            }
            "refusal" => failed(FailureKind::BackendFailed, "the agent refuses to go on"),
            "cancelled" => Ok(TurnEnd::cancelled("the agent cancelled the turn by itself")),
            other => {
                failed(FailureKind::BackendFailed, &format!("the agent ended the turn with {:?}", clip(other, 80)))
            }
        }
    }

    /// The prompt has no good answer: what was said is told, and why it ended.
    async fn give_up(&mut self, ended: Ended) -> TurnResult {
        self.updates.finish(&self.link, false).await;
        match ended {
            Ended::Refused(error) => {
                self.is_well = true;
                self.link.check()?;
                let (kind, later) = kind_of(&error);
                let message = clip(&format!("the agent failed: {}", told(&error)), MESSAGE_CHARS_MAX);
                Ok(if later { TurnEnd::blocked(kind, message) } else { TurnEnd::failed(kind, message) })
            }
            Ended::Deaf => Err(Left::Stopped),
            Ended::Gone => {
                process_ended(&self.link, &self.live.process).await;
                self.link.check()?;
                Ok(TurnEnd::failed(FailureKind::BackendFailed, "the agent ended in the middle of the turn"))
            }
            Ended::Failed(kind, message) => {
                process_ended(&self.link, &self.live.process).await;
                self.link.check()?;
                Ok(TurnEnd::failed(kind, message))
            }
        }
    }
}

/// Why a prompt has no good answer.
enum Ended {
    Refused(RpcError),
    /// The process is gone.
    Gone,
    /// It was told to stop, and does not.
    Deaf,
    Failed(FailureKind, String),
}

/// Agents pass on what their provider said in words; the status among them says what it was.
fn kind_of(error: &RpcError) -> (FailureKind, bool) {
    let text = told(error);
    let status = |codes: &[&str]| text.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| codes.contains(&word));
    match () {
        () if status(&["401", "403"]) => (FailureKind::ProviderAuthFailed, false),
        () if status(&["429", "503"]) => (FailureKind::ProviderUnavailable, true),
        () if status(&["500", "502", "504", "ECONNREFUSED", "ECONNRESET", "ENOTFOUND"]) => {
            (FailureKind::ProviderUnavailable, false)
        }
        () if text.contains("Connection error") || text.contains("terminated") => {
            (FailureKind::ProviderUnavailable, false)
        }
        () => (FailureKind::BackendFailed, false),
    }
}

fn told(error: &RpcError) -> String {
    let data = error.data.as_ref().map(RawJson::to_value).unwrap_or_default();
    let details = data["details"].as_str().or_else(|| data["message"].as_str()).or_else(|| data.as_str());
    [error.message.as_str(), details.unwrap_or_default()].join(" ").trim().to_owned()
}
