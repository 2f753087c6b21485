//! Threads, their attachments, and the history of their messages.

pub mod attachments;
pub mod history;
pub mod threads;
