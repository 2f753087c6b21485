//! Background work: what time and other servers bring about.

pub mod session_storage;
pub mod sweeper;
pub mod wakeups;
