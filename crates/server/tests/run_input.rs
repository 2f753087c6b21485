//! The run input dialect: threads, messages, attachments and history.

mod attachments;
mod erasing;
mod history;
pub mod runs;
