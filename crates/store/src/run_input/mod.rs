//! Attachments of threads, and the history of their messages.

pub mod attachments;
pub mod history;
