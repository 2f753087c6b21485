//! The fold of a command's events: everything a result needs, advanced in the same transaction as the append, so that
//! reading a result costs the same for ten events and for a hundred thousand.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    FailureKind, Timestamp,
    kernel::{
        events::{
            Event, EventType, PHASE_ATTEMPT_RESTARTED, PHASE_STEER_ACCEPTED, PHASE_TRANSPORT_DISCONNECTED,
            PHASE_WAITING_PROVIDER,
        },
        facts::{AssistantFacts, ChangeFacts, DelegatedUse, Facts, ToolFacts},
    },
    limits::TOOL_ITEMS_KEPT,
    tools::calls::{CallState, TOOLKIT},
};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CommandFold {
    pub events: i64,
    pub last_seq: i64,
    pub last_event_at: Option<Timestamp>,
    pub last_event_type: Option<EventType>,
    /// The last message with both authority and the final flag.
    pub authoritative: Option<AssistantPick>,
    /// The last message with any text.
    pub latest: Option<AssistantPick>,
    pub tools: ToolFold,
    pub output: OutputFold,
    pub tokens: i64,
    pub cost_usd: f64,
    pub turns: i64,
    /// What runs that its calls started have used. It counts against the command's budgets, and is reported as their own use.
    #[serde(skip_serializing_if = "DelegatedUse::is_none")]
    pub delegated: DelegatedUse,
    pub standing: CommandStanding,
    pub resume_at: Option<Timestamp>,
    pub steer_accepted_seq: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes: Option<ChangeFold>,
    pub last_error: Option<(Option<FailureKind>, String)>,
    /// Retention has removed the texts. Left out where it is false, so that older folds read and write the same.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub texts_removed: bool,
}

/// What the agent was last seen doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CommandStanding {
    #[default]
    Model,
    AfterTool,
    Disconnected,
    WaitingProvider,
}

/// Which event holds the reply. The text itself stays in the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AssistantPick {
    pub seq: i64,
    pub session_seq: i64,
    pub is_final: bool,
    pub reply_authority: bool,
    pub text_truncated: bool,
    pub output_truncated: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolFold {
    pub count: i64,
    pub statuses: BTreeMap<String, i64>,
    pub exit_codes: BTreeMap<String, i64>,
    /// Calls that started and have not ended.
    pub open: Vec<String>,
    /// The last calls, and earlier ones that are open.
    pub items: Vec<ToolItem>,
    /// Left out where there are none, so that older folds read and write the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unanswered: Option<UnansweredCalls>,
}

/// Calls of this server's tools that were executed under one lease, the newest that has any, and whose tools gave no answer. The agent
/// that made them has received that as their result. They are among [`ToolFold::unknown_outcomes`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnansweredCalls {
    pub lease_epoch: i64,
    pub count: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ToolItem {
    pub tool_call_id: Option<String>,
    pub method: Option<String>,
    pub tool_name: Option<String>,
    #[serde(rename = "type")]
    pub tool_type: Option<String>,
    pub status: Option<String>,
    pub exit_code: Option<i64>,
    pub command: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutputFold {
    pub events: i64,
    pub bytes: i64,
    pub truncated: bool,
}

/// What the last attempt changed in its workspace, and which event reported it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChangeFold {
    pub session_seq: i64,
    #[serde(rename = "told")]
    pub facts: ChangeFacts,
}

/// The calls of a command that a server knows. If the command has no others, a call that is not among them is new.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnownCalls {
    /// How many calls are known to be recorded.
    pub recorded: i64,
    /// Other calls, which may or may not be recorded yet.
    pub pending: Vec<String>,
    /// [`ToolFold::unknown_outcomes`] when the command was read.
    pub unknown_outcomes: i64,
}

impl ToolFold {
    /// Whether the command has no other calls than those that are known, and no other outcome became unknown.
    pub fn has_only(&self, known: &KnownCalls) -> bool {
        let pending = known.pending.iter().filter(|call_id| self.has_toolkit_call(call_id)).count() as i64;
        self.count == known.recorded + pending && self.unknown_outcomes() == known.unknown_outcomes
    }

    /// Calls whose outcome is not known, or may not be: many different statuses are counted together.
    pub fn unknown_outcomes(&self) -> i64 {
        let count = |status: &str| self.statuses.get(status).copied().unwrap_or(0);
        count(CallState::OutcomeUnknown.status().unwrap_or_default()) + count(OTHER)
    }

    /// Most calls that can have started and not ended, also of a command that has ended and so has none in `open`. There may be fewer: a
    /// call that started while `open` was full or before the attempt restarted stays counted, and many different statuses are counted
    /// together.
    pub fn unended_max(&self) -> i64 {
        let count = |status: &str| self.statuses.get(status).copied().unwrap_or(0);
        count(CallState::Started.status().unwrap_or_default()).saturating_add(count(OTHER))
    }

