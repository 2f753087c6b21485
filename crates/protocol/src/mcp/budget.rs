//! The budget of connections to MCP servers: one slot for each name, however many connections it has.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The part of the budget whose use is warned about.
pub const WARNING_RATIO: f64 = 0.75;
/// The use below which the next crossing of [`WARNING_RATIO`] is warned about again, as a part of it.
const REARM_PART: f64 = 0.5;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum BudgetMode {
    /// Connections are not counted against a budget.
    #[default]
    Off,
    /// Clients are notified when most of the budget is used. Nothing is refused.
    Warn,
    /// As `warn`, and servers beyond the budget are refused.
    Enforce,
}

/// Whether a name got a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reservation {
    Granted {
        /// Whether this reservation crosses the threshold, so that clients are notified.
        warns: bool,
    },
    Refused,
}

/// The names that hold a slot.
#[derive(Clone, Debug, Default)]
pub struct McpBudget {
    mode: BudgetMode,
    slots_max: Option<u32>,
    /// How many connections each name has.
    reserved: BTreeMap<String, u32>,
    /// Whether the use was above the threshold and has not fallen far enough since.
    is_warned: bool,
}

impl McpBudget {
    /// A budget without a maximum counts only.
    pub fn new(mode: BudgetMode, slots_max: Option<u32>) -> Self {
        Self { mode: if slots_max.is_some() { mode } else { BudgetMode::Off }, slots_max, ..Self::default() }
    }

    pub fn mode(&self) -> BudgetMode {
        self.mode
    }

    /// The number of slots. `None` if nothing is counted against a budget.
    pub fn slots_max(&self) -> Option<u32> {
        self.slots_max.filter(|_| self.mode != BudgetMode::Off)
    }

    /// How many names hold a slot.
    pub fn reserved(&self) -> u32 {
        u32::try_from(self.reserved.len()).unwrap_or(u32::MAX)
    }

    /// Whether a connection of this name would need a slot beyond the budget.
    pub fn would_exceed(&self, name: &str) -> bool {
        let is_full = self.slots_max().is_some_and(|slots_max| self.reserved() >= slots_max);
        is_full && !self.reserved.contains_key(name)
    }

    /// Whether a connection of this name would be refused now.
    pub fn would_refuse(&self, name: &str) -> bool {
        self.mode == BudgetMode::Enforce && self.would_exceed(name)
    }

    /// Counts a connection of this name.
    pub fn reserve(&mut self, name: &str) -> Reservation {
        if self.would_refuse(name) {
            return Reservation::Refused;
        }
        *self.reserved.entry(name.to_owned()).or_default() += 1;
        let warns = !self.is_warned && self.use_ratio().is_some_and(|ratio| ratio >= WARNING_RATIO);
        self.is_warned |= warns;
        Reservation::Granted { warns }
    }

    /// A connection of this name has ended.
    pub fn release(&mut self, name: &str) {
        if let Some(connections) = self.reserved.get_mut(name) {
            *connections = connections.saturating_sub(1);
            if *connections == 0 {
                self.reserved.remove(name);
            }
        }
        if self.use_ratio().is_some_and(|ratio| ratio < WARNING_RATIO * REARM_PART) {
            self.is_warned = false;
        }
    }

    /// The used part of the budget. `None` if nothing is counted against one.
    fn use_ratio(&self) -> Option<f64> {
        Some(f64::from(self.reserved()) / f64::from(self.slots_max()?.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn warned(budget: &mut McpBudget, name: &str) -> bool {
        budget.reserve(name) == Reservation::Granted { warns: true }
    }

    #[test]
    fn the_warning_comes_once_per_crossing_and_rearms_far_below() {
        let mut budget = McpBudget::new(BudgetMode::Warn, Some(8));
        let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
        let warnings: Vec<_> = names.iter().map(|name| warned(&mut budget, name)).collect();
        assert_eq!(
            warnings,
            [false, false, false, false, false, true, false, false, false],
            "8 of 8 refuses no server"
        );
        names[3..].iter().for_each(|name| budget.release(name));
        assert!(!names[3..].iter().any(|name| warned(&mut budget, name)), "3 of 8 is not below 37.5 %");
        names[2..].iter().for_each(|name| budget.release(name));
        assert!(names[2..].iter().any(|name| warned(&mut budget, name)));
    }

    #[test]
    fn names_beyond_an_enforced_budget_are_refused_until_another_leaves() {
        let mut budget = McpBudget::new(BudgetMode::Enforce, Some(1));
        assert_eq!(budget.reserve("a"), Reservation::Granted { warns: true });
        assert_eq!(budget.reserve("a"), Reservation::Granted { warns: false }, "the same name needs no second slot");
        assert_eq!(budget.reserve("b"), Reservation::Refused);
        budget.release("a");
        assert_eq!(budget.reserve("b"), Reservation::Refused, "a has a connection left");
        budget.release("a");
        assert_eq!(budget.reserve("b"), Reservation::Granted { warns: true });
        assert_eq!(McpBudget::new(BudgetMode::Enforce, None).mode(), BudgetMode::Off);
    }

    /// Reserve or release one of a few names.
    fn steps() -> impl Strategy<Value = Vec<(bool, usize)>> {
        prop::collection::vec((any::<bool>(), 0..12_usize), 0..200)
    }

    proptest! {
        #[test]
        fn an_enforced_budget_is_never_exceeded_and_warns_once_per_crossing(slots_max in 1..10_u32, steps in steps()) {
            let mut budget = McpBudget::new(BudgetMode::Enforce, Some(slots_max));
            let mut held: Vec<usize> = vec![];
            let mut is_armed = true;
            for (reserves, number) in steps {
                let name = format!("server-{number}");
                if reserves {
                    let refused = budget.would_refuse(&name);
                    let outcome = budget.reserve(&name);
                    prop_assert_eq!(refused, outcome == Reservation::Refused);
                    if !refused {
                        held.push(number);
                    }
                    let ratio = f64::from(budget.reserved()) / f64::from(slots_max);
                    let warns = outcome == Reservation::Granted { warns: true };
                    prop_assert_eq!(warns, !refused && is_armed && ratio >= 0.75);
                    is_armed &= !warns;
                } else if let Some(position) = held.iter().position(|held| *held == number) {
                    held.swap_remove(position);
                    budget.release(&name);
                    is_armed |= f64::from(budget.reserved()) / f64::from(slots_max) < 0.375;
                }
                let names: std::collections::BTreeSet<_> = held.iter().collect();
                prop_assert_eq!(budget.reserved() as usize, names.len());
                prop_assert!(budget.reserved() <= slots_max);
            }
        }

        #[test]
        fn a_budget_that_only_warns_refuses_nothing(slots_max in 1..4_u32, numbers in prop::collection::vec(0..20_u32, 0..40)) {
            let mut budget = McpBudget::new(BudgetMode::Warn, Some(slots_max));
            for number in numbers {
                prop_assert_ne!(budget.reserve(&number.to_string()), Reservation::Refused);
            }
        }
    }
}
