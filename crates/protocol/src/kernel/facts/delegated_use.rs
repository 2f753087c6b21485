//! What the runs that a command has started use on its behalf.

use serde::{Deserialize, Serialize};

/// What other runs have used on behalf of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DelegatedUse {
    pub tokens: i64,
    pub cost_usd: f64,
}

impl DelegatedUse {
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Raises both to those of a total, which was read before, and may be less than what was counted since.
    pub fn raise_to(&mut self, total: Self) {
        self.tokens = self.tokens.max(total.tokens);
        self.cost_usd = self.cost_usd.max(total.cost_usd);
    }

    pub fn add(&mut self, other: Self) {
        self.tokens = self.tokens.saturating_add(other.tokens);
        // An infinite sum would not read back from JSON.
        self.cost_usd = (self.cost_usd + other.cost_usd).min(f64::MAX);
    }
}
