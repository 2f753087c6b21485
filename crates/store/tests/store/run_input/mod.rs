//! Threads and their history; automations.

mod attachments;
mod automations;
mod history;
