//! Background work: what time and other servers bring about.

pub mod clock;
pub mod housekeeping;
pub mod sweeper;
pub mod wakeups;
