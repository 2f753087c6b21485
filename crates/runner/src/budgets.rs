//! Budgets: what a command may use up, counted from the events the agent emits.
//!
//! A command can lower what the run's policy grants, never raise it. Tokens, cost and time stop the agent when they are
//! reached; turns and tool calls stop it when it begins one more than it was granted.

use ostler_protocol::{
    Failure, RawJson,
    events::EventType,
    policy::{Budgets, ExecutionPolicy},
    results::RunResult,
};
use serde::Deserialize;

/// Why the runner stops an agent.
#[derive(Clone, Debug, PartialEq)]
pub enum Stop {
    Cancel,
    Interrupt,
    Budget { name: &'static str, value: String },
}

/// What a command may use up.
#[derive(Clone, Debug, PartialEq)]
pub struct Allowance {
    pub timeout_ms: i64,
    pub budgets: Budgets,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Lowered {
    timeout_ms: Option<i64>,
    max_turns: Option<i64>,
    max_tokens: Option<i64>,
    max_tool_calls: Option<i64>,
    max_cost_usd: Option<f64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Payload {
    budgets: Option<Lowered>,
}

impl Allowance {
    /// The policy's budgets, lowered by `payload.budgets`.
    pub fn of(policy: &ExecutionPolicy, payload: &RawJson) -> Result<Self, Failure> {
        let payload: Payload = serde_json::from_str(payload.as_str())
            .map_err(|e| Failure::invalid("budgets-shape", format!("payload.budgets: {e}")))?;
        let asked = payload.budgets.unwrap_or_default();
        let granted = &policy.budgets;
        Ok(Self {
            timeout_ms: lower("timeoutMs", Some(policy.timeout_ms), asked.timeout_ms)?.unwrap_or(policy.timeout_ms),
            budgets: Budgets {
                max_turns: lower("maxTurns", granted.max_turns, asked.max_turns)?,
                max_tokens: lower("maxTokens", granted.max_tokens, asked.max_tokens)?,
                max_tool_calls: lower("maxToolCalls", granted.max_tool_calls, asked.max_tool_calls)?,
                max_cost_usd: lower("maxCostUsd", granted.max_cost_usd, asked.max_cost_usd)?,
            },
        })
    }

    pub fn timed_out(&self) -> Stop {
        Stop::Budget { name: "timeoutMs", value: self.timeout_ms.to_string() }
    }
}

fn lower<T: PartialOrd + Copy + Default>(
    field: &str,
    granted: Option<T>,
    asked: Option<T>,
) -> Result<Option<T>, Failure> {
    match (granted, asked) {
        (_, Some(asked)) if asked <= T::default() => {
            Err(Failure::invalid("budget-positive", format!("payload.budgets.{field} must be positive")))
        }
        (Some(granted), Some(asked)) if asked > granted => Ok(Some(granted)),
        (granted, asked) => Ok(asked.or(granted)),
    }
}

/// Counts what a command uses.
#[derive(Clone, Debug)]
pub struct Meter {
    budgets: Budgets,
    turns: i64,
    tokens: i64,
    tool_calls: i64,
    cost_usd: f64,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct UsageView {
    total_tokens: Option<i64>,
    input_tokens: Option<i64>,
    output_tokens: Option<i64>,
    cost_usd: Option<f64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ToolView {
    status: Option<String>,
}

impl Meter {
    pub fn new(budgets: Budgets) -> Self {
        Self { budgets, turns: 0, tokens: 0, tool_calls: 0, cost_usd: 0.0 }
    }

    /// What earlier attempts used counts too.
    pub fn used_before(&mut self, result: &RunResult) {
        self.tokens = result.usage.total_tokens;
        self.cost_usd = result.usage.cost_usd;
        self.tool_calls = result.tool_call_summary.count;
    }

    /// Counts an event. `Some`: a budget is used up.
    pub fn observe(&mut self, event_type: EventType, payload: &RawJson) -> Option<Stop> {
        match event_type {
            EventType::Usage => {
                let view: UsageView = payload.view().unwrap_or_default();
                let sum = || view.input_tokens.unwrap_or(0).saturating_add(view.output_tokens.unwrap_or(0));
                self.turns += 1;
                self.tokens = self.tokens.saturating_add(view.total_tokens.unwrap_or_else(sum).max(0));
                self.cost_usd += view.cost_usd.filter(|cost| cost.is_finite() && *cost > 0.0).unwrap_or(0.0);
                self.usage_spent()
            }
            EventType::ToolCall => {
                let view: ToolView = payload.view().unwrap_or_default();
                if view.status.as_deref() == Some("started") {
                    self.tool_calls += 1;
                }
                self.tools_spent(0)
            }
            _ => None,
        }
    }

    /// Whether one more tool call would be one too many.
    pub fn before_tool(&self) -> Option<Stop> {
        self.tools_spent(1)
    }

    fn tools_spent(&self, more: i64) -> Option<Stop> {
        let max = self.budgets.max_tool_calls?;
        (self.tool_calls + more > max).then(|| Stop::Budget { name: "maxToolCalls", value: max.to_string() })
    }

    fn usage_spent(&self) -> Option<Stop> {
        let Budgets { max_turns, max_tokens, max_cost_usd, .. } = self.budgets;
        if let Some(max) = max_tokens.filter(|max| self.tokens >= *max) {
            return Some(Stop::Budget { name: "maxTokens", value: max.to_string() });
        }
        if let Some(max) = max_cost_usd.filter(|max| self.cost_usd >= *max) {
            return Some(Stop::Budget { name: "maxCostUsd", value: max.to_string() });
        }
        let max = max_turns.filter(|max| self.turns > *max)?;
        Some(Stop::Budget { name: "maxTurns", value: max.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy(budgets: serde_json::Value) -> ExecutionPolicy {
        let mut policy = json!({"sandbox": "read-only", "approval": "never", "timeoutMs": 1000, "network": "disabled", "secretScope": {}});
        policy.as_object_mut().unwrap().extend(budgets.as_object().unwrap().clone());
        serde_json::from_value(policy).unwrap()
    }

    #[test]
    fn a_command_lowers_its_budgets_and_never_raises_them() {
        let policy = policy(json!({"maxTokens": 100}));
        let payload =
            RawJson::of(&json!({"prompt": "x", "budgets": {"maxTokens": 500, "timeoutMs": 20, "maxTurns": 2}}));
        let allowance = Allowance::of(&policy, &payload).unwrap();
        assert_eq!(
            (allowance.timeout_ms, allowance.budgets.max_tokens, allowance.budgets.max_turns),
            (20, Some(100), Some(2))
        );
        let senseless = RawJson::of(&json!({"budgets": {"maxTurns": 0}}));
        assert_eq!(Allowance::of(&policy, &senseless).unwrap_err().rule_name(), Some("budget-positive"));
    }

    #[test]
    fn tokens_stop_when_reached_and_tool_calls_one_past() {
        let mut meter = Meter::new(Budgets { max_tokens: Some(10), max_tool_calls: Some(1), ..Budgets::default() });
        let usage = RawJson::of(&json!({"inputTokens": 4, "outputTokens": 1}));
        assert_eq!(meter.observe(EventType::Usage, &usage), None);
        let stop = meter.observe(EventType::Usage, &usage);
        assert_eq!(stop, Some(Stop::Budget { name: "maxTokens", value: "10".into() }));
        let started = RawJson::of(&json!({"status": "started"}));
        assert_eq!(meter.before_tool(), None);
        assert_eq!(meter.observe(EventType::ToolCall, &started), None);
        assert!(meter.before_tool().is_some() && meter.observe(EventType::ToolCall, &started).is_some());
    }
}
