//! Background work, triggered by time and by other servers.

pub(crate) mod clock;
pub(crate) mod housekeeping;
pub(crate) mod retention;
pub(crate) mod sweeper;
pub(crate) mod traces;
pub(crate) mod wakeups;
