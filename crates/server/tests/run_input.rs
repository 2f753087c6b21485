//! The run input dialect: threads, messages, attachments and history.

pub mod attachments;
mod erasing;
mod history;
pub mod runs;
