//! Launchers: each consumes runner jobs and starts runners. None ever scans runs for work.

pub mod resident;

/// The name of the launcher that runs agents inside the server.
pub const RESIDENT: &str = "resident";
