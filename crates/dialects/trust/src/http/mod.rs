//! Routes of the trust dialect. They only translate.

pub mod agents;
pub mod receipts;
pub mod relations;
pub mod sockets;
pub mod webhooks;
