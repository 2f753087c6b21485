//! Verbs of the trust dialect. Each authorises its caller and returns wire types.

pub mod agents;
pub mod frames;
pub mod live;
pub mod lookup;
pub mod receipts;
pub mod relations;
pub mod webhooks;
