pub mod agents;
pub mod failures;
pub mod i18n;
pub mod manifest;
pub mod receipts;
pub mod relations;
pub mod run_webhooks;
pub mod webhooks;
