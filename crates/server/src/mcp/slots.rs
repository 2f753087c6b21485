//! Slots of the budget of connections.

use std::sync::Arc;

use ostler_protocol::mcp::budget::McpBudget;
use parking_lot::Mutex;

/// A slot of the budget, free again when this is dropped.
pub(super) struct Slot {
    pub budget: Arc<Mutex<McpBudget>>,
    pub name: String,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.budget.lock().release(&self.name);
    }
}
