//! The run input dialect: threads, messages, attachments and history.

pub mod attachments;
pub mod erasing;
mod history;
pub mod runs;
