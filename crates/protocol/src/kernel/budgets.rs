//! Budgets: what a command may use up. A command can lower what its run's policy grants, never raise it.
//!
//! The runner stops its agent when a budget is reached. The server enforces the budget as well: it ends a command whose
//! agent continues anyway or runs past its time.

use serde::Deserialize;

use crate::{
    Failure, RawJson, Rule,
    json::read_shape,
    kernel::{
        fold::CommandFold,
        policy::{Budgets, ExecutionPolicy},
    },
};

/// What a command may use up.
#[derive(Clone, Debug, PartialEq)]
pub struct Allowance {
    pub timeout_ms: i64,
    pub budgets: Budgets,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct BudgetPayload {
    budgets: Option<RawJson>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Lowered {
    timeout_ms: Option<i64>,
    /// From its submission to its end, the time that it waits included.
    deadline_ms: Option<i64>,
    max_turns: Option<i64>,
    max_tokens: Option<i64>,
    max_tool_calls: Option<i64>,
    max_cost_usd: Option<f64>,
}

impl Allowance {
    /// The policy's budgets, lowered by `payload.budgets`.
    pub fn of(policy: &ExecutionPolicy, payload: &RawJson) -> Result<Self, Failure> {
        let requested = read_budgets(payload)?;
        let timeout_ms = lower("timeoutMs", Some(policy.timeout_ms), requested.timeout_ms)?;
        Ok(Self {
            timeout_ms: timeout_ms.unwrap_or(policy.timeout_ms),
            budgets: lower_all(&policy.budgets, &requested)?,
        })
    }

    pub fn timed_out(&self) -> UsedUp {
        UsedUp { name: "timeoutMs", value: self.timeout_ms.to_string() }
    }
}

/// The reason of the cancel of a command that is past the deadline it was submitted with.
pub const DEADLINE_EXCEEDED: &str = "prompt_deadline_exceeded";

/// How long a command may take from its submission to its end. `None`: as long as its run's policy allows.
pub fn deadline_ms(payload: &RawJson) -> Option<i64> {
    read_budgets(payload).ok()?.deadline_ms
}

/// Checks the budgets a command may carry in its payload, before a runner starts on it.
pub fn check(payload: &RawJson) -> Result<(), Failure> {
    let requested = read_budgets(payload)?;
    lower("timeoutMs", None, requested.timeout_ms)?;
    lower("deadlineMs", None, requested.deadline_ms)?;
    lower_all(&Budgets::default(), &requested).map(drop)
}

/// In two steps, so that a misfit is named by its own place.
fn read_budgets(payload: &RawJson) -> Result<Lowered, Failure> {
    let payload: BudgetPayload = read_shape(Rule::BudgetsShape, "payload", payload.as_str())?;
    let Some(budgets) = payload.budgets else { return Ok(Lowered::default()) };
    read_shape(Rule::BudgetsShape, "payload.budgets", budgets.as_str())
}

fn lower_all(granted: &Budgets, requested: &Lowered) -> Result<Budgets, Failure> {
    Ok(Budgets {
        max_turns: lower("maxTurns", granted.max_turns, requested.max_turns)?,
        max_tokens: lower("maxTokens", granted.max_tokens, requested.max_tokens)?,
        max_tool_calls: lower("maxToolCalls", granted.max_tool_calls, requested.max_tool_calls)?,
        max_cost_usd: lower("maxCostUsd", granted.max_cost_usd, requested.max_cost_usd)?,
    })
}

fn lower<T: PartialOrd + Copy + Default>(
    field: &str,
    granted: Option<T>,
    requested: Option<T>,
) -> Result<Option<T>, Failure> {
    match (granted, requested) {
        (_, Some(requested)) if requested <= T::default() => {
            Err(Failure::invalid(Rule::BudgetPositive, format!("payload.budgets.{field} must be positive")))
        }
        (Some(granted), Some(requested)) if requested > granted => Ok(Some(granted)),
        (granted, requested) => Ok(requested.or(granted)),
    }
}

/// A budget that is used up, and how large it was.
#[derive(Clone, Debug, PartialEq)]
pub struct UsedUp {
    pub name: &'static str,
    pub value: String,
}

impl std::fmt::Display for UsedUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the budget {} of {} is used up", self.name, self.value)
    }
}

/// What a command has used so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spent {
    pub turns: i64,
    pub tokens: i64,
    pub tool_calls: i64,
    pub cost_usd: f64,
}

impl Spent {
    pub fn of(fold: &CommandFold) -> Self {
        Self {
            turns: fold.turns,
            tokens: fold.tokens.saturating_add(fold.delegated.tokens),
            tool_calls: fold.tools.count.saturating_add(fold.delegated.tool_calls),
            cost_usd: fold.cost_usd + fold.delegated.cost_usd,
        }
    }

    /// Tokens and cost are used up when they are reached; turns when one more than granted has begun.
    pub fn usage_used_up(&self, budgets: &Budgets) -> Option<UsedUp> {
        if let Some(max) = budgets.max_tokens.filter(|max| self.tokens >= *max) {
            return Some(UsedUp { name: "maxTokens", value: max.to_string() });
        }
        if let Some(max) = budgets.max_cost_usd.filter(|max| self.cost_usd >= *max) {
            return Some(UsedUp { name: "maxCostUsd", value: max.to_string() });
        }
        let max = budgets.max_turns.filter(|max| self.turns > *max)?;
        Some(UsedUp { name: "maxTurns", value: max.to_string() })
    }

    /// Whether `more` tool calls would be too many.
    pub fn tools_used_up(&self, budgets: &Budgets, more: i64) -> Option<UsedUp> {
        let max = budgets.max_tool_calls.filter(|max| self.tool_calls.saturating_add(more) > *max)?;
        Some(UsedUp { name: "maxToolCalls", value: max.to_string() })
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
}
