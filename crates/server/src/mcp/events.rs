//! What clients are notified of.

use ostler_protocol::mcp::{budget::BudgetMode, config::McpTransport};

/// How much of the budget is used.
#[derive(Clone, Debug, PartialEq)]
pub struct BudgetUse {
    pub mode: BudgetMode,
    /// `None` if nothing is counted against a budget.
    pub slots_max: Option<u32>,
    /// Servers that are connected.
    pub live: u32,
    /// Servers that hold a slot: those that are connected, and those that connect.
    pub reserved: u32,
}

/// Something happened to the budget of connections.
#[derive(Clone, Debug)]
pub enum McpNotice {
    /// Most of the budget is used.
    Warning(BudgetUse),
    /// These servers were refused in one pass, because the budget is used up.
    Refused { servers: Vec<(String, McpTransport)>, budget: BudgetUse },
}

impl McpNotice {
    pub fn budget(&self) -> &BudgetUse {
        match self {
            Self::Warning(budget) | Self::Refused { budget, .. } => budget,
        }
    }

    pub fn mode(&self) -> BudgetMode {
        self.budget().mode
    }
}
