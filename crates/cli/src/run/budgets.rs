//! What a turn may use up. When one of these is reached the agent is interrupted and the turn ends blocked.

use serde_json::{Map, Value};

use crate::times::parse_ms;

#[derive(clap::Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Budgets")]
pub struct Budgets {
    /// The longest the turn may take, such as `90s` or `20m`
    #[arg(long, value_name = "TIME", value_parser = parse_ms)]
    timeout: Option<i64>,
    /// Tokens the agent's models may read and write
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    max_tokens: Option<i64>,
    /// US dollars they may cost, at the prices in the profile's config
    #[arg(long, value_name = "USD", value_parser = dollars)]
    max_cost: Option<f64>,
    /// Calls of a model
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    max_turns: Option<i64>,
    /// Calls of tools
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    max_tool_calls: Option<i64>,
}

impl Budgets {
    /// For the run's policy, whose ceiling may refuse it.
    pub fn timeout_ms(self) -> Option<i64> {
        self.timeout
    }

    /// For the turn alone: another one in the same run has its own.
    pub fn of_turn(self) -> Map<String, Value> {
        let asked = [
            ("maxTokens", self.max_tokens.map(Value::from)),
            ("maxCostUsd", self.max_cost.map(Value::from)),
            ("maxTurns", self.max_turns.map(Value::from)),
            ("maxToolCalls", self.max_tool_calls.map(Value::from)),
        ];
        asked.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

fn dollars(text: &str) -> Result<f64, String> {
    let amount = text.trim_start_matches('$').parse::<f64>().ok().filter(|usd| usd.is_finite() && *usd > 0.0);
    amount.ok_or_else(|| "an amount of US dollars above 0, such as 2.50".to_owned())
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
