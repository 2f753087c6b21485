//! Background work: what time and other servers bring about.

pub mod sweeper;
pub mod wakeups;
