//! Notifications of Codex during a turn, as events.

use ostler_protocol::{RawJson, kernel::events::EventType};
use serde_json::json;

use super::{
    failures,
    thread::{NOTICE_CHARS_MAX, notice_text},
    turn::{CodexTurn, Handled},
    wire::{DeltaNote, ErrorNote, ItemNote, Notice, RawNote, ServerStatusNote, TurnNote, UsageNote},
};
use crate::tool_gateway::GATEWAY;

const OUTPUT_DELTA: &str = "item/commandExecution/outputDelta";
/// Threads whose tokens are counted exactly. For any further thread only its latest part is counted.
const THREADS_MAX: usize = 1_024;
/// Notices, retries and unreadable lines that are reported of one turn.
const NOTES_MAX: u32 = 50;

impl CodexTurn<'_> {
    /// `Some` if the turn has ended.
    pub(super) async fn handle_notification(&mut self, method: &str, params: &RawJson) -> Handled {
        match method {
            "turn/started" => return self.handle_started(params).await,
            "turn/completed" => {
                let turn = params.view::<TurnNote>().map(|note| note.turn).filter(|turn| turn.id == self.turn_id);
                return Ok(turn);
            }
            "mcpServer/startupStatus/updated" => self.handle_server_status(params).await,
            "thread/tokenUsage/updated" => self.handle_usage(params).await,
            "error" => self.handle_error(params).await,
            "warning" | "configWarning" | "model/rerouted" => {
                let text = notice_text(self.sink.cutter(), &params.view::<Notice>().unwrap_or_default());
                self.report_note(method, &text).await;
            }
            "turn/plan/updated" => {
                self.sink.emit(EventType::Activity, &json!({"activityType": "plan", "content": params})).await;
            }
            "item/started" | "item/completed" => self.handle_item(method, params).await,
            _ if method.starts_with("item/") => self.handle_delta(method, params).await,
            "rawResponseItem/completed" => self.handle_raw_item(params).await,
            _ => {}
        }
        Ok(None)
    }

    async fn handle_started(&mut self, params: &RawJson) -> Handled {
        if params.view::<TurnNote>().is_none_or(|note| note.turn.id != self.turn_id) {
            return Ok(None);
        }
        let phase = json!({"phase": "turn/started", "turnId": self.turn_id, "threadId": self.thread.thread_id});
        self.sink.emit(EventType::BackendStatus, &phase).await;
        self.mark_started().await
    }

    /// The turn goes on without the server's tools if Codex cannot connect to the gateway.
    async fn handle_server_status(&mut self, params: &RawJson) {
        let is_lost = |note: &ServerStatusNote| note.name == GATEWAY && note.status == "failed";
        let Some(note) = params.view::<ServerStatusNote>().filter(is_lost) else { return };
        self.report_note("tools:unavailable", note.error.as_deref().unwrap_or_default()).await;
    }

    async fn handle_item(&mut self, method: &str, params: &RawJson) {
        let Some(ItemNote { item, thread_id, turn_id }) = params.view() else { return };
        if !self.is_of_turn(&thread_id, &turn_id) {
            return;
        }
        // Codex makes progress. Output of a command is not evidence about the provider.
        self.mark_provider_reached().await;
        self.unreported.mark_reported(&item.id);
        match method {
            "item/started" => self.items.report_started(&mut self.sink, &item).await,
            _ => self.items.report_completed(&mut self.sink, &item).await,
        }
        if item.kind == "userMessage" {
            self.report_thread().await;
        }
    }

    async fn handle_delta(&mut self, method: &str, params: &RawJson) {
        let ours = |note: &DeltaNote| self.is_of_turn(&note.thread_id, &note.turn_id);
        let Some(note) = params.view::<DeltaNote>().filter(ours) else { return };
        if method != OUTPUT_DELTA {
            self.mark_provider_reached().await;
        }
        match method {
            "item/agentMessage/delta" => self.items.report_text(&mut self.sink, &note).await,
            "item/reasoning/summaryTextDelta" | "item/reasoning/textDelta" => {
                self.items.report_thought(&mut self.sink, &note).await;
            }
            OUTPUT_DELTA => self.items.report_output(&mut self.sink, &note).await,
            _ => {}
        }
    }

    async fn handle_raw_item(&mut self, params: &RawJson) {
        let ours = |note: &RawNote| self.is_of_turn(&note.thread_id, &note.turn_id);
        let Some(note) = params.view::<RawNote>().filter(ours) else { return };
        if let Some(item) = self.unreported.observe(&note.item) {
            self.items.report_started(&mut self.sink, &item).await;
            self.items.report_completed(&mut self.sink, &item).await;
        }
    }

    /// Whether a thread is the session's. Codex may have others, of agents that it started itself. Of those only the
    /// usage is reported.
    fn is_ours(&self, thread_id: &str) -> bool {
        thread_id.is_empty() || thread_id == self.thread.thread_id
    }

    /// Whether a notification belongs to this turn. A command that an earlier turn left running keeps sending output.
    fn is_of_turn(&self, thread_id: &str, turn_id: &str) -> bool {
        self.is_ours(thread_id) && (turn_id.is_empty() || turn_id == self.turn_id)
    }

    /// Reports the session's thread once it is on disk, which is after its first message.
    async fn report_thread(&mut self) {
        if !self.thread.is_on_disk {
            self.thread.is_on_disk = true;
            *self.thread_id = Some(self.thread.thread_id.clone());
            self.sink.emit(EventType::Session, &json!({"threadId": self.thread.thread_id})).await;
        }
    }

    /// Each usage notification is one model call, also when the call failed and cost nothing, so `maxTurns` bounds them. The
    /// usage of agents that Codex started itself is included.
    async fn handle_usage(&mut self, params: &RawJson) {
        let Some(note) = params.view::<UsageNote>() else { return };
        let (total, last) = (note.token_usage.total, note.token_usage.last);
        let is_ours = self.is_ours(&note.thread_id);
        let before = self.thread.used.get(&note.thread_id).copied().unwrap_or_else(|| total.before(last));
        if is_ours || self.thread.used.len() < THREADS_MAX {
            self.thread.used.insert(note.thread_id, total);
        }
        // After a resume Codex repeats the old count.
        if is_ours && note.turn_id != self.turn_id {
            return;
        }
        let used = total.since(before);
        let counts = [
            ("inputTokens", used.input_tokens),
            ("cachedInputTokens", used.cached_input_tokens),
            ("outputTokens", used.output_tokens),
            ("reasoningTokens", used.reasoning_output_tokens),
            ("totalTokens", used.input_tokens + used.output_tokens),
        ];
        let model = ("model".to_owned(), self.thread.model.as_str().into());
        let counts = counts.map(|(name, count)| (name.to_owned(), count.into()));
        self.sink.emit_usage([model].into_iter().chain(counts).collect()).await;
    }

    /// An error that does not end the turn: Codex retries.
    async fn handle_error(&mut self, params: &RawJson) {
        let Some(note) = params.view::<ErrorNote>().filter(|note| self.is_ours(&note.thread_id)) else { return };
        if note.will_retry {
            self.mark_provider_lost(&note.error).await;
        }
        if self.may_report_note() {
            let details = note.error.additional_details.as_deref().unwrap_or_default();
            let cutter = self.sink.cutter();
            let payload = json!({"failureKind": failures::failure_kind(&note.error),
                "message": failures::error_message(cutter, &note.error),
                "details": cutter.cut(details, NOTICE_CHARS_MAX), "willRetry": note.will_retry});
            self.sink.emit(EventType::Error, &payload).await;
        }
    }

    fn may_report_note(&mut self) -> bool {
        self.notes += 1;
        self.notes <= NOTES_MAX
    }

    /// Reports a notice for people, up to a number of them per turn.
    pub(super) async fn report_note(&mut self, phase: &str, message: &str) {
        if self.may_report_note() {
            let payload = json!({"phase": phase, "message": self.sink.cutter().cut(message, NOTICE_CHARS_MAX)});
            self.sink.emit(EventType::BackendStatus, &payload).await;
        }
    }
}
