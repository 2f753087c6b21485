//! The run input dialect: attachments of chat messages, automations and calendars.

mod attachments;
mod automations;
mod calendar_events;
