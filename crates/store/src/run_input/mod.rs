//! Attachments of threads, and what was said in them.

pub mod attachments;
pub mod history;
