//! Threads and their history.

mod attachments;
mod history;
