//! Budgets: what a command may use up, counted from the events the agent emits.
//!
//! Tokens, cost and time stop the agent when they are reached; turns and tool calls stop it when it begins one more than it
//! was granted.

use ostler_protocol::{
    RawJson,
    budgets::{Spent, UsedUp},
    events::EventType,
    policy::Budgets,
    provider_profiles::{Prices, TokensUsed},
    results::RunResult,
};
use serde::Deserialize;
use serde_json::{Map, Value};

const COST: &str = "costUsd";

/// Why the runner stops an agent.
#[derive(Clone, Debug, PartialEq)]
pub enum Stop {
    Cancel,
    Interrupt,
    Budget(UsedUp),
}

/// Counts what a command uses.
#[derive(Clone, Debug)]
pub struct Meter {
    budgets: Budgets,
    prices: Prices,
    spent: Spent,
    said_cost_unknown: bool,
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
    pub fn new(budgets: Budgets, prices: Prices) -> Self {
        Self { budgets, prices, spent: Spent::default(), said_cost_unknown: false }
    }

    /// Adds what a call of the model cost, where the agent does not say and the profile's prices do. `true`: nobody does,
    /// though a budget is set, and that was not said yet.
    pub fn price(&mut self, used: &mut Map<String, Value>) -> bool {
        if used.contains_key(COST) {
            return false;
        }
        let count = |name: &str| used.get(name).and_then(Value::as_i64);
        let cached_input = count("cachedInputTokens").unwrap_or(0);
        // What was not counted is not free.
        let counted = count("inputTokens").zip(count("outputTokens"));
        let tokens = counted.map(|(input, output)| TokensUsed { input, cached_input, output });
        let names: Vec<_> = ["model", "requestedModel"].iter().filter_map(|name| used.get(*name)?.as_str()).collect();
        if let Some(cost) = tokens.and_then(|tokens| self.prices.cost_usd(&names, tokens)) {
            used.insert(COST.to_owned(), cost.into());
            return false;
        }
        self.budgets.max_cost_usd.is_some() && !std::mem::replace(&mut self.said_cost_unknown, true)
    }

    /// What earlier attempts used counts too.
    pub fn used_before(&mut self, result: &RunResult) {
        self.spent.tokens = result.usage.total_tokens;
        self.spent.cost_usd = result.usage.cost_usd;
        self.spent.tool_calls = result.tool_call_summary.count;
        self.spent.turns = result.usage.turns;
    }

    /// Counts an event. `Some`: a budget is used up.
    pub fn observe(&mut self, event_type: EventType, payload: &RawJson) -> Option<Stop> {
        match event_type {
            EventType::Usage => {
                let view: UsageView = payload.view().unwrap_or_default();
                let sum = || view.input_tokens.unwrap_or(0).saturating_add(view.output_tokens.unwrap_or(0));
                let spent = &mut self.spent;
                spent.turns += 1;
                spent.tokens = spent.tokens.saturating_add(view.total_tokens.unwrap_or_else(sum).max(0));
                spent.cost_usd += view.cost_usd.filter(|cost| cost.is_finite() && *cost > 0.0).unwrap_or(0.0);
                self.spent.usage_used_up(&self.budgets).map(Stop::Budget)
            }
            EventType::ToolCall => {
                let view: ToolView = payload.view().unwrap_or_default();
                if view.status.as_deref() == Some("started") {
                    self.spent.tool_calls += 1;
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
        self.spent.tools_used_up(&self.budgets, more).map(Stop::Budget)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tokens_stop_when_reached_and_tool_calls_one_past() {
        let mut meter = Meter::new(
            Budgets { max_tokens: Some(10), max_tool_calls: Some(1), ..Budgets::default() },
            Prices::default(),
        );
        let usage = RawJson::of(&json!({"inputTokens": 4, "outputTokens": 1}));
        assert_eq!(meter.observe(EventType::Usage, &usage), None);
        let stop = meter.observe(EventType::Usage, &usage);
        assert_eq!(stop, Some(Stop::Budget(UsedUp { name: "maxTokens", value: "10".into() })));
        let started = RawJson::of(&json!({"status": "started"}));
        assert_eq!(meter.before_tool(), None);
        assert_eq!(meter.observe(EventType::ToolCall, &started), None);
        assert!(meter.before_tool().is_some() && meter.observe(EventType::ToolCall, &started).is_some());
    }

    #[test]
    fn a_call_costs_what_its_agent_says_or_else_what_the_profile_does() {
        let prices: Prices = serde_json::from_value(json!({"m": {"input": 1.0, "output": 2.0}})).unwrap();
        let mut meter = Meter::new(Budgets { max_cost_usd: Some(5.0), ..Budgets::default() }, prices);
        let mut priced = |used: Value| {
            let Value::Object(mut used) = used else { panic!() };
            let unknown = meter.price(&mut used);
            (used.get(COST).and_then(Value::as_f64), unknown)
        };
        let used = |model: &str| json!({"model": model, "inputTokens": 1_000_000, "outputTokens": 1_000_000});
        assert_eq!(priced(used("m")), (Some(3.0), false));
        let mut said = used("m");
        said[COST] = json!(0.25);
        assert_eq!(priced(said), (Some(0.25), false));
        let mut dated = used("m-2030-01-01");
        dated["requestedModel"] = "m".into();
        assert_eq!(priced(dated), (Some(3.0), false), "the provider's name for it is another");
        assert_eq!(priced(json!({"model": "m", "totalTokens": 7})), (None, true), "what was not counted is not free");
        assert_eq!(priced(used("n")), (None, false), "that is said once");
    }
}
