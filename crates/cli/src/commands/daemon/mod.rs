//! The commands of the daemon dialect: a server for one directory, and a terminal that is attached to a session.

pub(crate) mod attach;
pub(crate) mod server;
