//! The budgets of a turn. When one of them is exhausted the agent is interrupted and the turn ends blocked.

use serde_json::{Map, Value};

use crate::terminal::times::parse_ms;

#[derive(clap::Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Budgets")]
pub(crate) struct BudgetArgs {
    /// The longest the turn may take, such as `90s` or `20m`
    #[arg(long, value_name = "TIME", value_parser = parse_ms)]
    timeout: Option<i64>,
    /// The most tokens that models may read and write
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    max_tokens: Option<i64>,
    /// The most US dollars that models may cost, at the prices in the profile's config
    #[arg(long, value_name = "USD", value_parser = dollars)]
    max_cost: Option<f64>,
    /// The most model calls
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    max_turns: Option<i64>,
    /// The most tool calls
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    max_tool_calls: Option<i64>,
}

impl BudgetArgs {
    /// Part of the run's policy, whose ceiling may reject it.
    pub(crate) fn timeout_ms(self) -> Option<i64> {
        self.timeout
    }

    /// The budgets of this turn only: another turn of the same run has its own.
    pub(crate) fn of_turn(self) -> Map<String, Value> {
        let budgets = [
            ("maxTokens", self.max_tokens.map(Value::from)),
            ("maxCostUsd", self.max_cost.map(Value::from)),
            ("maxTurns", self.max_turns.map(Value::from)),
            ("maxToolCalls", self.max_tool_calls.map(Value::from)),
        ];
        budgets.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

fn dollars(text: &str) -> Result<f64, String> {
    let amount = text.trim_start_matches('$').parse::<f64>().ok().filter(|usd| usd.is_finite() && *usd > 0.0);
    amount.ok_or_else(|| "give an amount of US dollars above 0, such as 2.50".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_is_positive() {
        assert_eq!((dollars("2.50"), dollars("$3")), (Ok(2.5), Ok(3.0)));
        for odd in ["0", "-1", "nan", "inf", "two", ""] {
            assert!(dollars(odd).is_err(), "{odd}");
        }
    }
}
