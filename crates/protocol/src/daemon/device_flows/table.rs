//! The flows of a server: at most one for each provider, a few at once, and those that ended a while ago.

use std::collections::BTreeSet;

use super::DeviceFlow;

/// Maximum number of flows that start or wait at once.
pub const DEVICE_FLOWS_MAX: usize = 4;
/// How long a flow that has ended can be read.
pub const ENDED_MS: i64 = 5 * 60_000;

#[derive(Debug, Default)]
pub struct DeviceFlowTable {
    flows: Vec<DeviceFlow>,
    /// Providers whose flow is being started.
    starting: BTreeSet<String>,
}

/// What to do with a request to start a flow.
#[derive(Debug)]
pub enum StartDecision {
    /// The provider has a pending flow: the caller takes it over.
    TakeOver(Box<DeviceFlow>),
    TooMany,
    /// Ask the provider for codes, then call [`DeviceFlowTable::started`] or [`DeviceFlowTable::not_started`].
    Start,
}

impl DeviceFlowTable {
    /// Decides about a start, and reserves a place for it. One provider's starts must not run concurrently.
    pub fn start(&mut self, provider_id: &str) -> StartDecision {
        if let Some(flow) = self.pending().find(|flow| flow.provider_id == provider_id) {
            return StartDecision::TakeOver(Box::new(flow.clone()));
        }
        if self.pending().count() + self.starting.len() >= DEVICE_FLOWS_MAX {
            return StartDecision::TooMany;
        }
        self.starting.insert(provider_id.to_owned());
        StartDecision::Start
    }

    pub fn started(&mut self, flow: DeviceFlow) {
        self.starting.remove(&flow.provider_id);
        self.flows.push(flow);
    }

    pub fn not_started(&mut self, provider_id: &str) {
        self.starting.remove(provider_id);
    }

    #[cfg(test)]
    pub(super) fn flows_count(&self) -> usize {
        self.flows.len()
    }

    pub fn get(&self, id: &str) -> Option<&DeviceFlow> {
        self.flows.iter().find(|flow| flow.id == id)
    }

    pub fn get_mut(&mut self, id: &str) -> Option<&mut DeviceFlow> {
        self.flows.iter_mut().find(|flow| flow.id == id)
    }

    pub fn pending(&self) -> impl Iterator<Item = &DeviceFlow> {
        self.flows.iter().filter(|flow| flow.is_pending())
    }

    /// Forgets the flows that ended a while ago.
    pub fn forget_ended(&mut self, now_ms: i64) {
        self.flows.retain(|flow| flow.ended_at_ms.is_none_or(|ended_at_ms| now_ms - ended_at_ms < ENDED_MS));
    }
}
