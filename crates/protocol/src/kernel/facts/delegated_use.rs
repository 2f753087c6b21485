//! What the runs that a command has started use on its behalf.

use serde::{Deserialize, Serialize};

use super::is_zero;

/// What other runs have used on behalf of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DelegatedUse {
    pub tokens: i64,
    pub cost_usd: f64,
    /// Left out where there are none, so that older folds read and write the same.
    #[serde(skip_serializing_if = "is_zero")]
    pub tool_calls: i64,
}

impl DelegatedUse {
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Raises all to those of a total, which was read before, and may be less than what was counted since.
    pub fn raise_to(&mut self, total: Self) {
        self.tokens = self.tokens.max(total.tokens);
        self.cost_usd = self.cost_usd.max(total.cost_usd);
        self.tool_calls = self.tool_calls.max(total.tool_calls);
    }

    pub fn add(&mut self, other: Self) {
        self.tokens = self.tokens.saturating_add(other.tokens);
        // An infinite sum would not read back from JSON.
        self.cost_usd = (self.cost_usd + other.cost_usd).min(f64::MAX);
        self.tool_calls = self.tool_calls.saturating_add(other.tool_calls);
    }
}
