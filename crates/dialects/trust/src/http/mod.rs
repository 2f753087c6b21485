//! Routes of the trust dialect. They only translate.

pub(crate) mod agents;
pub(crate) mod receipts;
pub(crate) mod relations;
pub(crate) mod sockets;
pub(crate) mod webhooks;
