//! What the daemon stores beside its sessions.

mod restores;