    /// Whether every call whose outcome is not known was made under this lease, and got no answer. An older server that recorded such
    /// a call has not counted it; then this is false.
    pub fn is_unknown_only_under(&self, lease_epoch: i64) -> bool {
        let under_lease = self.unanswered.filter(|calls| calls.lease_epoch == lease_epoch);
        self.unknown_outcomes() == under_lease.map_or(0, |calls| calls.count)
    }

    fn count_unanswered(&mut self, lease_epoch: i64) {
        let calls = self.unanswered.get_or_insert_default();
        if calls.lease_epoch != lease_epoch {
            *calls = UnansweredCalls { lease_epoch, count: 0 };
        }
        calls.count += 1;
    }

    /// Whether this is another end of a call of this server's tools that has ended: a server that does not know whether it recorded an
    /// end records it again.
    pub(crate) fn is_ended_again(&self, tool: &ToolFacts) -> bool {
        let has_ended = |status: Option<&str>| status.and_then(CallState::of_status).is_some_and(CallState::has_ended);
        let is_same = |item: &ToolItem| {
            item.tool_call_id == tool.tool_call_id
                && item.tool_type.as_deref() == Some(TOOLKIT)
                && has_ended(item.status.as_deref())
        };
        let is_end = tool.tool_type.as_deref() == Some(TOOLKIT) && has_ended(tool.status.as_deref());
        let is_open = self.open.iter().any(|open| Some(open) == tool.tool_call_id.as_ref());
        is_end && !is_open && self.items.iter().any(is_same)
    }

    /// Whether a call of this server's tools is among the open or the last ones. Calls of agents' own tools may have the same ids.
    pub fn has_toolkit_call(&self, call_id: &str) -> bool {
        let items = self.items.iter().filter(|item| item.tool_call_id.as_deref() == Some(call_id));
        let types: Vec<_> = items.map(|item| item.tool_type.as_deref()).collect();
        if types.is_empty() { self.open.iter().any(|open| open == call_id) } else { types.contains(&Some(TOOLKIT)) }
    }

    /// The newest call with this id, if it is among the last ones.
    pub fn item(&self, call_id: &str) -> Option<&ToolItem> {
        self.items.iter().rev().find(|item| item.tool_call_id.as_deref() == Some(call_id))
    }

    /// Whether `open` can have all calls that have not ended: it is bounded.
    pub fn has_room_for_open(&self) -> bool {
        self.open.len() < OPEN_TOOLS_MAX
    }

    /// Drops the oldest calls of more than are kept. Open ones stay, because their command ends them by what they are; `open` is bounded.
    fn drop_items(&mut self) {
        let Self { open, items, .. } = self;
        let mut surplus = items.len().saturating_sub(TOOL_ITEMS_KEPT);
        if surplus == 0 {
            return;
        }
        items.retain(|item| {
            let is_open = item.tool_call_id.as_ref().is_some_and(|call_id| open.contains(call_id));
            let is_dropped = surplus > 0 && !is_open;
            surplus -= usize::from(is_dropped);
            !is_dropped
        });
    }

    /// The last calls, as results show them.
    pub fn last_items(&self) -> &[ToolItem] {
        &self.items[self.items.len().saturating_sub(TOOL_ITEMS_KEPT)..]
    }

    /// Whether there were calls that `items` does not have any more.
    pub fn has_dropped_items(&self) -> bool {
        self.count > self.items.len() as i64
    }
}

/// Distinct statuses and exit codes kept apart; the rest is counted together.
const DISTINCT_MAX: usize = 16;
/// The key of the rest.
const OTHER: &str = "other";
const OPEN_TOOLS_MAX: usize = 64;

impl CommandFold {
    /// Advances the fold by one event of the command.
    pub fn apply(&mut self, event: &Event, facts: &Facts) {
        self.events += 1;
        self.last_seq = event.seq();
        self.last_event_at = Some(event.created_at);
        self.last_event_type = Some(event.event_type);
        match facts {
            Facts::Assistant(message) => self.assistant(event, message),
            Facts::Tool(tool) => self.tool(tool),
            Facts::Output { bytes, truncated } => {
                self.output.events += 1;
                self.output.bytes = self.output.bytes.saturating_add(*bytes);
                self.output.truncated |= truncated;
            }
            Facts::Usage { tokens, cost_usd } => {
                // An infinite sum would not read back from JSON.
                self.tokens = self.tokens.saturating_add(*tokens);
                self.cost_usd = (self.cost_usd + cost_usd).min(f64::MAX);
                self.turns += 1;
            }
            Facts::Phase { phase, resume_at } => self.phase(event, phase, *resume_at),
            Facts::Changes(facts) => {
                self.changes = Some(ChangeFold { session_seq: event.session_seq, facts: facts.clone() });
            }
            Facts::DelegatedTotal(total) => self.delegated.raise_to(*total),
            Facts::Error { failure_kind, message } => self.last_error = Some((*failure_kind, message.clone())),
            Facts::Terminal(_) => self.tools.open.clear(),
            Facts::Permission(_) | Facts::Thread { .. } | Facts::None => {}
        }
        if matches!(event.event_type, EventType::AssistantDelta | EventType::ReasoningDelta | EventType::Reasoning) {
            self.standing = CommandStanding::Model;
        }
    }

