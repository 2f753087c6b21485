//! Names, messages and mailboxes of the mesh.

mod identities;
pub(crate) mod limits;
mod mailbox;
mod messages;
mod queue;
