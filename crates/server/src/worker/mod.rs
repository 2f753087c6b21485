//! Background work, triggered by time and by other servers.

pub mod clock;
pub mod housekeeping;
pub mod sweeper;
pub mod traces;
pub mod wakeups;
