//! Names, messages and mailboxes of the mesh.

mod identities;
mod limits;
mod mailbox;
mod messages;
mod queue;
