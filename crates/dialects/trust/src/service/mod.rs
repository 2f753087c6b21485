//! Verbs of the trust dialect. Each authorises its caller and returns wire types.

pub(crate) mod agents;
pub(crate) mod frames;
pub(crate) mod live;
pub(crate) mod lookup;
pub(crate) mod receipts;
pub(crate) mod relations;
pub(crate) mod webhooks;
