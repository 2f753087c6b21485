//! The run input dialect: threads, messages, attachments and history; automations and calendars.

pub mod attachments;
mod automations;
mod calendar;
mod calendar_tools;
pub mod erasing;
mod history;
mod mcp_tools;
mod pipeline;
pub mod runs;
pub mod transcription;
