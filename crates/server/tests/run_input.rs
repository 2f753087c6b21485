//! The run input dialect: threads, messages, attachments and history; automations and calendars.

pub(crate) mod attachments;
mod automations;
mod calendar;
mod calendar_tools;
pub(crate) mod erasing;
mod history;
mod mcp_tools;
mod pipeline;
pub(crate) mod runs;
pub(crate) mod transcription;