    /// Removes the texts, as retention does: counts, kinds and the places of events stay.
    pub fn remove_texts(&mut self) {
        self.tools.items.iter_mut().for_each(|item| item.command = None);
        if let Some((_, message)) = &mut self.last_error {
            message.clear();
        }
        self.texts_removed = true;
    }

    /// The message a result shows: the authoritative one, else the last with text.
    pub fn pick(&self) -> Option<&AssistantPick> {
        self.authoritative.as_ref().or(self.latest.as_ref())
    }

    /// Whether this stored fold is the one of the log. Older servers have counted neither calls without an answer nor the tool calls
    /// of runs that a call has started, so that it may have fewer of both.
    pub(crate) fn is_of_log(&self, replayed: &Self) -> bool {
        let unanswered = replayed.tools.unanswered;
        let may_be_older = match (self.tools.unanswered, unanswered) {
            (stored, None) => stored.is_none(),
            (None, Some(_)) => true,
            (Some(stored), Some(all)) => stored.lease_epoch == all.lease_epoch && stored.count <= all.count,
        };
        let tool_calls = replayed.delegated.tool_calls;
        let may_be_older = may_be_older && self.delegated.tool_calls <= tool_calls;
        let with_all = || Self {
            tools: ToolFold { unanswered, ..self.tools.clone() },
            delegated: DelegatedUse { tool_calls, ..self.delegated },
            ..self.clone()
        };
        self == replayed || may_be_older && with_all() == *replayed
    }

    fn assistant(&mut self, event: &Event, message: &AssistantFacts) {
        self.standing = CommandStanding::Model;
        let pick = AssistantPick {
            seq: event.seq(),
            session_seq: event.session_seq,
            is_final: message.is_final,
            reply_authority: message.reply_authority,
            text_truncated: message.text_truncated,
            output_truncated: message.output_truncated,
        };
        if message.is_final && message.reply_authority {
            self.authoritative = Some(pick.clone());
        }
        if message.text {
            self.latest = Some(pick);
        }
    }

    fn phase(&mut self, event: &Event, phase: &str, resume_at: Option<Timestamp>) {
        match phase {
            PHASE_ATTEMPT_RESTARTED => {
                self.authoritative = None;
                self.latest = None;
                self.tools.open.clear();
                self.standing = CommandStanding::Model;
            }
            PHASE_STEER_ACCEPTED => self.steer_accepted_seq = Some(event.seq()),
            PHASE_TRANSPORT_DISCONNECTED => self.standing = CommandStanding::Disconnected,
            PHASE_WAITING_PROVIDER => self.standing = CommandStanding::WaitingProvider,
            _ => self.standing = CommandStanding::Model,
        }
        self.resume_at = resume_at;
    }

    fn tool(&mut self, tool: &ToolFacts) {
        let status = tool.status.clone().unwrap_or_else(|| "unknown".into());
        self.delegated.add(tool.delegated);
        let tools = &mut self.tools;
        let id = tool.tool_call_id.clone().unwrap_or_default();
        let was_open = tools.open.iter().position(|open| *open == id);
        if let Some(index) = was_open {
            tools.open.remove(index);
            bump(&mut tools.statuses, "started", -1);
        } else {
            tools.count += 1;
        }
        bump(&mut tools.statuses, &status, 1);
        if let Some(lease_epoch) = tool.unanswered_epoch {
            tools.count_unanswered(lease_epoch);
        }
        if status == "started" {
            if tools.open.len() < OPEN_TOOLS_MAX {
                tools.open.push(id.clone());
            }
        } else {
            self.standing = CommandStanding::AfterTool;
        }
        if let Some(code) = tool.exit_code {
            bump(&mut tools.exit_codes, &code.to_string(), 1);
        }
        let item = ToolItem {
            tool_call_id: tool.tool_call_id.clone(),
            method: tool.method.clone(),
            tool_name: tool.name.clone(),
            tool_type: tool.tool_type.clone(),
            status: Some(status),
            exit_code: tool.exit_code,
            command: tool.command.clone(),
        };
        match tools.items.iter_mut().find(|known| was_open.is_some() && known.tool_call_id == item.tool_call_id) {
            Some(known) => {
                // Fields that only the start reported still hold.
                let started = std::mem::take(known);
                *known = ToolItem {
                    method: item.method.or(started.method),
                    tool_name: item.tool_name.or(started.tool_name),
                    tool_type: item.tool_type.or(started.tool_type),
                    command: item.command.or(started.command),
                    ..item
                };
            }
            None => tools.items.push(item),
        }
        tools.drop_items();
    }
}

fn bump(counts: &mut BTreeMap<String, i64>, key: &str, by: i64) {
    let key = if counts.contains_key(key) || counts.len() < DISTINCT_MAX { key } else { OTHER };
    let count = counts.entry(key.to_owned()).or_insert(0);
    *count += by;
    if *count == 0 {
        counts.remove(key);
    }
}

#[cfg(test)]
mod tests;
