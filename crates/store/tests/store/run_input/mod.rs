//! Threads and their history.

mod history;
