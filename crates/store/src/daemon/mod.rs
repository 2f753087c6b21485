//! Sessions that clients of the daemon have opened, and the clients that are attached to them.

pub mod clients;
pub mod frames;
pub mod notes;
pub mod restores;
pub mod sessions;
pub mod turns;
pub mod workspaces;
