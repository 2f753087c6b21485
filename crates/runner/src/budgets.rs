//! Budgets: what a command may use, counted from the events that the backend emits, and from what the server reports of runs that
//! calls of its tools have started.
//!
//! Tokens, cost and time stop the backend when they are reached. Turns and tool calls stop it when it begins one more than
//! it was granted.

use ostler_protocol::{
    RawJson,
    kernel::{
        budgets::{Spent, UsedUp},
        events::EventType,
        facts::DelegatedUse,
        policy::Budgets,
        provider_profiles::{Prices, TokensUsed},
        results::RunResult,
    },
};
use serde::Deserialize;
use serde_json::{Map, Value};

const COST: &str = "costUsd";

/// Why the runner stops a backend.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StopReason {
    Cancel,
    Interrupt,
    Budget(UsedUp),
    /// It has called tools of the front end, whose results come with the next turn.
    HandedOver,
    /// The runner leaves. Another one continues the turn, so it does not end.
    Leave,
}

/// Counts what a command uses.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    budgets: Budgets,
    prices: Prices,
    spent: Spent,
    reported_cost_unknown: bool,
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
    pub(crate) fn new(budgets: Budgets, prices: Prices) -> Self {
        Self { budgets, prices, spent: Spent::default(), reported_cost_unknown: false }
    }

    /// Adds the cost of a model call from the profile's prices, if the backend does not report it. Returns true if a cost
    /// budget is set, the cost is unknown, and this has not been reported yet.
    pub(crate) fn price(&mut self, used: &mut Map<String, Value>) -> bool {
        if used.contains_key(COST) {
            return false;
        }
        let count = |name: &str| used.get(name).and_then(Value::as_i64);
        let cached_input = count("cachedInputTokens").unwrap_or(0);
        // Tokens that were not counted are not free.
        let counted = count("inputTokens").zip(count("outputTokens"));
        let tokens = counted.map(|(input, output)| TokensUsed { input, cached_input, output });
        let names: Vec<_> = ["model", "requestedModel"].iter().filter_map(|name| used.get(*name)?.as_str()).collect();
        if let Some(cost) = tokens.and_then(|tokens| self.prices.cost_usd(&names, tokens)) {
            used.insert(COST.to_owned(), cost.into());
            return false;
        }
        self.budgets.max_cost_usd.is_some() && !std::mem::replace(&mut self.reported_cost_unknown, true)
    }

    /// Adds what earlier attempts used.
    pub(crate) fn add_earlier_usage(&mut self, result: &RunResult) {
        let usage = &result.usage;
        self.spent.tokens = usage.total_tokens.saturating_add(usage.delegated_tokens);
        self.spent.cost_usd = usage.cost_usd + usage.delegated_cost_usd;
        self.spent.tool_calls = result.tool_call_summary.count.saturating_add(usage.delegated_tool_calls);
        self.spent.turns = usage.turns;
    }

    /// Counts what runs that a call started have used. `Some` if a budget is used up.
    pub(crate) fn add_delegated(&mut self, used: DelegatedUse) -> Option<StopReason> {
        if used.is_none() {
            return None;
        }
        self.spent.tokens = self.spent.tokens.saturating_add(used.tokens);
        self.spent.cost_usd += used.cost_usd;
        self.spent.tool_calls = self.spent.tool_calls.saturating_add(used.tool_calls);
        self.spent.usage_used_up(&self.budgets).map(StopReason::Budget).or_else(|| self.check_tools(0))
    }

    /// Counts an event. `Some` if a budget is used up.
    pub(crate) fn observe(&mut self, event_type: EventType, payload: &RawJson) -> Option<StopReason> {
        match event_type {
            EventType::Usage => {
                let view: UsageView = payload.view().unwrap_or_default();
                let sum = || view.input_tokens.unwrap_or(0).saturating_add(view.output_tokens.unwrap_or(0));
                let spent = &mut self.spent;
                spent.turns += 1;
                spent.tokens = spent.tokens.saturating_add(view.total_tokens.unwrap_or_else(sum).max(0));
                spent.cost_usd += view.cost_usd.filter(|cost| cost.is_finite() && *cost > 0.0).unwrap_or(0.0);
                self.spent.usage_used_up(&self.budgets).map(StopReason::Budget)
            }
            EventType::ToolCall => {
                let view: ToolView = payload.view().unwrap_or_default();
                if view.status.as_deref() == Some("started") {
                    self.spent.tool_calls += 1;
                }
                self.check_tools(0)
            }
            _ => None,
        }
    }

    /// `Some` if the budget has no room for another tool call.
    pub(crate) fn check_next_tool(&self) -> Option<StopReason> {
        self.check_tools(1)
    }

    fn check_tools(&self, more: i64) -> Option<StopReason> {
        self.spent.tools_used_up(&self.budgets, more).map(StopReason::Budget)
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
        assert_eq!(stop, Some(StopReason::Budget(UsedUp { name: "maxTokens", value: "10".into() })));
        let started = RawJson::of(&json!({"status": "started"}));
        assert_eq!(meter.check_next_tool(), None);
        assert_eq!(meter.observe(EventType::ToolCall, &started), None);
        assert!(meter.check_next_tool().is_some() && meter.observe(EventType::ToolCall, &started).is_some());
    }

    #[test]
    fn what_started_runs_have_used_counts_against_tokens_cost_and_tool_calls() {
        let budgets = Budgets { max_tokens: Some(10), max_cost_usd: Some(1.0), ..Budgets::default() };
        let mut meter = Meter::new(budgets, Prices::default());
        assert_eq!(meter.add_delegated(DelegatedUse { tokens: 6, cost_usd: 0.5, tool_calls: 0 }), None);
        let mut costly = meter.clone();
        let stop = costly.add_delegated(DelegatedUse { tokens: 1, cost_usd: 0.5, tool_calls: 0 });
        assert_eq!(stop, Some(StopReason::Budget(UsedUp { name: "maxCostUsd", value: "1".into() })));
        let usage = RawJson::of(&json!({"inputTokens": 3, "outputTokens": 1}));
        let stop = meter.observe(EventType::Usage, &usage);
        assert_eq!(stop, Some(StopReason::Budget(UsedUp { name: "maxTokens", value: "10".into() })));
        let mut meter = Meter::new(Budgets { max_tool_calls: Some(3), ..Budgets::default() }, Prices::default());
        meter.observe(EventType::ToolCall, &RawJson::of(&json!({"status": "started"})));
        assert_eq!(meter.add_delegated(DelegatedUse { tool_calls: 1, ..DelegatedUse::default() }), None);
        assert_eq!(meter.check_next_tool(), None);
        assert_eq!(meter.add_delegated(DelegatedUse { tool_calls: 1, ..DelegatedUse::default() }), None);
        let stop = Some(StopReason::Budget(UsedUp { name: "maxToolCalls", value: "3".into() }));
        assert_eq!(meter.check_next_tool(), stop, "it may still reply");
        assert_eq!(meter.add_delegated(DelegatedUse { tool_calls: 1, ..DelegatedUse::default() }), stop);
    }

    #[test]
    fn cost_comes_from_the_backend_or_else_from_the_profile() {
        let prices: Prices = serde_json::from_value(json!({"m": {"input": 1.0, "output": 2.0}})).unwrap();
        let mut meter = Meter::new(Budgets { max_cost_usd: Some(5.0), ..Budgets::default() }, prices);
        let mut priced = |used: Value| {
            let Value::Object(mut used) = used else { panic!() };
            let unknown = meter.price(&mut used);
            (used.get(COST).and_then(Value::as_f64), unknown)
        };
        let used = |model: &str| json!({"model": model, "inputTokens": 1_000_000, "outputTokens": 1_000_000});
        assert_eq!(priced(used("m")), (Some(3.0), false));
        let mut reported = used("m");
        reported[COST] = json!(0.25);
        assert_eq!(priced(reported), (Some(0.25), false));
        let mut dated = used("m-2030-01-01");
        dated["requestedModel"] = "m".into();
        assert_eq!(priced(dated), (Some(3.0), false), "the provider uses another name for the model");
        assert_eq!(priced(json!({"model": "m", "totalTokens": 7})), (None, true), "uncounted tokens are not free");
        assert_eq!(priced(used("n")), (None, false), "it is reported once");
    }
}
