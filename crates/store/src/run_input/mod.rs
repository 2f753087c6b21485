//! Threads, their attachments, and the history of their messages; automations and calendars.

pub mod attachments;
pub mod automation_starts;
pub mod automations;
pub mod calendar_events;
pub mod history;
pub mod threads;
