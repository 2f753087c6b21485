//! What a profile's models cost: with it, usage has a cost and `maxCostUsd` something to count. Only the config can
//! state prices: providers change theirs, and a model on one's own machine has none.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::config::refused;
use crate::{Failure, ids};

const MODELS_MAX: usize = 64;
const USD_MAX: f64 = 1_000_000.0;
const TOKENS: f64 = 1_000_000.0;
/// Finer than any price; what arithmetic leaves beyond it is no cost.
const BILLIONTHS: f64 = 1e9;
/// Matches every model that is not named.
const ANY_MODEL: &str = "*";

/// US dollars for a million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ModelPrice)]
pub(super) struct Price {
    /// Of the input.
    pub input: f64,
    /// Of the output.
    pub output: f64,
    /// Of those of the input that the provider still had. Without it they cost what the others do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input: Option<f64>,
}

/// Prices by the model's name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(as = ModelPrices)]
pub struct Prices(BTreeMap<String, Price>);

/// Tokens of one call of a model. Those from the provider's cache are among the input.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TokensUsed {
    pub input: i64,
    pub cached_input: i64,
    pub output: i64,
}

impl Prices {
    pub fn check(&self) -> Result<(), Failure> {
        if self.0.len() > MODELS_MAX {
            return Err(refused(&format!("ostler.prices holds at most {MODELS_MAX} models")));
        }
        for (model, price) in &self.0 {
            ids::name("ostler.prices", model)?;
            let all = [Some(price.input), Some(price.output), price.cached_input];
            if !all.into_iter().flatten().all(|usd| (0.0..=USD_MAX).contains(&usd)) {
                return Err(refused("a price is in US dollars for a million tokens, from 0 to a million"));
            }
        }
        Ok(())
    }

    /// At the price of the first of a model's names that has one. `None` if none has a price.
    pub fn cost_usd(&self, names: &[&str], used: TokensUsed) -> Option<f64> {
        let price = names.iter().chain([&ANY_MODEL]).find_map(|name| self.0.get(*name))?;
        let input = used.input.max(0);
        let cached = used.cached_input.clamp(0, input);
        let usd = |tokens: i64, price: f64| tokens as f64 * price / TOKENS;
        let cached_usd = usd(cached, price.cached_input.unwrap_or(price.input));
        let cost = usd(input - cached, price.input) + cached_usd + usd(used.output.max(0), price.output);
        Some((cost * BILLIONTHS).round() / BILLIONTHS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prices(text: &str) -> Prices {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn what_the_provider_still_had_costs_its_own_price() {
        let prices = prices("[m]\ninput = 2\noutput = 10.0\ncached_input = 0.5\n[n]\ninput = 2\noutput = 0\n");
        let used = TokensUsed { input: 1_000_000, cached_input: 400_000, output: 100_000 };
        assert_eq!(prices.cost_usd(&["m"], used), Some(1.2 + 0.2 + 1.0));
        assert_eq!(prices.cost_usd(&["n"], used), Some(2.0));
        assert_eq!(prices.cost_usd(&["unheard-of"], used), None);
        let odd = TokensUsed { input: 10, cached_input: 4_000, output: -3 };
        assert_eq!(prices.cost_usd(&["n"], odd), Some(10.0 * 2.0 / 1e6), "a count that cannot be costs nothing extra");
    }

    #[test]
    fn a_star_matches_the_models_not_named() {
        let prices = prices("[m]\ninput = 1\noutput = 1\n[\"*\"]\ninput = 3\noutput = 3\n");
        let used = TokensUsed { input: 1_000_000, ..TokensUsed::default() };
        assert_eq!((prices.cost_usd(&["m"], used), prices.cost_usd(&["x"], used)), (Some(1.0), Some(3.0)));
        assert_eq!(prices.cost_usd(&["m-2030-01-01", "m"], used), Some(1.0), "by either of its names, before the star");
    }
}
